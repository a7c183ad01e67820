/**
 * Every kernel in kernels/*.hip: its name, its arguments in order and how it is launched. The launcher packs arguments
 * from this table alone, and the compile check compares it with the metadata of the compiled kernels.
 */
import { createHash } from "node:crypto";
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { unitDefines } from "./attention-plan.ts";
import { attention } from "./families/attention.ts";
import { conv } from "./families/conv.ts";
import { decode } from "./families/decode.ts";
import { elementwise } from "./families/elementwise.ts";
import { experts } from "./families/experts.ts";
import {
  type Arg,
  type ArgKind,
  type Bindings,
  BLOCK,
  type Defines,
  type Family,
  type Kernel,
  type NamesIn,
  type ValuesIn,
  WIDE_BLOCK,
} from "./families/family.ts";
import { indexing } from "./families/indexing.ts";
import { linear } from "./families/linear.ts";
import { matmul } from "./families/matmul.ts";
import { product } from "./families/product.ts";
import { quantBatch } from "./families/quant-batch.ts";
import { quantEven } from "./families/quant-even.ts";
import { quantFlow } from "./families/quant-flow.ts";
import { quantTiles } from "./families/quant-tiles.ts";
import { quantWide } from "./families/quant-wide.ts";
import { quantized } from "./families/quantized.ts";
import { reduce } from "./families/reduce.ts";
import { rows } from "./families/rows.ts";
import { sample } from "./families/sample.ts";
import { sort } from "./families/sort.ts";

export type { Arg, ArgKind, Kernel, Launch, Sizes } from "./families/family.ts";

const families = [
  ...elementwise,
  ...indexing,
  ...reduce,
  ...sort,
  ...sample,
  ...conv,
  ...matmul,
  ...product,
  ...linear,
  ...experts,
  ...attention,
  ...decode,
  ...rows,
  ...quantized,
  ...quantBatch,
  ...quantEven,
  ...quantFlow,
  ...quantTiles,
  ...quantWide,
] as const;
type Families = (typeof families)[number];

type NamesOf<F> = F extends Family<infer Pattern, infer Over, string, string> ? NamesIn<Pattern, Over> : never;
type ValuesOf<F, Name> =
  F extends Family<string, Readonly<Record<string, readonly string[]>>, infer Args, infer Plan>
    ? [Name] extends [NamesOf<F>]
      ? ValuesIn<Args | Plan>
      : never
    : never;

/** What kernels are called, those of dtypes that have none included. */
export type KernelName = NamesOf<Families>;
/** What a launch of a kernel is given: its arguments, and what its launch is planned by. */
export type ValuesFor<Name extends KernelName> = ValuesOf<Families, Name>;

function parseArgs(text: string): Arg[] {
  return text.split(" ").map((word) => {
    if (word.endsWith("*")) return { name: word.slice(0, -1), kind: "ptr" };
    const [name, kind] = word.split(":");
    return { name: name!, kind: (kind ?? "size") as ArgKind };
  });
}

function expand(family: Family): Kernel[] {
  const args = parseArgs(family.args);
  let bindings: Bindings[] = [{}];
  for (const [name, values] of Object.entries(family.over)) {
    bindings = bindings.flatMap((b) => values.map((value) => ({ ...b, [name]: value })));
  }
  const fill = (bound: Bindings, which: (key: string) => boolean): string =>
    family.pattern.replace(/\{(\w+)\}/g, (placeholder, key: string) => (which(key) ? bound[key]! : placeholder));
  return bindings.map((bound) => ({
    name: fill(bound, () => true),
    family: family.pattern,
    file: family.file,
    unit: (bound.Q ?? bound.T ?? "bytes") as Kernel["unit"],
    part: fill(bound, (key) => family.apart?.includes(key) ?? false),
    args,
    launch: (sizes) => family.launch(sizes, bound),
  }));
}

export const kernels: ReadonlyMap<string, Kernel> = new Map(
  families.flatMap((family: Family) => expand(family)).map((k) => [k.name, k]),
);
export const kernelFiles: readonly string[] = [...new Set(families.map((f) => f.file))];

/** What makes a compiler agree with the launches of a file's kernels on a target: their constants as macros. */
export function definesOf(file: string, arch: string): string[] {
  // The probe is no family: its code is read, not run.
  const probe = file === "probe" ? unitDefines : {};
  const own = families
    .filter((family) => family.file === file)
    .map(({ defines }: Family): Defines => (typeof defines === "function" ? defines(arch) : (defines ?? {})));
  const all: Defines = Object.assign({ GPU_BLOCK: BLOCK, WIDE_BLOCK }, probe, ...own);
  return Object.entries(all).map(([name, value]) => `-D${name}=${value}`);
}

/** The hash of what the launcher believes of a file's kernels. */
export function argumentsHash(file: string): string {
  const args = [...kernels.values()].filter((kernel) => kernel.file === file).map(({ name, args }) => [name, args]);
  const believed = [args, ...["gfx1100", "sm_90"].map((arch) => definesOf(file, arch))];
  return createHash("sha256").update(JSON.stringify(believed)).digest("hex").slice(0, 16);
}

export function kernelNamed(name: string): Kernel {
  return (
    kernels.get(name) ?? fail("UnsupportedDTypeForOp", `there is no kernel ${name}; see kernels/ for those there are`)
  );
}

/** Bytes of an argument, which is also its alignment. */
export function argBytes(kernel: Kernel, arg: Arg): number {
  switch (arg.kind) {
    case "size":
    case "ptr":
    case "u64":
    case "f64":
      return 8;
    case "u32":
      return 4;
    case "u8":
      return 1;
    case "T":
      return sizeOf(kernel.unit as DType);
    default:
      return arg.kind satisfies never;
  }
}
