/** Compiles every program for a device, several at a time, each in a child process that may die of it. */
import { availableParallelism } from "node:os";
import { type Program, programs } from "../backend/gpu/program.ts";
import type { Check } from "./check.ts";
import { Child, type ChildOptions, type Doing } from "./child.ts";
import type { Compiled } from "./kernels.ts";

const MAX_CHILDREN = 8;
const SECONDS_EACH = 300;
/** What fails this often would fail for the rest, too. */
const ENOUGH_PROBLEMS = 6;
const SHOWN_LINES = 8;

export interface CompileOptions {
  readonly child: ChildOptions;
  readonly only?: (program: Program) => boolean;
  readonly onProgress?: (doing: Doing) => void;
}

export async function compileAll(
  device: string,
  { child, only = () => true, onProgress }: CompileOptions,
): Promise<{ readonly checks: Check[]; readonly summary: string }> {
  const all = programs().filter(only);
  const waiting = [...all];
  const done = new Map<Program, Compiled>();
  const problems: Check[] = [];
  const start = performance.now();
  const work = async (): Promise<void> => {
    const own = new Child(child);
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const { id } = next;
      const outcome = await own.run("compile", { device, program: id }, { seconds: SECONDS_EACH });
      child.signal?.throwIfAborted();
      if (outcome.ok) done.set(next, outcome.value);
      else problems.push({ name: id, verdict: "problem", detail: firstLines(outcome.problem) });
      onProgress?.({ doing: `compiled ${id}`, done: done.size + problems.length, total: all.length });
      if (problems.length >= ENOUGH_PROBLEMS) waiting.length = 0;
    }
    own.close();
  };
  await Promise.all(Array.from({ length: Math.min(MAX_CHILDREN, availableParallelism(), all.length) }, work));
  const left = all.length - done.size - problems.length;
  const compiled = [...done.values()].filter((c) => !c.cached).length;
  const parts = [
    `${done.size} of ${all.length} programs with ${sum(done.values(), "kernels")} kernels`,
    `${compiled} compiled and ${done.size - compiled} from the cache in ${((performance.now() - start) / 1000).toFixed(1)} s`,
    ...(left > 0 ? [`${left} not tried after ${problems.length} problems`] : []),
  ];
  return { checks: [...problems, ...perFile(done)], summary: parts.join(", ") };
}

/** One line per kernel file. */
function perFile(done: ReadonlyMap<Program, Compiled>): Check[] {
  const files = new Map<string, Compiled[]>();
  for (const [{ file }, compiled] of done) files.set(file, [...(files.get(file) ?? []), compiled]);
  return [...files].map(([file, group]) => {
    const fresh = group.filter((c) => !c.cached);
    const time = fresh.length > 0 ? `, ${sum(fresh, "seconds").toFixed(2)} s to compile ${fresh.length}` : "";
    const detail = `${group.length} programs, ${sum(group, "kernels")} kernels, ${sum(group, "bytes")} bytes${time}`;
    return { name: file, verdict: "ok", detail };
  });
}

const sum = (group: Iterable<Compiled>, key: "kernels" | "seconds" | "bytes"): number =>
  [...group].reduce((total, c) => total + c[key], 0);

function firstLines(text: string): string {
  const lines = text.split("\n");
  return lines.length <= SHOWN_LINES
    ? text
    : [...lines.slice(0, SHOWN_LINES), `… ${lines.length - SHOWN_LINES} more lines`].join("\n");
}
