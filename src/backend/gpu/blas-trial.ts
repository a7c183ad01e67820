/**
 * A BLAS library may end the process at its first product, where it has no kernels for the card. So a child process
 * multiplies first, by the very calls that this one would make.
 */
import { spawn, spawnSync } from "node:child_process";
import { dtypes, encode } from "../../core/dtype.ts";
import { type Step, type Words, wordsOf } from "./calls.ts";
import type { Gemm, GemmType, GpuContext } from "./driver.ts";
import { ffiPath, type Prototypes, STACK_BYTES, symbolOf } from "./library.ts";
import { type ColumnGemm, columnMajor } from "./native-blas.ts";

/** Counts what changes the meaning of a verdict. */
const VERSION = 1;

interface Native {
  readonly path: string;
  readonly prototypes: Prototypes;
}

/** What a library is tried with. Cells stream, workspace and handle are there; products name their operands' cells. */
export interface TrialCalls {
  /** "rocBLAS 4.2.0" */
  readonly title: string;
  /** All that its answer depends on beside the device. */
  readonly identity: string;
  readonly driver: Native;
  readonly library: Native;
  readonly workspaceBytes: number;
  readonly cells: Words;
  readonly setUp: readonly Step[];
  product(g: ColumnGemm<string>): readonly Step[];
  /** What is wrong by the words in these cells, where the products were right. */
  readonly check?: { readonly cell: string; problem(words: readonly bigint[]): string };
}

export interface BlasTrial {
  readonly title: string;
  readonly arch: string;
  readonly key: string;
  readonly request: string;
  readonly calls: ReadonlyMap<string, string>;
  problem(shown: Words): string;
}

/** Why a library is not used; empty when it multiplied. What may be otherwise the next time is not kept. */
export interface Verdict {
  readonly problem: string;
  readonly isLasting: boolean;
}

const trialTypes = ["f32", "f16", "bf16"] as const satisfies GemmType[];
const size = 16;
const driverPrefix = "driver.";

/** B, not symmetric and exact in every type: multiplied by one it must come out bit by bit. */
const identity = Array.from({ length: size * size }, (_, i) => (i % (size + 1) === 0 ? 1 : 0));
const other = Array.from({ length: size * size }, (_, i) => ((i * 5) % 13) - 6);

export function blasTrial(context: GpuContext, calls: TrialCalls): BlasTrial {
  const { arch, runtimeVersion } = context.properties;
  const steps: Step[] = [
    ["driver.activate", context.ordinal],
    ["driver.streamCreate", "&stream", 1],
    ["driver.malloc", "&workspace", calls.workspaceBytes],
    ...calls.setUp,
  ];
  const cells: Record<string, readonly bigint[]> = {
    ...calls.cells,
    stream: [0n],
    workspace: [0n],
    one: [0x3f800000n], // 1 in f32, in which all of these types compute
    zero: [0n],
  };
  const wanted: Record<string, readonly bigint[]> = {};
  for (const type of trialTypes) {
    const bytes = size * size * dtypes[type].size;
    const [a, b, c] = ["a", "b", "c"].map((operand) => `${operand}_${type}`) as [string, string, string];
    const result = `result_${type}`;
    wanted[result] = wordsOf(encode(other, type));
    Object.assign(cells, {
      [a]: [0n],
      [b]: [0n],
      [c]: [0n],
      [`host_${a}`]: wordsOf(encode(identity, type)),
      [`host_${b}`]: wanted[result],
      [result]: wanted[result].map(() => 0n),
    });
    const operands = {
      a,
      transA: false,
      lda: size,
      strideA: 0,
      b,
      transB: false,
      ldb: size,
      strideB: 0,
      c,
      strideC: 0,
    };
    const product: Gemm<string> = { type, m: size, n: size, k: size, batch: 1, ...operands };
    steps.push(
      ...[a, b, c].map((operand): Step => ["driver.malloc", `&${operand}`, bytes]),
      ...[a, b].map((operand): Step => ["driver.toDevice", operand, `&host_${operand}`, bytes, "stream"]),
      ...calls.product(columnMajor(product, "&one", "&zero", calls.title)),
      ["driver.toHost", `&${result}`, c, bytes, "stream"],
      ["driver.streamSynchronize", "stream"],
    );
  }
  const libraries = [
    { ...calls.driver, prefix: driverPrefix },
    { ...calls.library, prefix: "" },
  ];
  const shown = [...Object.keys(wanted), ...(calls.check ? [calls.check.cell] : [])];
  return {
    title: calls.title,
    arch,
    key: [`trial ${VERSION}`, calls.identity, arch, `runtime ${runtimeVersion}`].join("\n"),
    request: JSON.stringify({
      ffi: ffiPath(),
      stack: STACK_BYTES,
      libraries,
      cells: mapWords(cells, String),
      steps,
      shown,
    }),
    calls: new Map(
      libraries.flatMap(({ prefix, prototypes }) =>
        Object.entries(prototypes).map(([call, prototype]): [string, string] => [prefix + call, symbolOf(prototype)]),
      ),
    ),
    problem(answer) {
      const isRight = Object.entries(wanted).every(([name, words]) => words.join() === answer[name]?.join());
      if (!isRight) return `gave a wrong result in a trial product on ${arch}`;
      return calls.check?.problem(answer[calls.check.cell] ?? []) ?? "";
    },
  };
}

