/** Products that are added to what is there already, by the vendor's BLAS: layers of many rows need no kernel for their residual. */
import { numel } from "../../../core/layout.ts";
import type { QuantType } from "../../../core/quant-types.ts";
import type { View } from "../../backend.ts";
import type { LinearParams } from "../../fused-ops.ts";
import type { Storage } from "../../storage.ts";
import { at, type Gpu } from "../gpu.ts";
import { alignedBlocks } from "./linear.ts";
import { addProduct } from "./matmul.ts";
import { blasRows, dequantized, rowsProduct } from "./quantized.ts";

/** x · wᵀ and a residual that nobody else needs, where that lies; null where the library does not multiply, or another kernel adds. */
export function addedProduct(gpu: Gpu, x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
  const { residual } = p;
  const { dtype } = x.storage;
  const k = x.layout.shape.at(-1)!;
  const sizes = { rows: numel(x.layout.shape.slice(0, -1)), n: w.layout.shape[0]!, k };
  if (!residual || !p.spendsResidual || residual.storage.isShared || !gpu.blas || gpu.isInvariant) return null;
  if (p.norm || p.bias || p.glu || p.activation || sizes.rows < 2 || sizes.n * k === 0) return null;
  if (residual.storage.dtype !== dtype || ![x, w, residual].every(({ layout }) => layout.isContiguous())) return null;
  if (type ? dtype === "f32" || sizes.rows < blasRows(type, gpu.context.properties.arch) : w.storage.dtype !== dtype)
    return null;
  const added = (weights: number): boolean => addProduct(gpu, rowsProduct(dtype, at(x), weights, sizes), at(residual));
  let done = false;
  if (!type) done = added(at(w));
  else {
    alignedBlocks(gpu, w, (blocks) => {
      gpu.fenceWeights(w.storage);
      dequantized(gpu, type, dtype, blocks, sizes, (weights) => {
        done = added(weights);
      });
    });
  }
  return done ? residual.storage : null;
}
