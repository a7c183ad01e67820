import type { DevicePtr, GpuContext, Recordings } from "./driver.ts";

export interface WorkspaceSize {
  readonly bytes: number;
  /** As large as it may grow. */
  readonly limit: number;
}

/**
 * Scratch memory of a BLAS library, Wick's own: memory that a library takes itself it may free and take anew, while a
 * recorded graph goes on using the old address. What was replaced therefore stays until no graph is left.
 */
export class Workspace {
  readonly #context: GpuContext;
  readonly #recordings: Recordings;
  readonly #use: (at: DevicePtr, bytes: number) => void;
  readonly #limit: number;
  #at: DevicePtr;
  #bytes: number;
  #replaced: DevicePtr[] = [];

  /** `use` tells the library; it throws where that is refused. */
  constructor(
    context: GpuContext,
    recordings: Recordings,
    { bytes, limit }: WorkspaceSize,
    use: (at: DevicePtr, bytes: number) => void,
  ) {
    this.#context = context;
    this.#recordings = recordings;
    this.#use = use;
    this.#limit = limit;
    this.#bytes = bytes;
    this.#at = context.malloc(bytes);
    try {
      use(this.#at, bytes);
    } catch (error) {
      context.free(this.#at);
      throw error;
    }
  }

  /** Gives the handle up by `destroy` where there is no memory for it, or it does not take it. */
  static orElse(destroy: () => void, ...given: ConstructorParameters<typeof Workspace>): Workspace {
    try {
      return new Workspace(...given);
    } catch (error) {
      destroy();
      throw error;
    }
  }

  get at(): DevicePtr {
    return this.#at;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Whether grow() may be called now and gives more. */
  get canGrow(): boolean {
    return this.#bytes < this.#limit && !this.#recordings.recording;
  }

  /** To the limit at once, because a product is tried again only once. */
  grow(): void {
    const larger = this.#context.malloc(this.#limit);
    this.#use(larger, this.#limit);
    this.#replaced.push(this.#at);
    this.#at = larger;
    this.#bytes = this.#limit;
    this.trim();
  }

  /** Frees what was replaced, where no recorded work can need it. */
  trim(): void {
    if (this.#replaced.length === 0 || this.#recordings.graphs > 0) return;
    // Products that were enqueued may be using it.
    this.#context.synchronizeSync();
    for (const at of this.#replaced) this.#context.free(at);
    this.#replaced = [];
  }

  free(): void {
    for (const at of [this.#at, ...this.#replaced]) this.#context.free(at);
    this.#replaced = [];
  }
}
