/** Weights that a device shows where they lie in their file. */
import type { Device } from "../../backend/device.ts";
import type { DType } from "../../core/dtype.ts";
import type { Shape } from "../../core/layout.ts";
import { mapped } from "../../formats/upload.ts";
import type { Tensor } from "../../ops/index.ts";
import { bytesPerRow, isAsStored, joinedSources, type Source } from "./model-tensors.ts";

/** Matrices for one input that are smaller together are copied, so that they can be one product. */
const APART_FROM = 4 * 2 ** 20;

/** Whether sources, which would be copied to lie over each other, are better left each where it lies. */
export function liesApart(sources: readonly Source[], dtype: DType, device: Device): boolean {
  if (!device.backend.map || sources.length < 2) return false;
  const bytes = sources.reduce((sum, { tensor, rows }) => sum + rows * bytesPerRow(tensor), 0);
  return bytes >= APART_FROM && sources.every((source) => isInOnePlace(source) && isAsStored(source.tensor, dtype));
}

/** The same for the matrices of experts, a list of parts for each: those of one part lie one behind the other. */
export function lieApart(experts: readonly (readonly Source[])[], dtype: DType, device: Device): boolean {
  const parts = experts[0]!.map((_, i) => joinedSources(experts.map((sources) => sources[i]!)));
  return (
    parts.every((runs) => runs.length === 1) &&
    liesApart(
      parts.map(([run]) => run!),
      dtype,
      device,
    )
  );
}

const isInOnePlace = ({ slices, transposed }: Source): boolean => slices.length === 1 && !transposed;

/** The rows of a source as a tensor of `shape`: the file's own pages; null where they must be copied. */
export function mappedRows(source: Source, shape: Shape, dtype: DType, device: Device): Tensor | null {
  const { tensor, slices } = source;
  if (!isInOnePlace(source) || !tensor.place || !(tensor.quant || tensor.dtype === dtype)) return null;
  const { file, offset } = tensor.place;
  return mapped({ file, offset: offset + slices[0]!.start * bytesPerRow(tensor) }, shape, dtype, device);
}
