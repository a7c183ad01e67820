/** Matrices as layers, plain and quantized. Those over each other in memory run in one product; results are views. */
import { type QTensor, qmatmul } from "../quantized/index.ts";
import type { Tensor } from "../tensor/index.ts";
import type { Projection } from "./weights.ts";

abstract class Matrices implements Projection {
  readonly #bias: Tensor | null;
  readonly #sizes: readonly number[];

  /** `sizes` are the rows of each matrix. */
  constructor(bias: Tensor | null, sizes: readonly number[]) {
    this.#bias = bias;
    this.#sizes = sizes;
  }

  protected abstract product(x: Tensor): Tensor;

  whole(x: Tensor): Tensor {
    const product = this.product(x);
    return this.#bias ? product.add(this.#bias) : product;
  }

  forward(x: Tensor): Tensor[] {
    const y = this.whole(x);
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
    super(bias, sizes);
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
    super(bias, sizes);
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

  forward(x: Tensor): Tensor[] {
    return this.#all.flatMap((projection) => projection.forward(x));
  }
}
