/**
 * What TypeScript and the WebAssembly kernels agree on. The build writes it for AssemblyScript as wasm/abi.ts; the other
 * way round it declares the kernels' signatures, with the types of wasm/types.ts, as kernels.ts.
 */
import { type DType, dtypeNames, sizeOf } from "../../core/dtype.ts";
import { type QuantType, quantTypes } from "../../core/quant-types.ts";
import {
  type BinaryOp,
  binaryOps,
  type CompareOp,
  compareOps,
  type ReduceOp,
  reduceOps,
  type UnaryOp,
  unaryOps,
} from "../backend.ts";
import type {
  BinaryCode,
  BlockBytes,
  BlockSize,
  CompareCode,
  DTypeCode,
  PoolCode,
  QuantTypeId,
  RandomCode,
  ReduceCode,
  RopeCode,
  Shift,
  UnaryCode,
} from "./kernels.ts";

/** Where things lie in the shared memory, in bytes; the heap is behind them. */
export const memoryMap = {
  /** The pool's words, see wasm/pool.ts. */
  CONTROL: 1024,
  /** An i32, 1 where an id was out of range; at +8 the first such id as i64, at +16 its position as i64. */
  BAD_INDEX: 1152,
  /** The arguments of the running op, 8 bytes each. */
  ARGS: 2048,
  /** Layouts and other words of the running op; TypeScript writes them before it calls. */
  INFO: 4096,
  /** Vector constants, which the build takes out of the code. */
  CONSTANTS: 65536,
  /** The compiler's own data. */
  DATA: 69632,
} as const;

export const PAGE = 65536;
/** 4 GiB is all that a WebAssembly memory can hold. */
export const pages = { initial: 16, maximum: 65536 } as const;

const numbered = <Name extends string, Code extends number>(names: readonly Name[]): Record<Name, Code> =>
  Object.fromEntries(names.map((name, i) => [name, i])) as Record<Name, Code>;

export const codes = {
  dtype: numbered<DType, DTypeCode>(dtypeNames),
  unary: numbered<UnaryOp, UnaryCode>(unaryOps),
  binary: numbered<BinaryOp, BinaryCode>(binaryOps),
  compare: numbered<CompareOp, CompareCode>(compareOps),
  reduce: numbered<ReduceOp, ReduceCode>(reduceOps),
  rope: numbered<"rope" | "rope_i" | "rope_thd", RopeCode>(["rope", "rope_i", "rope_thd"]),
  random: numbered<"uniform" | "normal", RandomCode>(["uniform", "normal"]),
  pool: numbered<"avg" | "max", PoolCode>(["avg", "max"]),
};

/**
 * The words of kernels that take many, in their order, and how many each name stands for: of two the first is of the
 * height and the second of the width, and four are strides.
 */
export const words = {
  conv: {
    batch: 1,
    channels: 1,
    input: 2,
    outputs: 1,
    kernel: 2,
    stride: 2,
    padding: 2,
    dilation: 2,
    groups: 1,
    output: 2,
    xStrides: 4,
    wStrides: 4,
  },
  pooling: { batch: 1, channels: 1, input: 2, kernel: 2, stride: 2, output: 2, xStrides: 4 },
  upsampling: { batch: 1, channels: 1, input: 2, output: 2, xStrides: 4 },
  sdpa: {
    b: 1,
    hq: 1,
    hk: 1,
    tq: 1,
    tk: 1,
    d: 1,
    dv: 1,
    causal: 1,
    window: 1,
    qStrides: 4,
    kStrides: 4,
    vStrides: 4,
    maskStrides: 4,
  },
  pages: {
    sequences: 1,
    hq: 1,
    hk: 1,
    d: 1,
    pairs: 1,
    interleaved: 1,
    width: 1,
    qRow: 1,
    kRow: 1,
    vRow: 1,
  },
} as const;
type Words = typeof words;

/** What `words` asks for, by name. */
export type WordsOf<K extends keyof Words> = {
  readonly [N in keyof Words[K]]: Words[K][N] extends 1 ? number : readonly number[];
};

export const shiftOf = (dtype: DType): Shift => Math.log2(sizeOf(dtype)) as Shift;

interface BlockType {
  readonly id: QuantTypeId;
  readonly size: BlockSize;
  readonly bytes: BlockBytes;
}
/** `quantTypes`, as the kernels take them. */
export const blockTypes = quantTypes as unknown as Readonly<Record<QuantType, BlockType>>;
