// How much of the kernels is compiled where. All by all for all take hours on a few cores and would be run by nobody, so: every
// kernel for one target of each generation, and for every other pair of compiler and target one program of each family of
// kernels, another on each pair, so that a compiler meets nearly every kernel on one target or another.
import { createHash } from "node:crypto";

/** Where every kernel is compiled: one target of each generation. */
const generations = ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1200"];
const whole = { "clang-19": generations, "clang-22": ["gfx950"], hiprtc: generations };
/** A type of weights by a dtype by a size each, minutes for a target: whole by one compiler alone. */
const heavy = ["quant-product"];
/** The same, of whose parts quant-product is made, too: nowhere whole. */
const sampled = ["expert-quant"];
export const isWhole = (compiler, target, file) =>
  !sampled.includes(file) &&
  (whole[compiler]?.includes(target) ?? false) &&
  (!heavy.includes(file) || compiler === "clang-19");

/** Kernels that every sample of their file has, because a matrix or dot unit must be seen in it. */
const always = {
  attention: (kernel) => /^attention_\d+_b?f16$/.test(kernel.name),
  // By warpgroups, of which AMD's compilers make nothing.
  product: (kernel) => !/^product_(wide|square|half|pair|split)_/.test(kernel.name),
  "conv-product": (kernel) => /^conv_(product|spread)(_small)?_b?f16$/.test(kernel.name),
  attention_decode: (kernel) => /^attention_decode_\d+_b?f16$/.test(kernel.name),
  attention_split: (kernel) => /^attention_split_\d+_b?f16$/.test(kernel.name),
  attention_latent: (kernel) => /^attention_latent_b?f16$/.test(kernel.name),
  "quant-matvec": (kernel) => kernel.name === "linear_q8_0_b1",
  "quant-product": (kernel) => kernel.name === "quant_product_q8_0_bf16",
  "expert-dense": (kernel) => /^expert_dense(_small)?_b?f16$/.test(kernel.name),
  "expert-quant": (kernel) => kernel.name === "expert_quant_q8_0_bf16",
};

/** The kernels of a file to compile by a compiler for a target. */
export function kernelsToCheck(compiler, target, ofFile) {
  if (isWhole(compiler, target, ofFile[0].file)) return ofFile;
  const pick = (what, from) => {
    const hash = createHash("sha256").update(`${compiler} ${target} ${what}`).digest().readUInt32LE(0);
    return from[hash % from.length];
  };
  const wanted = always[ofFile[0].file];
  const chosen = new Set(wanted ? [pick("always", ofFile.filter(wanted))] : []);
  for (const family of new Set(ofFile.map((kernel) => kernel.family))) {
    const members = ofFile.filter((kernel) => kernel.family === family);
    const { unit, part } = pick(family, members);
    for (const kernel of members) if (kernel.unit === unit && kernel.part === part) chosen.add(kernel);
  }
  return ofFile.filter((kernel) => chosen.has(kernel));
}
