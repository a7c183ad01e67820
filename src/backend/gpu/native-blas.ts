/**
 * Row-major products over the vendors' column-major BLAS: a row-major matrix is its transpose in column-major order, so
 * Cᵀ = Bᵀ·Aᵀ is asked for, with the operands swapped and no copies. Halves compute in f32.
 */
import { dtypes } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Blas, Gemm, GemmType, GpuContext, Handle } from "./driver.ts";
import { addressOf } from "./library.ts";

/** The vendor's numbers and calls. Leading dimensions are column-major ones. */
export interface BlasVendor {
  /** "rocBLAS" or "cuBLAS". */
  readonly name: string;
  readonly library: string;
  readonly version: string;
  readonly handle: Handle;
  readonly types: Readonly<Record<GemmType, number>>;
  readonly computeTypes: Readonly<Record<GemmType, number>>;
  readonly none: number;
  readonly transpose: number;
  /** The status that means out of memory. */
  readonly outOfMemory: number;
  describe(status: number): string;
  gemm: GemmCall;
  stridedGemm: StridedGemmCall;
  destroy(): number;
}

export type GemmCall = (
  opA: number,
  opB: number,
  m: number,
  n: number,
  k: number,
  alpha: bigint,
  a: bigint,
  lda: number,
  b: bigint,
  ldb: number,
  beta: bigint,
  c: bigint,
  ldc: number,
  type: number,
  computeType: number,
) => number;
export type StridedGemmCall = (
  opA: number,
  opB: number,
  m: number,
  n: number,
  k: number,
  alpha: bigint,
  a: bigint,
  lda: number,
  strideA: number,
  b: bigint,
  ldb: number,
  strideB: number,
  beta: bigint,
  c: bigint,
  ldc: number,
  strideC: number,
  batch: number,
  type: number,
  computeType: number,
) => number;

const maxInt = 2 ** 31 - 1;

export class NativeBlas implements Blas {
  readonly library: string;
  readonly version: string;
  readonly #vendor: BlasVendor;
  readonly #context: GpuContext;
  /** 1 and 0 in the compute types, read by every call from host memory. */
  readonly #scalars = new DataView(new ArrayBuffer(24));
  readonly #one: Readonly<Record<GemmType, bigint>>;
  readonly #zero: bigint;
  #closed = false;

  constructor(vendor: BlasVendor, context: GpuContext) {
    this.#vendor = vendor;
    this.#context = context;
    this.library = vendor.library;
    this.version = `${vendor.name} ${vendor.version}`;
    this.#scalars.setFloat64(0, 1, true);
    this.#scalars.setFloat32(8, 1, true);
    const base = addressOf(this.#scalars);
    this.#one = { f64: base, f32: base + 8n, f16: base + 8n, bf16: base + 8n };
    this.#zero = base + 16n; // zero is eight zero bytes in either type
  }

  gemm(p: Gemm): void {
    if (this.#closed) fail("Disposed", `${this.version} is closed`);
    if (p.m === 0 || p.n === 0 || p.batch === 0) return;
    if (p.k === 0) {
      this.#clear(p);
      return;
    }
    const v = this.#vendor;
    const lda = leading("a", p.lda, p.transA ? p.k : p.m, p.transA ? p.m : p.k);
    const ldb = leading("b", p.ldb, p.transB ? p.n : p.k, p.transB ? p.k : p.n);
    if (Math.max(p.m, p.n, p.k, lda, ldb, p.batch) > maxInt) {
      fail(
        "InvalidArgument",
        `${v.name} takes sizes up to ${maxInt}; m = ${p.m}, n = ${p.n}, k = ${p.k}, lda = ${lda}, ldb = ${ldb}, batch = ${p.batch}`,
      );
    }
    const opA = p.transB ? v.transpose : v.none;
    const opB = p.transA ? v.transpose : v.none;
    const type = v.types[p.type];
    const compute = v.computeTypes[p.type];
    const one = this.#one[p.type];
    this.#context.activate();
    const status =
      p.batch === 1
        ? v.gemm(opA, opB, p.n, p.m, p.k, one, p.b, ldb, p.a, lda, this.#zero, p.c, p.n, type, compute)
        : v.stridedGemm(
            opA,
            opB,
            p.n,
            p.m,
            p.k,
            one,
            p.b,
            ldb,
            p.strideB,
            p.a,
            lda,
            p.strideA,
            this.#zero,
            p.c,
            p.n,
            p.strideC,
            p.batch,
            type,
            compute,
          );
    if (status !== 0) this.#failed(p, status);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#context.activate();
    const status = this.#vendor.destroy();
    if (status !== 0) fail("DriverError", `closing ${this.version} failed: ${this.#vendor.describe(status)}`);
  }

  /** An empty sum is zero. */
  #clear(p: Gemm): void {
    const size = dtypes[p.type].size;
    for (let i = 0; i < p.batch; i++) {
      this.#context.memset(p.c + BigInt(i * p.strideC * size), 0, p.m * p.n * size);
    }
  }

  #failed(p: Gemm, status: number): never {
    const what = `${this.version} failed on a ${p.type} product (${p.m}×${p.k})·(${p.k}×${p.n}), batch ${p.batch}: ${this.#vendor.describe(status)}`;
    if (status === this.#vendor.outOfMemory) return fail("OutOfMemory", `${what}; free tensors or use a smaller batch`);
    return fail("DriverError", what);
  }
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
