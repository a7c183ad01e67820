/** A rank of a model that is split: what it adds up and gathers with the others. */
import { fail } from "../../core/errors.ts";
import type { Communicator } from "../../distributed/communicator.ts";
import { Tensor } from "../../ops/index.ts";
import type { Stretch } from "./cuts.ts";

export class Shard {
  readonly rank: number;
  readonly ranks: number;
  readonly #communicator: Communicator;

  /** Of the ranks that share its layers. */
  constructor(communicator: Communicator) {
    this.rank = communicator.rank;
    this.ranks = communicator.size;
    this.#communicator = communicator;
  }

  /** The sum of what all ranks have; x is theirs no longer. */
  sum(x: Tensor): Tensor {
    return this.#communicator.allReduceInto(x);
  }

  /** (n, stretch of each rank) → (n, all of them). */
  gather(x: Tensor, stretches: readonly Stretch[]): Tensor {
    const [rows] = x.shape as [number, number];
    const most = Math.max(...stretches.map(({ count }) => count));
    const { count: own } = stretches[this.rank] ?? fail("InvalidArgument", `there is no stretch for rank ${this.rank}`);
    // Ranks give as much as each other.
    const padded = own === most ? x : x.padWithZeros(1, 0, most - own);
    const all = this.#communicator.allGather(padded);
    if (stretches.every(({ count }) => count === most)) {
      return all.transpose(0, 1).reshape([rows, this.ranks * most]);
    }
    const parts = stretches.map(({ count }, rank) => all.narrow(0, rank, 1).narrow(2, 0, count).reshape([rows, count]));
    return Tensor.cat(parts, 1);
  }
}
