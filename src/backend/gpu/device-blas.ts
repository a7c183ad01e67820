/** The BLAS libraries of one device: which of them multiplies, why others do not, and their first product ahead of use. */
import { variable } from "../../core/environment.ts";
import { fail, WickError } from "../../core/errors.ts";
import type { BlasTrials } from "./blas-verdicts.ts";
import type { Blas, BlasLibrary, BlasSource, Gemm, GemmType, GpuContext, GpuPlatform, Recordings } from "./driver.ts";

/** A library that may be used; `blas` is undefined until it was looked at and null where it cannot be. */
interface Candidate {
  readonly source: BlasSource;
  library?: BlasLibrary;
  blas: Blas | null | undefined;
  problem: string;
  /** Found, but not fit for this device. */
  isUnfit: boolean;
}

const gemmTypes: readonly string[] = ["f16", "bf16", "f32", "f64"] satisfies GemmType[];
export const isGemmType = (dtype: string): dtype is GemmType => gemmTypes.includes(dtype);

/** Rows and columns of the first product. */
const SIZE = 64;

export class DeviceBlas {
  readonly #platform: GpuPlatform;
  readonly #context: GpuContext;
  readonly #recordings: Recordings;
  readonly #trials: BlasTrials;
  readonly #warm = new Set<string>();
  #candidates: readonly Candidate[] | undefined;
  /** A library that WICK_BLAS names, which nothing may take the place of. */
  #isForced = false;

  constructor(platform: GpuPlatform, context: GpuContext, recordings: Recordings, trials: BlasTrials) {
    this.#platform = platform;
    this.#context = context;
    this.#recordings = recordings;
    this.#trials = trials;
  }

  /** The library that multiplies, or null where Wick's own kernels do. */
  get first(): Blas | null {
    return this.#first()?.blas ?? null;
  }

  /** Why there is no library; empty when there is one. */
  get problem(): string {
    if (this.first) return "";
    const candidates = this.#all();
    if (candidates.length === 0) return "turned off by WICK_BLAS=none";
    const problems = candidates.map(({ problem }) => problem).join("; ");
    return candidates.at(-1)!.isUnfit ? `${problems}: Wick's own kernels multiply` : problems;
  }

  /** Why it is this library, where there was a choice. */
  get why(): string {
    const first = this.#first();
    if (!first) return "";
    if (this.#isForced) return `asked for by WICK_BLAS=${first.source.name}`;
    const passedOver = this.#all().slice(0, this.#all().indexOf(first));
    return [first.source.why, ...passedOver.map(({ problem }) => problem.split(": ")[0]!)].filter(Boolean).join("; ");
  }

  /** Multiplies by the first library that can; false where none can. */
  gemm(p: Gemm): boolean {
    for (const candidate of this.#all()) if (this.#look(candidate)?.gemm(p)) return true;
    return false;
  }

  /**
   * Finds the library and lets it multiply once, which loads its kernels: on a stream and a handle of its own, because
   * both are in use meanwhile. What fails here fails again, aloud, when used.
   */
  async prepare(type: GemmType): Promise<void> {
    try {
      for (const candidate of this.#all()) {
        await this.#lookAsync(candidate);
        if (!candidate.blas) continue;
        await this.#multiplyOnce(candidate.library!, candidate.source.name, type);
        return;
      }
    } catch {}
  }

  trim(): void {
    for (const { blas } of this.#candidates ?? []) blas?.trim();
  }

  #first(): Candidate | undefined {
    return this.#all().find((candidate) => this.#look(candidate));
  }

  #all(): readonly Candidate[] {
    this.#candidates ??= this.#choose();
    return this.#candidates;
  }

  #choose(): Candidate[] {
    const asked = variable("WICK_BLAS");
    if (asked === "none") return [];
    const all = this.#platform.blas(this.#context.properties.arch);
    const chosen = asked ? all.filter(({ name }) => name === asked) : all.filter(({ isDefault }) => isDefault);
    if (asked && chosen.length === 0) {
      fail(
        "InvalidArgument",
        `WICK_BLAS=${asked} names no library of this device; it can be none, ${all.map(({ name }) => name).join(", ")}, or unset`,
      );
    }
    this.#isForced = Boolean(asked);
    return chosen.map((source) => ({ source, blas: undefined, problem: "", isUnfit: false }));
  }

  #look(candidate: Candidate): Blas | null {
    if (candidate.blas !== undefined) return candidate.blas;
    const trial = this.#find(candidate);
    if (trial) this.#judge(candidate, this.#trials.problem(trial));
    return this.#open(candidate);
  }

  async #lookAsync(candidate: Candidate): Promise<void> {
    if (candidate.blas !== undefined) return;
    const trial = this.#find(candidate);
    if (!trial) return void this.#open(candidate);
    const problem = await this.#trials.problemAsync(trial);
    // Somebody may have multiplied meanwhile.
    if (candidate.blas !== undefined) return;
    this.#judge(candidate, problem);
    this.#open(candidate);
  }

  /** Finds the library; gives what is to be tried before it is used. */
  #find(candidate: Candidate): BlasLibrary["trial"] {
    this.#attempt(candidate, () => {
      candidate.library ??= candidate.source.find(this.#context);
      if (!this.#isForced) this.#judge(candidate, candidate.library.problem);
    });
    return candidate.blas === undefined && !this.#isForced ? candidate.library!.trial : null;
  }

  #judge(candidate: Candidate, problem: string): void {
    if (!problem) return;
    candidate.blas = null;
    candidate.problem = problem;
    candidate.isUnfit = true;
  }

  #open(candidate: Candidate): Blas | null {
    if (candidate.blas === undefined) {
      this.#attempt(candidate, () => {
        candidate.blas = candidate.library!.open(this.#context, this.#recordings);
      });
    }
    return candidate.blas ?? null;
  }

  #attempt(candidate: Candidate, run: () => void): void {
    try {
      run();
    } catch (error) {
      if (this.#isForced && error instanceof WickError) {
        fail(error.code, `WICK_BLAS=${candidate.source.name} asks for a library that cannot be used: ${error.message}`);
      }
      candidate.blas = null;
      candidate.problem = error instanceof Error ? error.message : String(error);
    }
  }

  async #multiplyOnce(library: BlasLibrary, name: string, type: GemmType): Promise<void> {
    const id = `${name} ${type}`;
    if (this.#warm.has(id)) return;
    this.#warm.add(id);
    const context = this.#platform.driver.open(this.#context.ordinal);
    const bytes = SIZE * SIZE * 8;
    const matrices: bigint[] = [];
    let blas: Blas | undefined;
    try {
      blas = library.open(context, { recording: false, graphs: 0 });
      for (let i = 0; i < 3; i++) {
        matrices.push(context.malloc(bytes));
        context.memset(matrices[i]!, 0, bytes);
      }
      const [a, b, c] = matrices as [bigint, bigint, bigint];
      const rows = { lda: SIZE, strideA: 0, ldb: SIZE, strideB: 0, strideC: 0, batch: 1, transA: false, transB: false };
      await blas.gemmAsync({ type, m: SIZE, n: SIZE, k: SIZE, a, b, c, ...rows });
      await context.synchronize();
    } finally {
      blas?.close();
      for (const at of matrices) context.free(at);
      context.close();
    }
  }
}
