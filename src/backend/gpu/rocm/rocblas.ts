import { fail } from "../../../core/errors.ts";
import type { Blas, GpuContext } from "../driver.ts";
import { type Library, type LibrarySpec, openLibrary } from "../library.ts";
import { NativeBlas } from "../native-blas.ts";
import { cString } from "../native-driver.ts";
import { rocmFiles } from "./folders.ts";

const spec = (): LibrarySpec => ({
  title: "rocBLAS",
  env: "WICK_ROCBLAS_LIBRARY",
  ...rocmFiles("rocblas"),
  install: "install ROCm's package rocblas",
});

// ROCm/rocBLAS library/include/internal/rocblas-{auxiliary,functions}.h; rocblas_int is 32-bit, rocblas_stride 64-bit.
const prototypes = {
  create: "int rocblas_create_handle(void *out)",
  destroy: "int rocblas_destroy_handle(void *handle)",
  setStream: "int rocblas_set_stream(void *handle, void *stream)",
  versionSize: "int rocblas_get_version_string_size(void *size)",
  version: "int rocblas_get_version_string(void *text, size_t length)",
  gemm: "int rocblas_gemm_ex(void *handle, int opA, int opB, int32_t m, int32_t n, int32_t k, void *alpha, void *a, int aType, int32_t lda, void *b, int bType, int32_t ldb, void *beta, void *c, int cType, int32_t ldc, void *d, int dType, int32_t ldd, int computeType, int algo, int32_t solution, uint32_t flags)",
  stridedGemm:
    "int rocblas_gemm_strided_batched_ex(void *handle, int opA, int opB, int32_t m, int32_t n, int32_t k, void *alpha, void *a, int aType, int32_t lda, int64_t strideA, void *b, int bType, int32_t ldb, int64_t strideB, void *beta, void *c, int cType, int32_t ldc, int64_t strideC, void *d, int dType, int32_t ldd, int64_t strideD, int32_t batch, int computeType, int algo, int32_t solution, uint32_t flags)",
} as const;

// rocblas-types.h: rocblas_datatype, rocblas_operation, rocblas_gemm_algo, rocblas_gemm_flags, rocblas_status.
const types = { f16: 150, f32: 151, f64: 152, bf16: 168 } as const;
const computeTypes = { f16: types.f32, bf16: types.f32, f32: types.f32, f64: types.f64 } as const;
const operation = { none: 111, transpose: 112 } as const;
const algoStandard = 0;
const noFlags = 0;
const statuses: Readonly<Record<number, string>> = {
  1: "invalid handle",
  2: "not implemented",
  3: "invalid pointer",
  4: "invalid size",
  5: "memory error",
  6: "internal error",
  11: "invalid value",
  14: "not in this build",
  15: "the device lacks a needed feature",
};
const memoryError = 5;

/** One handle per context, bound to its stream. */
export function openRocblas(context: GpuContext, hip: Library, explicit?: string): Blas {
  const library = openLibrary(spec(), explicit, hip);
  const api = library.bind(prototypes);
  const describe = (status: number): string => `rocblas_status ${status} (${statuses[status] ?? "unknown"})`;
  const check = (status: number, what: string): void => {
    if (status !== 0) fail("DriverError", `${what} failed: ${describe(status)}`);
  };
  context.activate();
  const cell = new BigUint64Array(1);
  check(api.versionSize(cell), "rocblas_get_version_string_size");
  const version = new Uint8Array(Number(cell[0]));
  check(api.version(version, version.length), "rocblas_get_version_string");
  check(api.create(cell), "rocblas_create_handle");
  const handle = cell[0]!;
  check(api.setStream(handle, context.stream), "rocblas_set_stream");
  return new NativeBlas(
    {
      name: "rocBLAS",
      library: library.path,
      version: cString(version),
      handle,
      types,
      computeTypes,
      ...operation,
      outOfMemory: memoryError,
      describe,
      // C and D are the same matrix: the product is written in place.
      gemm: (opA, opB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, t, compute) =>
        // biome-ignore format: one line per operand
        api.gemm(handle, opA, opB, m, n, k,
          alpha, a, t, lda,
          b, t, ldb,
          beta, c, t, ldc,
          c, t, ldc,
          compute, algoStandard, 0, noFlags),
      stridedGemm: (opA, opB, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch, t, compute) =>
        // biome-ignore format: one line per operand
        api.stridedGemm(handle, opA, opB, m, n, k,
          alpha, a, t, lda, sa,
          b, t, ldb, sb,
          beta, c, t, ldc, sc,
          c, t, ldc, sc,
          batch, compute, algoStandard, 0, noFlags),
      destroy: () => api.destroy(handle),
    },
    context,
  );
}
