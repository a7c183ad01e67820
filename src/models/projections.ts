/** Matrices as layers, plain and quantized. Those over each other in memory run in one product; parts are views. */

import type { GluActivation } from "../backend/fused-ops.ts";
import type { QuantType } from "../core/quant-types.ts";
import { clampedSwiglu, geluMul, siluMul } from "../nn/index.ts";
import { compute } from "../ops/compute.ts";
import { Tensor } from "../ops/index.ts";
import type { QTensor } from "../quantized/index.ts";
import type { Activation } from "./config.ts";
import { normalize } from "./norm.ts";
import type { Fusion, Norm, Projection } from "./weights/weights.ts";

/** activation(gate) · up. */
export const gated: Readonly<Record<Activation, (gate: Tensor, up: Tensor) => Tensor>> = {
  silu: siluMul,
  gelu: geluMul,
  geluErf: (gate, up) => gate.geluErf().mul(up),
  relu: (gate, up) => gate.relu().mul(up),
  clampedSwiglu,
};

/** The activations that are part of a device's fused layers. */
export const fusedGlu: Readonly<Partial<Record<Activation, GluActivation>>> = {
  silu: "silu",
  gelu: "gelu",
  clampedSwiglu: "clampedSwiglu",
};

export class Matrices implements Projection {
  readonly #weight: Tensor;
  readonly type: QuantType | null;
  readonly #bias: Tensor | null;
  readonly #sizes: readonly number[];

  /** `weight` is (rows, columns), or (rows, bytes) of blocks of a type; `sizes` are the rows of each matrix. */
  private constructor(weight: Tensor, type: QuantType | null, bias: Tensor | null, sizes: readonly number[]) {
    this.#weight = weight;
    this.type = type;
    this.#bias = bias;
    this.#sizes = sizes;
  }

  static plain(weight: Tensor, bias: Tensor | null, sizes: readonly number[]): Matrices {
    return new Matrices(weight, null, bias, sizes);
  }

  static quantized(weight: QTensor, bias: Tensor | null, sizes: readonly number[]): Matrices {
    return new Matrices(weight.blocks, weight.type, bias, sizes);
  }

  forward(x: Tensor, { norm, glu, ...after }: Fusion = {}): Tensor {
    if (norm?.kind === "layer") return this.forward(normalize(x, norm), { glu, ...after });
    const fused = glu === undefined ? null : fusedGlu[glu];
    if (fused !== undefined) return this.#linear(x, norm, fused, after);
    const [gate, up] = this.#split(this.#linear(x, norm, null, {}));
    const y = gated[glu!](gate!, up!);
    return after.residual ? after.residual.add(y) : y;
  }

  parts(x: Tensor, norm?: Norm): Tensor[] {
    return this.#split(this.forward(x, { norm }));
  }

  #linear(
    x: Tensor,
    norm: Norm | undefined,
    glu: GluActivation | null,
    { residual, ...rest }: Omit<Fusion, "norm" | "glu">,
  ): Tensor {
    const rows = this.#weight.shape[0]!;
    const shape = [x.shape[0]!, glu ? rows / 2 : rows];
    const params = { norm: norm ?? null, bias: this.#bias, glu, residual: residual ?? null, ...rest };
    return compute(x.backend, "linear", shape, x, this.#weight, this.type, params);
  }

  #split(y: Tensor): Tensor[] {
    return this.#sizes.length === 1 ? [y] : y.split(this.#sizes, 1);
  }
}

/** Matrices of different types, or that lie apart: one product for each. */
export class Joined implements Projection {
  readonly #all: readonly Projection[];

  constructor(all: readonly Projection[]) {
    this.#all = all;
  }

  forward(x: Tensor, { norm, glu, activation, residual }: Fusion = {}): Tensor {
    const parts = this.parts(x, norm);
    const y = glu ? gated[glu](...(parts as [Tensor, Tensor])) : Tensor.cat(parts, 1);
    const activated = activation ? y[activation]() : y;
    return residual ? residual.add(activated) : activated;
  }

  parts(input: Tensor, ownNorm?: Norm): Tensor[] {
    // Where a norm is no part of a product, it is done once for all.
    const isApart = ownNorm && (ownNorm.kind === "layer" || !input.backend.linear);
    const [x, norm] = isApart ? [normalize(input, ownNorm), undefined] : [input, ownNorm];
    return this.#all.flatMap((projection) => projection.parts(x, norm));
  }
}
