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

export const shiftOf = (dtype: DType): Shift => Math.log2(sizeOf(dtype)) as Shift;

interface BlockType {
  readonly id: QuantTypeId;
  readonly size: BlockSize;
  readonly bytes: BlockBytes;
}
/** `quantTypes`, as the kernels take them. */
export const blockTypes = quantTypes as unknown as Readonly<Record<QuantType, BlockType>>;
