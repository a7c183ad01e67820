/** x · wᵀ with quantized weights by machine code: which kernels run, over what, and in what order. */
import { sizeOf } from "../../../../core/dtype.ts";
import { Layout } from "../../../../core/layout.ts";
import { type QuantType, quantTypes } from "../../../../core/quant-types.ts";
import type { Backend, View } from "../../../backend.ts";
import { Storage } from "../../../storage.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { emitRounding, roundArguments } from "../kernels/quant-activations.ts";
import { blockCodes, hasNativeCode, type NativeQuantType } from "../kernels/quant-blocks.ts";
import { BLOCK, mostRows, type Planes, panel, record } from "../kernels/quant-code.ts";
import { emitQuantProduct, productArguments } from "../kernels/quant-product.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import { type Job, SCRATCH_BYTES } from "../pool.ts";
import { type FloatType, floatTypes, isFloatType } from "../simd.ts";

export interface QuantProduct {
  readonly type: NativeQuantType;
  readonly dtype: FloatType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** Addresses: of x (m × k) and out (m × n), both contiguous, and of w (n × k). */
  readonly x: number;
  readonly w: number;
  readonly out: number;
}

/** On what it runs: activations are rounded to 8 bits with one plane, where the processor gains by it. */
export interface QuantRunner {
  readonly native: Native;
  readonly threads: number;
  readonly planes: Planes;
}

/** Weights times rows of x that are worth a chunk, and blocks of activations. */
const CHUNK = 2 ** 16;
const ROUND_CHUNK = 2 ** 9;
/** Room for packed activations: longer inputs go in parts. */
const PACKED_BYTES = 16 * 2 ** 20;
let packed: number | undefined;

const rowBytes = (k: number): number => (k / BLOCK) * record.bytes;

/** How a product goes: the kernels, by what they depend on. */
interface Plan {
  readonly round: number;
  readonly product: number;
}
const plans = new WeakMap<Native, Map<number, Plan>>();
const typeNumbers = new Map(Object.keys(blockCodes).map((type, i) => [type, i]));

/** Kernels are looked for by a number: by their names, it would take as long as a small product. */
function planOf({ native, planes: asked }: QuantRunner, { type, dtype, m, k }: QuantProduct): Plan {
  const { isa } = native;
  const most = mostRows(isa);
  const full = m >= most;
  const rest = m % most;
  const keeps = m > most && panel.at + (k / BLOCK) * panel.bytes <= SCRATCH_BYTES;
  const known = plans.get(native) ?? new Map<number, Plan>();
  plans.set(native, known);
  let key = typeNumbers.get(type)!;
  for (const part of [floatTypes.indexOf(dtype), asked, Number(full), Number(keeps), rest]) key = 8 * key + part;
  let plan = known.get(key);
  if (plan) return plan;
  const planes = isa.vnni ? asked : 2;
  const form = isa.vnni ? `${planes} planes` : "words";
  const { halves } = blockCodes[type];
  plan = {
    round: native.kernel(`round ${form} ${dtype} ${halves}`, (a) => emitRounding(a, isa, dtype, halves, planes)),
    product: native.kernel(`quantized ${form} ${type} ${dtype} ${full} ${rest} ${keeps}`, (a) =>
      emitQuantProduct(a, isa, { type, dtype, planes, full, rest, keeps }),
    ),
  };
  known.set(key, plan);
  return plan;
}

function quantJobs(runner: QuantRunner, p: QuantProduct, packedAt: number): readonly [Job, Job] {
  const { type, dtype, m, n, k } = p;
  const { isa } = runner.native;
  const { size, bytes } = quantTypes[type];
  const { lanes } = isa;
  const most = mostRows(isa);
  const blocks = k / BLOCK;
  const plan = planOf(runner, p);
  return [
    {
      kernel: plan.round,
      args: roundArguments.words({ x: p.x, blocks, rows: m, most, out: packedAt, offset: -blockCodes[type].offset }),
      total: Math.ceil(m / most),
      grain: Math.max(1, Math.floor(ROUND_CHUNK / (most * blocks))),
    },
    {
      kernel: plan.product,
      args: productArguments.words({
        w: p.w,
        line: (k / size) * bytes,
        x: packedAt,
        blocks: k / size,
        tiles: Math.floor(m / most),
        out: p.out,
        outLine: n * sizeOf(dtype),
      }),
      total: n,
      grain: lanes * Math.max(1, Math.floor(CHUNK / (k * Math.max(1, m / 2)) / lanes)),
    },
  ];
}

/** Runs a product in parts of as many rows as there is room for. */
export function quantProduct(runner: QuantRunner, p: QuantProduct): void {
  packed ??= guarded(PACKED_BYTES).address;
  const most = mostRows(runner.native.isa);
  const rows = Math.floor(PACKED_BYTES / rowBytes(p.k) / most) * most;
  const element = sizeOf(p.dtype);
  for (let i = 0; i < p.m; i += rows) {
    const m = Math.min(rows, p.m - i);
    const part = { ...p, m, x: p.x + i * p.k * element, out: p.out + i * p.n * element };
    runner.native.run(runner.threads, ...quantJobs(runner, part, packed));
  }
}

/** Nothing where there is no such code: for other types, and for fewer rows of w than a vector has lanes. */
export function qmatmul(
  backend: Backend,
  runner: QuantRunner,
  type: QuantType,
  x: View,
  blocks: View,
): Storage | undefined {
  const { dtype } = x.storage;
  if (!hasNativeCode(type) || !isFloatType(dtype)) return undefined;
  const n = blocks.layout.shape[0]!;
  const k = x.layout.shape.at(-1)!;
  const { isa } = runner.native;
  if (n < isa.lanes || k === 0 || !blocks.layout.isContiguous()) return undefined;
  if (mostRows(isa) * rowBytes(k) > PACKED_BYTES) return undefined;
  const m = x.layout.numel / k;
  if (!x.layout.isContiguous()) {
    const storage = Storage.alloc(backend, dtype, m * k);
    try {
      const copy = { storage, layout: Layout.contiguous(x.layout.shape) };
      backend.copy(x, copy);
      return qmatmul(backend, runner, type, copy, blocks);
    } finally {
      storage.discard();
    }
  }
  const out = Storage.alloc(backend, dtype, m * n);
  if (m === 0) return out;
  const [xAt, w, outAt] = [addressInside(x), addressInside(blocks), addressFor(out, m * n)];
  quantProduct(runner, { type, dtype, m, n, k, x: xAt, w, out: outAt });
  return out;
}
