/**
 * What expands the latents of DeepSeek's attention, as GGUF has it: for each head a matrix that keys are made by, turned
 * round so that queries can go through it instead, and one that values are made by. Other files have all of it in one.
 */
import { fail } from "../../core/errors.ts";
import { formatShape, sameShape } from "../../core/layout.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/weights-file.ts";
import type { ModelConfig } from "../config.ts";
import { type MadeTensor, permutedPart, rearranged } from "./rearranged.ts";

const BOTH = /^(.*\.)kv_b_proj\.weight$/;

/** `….k_b_proj.weight` (heads, rank, keys) and `….v_b_proj.weight` (heads, values, rank) from `….kv_b_proj.weight`. */
export function withHeadsApart(file: StoredWeights, { latent, heads }: ModelConfig): StoredWeights {
  const { path } = file;
  const { rank, keyDim, valueDim } = latent!;
  const made: MadeTensor[] = [];
  const hidden = new Set<string>();
  for (const tensor of file.tensors) {
    const [, prefix] = BOTH.exec(tensor.name) ?? [];
    if (prefix === undefined) continue;
    const { name, type, dtype, shape } = tensor;
    if (!dtype) return fail("UnexpectedDType", `${path}: tensor "${name}" has dtype ${type}; weights must be floats`);
    const whole = [heads * (keyDim + valueDim), rank];
    if (!sameShape(shape, whole)) {
      return fail(
        "ShapeMismatch",
        `${path}: tensor "${name}" has shape ${formatShape(shape)}, but the config asks for ${formatShape(whole)}`,
      );
    }
    hidden.add(name);
    const part = (own: string, dims: readonly [number, number], make: MadeTensor["make"]): MadeTensor => ({
      tensor: {
        ...{ name: `${prefix}${own}.weight`, type, dtype, shape: [heads, ...dims] },
        byteLength: (tensor.byteLength / (keyDim + valueDim)) * (own === "k_b_proj" ? keyDim : valueDim),
      },
      make,
    });
    made.push(
      part("k_b_proj", [rank, keyDim], async (head, signal) =>
        permutedPart(await readHead(file, tensor, heads, head, [0, keyDim], signal), [keyDim, rank], dtype, [1, 0]),
      ),
      part("v_b_proj", [valueDim, rank], (head, signal) =>
        readHead(file, tensor, heads, head, [keyDim, keyDim + valueDim], signal),
      ),
    );
  }
  return rearranged(file, made, hidden);
}

/** Some of a head's rows. */
function readHead(
  file: StoredWeights,
  { name, shape, byteLength }: WeightsTensor,
  heads: number,
  head: number,
  [from, to]: readonly [number, number],
  signal: AbortSignal | undefined,
): Promise<Uint8Array> {
  const rowBytes = byteLength / shape[0]!;
  const first = head * (shape[0]! / heads);
  return file.readBytes(name, signal, { start: (first + from) * rowBytes, end: (first + to) * rowBytes });
}
