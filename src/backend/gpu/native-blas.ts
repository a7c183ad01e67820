/**
 * Row-major products over the vendors' column-major BLAS: a row-major matrix is its transpose in column-major order, so
 * Cᵀ = Bᵀ·Aᵀ is asked for, with the operands swapped and no copies. Halves compute in f32.
 */
import { dtypes } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Workspace } from "./blas-workspace.ts";
import type { Call } from "./calls.ts";
import type { Blas, Gemm, GemmType, GpuContext } from "./driver.ts";
import { addressOf, callAsync } from "./library.ts";

/** A product as the libraries take it: column-major, C = one · op(A) · op(B) + beta · C. */
export interface ColumnGemm<Pointer> extends Gemm<Pointer> {
  readonly ldc: number;
  /** In the compute type, read from host memory: 1, and 1 or 0. */
  readonly one: Pointer;
  readonly beta: Pointer;
}

/** The vendor's calls. */
export interface BlasVendor {
  /** "rocBLAS", "hipBLASLt" or "cuBLAS". */
  readonly name: string;
  readonly library: string;
  readonly version: string;
  readonly workspace: Workspace;
  /** Whether it takes calls from a thread on which no context was made current; on HIP's threads the first device is. */
  readonly isForAnyThread: boolean;
  /** The status that means out of memory. */
  readonly outOfMemory: number;
  describe(status: number): string;
  /** The call that multiplies; null where the library has none for this product. */
  product(g: ColumnGemm<bigint>): Call | null;
  /** Does what the first call of `product` would do, without blocking this thread, where that may take long. */
  prepare?(g: ColumnGemm<bigint>): Promise<void>;
  destroy(): number;
}

const maxInt = 2 ** 31 - 1;
/** What 1 and 0 are in the compute types: zero is eight zero bytes in either. */
const scalarBytes = { one64: 0, one32: 8, zero: 16 } as const;

export class NativeBlas implements Blas {
  readonly library: string;
  readonly version: string;
  readonly #vendor: BlasVendor;
  readonly #context: GpuContext;
  readonly #scalars = new DataView(new ArrayBuffer(24));
  readonly #one: Readonly<Record<GemmType, bigint>>;
  readonly #zero: bigint;
  #closed = false;

  constructor(vendor: BlasVendor, context: GpuContext) {
    this.#vendor = vendor;
    this.#context = context;
    this.library = vendor.library;
    this.version = `${vendor.name} ${vendor.version}`;
    this.#scalars.setFloat64(scalarBytes.one64, 1, true);
    this.#scalars.setFloat32(scalarBytes.one32, 1, true);
    const base = addressOf(this.#scalars);
    const one32 = base + BigInt(scalarBytes.one32);
    this.#one = { f64: base + BigInt(scalarBytes.one64), f32: one32, f16: one32, bf16: one32 };
    this.#zero = base + BigInt(scalarBytes.zero);
  }

  gemm(p: Gemm): boolean {
    const g = this.#columns(p);
    if (!g) return true;
    this.#context.activate();
    const call = this.#vendor.product(g);
    if (!call) return false;
    const status = run(call);
    if (status !== 0) this.#again(p, g, status);
    this.#context.fence();
    return true;
  }

  async gemmAsync(p: Gemm): Promise<boolean> {
    // Which pool thread takes the call is not known, so none can be given another device before.
    if (!this.#vendor.isForAnyThread || this.#context.ordinal !== 0) return this.gemm(p);
    const g = this.#columns(p);
    if (!g) return true;
    this.#context.activate();
    await this.#vendor.prepare?.(g);
    const call = this.#vendor.product(g);
    if (!call) return false;
    const status = await callAsync(...call);
    if (status !== 0) this.#failed(p, status);
    this.#context.fence();
    return true;
  }

  trim(): void {
    this.#vendor.workspace.trim();
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#context.activate();
    const status = this.#vendor.destroy();
    this.#vendor.workspace.free();
    if (status !== 0) fail("DriverError", `closing ${this.version} failed: ${this.#vendor.describe(status)}`);
  }

  /** The product for the library; null where there is nothing to multiply, and then it is done. */
  #columns(p: Gemm): ColumnGemm<bigint> | null {
    if (this.#closed) fail("Disposed", `${this.version} is closed`);
    if (p.m === 0 || p.n === 0 || p.batch === 0) return null;
    if (p.k > 0) return columnMajor(p, this.#one[p.type], this.#zero, this.#vendor.name);
    if (!p.adds) this.#clear(p);
    return null;
  }

  /** An empty sum is zero. */
  #clear(p: Gemm): void {
    const size = dtypes[p.type].size;
    for (let i = 0; i < p.batch; i++) {
      this.#context.memset(p.c + BigInt(i * p.strideC * size), 0, p.m * p.n * size);
    }
  }

  /** Once more with a larger workspace, where that was missing. */
  #again(p: Gemm, g: ColumnGemm<bigint>, status: number): void {
    const { workspace, outOfMemory } = this.#vendor;
    if (status !== outOfMemory || !workspace.canGrow) this.#failed(p, status);
    workspace.grow();
    const second = run(this.#vendor.product(g)!);
    if (second !== 0) this.#failed(p, second);
  }

  #failed(p: Gemm, status: number): never {
    const { workspace, outOfMemory } = this.#vendor;
    const what = `${this.version} failed on a ${p.type} product (${p.m}×${p.k})·(${p.k}×${p.n}), batch ${p.batch}: ${this.#vendor.describe(status)}`;
    if (status !== outOfMemory) return fail("DriverError", what);
    return fail(
      "OutOfMemory",
      `${what}; its workspace of ${workspace.bytes} bytes does not do, and it cannot grow beyond its limit nor while work is recorded: multiply once before the capture, free tensors or use a smaller batch`,
    );
  }
}

const run = ([fn, ...args]: Call): number => fn(...args);

/** Row-major A·B as column-major Bᵀ·Aᵀ. */
export function columnMajor<Pointer>(
  p: Gemm<Pointer>,
  one: Pointer,
  zero: Pointer,
  library: string,
): ColumnGemm<Pointer> {
  const lda = leading("a", p.lda, p.transA ? p.k : p.m, p.transA ? p.m : p.k);
  const ldb = leading("b", p.ldb, p.transB ? p.n : p.k, p.transB ? p.k : p.n);
  if (Math.max(p.m, p.n, p.k, lda, ldb, p.batch) > maxInt) {
    fail(
      "InvalidArgument",
      `${library} takes sizes up to ${maxInt}; m = ${p.m}, n = ${p.n}, k = ${p.k}, lda = ${lda}, ldb = ${ldb}, batch = ${p.batch}`,
    );
  }
  return {
    type: p.type,
    m: p.n,
    n: p.m,
    k: p.k,
    a: p.b,
    transA: p.transB,
    lda: ldb,
    strideA: p.strideB,
    b: p.a,
    transB: p.transA,
    ldb: lda,
    strideB: p.strideA,
    c: p.c,
    ldc: p.n,
    strideC: p.strideC,
    batch: p.batch,
    adds: p.adds,
    one,
    beta: p.adds ? one : zero,
  };
}

/** A leading dimension is not used with a single row, but the libraries check it all the same. */
function leading(operand: string, given: number, rows: number, columns: number): number {
  if (given >= columns) return given;
  if (rows === 1) return columns;
  return fail(
    "InvalidArgument",
    `gemm: operand ${operand} has ${rows} rows of ${columns} elements but a leading dimension of ${given}; copy it to a contiguous one`,
  );
}
