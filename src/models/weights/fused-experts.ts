/**
 * The experts of gpt-oss as its files have them: both projections of all experts in one tensor each, with inputs before
 * outputs and the columns of gate and up taking turns; or in MXFP4, with outputs before inputs.
 */
import { fail } from "../../core/errors.ts";
import { formatShape, type Shape } from "../../core/layout.ts";
import { quantTypes } from "../../core/quant-types.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/weights-file.ts";
import { packMxfp4 } from "./mxfp4.ts";
import { type MadeTensor, permutedPart, readPart, rearranged } from "./rearranged.ts";

const FUSED = /^(.*\.experts\.(gate_up|down)_proj)(_bias|_blocks|_scales)?$/;

/** Under `….gate_up_proj` and `….down_proj` with ".weight" and ".bias": outputs before inputs, gates before ups. */
export function withExpertsInOrder(file: StoredWeights): StoredWeights {
  const made: MadeTensor[] = [];
  const hidden = new Set<string>();
  for (const tensor of file.tensors) {
    const [, name, kind, part] = FUSED.exec(tensor.name) ?? [];
    if (name === undefined) continue;
    hidden.add(tensor.name);
    const isPair = kind === "gate_up";
    if (part === "_blocks") made.push(packed(file, name, tensor, isPair));
    else if (part === undefined) made.push(transposed(file, `${name}.weight`, tensor, isPair));
    else if (part === "_bias") made.push(bias(file, `${name}.bias`, tensor, isPair));
  }
  return rearranged(file, made, hidden);
}

function transposed(file: StoredWeights, name: string, tensor: WeightsTensor, isPair: boolean): MadeTensor {
  const [experts, inputs, outputs] = dimsOf(file, tensor, 3) as [number, number, number];
  const dtype = floatsOf(file, tensor);
  const pairs = isPair ? [inputs, outputs / 2, 2] : [inputs, outputs];
  return {
    tensor: { ...tensor, name, shape: [experts, outputs, inputs] },
    make: async (expert, signal) =>
      permutedPart(await readPart(file, tensor, expert, signal), pairs, dtype, isPair ? [2, 1, 0] : [1, 0]),
  };
}

function bias(file: StoredWeights, name: string, tensor: WeightsTensor, isPair: boolean): MadeTensor {
  const [, outputs] = dimsOf(file, tensor, 2) as [number, number];
  const dtype = floatsOf(file, tensor);
  return {
    tensor: { ...tensor, name },
    make: async (expert, signal) => {
      const bytes = await readPart(file, tensor, expert, signal);
      return isPair ? permutedPart(bytes, [outputs / 2, 2], dtype, [1, 0]) : bytes;
    },
  };
}

/** Blocks (experts, outputs, blocks per row, 16) and scales (experts, outputs, blocks per row). */
function packed(file: StoredWeights, name: string, blocks: WeightsTensor, isPair: boolean): MadeTensor {
  const [experts, outputs, perRow] = dimsOf(file, blocks, 4) as [number, number, number];
  const scales = file.tensors.find((tensor) => tensor.name === `${name}_scales`);
  if (!scales) return fail("MissingTensor", `${file.path} has "${blocks.name}" without "${name}_scales"`);
  const count = experts * outputs * perRow;
  if (blocks.byteLength !== 16 * count || scales.byteLength !== count || dimsOf(file, scales, 3)[2] !== perRow) {
    fail(
      "ShapeMismatch",
      `${file.path}: "${blocks.name}" ${formatShape(blocks.shape)} and "${scales.name}" ${formatShape(scales.shape)} of ${scales.type}: MXFP4 has 16 bytes and a scale of one byte for each block of 32 weights`,
    );
  }
  // Gates are the even rows, ups the odd ones.
  const half = outputs / 2;
  const rowAt = (place: number): number => (isPair ? (place < half ? 2 * place : 2 * (place - half) + 1) : place);
  const { size, bytes } = quantTypes.MXFP4;
  return {
    tensor: {
      name: `${name}.weight`,
      type: "MXFP4",
      quant: "MXFP4",
      shape: [experts, outputs, perRow * size],
      byteLength: count * bytes,
    },
    make: async (expert, signal) => {
      const parts = await Promise.all([readPart(file, blocks, expert, signal), readPart(file, scales, expert, signal)]);
      return packMxfp4(...parts, perRow, rowAt);
    },
  };
}

function dimsOf(file: StoredWeights, { name, shape }: WeightsTensor, rank: number): Shape {
  if (shape.length === rank && shape[0]! > 0) return shape;
  return fail(
    "ShapeMismatch",
    `${file.path}: tensor "${name}" has shape ${formatShape(shape)}; with all experts in it, it has ${rank} dims`,
  );
}

function floatsOf(file: StoredWeights, { name, dtype, type }: WeightsTensor) {
  return dtype ?? fail("UnexpectedDType", `${file.path}: tensor "${name}" has dtype ${type}; weights must be floats`);
}