const mapWords = <From, To>(
  words: Readonly<Record<string, readonly From[]>>,
  to: (word: From) => To,
): Record<string, To[]> =>
  Object.fromEntries(Object.entries(words).map(([name, values]) => [name, values.map((word) => to(word))]));

// Follows calls.ts: "&x" is the address of cell x, "x" its word.
const script = `
const { readFileSync, writeSync } = require("node:fs");
const { ffi, stack, libraries, cells, steps, shown } = JSON.parse(readFileSync(0, "utf8"));
const koffi = require(ffi);
koffi.config({ sync_stack_size: stack });
const functions = new Map();
for (const { path, prototypes, prefix } of libraries) {
  const library = koffi.load(path);
  for (const [call, prototype] of Object.entries(prototypes))
    functions.set(prefix + call, () => library.func(prototype));
}
const words = {};
for (const [name, values] of Object.entries(cells)) {
  words[name] = new BigUint64Array(new ArrayBuffer(8 * values.length));
  words[name].set(values.map(BigInt));
}
const resolve = (x) => typeof x === "number" ? x : x.startsWith("&") ? words[x.slice(1)] : words[x][0];
const answer = (value) => writeSync(1, "\\n" + JSON.stringify(value) + "\\n");
let failed = null;
for (const [call, ...args] of steps) {
  const status = functions.get(call)()(...args.map(resolve));
  if (status !== 0) { failed = { call, status }; break; }
}
answer(failed ?? { words: Object.fromEntries(shown.map((name) => [name, Array.from(words[name], String)])) });
`;

interface Ended {
  readonly out: string;
  readonly code: number | null;
  readonly signal: string | null;
  readonly isTimeUp: boolean;
  readonly error?: Error | undefined;
}

function judge(trial: BlasTrial, { out, code, signal, isTimeUp, error }: Ended, seconds: number): Verdict {
  const { title, arch } = trial;
  const lasting = (what: string): Verdict => ({ problem: `${title} ${what}`, isLasting: true });
  const passing = (what: string): Verdict => ({
    problem: `${title} could not be tried on ${arch}: ${what}`,
    isLasting: false,
  });
  if (isTimeUp) return lasting(`did not end a trial product on ${arch} in ${seconds} s`);
  if (error) return passing(error.message);
  // Somebody, or the system for want of memory, ended the child: that says nothing of the library.
  if (signal === "SIGKILL" || signal === "SIGTERM" || signal === "SIGINT") return passing(`it was ended by ${signal}`);
  if (signal) return lasting(`died by ${signal} in a trial product on ${arch}`);
  const answer = parse(out.trim().split("\n").at(-1) ?? "");
  if (answer.words) {
    const problem = trial.problem(answer.words);
    return { problem: problem && `${title} ${problem}`, isLasting: true };
  }
  if (answer.call === undefined) return lasting(`ended with code ${code} in a trial product on ${arch}`);
  const what = `${trial.calls.get(answer.call)} failed with status ${answer.status}`;
  return answer.call.startsWith(driverPrefix)
    ? passing(what)
    : lasting(`failed in a trial product on ${arch}: ${what}`);
}

function parse(line: string): { words?: Words; call?: string; status?: number } {
  try {
    const { words, call, status } = JSON.parse(line) as {
      words?: Record<string, string[]>;
      call?: string;
      status?: number;
    };
    if (words) return { words: mapWords(words, BigInt) };
    if (typeof call === "string" && typeof status === "number") return { call, status };
  } catch {
    // Judged by how the child ended.
  }
  return {};
}

export function runTrial(trial: BlasTrial, seconds: number): Verdict {
  const { stdout, status, signal, error } = spawnSync(process.execPath, ["-e", script], {
    input: trial.request,
    encoding: "utf8",
    stdio: ["pipe", "pipe", "ignore"],
    timeout: seconds * 1000,
    killSignal: "SIGKILL",
  });
  const isTimeUp = (error as NodeJS.ErrnoException | undefined)?.code === "ETIMEDOUT";
  return judge(trial, { out: stdout ?? "", code: status, signal, isTimeUp, error }, seconds);
}

export function runTrialAsync(trial: BlasTrial, seconds: number): Promise<Verdict> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, ["-e", script], { stdio: ["pipe", "pipe", "ignore"] });
    let out = "";
    let isTimeUp = false;
    const timer = setTimeout(() => {
      isTimeUp = true;
      child.kill("SIGKILL");
    }, seconds * 1000);
    const end = (ended: Omit<Ended, "out" | "isTimeUp">): void => {
      clearTimeout(timer);
      resolve(judge(trial, { out, isTimeUp, ...ended }, seconds));
    };
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      out += text;
    });
    // One that died before it read all is judged by its end.
    child.stdin.on("error", () => {}).end(trial.request);
    child.once("error", (error) => end({ code: null, signal: null, error }));
    child.once("close", (code, signal) => end({ code, signal }));
  });
}
