/** Rows on their way through the segments of a model, one after the other, wherever they lie. */
import type { Device } from "../backend/device.ts";
import { scope, type Tensor } from "../ops/index.ts";
import type { Segment } from "./segment.ts";
import type { LayerCache, Step } from "./steps.ts";

export interface PassageOptions {
  readonly segments: readonly Segment[];
  /** Gives what the first segment takes, wherever that is. */
  readonly enter: () => Tensor;
  readonly stepOn: (segment: Segment) => Step;
  readonly caches: readonly LayerCache[] | undefined;
}

export class Passage {
  readonly #options: PassageOptions;
  #passed = 0;
  /** What the next segment takes, once it is there; behind the last, what that one gave. */
  #arrival: (() => Tensor) | null = null;

  constructor(options: PassageOptions) {
    this.#options = options;
  }

  /** Where it goes on; null once it is through. */
  get next(): Device | null {
    return this.#options.segments[this.#passed]?.device ?? null;
  }

  /** Goes through the next segment. */
  advance(): void {
    const { segments, stepOn, caches, enter } = this.#options;
    const segment = segments[this.#passed]!;
    const arrival = this.#arrival ?? (() => moved(enter(), segment.device)());
    const y = scope(() => segment.run(arrival(), stepOn(segment), caches));
    this.#passed++;
    const { next } = this;
    this.#arrival = next ? moved(y, next) : () => y;
  }

  /** Ends it before it is through. */
  abandon(): void {
    this.#arrival?.().dispose();
    this.#arrival = null;
    this.#passed = this.#options.segments.length;
  }

  /** What the last segment gave. */
  through(): Tensor {
    while (this.next) this.advance();
    return this.#arrival!();
  }
}

/** Begins to move rows; what does not move is as good as there. */
function moved(x: Tensor, device: Device): () => Tensor {
  if (x.device === device) return () => x;
  const arrival = x.toDeviceLater(device);
  x.dispose();
  return arrival;
}
