/** Matrices as layers, plain and quantized. Those over each other in memory run in one product; parts are views. */
import type { View } from "../backend/backend.ts";
import type { QuantType } from "../core/quant-types.ts";
import { geluMul, rmsNorm, siluMul } from "../nn/index.ts";
import { type QTensor, qmatmul } from "../quantized/index.ts";
import { Tensor } from "../tensor/index.ts";
import { result } from "../tensor/tensor.ts";
import type { Activation } from "./config.ts";
import type { Fusion, Norm, Projection } from "./weights/weights.ts";

/** activation(gate) · up. */
const gated: Readonly<Record<Activation, (gate: Tensor, up: Tensor) => Tensor>> = {
  silu: siluMul,
  gelu: geluMul,
  geluErf: (gate, up) => gate.geluErf().mul(up),
  relu: (gate, up) => gate.relu().mul(up),
};

/** The activations that are part of a device's fused layers. */
const fusedGlu: Readonly<Partial<Record<Activation, "silu" | "gelu">>> = { silu: "silu", gelu: "gelu" };

const normed = (x: Tensor, norm: Norm | undefined): Tensor => (norm ? rmsNorm(x, norm.weight, norm.eps) : x);

abstract class Matrices implements Projection {
  readonly #weight: View;
  readonly #type: QuantType | null;
  readonly #bias: Tensor | null;
  readonly #sizes: readonly number[];

  /** `weight` is (rows, columns), or (rows, bytes) of blocks; `sizes` are the rows of each matrix. */
  constructor(weight: View, type: QuantType | null, bias: Tensor | null, sizes: readonly number[]) {
    this.#weight = weight;
    this.#type = type;
    this.#bias = bias;
    this.#sizes = sizes;
  }

  protected abstract product(x: Tensor): Tensor;

  forward(x: Tensor, { norm, glu, residual }: Fusion = {}): Tensor {
    const fused = glu === undefined ? null : fusedGlu[glu];
    if (fused !== undefined) {
      const y = this.#linear(x, norm, fused, residual);
      if (y) return y;
    }
    let y = this.product(normed(x, norm));
    if (this.#bias) y = y.add(this.#bias);
    if (glu) y = gated[glu](...(this.#split(y) as [Tensor, Tensor]));
    return residual ? residual.add(y) : y;
  }

  parts(x: Tensor, norm?: Norm): Tensor[] {
    return this.#split(this.forward(x, { norm }));
  }

  /** All of it in one kernel, where the device has one for so many rows. */
  #linear(x: Tensor, norm: Norm | undefined, glu: "silu" | "gelu" | null, residual: Tensor | undefined): Tensor | null {
    const rows = this.#weight.layout.shape[0]!;
    const params = { norm: norm ?? null, bias: this.#bias, glu, residual: residual ?? null };
    const y = x.backend.linear(x, this.#weight, this.#type, params);
    return y && result(y, [x.shape[0]!, glu ? rows / 2 : rows]);
  }

  #split(y: Tensor): Tensor[] {
    if (this.#sizes.length === 1) return [y];
    let at = 0;
    return this.#sizes.map((size) => {
      at += size;
      return y.narrow(1, at - size, size);
    });
  }
}

export class PlainMatrices extends Matrices {
  readonly #transposed: Tensor;

  /** The view it makes of `weight` is added to `owned`. */
  constructor(weight: Tensor, bias: Tensor | null, sizes: readonly number[], owned: Disposable[]) {
    super(weight, null, bias, sizes);
    this.#transposed = weight.t().keep();
    owned.push(this.#transposed);
  }

  protected override product(x: Tensor): Tensor {
    return x.matmul(this.#transposed);
  }
}

export class QuantizedMatrices extends Matrices {
  readonly #weight: QTensor;

  constructor(weight: QTensor, bias: Tensor | null, sizes: readonly number[]) {
    super(weight.blocks, weight.type, bias, sizes);
    this.#weight = weight;
  }

  protected override product(x: Tensor): Tensor {
    return qmatmul(x, this.#weight);
  }
}

/** Matrices of different types, one product for each. */
export class Joined implements Projection {
  readonly #all: readonly Projection[];

  constructor(all: readonly Projection[]) {
    this.#all = all;
  }

  forward(x: Tensor, { norm, glu, residual }: Fusion = {}): Tensor {
    const parts = this.parts(x, norm);
    const y = glu ? gated[glu](...(parts as [Tensor, Tensor])) : Tensor.cat(parts, 1);
    return residual ? residual.add(y) : y;
  }

  parts(x: Tensor, norm?: Norm): Tensor[] {
    return this.#all.flatMap((projection) => projection.parts(x, norm));
  }
}
