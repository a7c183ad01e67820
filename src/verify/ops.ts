/** How each op of the golden cases is run: one table from the op's name to calls of the public API. */
import { binaryOps, compareOps, unaryOps } from "../backend/backend.ts";
import { asDType, type DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import * as nn from "../nn/index.ts";
import { asQuantType, QTensor, qmatmul } from "../quantized/index.ts";
import type { Tensor } from "../tensor/index.ts";

export class Params {
  readonly #values: Readonly<Record<string, unknown>>;
  constructor(values: Readonly<Record<string, unknown>>) {
    this.#values = values;
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
const ids = (i: Inputs): Tensor => i.get("ids");
const src = (i: Inputs): Tensor => i.get("src");

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

export const ops: ReadonlyMap<string, Run> = new Map<string, Run>([
  ...unaryOps.map((op): [string, Run] => [
    op,
    (i) => (op === "gelu_erf" ? x(i).geluErf() : (x(i)[op] as () => Tensor)()),
  ]),
  ...[...binaryOps, ...compareOps].map((op): [string, Run] => [op, (i) => i.get("lhs")[op](i.get("rhs"))]),
  ["elu", (i, p) => x(i).elu(p.number("alpha"))],
  ["powf", (i, p) => x(i).powf(p.number("e"))],
  ["affine", (i, p) => x(i).affine(p.number("mul"), p.number("add"))],
  ["where", (i) => i.get("cond").whereCond(i.get("on_true"), i.get("on_false"))],
  ["cast", cast],
  ["sum", overDims("sum")],
  ["mean", overDims("mean")],
  ...(["max", "min", "argmax", "argmin", "var", "cumsum"] as const).map((op): [string, Run] => [
    op,
    (i, p) => x(i)[op](p.number("dim")),
  ]),
  ["log_sum_exp", (i, p) => x(i).logSumExp(p.number("dim"))],
  ["sort", (i, p) => x(i).sortLastDim(p.flag("asc"))],
  ["index_select", (i, p) => x(i).indexSelect(ids(i), p.number("dim"))],
  ["gather", (i, p) => x(i).gather(ids(i), p.number("dim"))],
  ["scatter", (i, p) => x(i).scatter(ids(i), src(i), p.number("dim"))],
  ["scatter_add", (i, p) => x(i).scatterAdd(ids(i), src(i), p.number("dim"))],
  ["index_add", (i, p) => x(i).indexAdd(ids(i), src(i), p.number("dim"))],
  ["matmul", (i) => i.get("lhs").matmul(i.get("rhs"))],
  ["conv1d", (i, p) => x(i).conv1d(i.get("w"), row(p))],
  ["conv2d", (i, p) => x(i).conv2d(i.get("w"), window(p))],
  [
    "conv_transpose1d",
    (i, p) => x(i).convTranspose1d(i.get("w"), { ...row(p), outputPadding: p.number("output_padding") }),
  ],
  [
    "conv_transpose2d",
    (i, p) => x(i).convTranspose2d(i.get("w"), { ...window(p), outputPadding: p.pair("output_padding") }),
  ],
  ["avg_pool2d", (i, p) => x(i).avgPool2d(p.pair("kernel"), p.pair("stride"))],
  ["max_pool2d", (i, p) => x(i).maxPool2d(p.pair("kernel"), p.pair("stride"))],
  ["upsample_nearest2d", (i, p) => x(i).upsampleNearest2d(...size(p))],
  ["upsample_bilinear2d", (i, p) => x(i).upsampleBilinear2d(...size(p), p.flag("align_corners"))],
  ["softmax", (i, p) => nn.softmax(x(i), p.number("dim"))],
  ["log_softmax", (i, p) => nn.logSoftmax(x(i), p.number("dim"))],
  ["rms_norm", (i, p) => nn.rmsNorm(x(i), i.optional("alpha"), p.number("eps"))],
  ["layer_norm", (i, p) => nn.layerNorm(x(i), i.optional("alpha"), i.optional("beta"), p.number("eps"))],
  [
    "group_norm",
    (i, p) => nn.groupNorm(x(i), p.number("groups"), i.optional("alpha"), i.optional("beta"), p.number("eps")),
  ],
  [
    "batch_norm",
    (i, p) =>
      nn.batchNorm(
        x(i),
        { mean: i.get("mean"), variance: i.get("var") },
        i.optional("alpha"),
        i.optional("beta"),
        p.number("eps"),
      ),
  ],
  ["rope", (i) => nn.rope(x(i), i.get("cos"), i.get("sin"))],
  ["rope_i", (i) => nn.ropeI(x(i), i.get("cos"), i.get("sin"))],
  ["rope_thd", (i) => nn.ropeThd(x(i), i.get("cos"), i.get("sin"))],
  [
    "sdpa",
    (i, p) => {
      const mask = i.optional("mask");
      return nn.sdpa(i.get("q"), i.get("k"), i.get("v"), {
        ...(p.has("scale") && { scale: p.number("scale") }),
        ...(p.has("causal") && { causal: p.flag("causal") }),
        ...(p.has("softcap") && { softcap: p.number("softcap") }),
        ...(p.has("window") && { window: p.number("window") }),
        ...(mask && { mask }),
      });
    },
  ],
  ["embedding", (i) => nn.embedding(i.get("table"), ids(i))],
  ["dequantize", (i, p) => blocks(i, p).dequantize()],
  ["qmatmul", (i, p) => qmatmul(x(i), blocks(i, p))],
  ["quantize", (i, p) => QTensor.quantize(x(i), asQuantType(p.text("type"))).blocks],
  ["cross_entropy", (i) => nn.crossEntropy(i.get("logits"), i.get("target"))],
]);
