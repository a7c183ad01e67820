/** Matrices of experts, or of heads, plain and quantized: rows go through those that ids name, or each has a row. */
import { call } from "../backend/call.ts";
import type { DType } from "../core/dtype.ts";
import { expertLinear, mixExperts } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import { QTensor } from "../quantized/index.ts";
import { result } from "../tensor/tensor.ts";
import { normalize } from "./norm.ts";
import { fusedGlu, gated } from "./projections.ts";
import type { ProjectionStack, RoutedFusion, StackFusion } from "./weights/weights.ts";

export class Stack implements ProjectionStack, Disposable {
  readonly #weight: Tensor | QTensor;
  readonly #bias: Tensor | null;
  readonly #dtype: DType;
  #all: Tensor | null = null;

  /** `weight` is (count, outputs, inputs), `bias` (count, outputs). */
  constructor(weight: Tensor | QTensor, bias: Tensor | null, dtype: DType) {
    this.#weight = weight;
    this.#bias = bias;
    this.#dtype = dtype;
  }

  forward(x: Tensor, ids: Tensor, { norm, glu, mix, residual }: StackFusion = {}): Tensor {
    if (norm?.kind === "layer") return this.forward(normalize(x, norm), ids, { glu, mix, residual });
    const own = { bias: this.#bias, norm, mix, residual };
    const fused = glu === undefined ? null : fusedGlu[glu];
    if (fused !== undefined) return expertLinear(x, this.#weight, ids, { ...own, glu: fused });
    const [gate, up] = expertLinear(x, this.#weight, ids, own).chunk(2, 1) as [Tensor, Tensor];
    return gated[glu!](gate, up);
  }

  routed(x: Tensor, scores: Tensor, count: number, down: ProjectionStack, fusion: RoutedFusion): Tensor | null {
    const { norm = null, residual = null } = fusion;
    const glu = fusedGlu[fusion.glu];
    const [open, close] = [this, down].map((stack) => (stack instanceof Stack ? stack.#unbiased() : null));
    if (!open || !close || open.type !== close.type || !glu || norm?.kind === "layer" || x.shape[0] !== 1) return null;
    const params = { count, type: open.type, norm, glu, residual };
    const made = call(x.backend, "routedExperts", x, scores, open.blocks, close.blocks, params);
    return made && result(made, [1, close.shape[1]!]);
  }

  each(x: Tensor): Tensor {
    const [rows, count, inputs] = x.shape as [number, number, number];
    const weight = this.#weight;
    if (weight instanceof Tensor) return x.transpose(0, 1).matmul(weight.transpose(1, 2)).transpose(0, 1);
    const y = expertLinear(x.reshape([rows * count, inputs]), weight, this.#allIds(rows));
    return y.reshape([rows, count, weight.shape[1]!]);
  }

  dense(): Tensor {
    return this.#weight instanceof Tensor ? this.#weight : this.#weight.dequantize(this.#dtype);
  }

  [Symbol.dispose](): void {
    this.#all?.dispose();
  }

  /** What is quantized, and has no bias. */
  #unbiased(): QTensor | null {
    return this.#weight instanceof QTensor && !this.#bias ? this.#weight : null;
  }

  /** Every matrix in its order, for each of the rows. */
  #allIds(rows: number): Tensor {
    const [count] = this.#weight.shape as [number];
    const ids = Uint32Array.from({ length: count }, (_, i) => i);
    this.#all ??= Tensor.from(ids, { shape: [1, count], device: this.#weight.device }).keep();
    return rows === 1 ? this.#all : this.#all.broadcastAs([rows, count]).contiguous();
  }
}

/** Gates and what they open, of different types. */
export class JoinedStacks implements ProjectionStack {
  readonly #stacks: readonly ProjectionStack[];

  constructor(stacks: readonly ProjectionStack[]) {
    this.#stacks = stacks;
  }

  forward(x: Tensor, ids: Tensor, { norm, glu, mix, residual }: StackFusion = {}): Tensor {
    const parts = this.#stacks.map((stack) => stack.forward(x, ids, { norm }));
    const y = glu ? gated[glu](...(parts as [Tensor, Tensor])) : Tensor.cat(parts, 1);
    return mix ? mixExperts(y, mix, residual) : y;
  }

  each(x: Tensor): Tensor {
    return Tensor.cat(
      this.#stacks.map((stack) => stack.each(x)),
      2,
    );
  }

  dense(): Tensor {
    return Tensor.cat(
      this.#stacks.map((stack) => stack.dense()),
      1,
    );
  }
}
