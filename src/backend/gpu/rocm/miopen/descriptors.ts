/** MIOpen's descriptors for the time of one call: those that were made are destroyed when the scope ends. */
import type { Handle } from "../../driver.ts";
import { type MiopenApi, type MiopenType, types } from "./api.ts";

type Kind = "tensor" | "activation" | "conv" | "pool";

export class Descriptors implements Disposable {
  readonly #api: MiopenApi;
  readonly #made: { readonly kind: Kind; readonly handle: Handle }[] = [];

  constructor(api: MiopenApi) {
    this.#api = api;
  }

  /** Fewer dims are dims of size 1 in front. */
  tensor(type: MiopenType, ...dims: readonly number[]): Handle {
    const [n, c, h, w] = [1, 1, 1, ...dims].slice(-4) as [number, number, number, number];
    const handle = this.#make("tensor");
    this.#api.check(this.#api.calls.tensorSet(handle, types[type], n, c, h, w), "tensorSet");
    return handle;
  }

  activation(mode: number, alpha: number, beta: number): Handle {
    const handle = this.#make("activation");
    this.#api.check(this.#api.calls.activationSet(handle, mode, alpha, beta, 1), "activationSet");
    return handle;
  }

  convolution(mode: number, numbers: readonly number[], groups: number): Handle {
    const handle = this.#make("conv");
    this.#api.check(this.#api.calls.convSet(handle, mode, ...numbers), "convSet");
    this.#api.check(this.#api.calls.convGroups(handle, groups), "convGroups");
    return handle;
  }

  pooling(mode: number, numbers: readonly number[]): Handle {
    const handle = this.#make("pool");
    this.#api.check(this.#api.calls.poolSet(handle, mode, ...numbers), "poolSet");
    return handle;
  }

  [Symbol.dispose](): void {
    const { calls, check } = this.#api;
    const statuses = this.#made.map(({ kind, handle }) => [kind, calls[`${kind}Destroy`](handle)] as const);
    for (const [kind, status] of statuses) check(status, `${kind}Destroy`);
  }

  #make(kind: Kind): Handle {
    const out = new BigUint64Array(1);
    this.#api.check(this.#api.calls[`${kind}Create`](out), `${kind}Create`);
    this.#made.push({ kind, handle: out[0]! });
    return out[0]!;
  }
}
