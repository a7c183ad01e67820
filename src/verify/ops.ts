/**
 * How a golden case becomes a call: the op table says which arguments an op takes, by the names that cases have for them.
 * Only what a case puts otherwise is written here.
 */
import { asDType, type DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import * as nn from "../nn/index.ts";
import { ops, type Tensor } from "../ops/index.ts";
import { asQuantType, QTensor, qmatmul } from "../quantized/index.ts";

export class Params {
  readonly #values: Readonly<Record<string, unknown>>;
  constructor(values: Readonly<Record<string, unknown>>) {
    this.#values = values;
  }
  /** As it stands in the case; undefined where there is none. */
  value(name: string): unknown {
    return this.#values[name];
  }
  has(name: string): boolean {
    return this.#values[name] !== undefined;
  }
  number(name: string): number {
    return this.#get(name, (v): v is number => typeof v === "number", "a number");
  }
  flag(name: string): boolean {
    return this.#get(name, (v): v is boolean => typeof v === "boolean", "true or false");
  }
  text(name: string): string {
    return this.#get(name, (v): v is string => typeof v === "string", "a string");
  }
  numbers(name: string): number[] {
    return this.#get(name, (v): v is number[] => Array.isArray(v) && v.every((n) => typeof n === "number"), "numbers");
  }
  /** A number or a pair of them. */
  pair(name: string): number | [number, number] {
    return typeof this.#values[name] === "number" ? this.number(name) : (this.numbers(name) as [number, number]);
  }
  #get<T>(name: string, is: (v: unknown) => v is T, what: string): T {
    const value = this.#values[name];
    return is(value)
      ? value
      : fail("InvalidArgument", `the case's parameter "${name}" must be ${what}, not ${JSON.stringify(value)}`);
  }
}

/** The case's inputs by name; a name it does not have is an error unless asked for with `optional`. */
export interface Inputs {
  get(name: string): Tensor;
  optional(name: string): Tensor | null;
}
export type Run = (inputs: Inputs, params: Params) => Tensor | Tensor[];

const dtypeNames: Readonly<Record<string, DType>> = {
  uint8: "u8",
  uint32: "u32",
  int16: "i16",
  int32: "i32",
  int64: "i64",
  bfloat16: "bf16",
  float16: "f16",
  float32: "f32",
  float64: "f64",
  float8_e4m3: "f8e4m3",
};
const dtypeOf = (name: string): DType => dtypeNames[name] ?? asDType(name);

const x = (i: Inputs): Tensor => i.get("x");
const window = (p: Params) => ({
  stride: p.pair("stride"),
  padding: p.pair("padding"),
  dilation: p.pair("dilation"),
  ...(p.has("groups") && { groups: p.number("groups") }),
});
const row = (p: Params) => ({
  stride: p.number("stride"),
  padding: p.number("padding"),
  dilation: p.number("dilation"),
  ...(p.has("groups") && { groups: p.number("groups") }),
});
const size = (p: Params): [number, number] => p.numbers("size") as [number, number];

function cast(i: Inputs, p: Params): Tensor {
  const y = x(i).toDType(dtypeOf(p.text("to")));
  return p.has("back") ? y.toDType(dtypeOf(p.text("back"))) : y;
}

function overDims(name: "sum" | "mean"): Run {
  return (i, p) => {
    const dims = p.numbers("dims");
    return p.has("keepdim") && p.flag("keepdim") ? x(i)[`${name}Keepdim`](dims) : x(i)[name](dims);
  };
}

const blocks = (i: Inputs, p: Params): QTensor =>
  QTensor.fromBlocks(i.get("blocks"), p.numbers("shape"), asQuantType(p.text("type")));

/** Cases that are not just a call of the op of their name. */
const adapted: Readonly<Record<string, Run>> = {
  where: (i) => i.get("cond").whereCond(i.get("on_true"), i.get("on_false")),
  cast,
  sum: overDims("sum"),
  mean: overDims("mean"),
  sort: (i, p) => x(i).sortLastDim(p.flag("asc")),
  conv1d: (i, p) => x(i).conv1d(i.get("w"), row(p)),
  conv2d: (i, p) => x(i).conv2d(i.get("w"), window(p)),
  conv_transpose1d: (i, p) =>
    x(i).convTranspose1d(i.get("w"), { ...row(p), outputPadding: p.number("output_padding") }),
  conv_transpose2d: (i, p) =>
    x(i).convTranspose2d(i.get("w"), { ...window(p), outputPadding: p.pair("output_padding") }),
  upsample_nearest2d: (i, p) => x(i).upsampleNearest2d(...size(p)),
  upsample_bilinear2d: (i, p) => x(i).upsampleBilinear2d(...size(p), p.flag("align_corners")),
  batch_norm: (i, p) =>
    nn.batchNorm(
      x(i),
      { mean: i.get("mean"), variance: i.get("var") },
      i.optional("alpha"),
      i.optional("beta"),
      p.number("eps"),
    ),
  sdpa: (i, p) => {
    const mask = i.optional("mask");
    return nn.sdpa(i.get("q"), i.get("k"), i.get("v"), {
      ...(p.has("scale") && { scale: p.number("scale") }),
      ...(p.has("causal") && { causal: p.flag("causal") }),
      ...(p.has("softcap") && { softcap: p.number("softcap") }),
      ...(p.has("window") && { window: p.number("window") }),
      ...(mask && { mask }),
    });
  },
  dequantize: (i, p) => blocks(i, p).dequantize(),
  qmatmul: (i, p) => qmatmul(x(i), blocks(i, p)),
  quantize: (i, p) => QTensor.quantize(x(i), asQuantType(p.text("type"))).blocks,
};

const camelCase = (name: string): string => name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());

/** The op that a case names; undefined where there is none. */
export function runOf(name: string): Run | undefined {
  if (Object.hasOwn(adapted, name)) return adapted[name];
  const found = ops.get(camelCase(name));
  if (!found) return undefined;
  const run = found.run as (...args: unknown[]) => Tensor | Tensor[];
  return (inputs, params) =>
    run(
      ...found.takes.map((taken) => {
        const argument = taken.replace("?", "");
        const given = inputs.optional(argument) ?? params.value(argument);
        // An input that may be left out is null; a parameter has a default of its own.
        return given ?? (taken.endsWith("?") && !params.has(argument) ? absent(argument) : missing(name, argument));
      }),
    );
}

const absent = (argument: string): null | undefined => (["alpha", "beta"].includes(argument) ? null : undefined);
const missing = (name: string, argument: string): never =>
  fail("InvalidArgument", `the case of ${name} has neither an input nor a parameter "${argument}"`);
