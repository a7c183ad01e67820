/** A stage of a pipeline: ranks that have some of a model's layers, between those that have the layers before and behind. */
import type { DType } from "../../core/dtype.ts";
import type { Communicator } from "../../distributed/communicator.ts";
import type { Group } from "../../distributed/group.ts";
import { Tensor } from "../../ops/index.ts";

export class Pipeline {
  readonly stage: number;
  readonly stages: number;
  readonly #communicator: Communicator;
  /** Ranks of a stage. Each of them has the same states, and hands them to its like in the next. */
  readonly #shares: number;

  constructor({ stage, stages, size, communicator }: Pick<Group, "stage" | "stages" | "size" | "communicator">) {
    this.stage = stage;
    this.stages = stages;
    this.#communicator = communicator;
    this.#shares = size / stages;
  }

  /** What the layers before gave, (rows, width). */
  receive(rows: number, width: number, dtype: DType): Tensor {
    return this.#communicator.receive([rows, width], dtype, this.#communicator.rank - this.#shares);
  }

  /** Hands on what the layers gave; behind the last there is nobody. */
  send(states: Tensor): void {
    if (this.stage < this.stages - 1) this.#communicator.send(states, this.#communicator.rank + this.#shares);
  }

  /** The last stage's f32 logits (rows, vocabulary), on every rank; null on the others, which have none. */
  share(logits: Tensor | null, rows: number, vocabulary: number): Tensor {
    const { device, size } = this.#communicator;
    const own = logits?.contiguous() ?? Tensor.empty([rows, vocabulary], { device });
    return this.#communicator.broadcastInto(own, size - this.#shares);
  }
}
