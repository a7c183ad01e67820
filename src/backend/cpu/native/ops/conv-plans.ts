/** Convolutions whose jobs lie ready when they come again, with weights in a kernel's own order. */

import type { Layout } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import type { CpuBackend } from "../../backend.ts";
import type { Engine } from "../../engine.ts";
import { recording } from "../../recording.ts";
import { addressInside } from "../bounds.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import type { JobList } from "../pool.ts";
import { copyOf } from "./copies.ts";

/** f32 weights without gaps, rows of f32 without gaps, and where the results go. */
export interface ConvCall {
  readonly x: View;
  readonly w: View;
  readonly p: ConvParams;
  readonly out: number;
}

/** All but the addresses of a call: they depend on shapes alone, and finding them out takes as long as a small convolution. */
export interface Plan {
  readonly weightBytes: number;
  /** With holes for weights as they are, and as the kernel takes them. */
  readonly pack: JobList;
  /** With holes for the image, those weights and the results. */
  readonly product: JobList;
  /** What it has in the heap. */
  readonly memory: number;
}

/** Whose weights they are, and what makes a plan: null where other kernels are better. */
export type PlanKind = "conv" | "winograd";
type Make = (engine: Engine, native: Native, x: Layout, w: readonly number[], p: ConvParams) => Plan | null;

/** What was found for weights at their last call, which mostly is what their next one asks for. */
interface Latest {
  /** Weights that came once may be others the next time; those that come again are worth a copy. */
  isAgain: boolean;
  readonly known: Known;
  readonly key: string;
  readonly x: Layout;
  readonly p: ConvParams;
  readonly threads: number;
  readonly plan: Plan | null;
}

/** Plans by all that they depend on, and the latest ones. */
type Known = Map<string, Plan | null>;
const plans = { conv: new WeakMap<CpuBackend, Known>(), winograd: new WeakMap<CpuBackend, Known>() };
const latest = { conv: new WeakMap<Layout, Latest>(), winograd: new WeakMap<Layout, Latest>() };
const MOST_PLANS = 64;

/** Weights of the call at hand, if they are no larger. */
const SHARED_BYTES = 4 * 2 ** 20;
let shared: number | undefined;

/** The plan that ran. */
export function convByPlan(
  backend: CpuBackend,
  native: Native,
  { x, w, p, out }: ConvCall,
  kind: PlanKind,
  make: Make,
): Plan | null {
  const { engine } = backend;
  // Plans may go when there are many.
  recording()?.refuse("a convolution's plan is looked up");
  const plan = planOf(backend, native, x.layout, w.layout, p, kind, make);
  if (!plan) return null;
  const { threads } = engine;
  const pack = (weights: number): void => {
    plan.pack.fill(addressInside(w), weights);
    native.replay(threads, plan.pack);
  };
  const multiply = (weights: number): Plan => {
    plan.product.fill(addressInside(x), weights, out);
    native.replay(threads, plan.product);
    return plan;
  };
  if (latest[kind].get(w.layout)!.isAgain) {
    const { offset, shape, numel } = w.layout;
    const [n, { groups }, { lanes }] = [shape[0]!, p, native.isa];
    const of = { type: kind, offset, n, groups, k: numel / n, lanes } as const;
    const copy = copyOf(w.storage.block, of, plan.weightBytes, pack);
    if (copy !== undefined) return multiply(copy);
  }
  if (plan.weightBytes <= SHARED_BYTES) {
    shared ??= guarded(SHARED_BYTES).address;
    pack(shared);
    return multiply(shared);
  }
  const at = engine.alloc(plan.weightBytes + 64);
  try {
    const weights = Math.ceil((engine.base + at) / 64) * 64;
    pack(weights);
    return multiply(weights);
  } finally {
    engine.release(at);
  }
}

const isSame = (a: readonly number[], b: readonly number[]): boolean =>
  a[0] === b[0] && a[1] === b[1] && a[2] === b[2] && a[3] === b[3];
const isSamePair = (a: readonly [number, number], b: readonly [number, number]): boolean =>
  a[0] === b[0] && a[1] === b[1];

function planOf(
  backend: CpuBackend,
  native: Native,
  x: Layout,
  w: Layout,
  p: ConvParams,
  kind: PlanKind,
  make: Make,
): Plan | null {
  const { engine } = backend;
  const { threads } = engine;
  let known = plans[kind].get(backend);
  if (!known) {
    known = new Map();
    plans[kind].set(backend, known);
  }
  const last = latest[kind].get(w);
  if (
    last?.known === known &&
    last.threads === threads &&
    isSame(last.x.shape, x.shape) &&
    isSame(last.x.strides, x.strides) &&
    isSamePair(last.p.stride, p.stride) &&
    isSamePair(last.p.padding, p.padding) &&
    isSamePair(last.p.dilation, p.dilation) &&
    last.p.groups === p.groups &&
    known.get(last.key) === last.plan
  ) {
    last.isAgain = true;
    return last.plan;
  }
  const { stride, padding, dilation, groups } = p;
  const key = [...x.shape, ...x.strides, ...w.shape, ...stride, ...padding, ...dilation, groups, threads].join();
  let plan = known.get(key);
  if (plan === undefined) {
    if (known.size >= MOST_PLANS) {
      for (const old of known.values()) if (old) engine.release(old.memory);
      known.clear();
    }
    plan = make(engine, native, x, w.shape, p);
    known.set(key, plan);
  }
  latest[kind].set(w, { isAgain: false, known, key, x, p, threads, plan });
  return plan;
}
