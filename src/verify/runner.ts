/** Runs golden cases on a device. A case that cannot run is a failure. */
import { join } from "node:path";
import type { Device } from "../backend/device.ts";
import { fail } from "../core/errors.ts";
import type { Group } from "../distributed/group.ts";
import { openSafetensors } from "../formats/index.ts";
import { scope, type Tensor } from "../ops/index.ts";
import { type Case, readCases, type ViewStep } from "./cases.ts";
import { compare } from "./compare.ts";
import { isModel, verifyModel } from "./models.ts";
import { type Inputs, Params, runOf } from "./ops.ts";

export interface CaseResult {
  readonly id: string;
  readonly op: string;
  readonly ok: boolean;
  readonly maxAbs: number;
  readonly maxRel: number;
  readonly error?: string;
}
export interface Report {
  readonly device: string;
  readonly passed: number;
  readonly failed: number;
  /** Cases left out because `only` did not name their op. */
  readonly skipped: number;
  readonly cases: CaseResult[];
}
export interface VerifyOptions {
  /** Of a model: how many layers GPUs get; the CPU has the others. */
  readonly gpuLayers?: number | undefined;
  /** Run only these ops (of a model: these checks). */
  readonly only?: readonly string[];
  readonly signal?: AbortSignal;
  /** The processes that a model is split over; all of them verify it. */
  readonly group?: Group | undefined;
  /**
   * Where a device compiles kernels, those of all cases are compiled side by side before the first, and this is called before
   * that. Without it each case compiles its own, and libraries meet no case before its turn.
   */
  readonly onCompile?: () => void;
  readonly onProgress?: (done: number, total: number) => void;
  /** Called before each case of ops; a case may be the last thing that the process does. */
  readonly onCase?: (id: string, number: number, total: number) => void;
}

/** Runs what `folder` holds: golden cases of ops, or a model with its golden results, whose layers devices may share. */
export async function verify(
  folder: string,
  where: Device | readonly Device[],
  options: VerifyOptions = {},
): Promise<Report> {
  const devices = [where].flat();
  if (await isModel(folder)) return verifyModel(folder, devices, options);
  const device = devices.length === 1 ? devices[0]! : fail("InvalidArgument", "verify: ops run on one device");
  const all = await readCases(folder);
  const { only } = options;
  for (const op of only ?? []) {
    if (!all.some((c) => c.op === op))
      fail(
        "InvalidArgument",
        `verify: ${folder} has no cases of op "${op}"; it has ${[...new Set(all.map((c) => c.op))].join(", ")}`,
      );
  }
  const selected = only ? all.filter((c) => only.includes(c.op)) : all;
  await using file = await openSafetensors(join(folder, "tensors.safetensors"));
  const load = (name: string): Promise<Tensor> => file.read(name, { device });
  // Most of the time of a first run on a GPU is the compiler's.
  if (options.onCompile && device.backend.rehearse) {
    options.onCompile();
    await device.backend.rehearse(async () => {
      for (const c of selected) {
        options.signal?.throwIfAborted();
        // What fails fails again when it counts.
        await scope(async () => void (await resultsOf(c, load))).catch(() => {});
      }
    });
  }
  const cases: CaseResult[] = [];
  for (const c of selected) {
    options.signal?.throwIfAborted();
    options.onCase?.(c.id, cases.length + 1, selected.length);
    cases.push(await runCase(c, load));
    options.onProgress?.(cases.length, selected.length);
  }
  const passed = cases.filter((c) => c.ok).length;
  return { device: device.name, passed, failed: cases.length - passed, skipped: all.length - selected.length, cases };
}

type Load = (name: string) => Promise<Tensor>;

async function runCase(c: Case, load: Load): Promise<CaseResult> {
  const { id, op } = c;
  try {
    return await scope(async () => {
      const outputs = await resultsOf(c, load);
      if (outputs.length !== c.outputs.length)
        throw new Error(`${outputs.length} outputs, expected ${c.outputs.length}`);
      let [maxAbs, maxRel] = [0, 0];
      for (const [i, got] of outputs.entries()) {
        const difference = await compare(got, await load(c.outputs[i]!), c.tolerance);
        maxAbs = Math.max(maxAbs, difference.maxAbs);
        maxRel = Math.max(maxRel, difference.maxRel);
        if (difference.error) return { id, op, ok: false, maxAbs, maxRel, error: `output ${i}: ${difference.error}` };
      }
      return { id, op, ok: true, maxAbs, maxRel };
    });
  } catch (error) {
    return { id, op, ok: false, maxAbs: 0, maxRel: 0, error: error instanceof Error ? error.message : String(error) };
  }
}

async function resultsOf(c: Case, load: Load): Promise<Tensor[]> {
  const run = runOf(c.op) ?? fail("UnsupportedOp", `op "${c.op}" is not implemented`);
  const inputs = await loadInputs(c, load);
  return [run(inputs, new Params(c.params))].flat();
}

async function loadInputs(c: Case, load: Load): Promise<Inputs> {
  const tensors = new Map<string, Tensor>();
  for (const [name, { tensor, view }] of Object.entries(c.inputs)) {
    tensors.set(name, (view ?? []).reduce(applyView, await load(tensor)));
  }
  return {
    get: (name) => tensors.get(name) ?? fail("InvalidArgument", `the case has no input "${name}"`),
    optional: (name) => tensors.get(name) ?? null,
  };
}

function applyView(t: Tensor, step: ViewStep): Tensor {
  switch (step[0]) {
    case "transpose":
      return t.transpose(step[1], step[2]);
    case "narrow":
      return t.narrow(step[1], step[2], step[3]);
    case "broadcast":
      return t.broadcastAs(step[1]);
    default:
      return fail("InvalidArgument", `unknown view step ${JSON.stringify(step satisfies never)}`);
  }
}
