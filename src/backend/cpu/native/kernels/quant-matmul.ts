/** x · wᵀ with quantized weights by machine code: which kernels run, over what, and in what order. */
import type { DType } from "../../../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../../../core/quant-types.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { emitRounding, roundWords } from "./quant-activations.ts";
import { blockCodes, hasNativeCode, type NativeQuantType } from "./quant-blocks.ts";
import { BLOCK, mostRows, record } from "./quant-code.ts";
import { emitProduct, productWords } from "./quant-product.ts";

export interface QuantProduct {
  readonly type: QuantType;
  readonly dtype: DType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** Addresses: of x (m × k) and out (m × n), both contiguous, and of w (n × k). */
  readonly x: number;
  readonly w: number;
  readonly out: number;
}

/** Weights times rows of x that are worth a chunk, and blocks of activations. */
const CHUNK = 2 ** 18;
const ROUND_CHUNK = 2 ** 9;

/** Whether there is a kernel: types without one, and matrices of fewer rows than a vector has lanes, stay in WebAssembly. */
export const hasNativeProduct = (native: Native, type: QuantType, n: number): boolean =>
  hasNativeCode(type) && n >= native.isa.lanes;

/** Bytes of temporary memory for packed activations. */
export const packedBytes = (m: number, k: number): number => m * (k / BLOCK) * record.bytes;

const words = <Name extends string>(names: readonly Name[], values: Readonly<Record<Name, number>>): number[] =>
  names.map((name) => values[name]);

/** The jobs of a product; `packed` is the address of `packedBytes`. */
export function quantJobs(native: Native, p: QuantProduct, packed: number): readonly Job[] {
  const { dtype, m, n, k } = p;
  const { isa } = native;
  const type = p.type as NativeQuantType;
  const { offset, halves } = blockCodes[type];
  const { size, bytes } = quantTypes[type];
  const most = mostRows(isa);
  const tiles = Math.floor(m / most);
  const rest = m % most;
  const blocks = k / BLOCK;
  const form = isa.vnni ? "vnni" : "plain";
  const round = {
    kernel: native.kernel(`round ${dtype} ${halves}`, (a) => emitRounding(a, isa, dtype, halves)),
    args: words(roundWords, { x: p.x, blocks, rows: m, most, out: packed, offset: -offset }),
    total: Math.ceil(m / most),
    grain: Math.max(1, Math.floor(ROUND_CHUNK / (most * blocks))),
  };
  const full = tiles > 0 ? most : 0;
  const perColumn = k * Math.max(1, m / 2);
  const product = {
    kernel: native.kernel(`quantized ${form} ${type} ${dtype} ${full} ${rest}`, (a) =>
      emitProduct(a, isa, type, dtype, full, rest),
    ),
    args: words(productWords, {
      w: p.w,
      line: (k / size) * bytes,
      x: packed,
      blocks: k / size,
      tiles,
      out: p.out,
      outLine: n * (dtype === "f32" ? 4 : 2),
    }),
    total: n,
    grain: isa.lanes * Math.max(1, Math.floor(CHUNK / perColumn / isa.lanes)),
  };
  return [round, product];
}
