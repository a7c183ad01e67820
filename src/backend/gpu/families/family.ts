/** The vocabulary of the kernel table: what a family of kernels says of itself, and the launches that many share. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { type QuantType, quantTypeNames } from "../../../core/quant-types.ts";

/** "size" is a 64-bit size or stride; "T" a scalar of the kernel's dtype. */
export type ArgKind = "size" | "ptr" | "u8" | "u32" | "u64" | "f64" | "T";

export interface Arg {
  readonly name: string;
  readonly kind: ArgKind;
}

export interface Launch {
  readonly grid: number;
  readonly block: number;
  /** Bytes of dynamic shared memory. */
  readonly shared: number;
  /** Whether multiprocessors have as much of it as they can, so that blocks of the next kernel begin beside these. */
  readonly crowds?: boolean;
}

/** The values of a kernel's arguments and plan that are sizes or 32-bit numbers, by name. */
export type Sizes = Readonly<Record<string, number>>;

export interface Kernel {
  readonly name: string;
  /** The pattern of names that it was made from. */
  readonly family: string;
  /** kernels/<file>.hip */
  readonly file: string;
  /** Built with GPU_ONLY and GPU_ONLY_<unit>, a file has just these kernels. */
  readonly unit: DType | Lowercase<QuantType> | "bytes";
  /** Kernels of one file, unit and part are compiled together: the pattern, with what they are kept apart by filled in. */
  readonly part: string;
  readonly args: readonly Arg[];
  launch(sizes: Sizes): Launch;
}

/** Threads of a block, and of a large one. */
export const BLOCK = 256;
export const WIDE_BLOCK = 1024;

/** Constants that kernels have as macros. */
export type Defines = Readonly<Record<string, number>>;

/** Blocks of one launch, of `block` threads each: kernels loop beyond it. HIP refuses 2^32 threads and more. */
export const maxGrid = (block: number): number => Math.min(2 ** 22, Math.floor((2 ** 32 - 1) / block));
export const gridFor = (wanted: number, block: number): number => Math.max(1, Math.min(maxGrid(block), wanted));

export const blocks = (items: number, perBlock = 1, block = BLOCK): Launch => ({
  grid: gridFor(Math.ceil(items / perBlock), block),
  block,
  shared: 0,
});

/** One vector per thread, of elements that fill 16 bytes. */
export const elements = (n: number, type: DType): Launch => blocks(n, (BLOCK * 16) / sizeOf(type));

export const perThread = (n: number, count = 1): Launch => blocks(n, BLOCK * count);

export const rowBlocks = (rows: number, rowThreads: number): Launch => blocks(rows, BLOCK / rowThreads);

export const floats = ["bf16", "f16", "f32", "f64"] as const;

export const ints = ["u8", "u32", "i16", "i32", "i64"] as const;

export const numbers = [...floats, ...ints] as const;

export const all = [...numbers, "f8e4m3"] as const;

export const ids = ["u8", "u32", "i64"] as const;

export const byteSizes = ["1", "2", "4", "8"] as const;

export const quantName = (type: QuantType): Lowercase<QuantType> => type.toLowerCase() as Lowercase<QuantType>;

export const quants = quantTypeNames.map(quantName);

export const quantFloats = ["bf16", "f16", "f32"] as const;

export type Bindings = Readonly<Record<string, string>>;

export interface Family<
  Pattern extends string = string,
  Over extends Readonly<Record<string, readonly string[]>> = Readonly<Record<string, readonly string[]>>,
  Args extends string = string,
  Plan extends string = string,
> {
  readonly file: string;
  /** The kernels' names; each {placeholder} ranges over the values of the same name in `over`. */
  readonly pattern: Pattern;
  readonly over: Over;
  /** Placeholders whose values are compiled apart from each other, because few of them are needed and each takes long. */
  readonly apart?: readonly string[];
  /** `name` is a size, `name*` a pointer, `name:kind` anything else. */
  readonly args: Args;
  /** Names of what shapes the launch and is no argument of the kernel. */
  readonly plan?: Plan;
  /** What the launch and the kernels agree on, by target where it differs. */
  readonly defines?: Defines | ((arch: string) => Defines);
  launch(sizes: Sizes, bound: Bindings): Launch;
}

/** A family whose `launch` may only read what the kernel or its plan has. */
export function family<
  const Pattern extends string,
  const Over extends Readonly<Record<string, readonly string[]>>,
  const Args extends string,
  const Plan extends string = never,
>(
  spec: Omit<Family<Pattern, Over, Args, Plan>, "launch" | "apart"> & {
    readonly apart?: readonly (keyof Over & string)[];
    readonly launch: (sizes: NumbersIn<Args | Plan>, bound: BoundBy<Over>) => Launch;
  },
): Family<Pattern, Over, Args, Plan> {
  return spec as unknown as Family<Pattern, Over, Args, Plan>;
}

type BoundBy<Over extends Readonly<Record<string, readonly string[]>>> = {
  readonly [Key in keyof Over]: Over[Key][number];
};

type Words<List extends string> = List extends `${infer Word} ${infer Rest}` ? Word | Words<Rest> : List;
type NameIn<Word extends string> = Word extends `${infer Name}*`
  ? Name
  : Word extends `${infer Name}:${string}`
    ? Name
    : Word;
type NumbersIn<List extends string> = { readonly [Word in Words<List> as NameIn<Word>]: number };

/** The values that a list of arguments asks for. Addresses and sizes are numbers below 2⁵³; strides may be negative. */
export type ValuesIn<List extends string> = {
  readonly [Word in Words<List> as NameIn<Word>]: Word extends `${string}:${"T" | "u64"}` ? number | bigint : number;
};

/** The names that a pattern stands for, those of dtypes without a kernel included: which there are is known at run time. */
export type NamesIn<
  Pattern extends string,
  Over extends Readonly<Record<string, readonly string[]>>,
> = Pattern extends `${infer Head}{${infer Key}}${infer Tail}`
  ? `${Head}${Key extends "T" | "I" | "To" ? DType : Over[Key][number]}${NamesIn<Tail, Over>}`
  : Pattern;

export const layout = "numel num_dims info*";
