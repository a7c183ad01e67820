/** The tensors of a GGUF file that change the rotary frequencies: a divisor for each, the same in every layer. */
import { fail } from "../../core/errors.ts";
import type { GgufFile, WeightsTensor } from "../../formats/index.ts";
import { Tensor } from "../../ops/index.ts";
import type { ModelConfig, RopeConfig } from "../config.ts";
import { frequencies } from "../rotary.ts";

const FACTORS = "rope_freqs.weight";
/** For positions up to the original context and beyond it. */
const FACTORS_SHORT = "rope_factors_short.weight";
const FACTORS_LONG = "rope_factors_long.weight";

export interface RopeFactors {
  readonly ropeFactors?: readonly number[] | undefined;
  readonly longRopeFactors?: { readonly short: readonly number[]; readonly long: readonly number[] } | undefined;
}

export async function readRopeFactors(file: GgufFile): Promise<RopeFactors> {
  const [short, long] = [await read(file, FACTORS_SHORT), await read(file, FACTORS_LONG)];
  return { ropeFactors: await read(file, FACTORS), longRopeFactors: short && long ? { short, long } : undefined };
}

async function read(file: GgufFile, name: string): Promise<number[] | undefined> {
  if (!file.tensors.has(name)) return undefined;
  using tensor = await file.readTensor(name);
  const values = tensor instanceof Tensor && tensor.dtype === "f32" ? Array.from(await tensor.data(), Number) : [];
  if (values.length > 0 && values.every((value) => Number.isFinite(value) && value > 0)) return values;
  return fail("InvalidFile", `${file.path}: tensor "${name}" must hold positive numbers of type F32`);
}

export interface ComputedTensor {
  readonly tensor: WeightsTensor;
  readonly bytes: Uint8Array;
}

export function ropeFactorTensors({ rope }: ModelConfig): ComputedTensor[] {
  const { scaling } = rope;
  if (scaling.type === "llama3") return [vector(FACTORS, divisors(rope))];
  if (scaling.type !== "longrope") return [];
  return [vector(FACTORS_SHORT, scaling.short), vector(FACTORS_LONG, scaling.long)];
}

/** By what a scaling divides each frequency. */
function divisors(rope: RopeConfig): number[] {
  const plain = frequencies({ ...rope, scaling: { type: "none" } }, 1).values;
  const scaled = frequencies(rope, 1).values;
  return Array.from(plain, (frequency, i) => frequency / scaled[i]!);
}

function vector(name: string, values: readonly number[]): ComputedTensor {
  const bytes = new Uint8Array(Float32Array.from(values).buffer);
  return { tensor: { name, type: "F32", shape: [values.length], byteLength: bytes.byteLength, dtype: "f32" }, bytes };
}
