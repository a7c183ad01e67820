/**
 * Who multiplies, shape by shape: a vendor's library or Wick's own kernels. `wick tune` measures both and keeps their times beside
 * the compiled kernels, a file for each card, library and version of the kernels. What was not measured is the library's, but for a few
 * shapes of cards that are known.
 */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Gemm, GpuProperties } from "./driver.ts";
import { replaceFile } from "./replace-file.ts";
import { kernelSource } from "./source.ts";

/** What a choice depends on. */
export type ProductShape = Pick<Gemm, "type" | "m" | "n" | "k" | "transA" | "transB" | "batch">;

/** Microseconds. */
export interface ProductTimes {
  readonly own: number;
  readonly library: number;
}

export const fasterOf = ({ own, library }: ProductTimes): keyof ProductTimes => (own < library ? "own" : "library");

/** What was measured on cards that others have, too: who multiplies there where nobody has measured on this one. */
const knownCards: readonly { readonly name: RegExp; prefersOwn(shape: ProductShape): boolean }[] = [
  {
    // cuBLAS 13.1 beside a copy to whole pieces: 333×777×555 to 2049×4097×4095, in three layouts, 0.27 to 0.86 of its time.
    name: /^NVIDIA H200/,
    prefersOwn: ({ type, m, n, k, transA, transB, batch }) =>
      type === "bf16" &&
      batch === 1 &&
      m * n * k >= 2 ** 27 &&
      ((transA ? m : k) % 2 === 1 || (transB ? k : n) % 2 === 1),
  },
];

const letter = (isTransposed: boolean): string => (isTransposed ? "t" : "n");

/** "bf16 512x4096x14336 nt", and " 8 times" for a batch. */
export const shapeText = ({ type, m, n, k, transA, transB, batch }: ProductShape): string =>
  `${type} ${m}x${n}x${k} ${letter(transA)}${letter(transB)}${batch === 1 ? "" : ` ${batch} times`}`;

export class Tuning {
  readonly path: string;
  readonly #about: Readonly<Record<"card" | "library" | "kernels", string>>;
  readonly #times: Map<string, ProductTimes>;
  readonly #known: (typeof knownCards)[number] | undefined;
  #watched: Map<string, ProductShape> | null = null;

  constructor(folder: string, card: Pick<GpuProperties, "name" | "arch">, library: string) {
    const hash = createHash("sha256").update(kernelSource("gemm.hip")).update(kernelSource("product.hip"));
    const kernels = hash.digest("hex").slice(0, 16);
    this.#about = { card: `${card.name}, ${card.arch}`, library, kernels };
    const key = createHash("sha256").update(Object.values(this.#about).join("\n")).digest("hex");
    this.path = join(folder, `tuned-${key.slice(0, 32)}.json`);
    this.#times = readTimes(this.path);
    this.#known = knownCards.find(({ name }) => name.test(card.name));
  }

  /**
   * Whether Wick's own kernel is the faster one. A shape that was not measured takes the word of the one with its rows rounded up to a
   * power of two, so that a few measurements serve prompts of every length.
   */
  prefersOwn(shape: ProductShape): boolean {
    if (this.#watched) {
      const { type, m, n, k, transA, transB, batch } = shape;
      this.#watched.set(shapeText(shape), { type, m, n, k, transA, transB, batch });
    }
    const times = this.#times.size === 0 ? undefined : this.#nearest(shape);
    return times ? fasterOf(times) === "own" : (this.#known?.prefersOwn(shape) ?? false);
  }

  #nearest(shape: ProductShape): ProductTimes | undefined {
    return this.timesOf(shape) ?? this.timesOf({ ...shape, m: 2 ** Math.ceil(Math.log2(shape.m)) });
  }

  timesOf(shape: ProductShape): ProductTimes | undefined {
    return this.#times.get(shapeText(shape));
  }

  /** Gives why it was not written, undefined where it was. It holds in this process either way. */
  note(shape: ProductShape, times: ProductTimes): string | undefined {
    // Another process may have measured meanwhile.
    for (const [text, other] of readTimes(this.path)) this.#times.set(text, other);
    this.#times.set(shapeText(shape), times);
    const file = { ...this.#about, microseconds: Object.fromEntries(this.#times) };
    return replaceFile(this.path, `${JSON.stringify(file, null, 2)}\n`);
  }

  /** The shapes that are asked about while `run` runs, each once. */
  async watch(run: () => Promise<void>): Promise<ProductShape[]> {
    const watched = new Map<string, ProductShape>();
    this.#watched = watched;
    try {
      await run();
    } finally {
      this.#watched = null;
    }
    return [...watched.values()];
  }
}

/** What is not there, or damaged, was not measured. */
function readTimes(path: string): Map<string, ProductTimes> {
  const times = new Map<string, ProductTimes>();
  try {
    const { microseconds } = JSON.parse(readFileSync(path, "utf8")) as { microseconds?: unknown };
    for (const [text, entry] of Object.entries(microseconds ?? {})) {
      const { own, library } = (entry ?? {}) as { own?: unknown; library?: unknown };
      if (typeof own === "number" && typeof library === "number") times.set(text, { own, library });
    }
  } catch {
    // Measured anew by whoever wants to know.
  }
  return times;
}
