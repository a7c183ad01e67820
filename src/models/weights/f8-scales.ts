/**
 * Weights in f8 with their scales in a tensor beside them, as checkpoints have them: one for a matrix, one for each row, or one
 * for each block, mostly of 128 × 128. What is stored times its scale is the weight.
 */
import { fail } from "../../core/errors.ts";
import { formatShape } from "../../core/layout.ts";
import type { WeightsTensor } from "../../formats/index.ts";
import { scope, Tensor } from "../../ops/index.ts";

/** Behind a matrix's name; both multiply, whatever they are called. */
const ENDINGS = ["_scale_inv", "_scale"];
const USUAL_BLOCK = 128;

export interface F8Scales {
  readonly tensor: WeightsTensor;
  /** (rows, columns) of scales. */
  readonly shape: readonly [number, number];
  /** How many rows, and how many columns, of weights one is for. */
  readonly block: readonly [number, number];
}

/** The scales of a matrix, where the file has any. */
export function scalesOf(tensors: readonly WeightsTensor[], matrix: WeightsTensor, path: string): F8Scales | null {
  if (matrix.dtype !== "f8e4m3" || matrix.shape.length !== 2) return null;
  const names = ENDINGS.map((ending) => matrix.name + ending);
  const tensor = tensors.find(({ name }) => names.includes(name));
  if (!tensor) return null;
  const [rows = 1, columns = 1, ...more] = tensor.shape;
  const block = [blockOf(matrix.shape[0]!, rows), blockOf(matrix.shape[1]!, columns)] as const;
  if (more.length === 0 && block[0] > 0 && block[1] > 0) return { tensor, shape: [rows, columns], block };
  return fail(
    "ShapeMismatch",
    `${path}: "${tensor.name}" ${formatShape(tensor.shape)} does not divide "${matrix.name}" ${formatShape(matrix.shape)} into blocks; scales are one for a matrix, for each row, or for blocks of ${USUAL_BLOCK} × ${USUAL_BLOCK}`,
  );
}

/** How many of `size` share each of `count`; 0 where no block of a power of two divides them so. */
function blockOf(size: number, count: number): number {
  if (count === 1) return size;
  const blocks = [USUAL_BLOCK, ...Array.from({ length: 16 }, (_, i) => 2 ** i)];
  return blocks.find((block) => Math.ceil(size / block) === count) ?? 0;
}

/** Rows of a matrix in f8, the first being row `first` of it, as f32. */
export function scaled(part: Tensor, first: number, scales: Tensor, [rows, columns]: F8Scales["block"]): Tensor {
  const [count, width] = part.shape as [number, number];
  return scope(() => {
    const ids = Uint32Array.from({ length: count }, (_, i) => Math.floor((first + i) / rows));
    const own = scales.indexSelect(Tensor.from(ids, { device: part.device }), 0);
    const across = own.shape[1]!;
    const spread = own
      .unsqueeze(2)
      .broadcastAs([count, across, columns])
      .reshape([count, across * columns]);
    return part.toDType("f32").mul(spread.narrow(1, 0, width));
  });
}
