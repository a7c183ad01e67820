/**
 * What the arguments of exported kernels are. Here they are plain numbers; in TypeScript each is a type of its own, which
 * the build declares from this file (kernels.ts), so that arguments in the wrong order do not compile.
 */

/** Where a kernel reads; 0 for an operand that is not there. */
export type Address = usize;
/** Where a kernel writes. */
export type OutAddress = usize;
/** Memory for the time of the call, of as many bytes as the kernel's `…Tmp` says. */
export type TmpAddress = usize;
/** Dims and strides of the operands, at INFO; 0 where all of them are contiguous. */
export type Layouts = usize;
/** Words at INFO, in the order that `words` of abi.ts gives them. */
export type Params = usize;

export type Bytes = usize;
/** How many elements, or whatever the argument's name says. */
export type Count = usize;
export type Rows = usize;
export type Cols = usize;
/** The dim that a product sums over. */
export type Inner = usize;
/** The size of one dim. */
export type Size = usize;
/** The number of a dim. */
export type Dim = usize;
/** In elements, as all strides. */
export type Stride = i32;
/** From one row of a matrix to the next. */
export type RowStride = i32;
export type ColStride = i32;
/** log2 of the bytes per element. */
export type Shift = i32;
/** 0 or 1. */
export type Flag = i32;
/** 0 is the main thread. */
export type Thread = i32;
/** How many there are. */
export type Threads = i32;

export type DTypeCode = i32;
export type UnaryCode = i32;
export type BinaryCode = i32;
export type CompareCode = i32;
export type ReduceCode = i32;
export type RopeCode = i32;
export type RandomCode = i32;
export type PoolCode = i32;

/** GGUF's number of a block type. */
export type QuantTypeId = i32;
/** Weights per block. */
export type BlockSize = usize;
/** Bytes per block. */
export type BlockBytes = usize;
