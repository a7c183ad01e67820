import { fail } from "../../../core/errors.ts";
import { Workspace } from "../blas-workspace.ts";
import type { BlasLibrary, BlasSource } from "../driver.ts";
import { type LibrarySpec, openLibrary, symbolOf } from "../library.ts";
import { NativeBlas } from "../native-blas.ts";
import { cudaFiles } from "./folders.ts";

const spec = (): LibrarySpec => ({
  title: "cuBLAS",
  env: "WICK_CUBLAS_LIBRARY",
  ...cudaFiles("cublas"),
  install: "install the CUDA toolkit or the pip package nvidia-cublas",
});

// cublas_api.h of CUDA 12.6; strides are long long.
const prototypes = {
  create: "int cublasCreate_v2(void *out)",
  destroy: "int cublasDestroy_v2(void *handle)",
  version: "int cublasGetVersion_v2(void *handle, void *version)",
  setStream: "int cublasSetStream_v2(void *handle, void *stream)",
  setWorkspace: "int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes)",
  setMathMode: "int cublasSetMathMode(void *handle, int mode)",
  gemm: "int cublasGemmEx(void *handle, int opA, int opB, int m, int n, int k, void *alpha, void *a, int aType, int lda, void *b, int bType, int ldb, void *beta, void *c, int cType, int ldc, int computeType, int algo)",
  stridedGemm:
    "int cublasGemmStridedBatchedEx(void *handle, int opA, int opB, int m, int n, int k, void *alpha, void *a, int aType, int lda, int64_t strideA, void *b, int bType, int ldb, int64_t strideB, void *beta, void *c, int cType, int ldc, int64_t strideC, int batch, int computeType, int algo)",
} as const;

// library_types.h: CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F.
const types = { f16: 2, bf16: 14, f32: 0, f64: 1 } as const;
// cublasComputeType_t: CUBLAS_COMPUTE_32F and _64F.
const computeTypes = { f16: 68, bf16: 68, f32: 68, f64: 70 } as const;
const operation = { none: 0, transpose: 1 } as const;
const algoDefault = -1;
// CUBLAS_DEFAULT_MATH (f32 stays f32) | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION (halves are summed in f32).
const mathMode = 0 | 16;
const statuses: Readonly<Record<number, string>> = {
  1: "NOT_INITIALIZED",
  3: "ALLOC_FAILED",
  7: "INVALID_VALUE",
  8: "ARCH_MISMATCH",
  11: "MAPPING_ERROR",
  13: "EXECUTION_FAILED",
  14: "INTERNAL_ERROR",
  15: "NOT_SUPPORTED",
  16: "LICENSE_ERROR",
};
const allocFailed = 3;
/** What NVIDIA recommends for Hopper. Ours, because a workspace that cuBLAS allocates cannot be part of a graph. */
const workspaceBytes = 32 * 2 ** 20;

const describe = (status: number): string => `CUBLAS_STATUS_${statuses[status] ?? "UNKNOWN"} (${status})`;
const check = (status: number, call: keyof typeof prototypes): void => {
  if (status === 0) return;
  fail("DriverError", `${symbolOf(prototypes[call]).replace("_v2", "")} failed: ${describe(status)}`);
};

export const cublasSource = (explicit?: string): BlasSource => ({
  name: "cublas",
  isDefault: true,
  why: "",
  find: () => openCublas(explicit),
});

function openCublas(explicit?: string): BlasLibrary {
  const library = openLibrary(spec(), explicit);
  const api = library.bind(prototypes);
  return {
    library: library.path,
    version: "cuBLAS",
    problem: "",
    trial: null, // it carries code for every GPU that its driver takes
    open(context, recordings) {
      context.activate();
      const cell = new BigUint64Array(1);
      check(api.create(cell), "create");
      const handle = cell[0]!;
      const version = new Int32Array(1);
      check(api.version(handle, version), "version");
      check(api.setMathMode(handle, mathMode), "setMathMode");
      // In this order: setting the stream resets the workspace.
      check(api.setStream(handle, context.stream), "setStream");
      const size = { bytes: workspaceBytes, limit: workspaceBytes };
      const destroy = (): number => api.destroy(handle);
      const workspace = Workspace.orElse(destroy, context, recordings, size, (at, bytes) =>
        check(api.setWorkspace(handle, at, bytes), "setWorkspace"),
      );
      return new NativeBlas(
        {
          name: "cuBLAS",
          library: library.path,
          version: cublasVersion(version[0]!),
          workspace,
          isForAnyThread: false,
          outOfMemory: allocFailed,
          describe,
          product(g) {
            const [t, compute] = [types[g.type], computeTypes[g.type]];
            const [opA, opB] = [g.transA, g.transB].map((trans) => (trans ? operation.transpose : operation.none)) as [
              number,
              number,
            ];
            // biome-ignore format: one line per operand
            return g.batch === 1
              ? [api.gemm, handle, opA, opB, g.m, g.n, g.k,
                  g.one, g.a, t, g.lda,
                  g.b, t, g.ldb,
                  g.beta, g.c, t, g.ldc,
                  compute, algoDefault]
              : [api.stridedGemm, handle, opA, opB, g.m, g.n, g.k,
                  g.one, g.a, t, g.lda, g.strideA,
                  g.b, t, g.ldb, g.strideB,
                  g.beta, g.c, t, g.ldc, g.strideC,
                  g.batch, compute, algoDefault];
          },
          destroy,
        },
        context,
      );
    },
  };
}

/** 120604 is 12.6.4; before version 12 it was 11401 for 11.4.1. */
const cublasVersion = (n: number): string => {
  const unit = n >= 100_000 ? 10_000 : 1_000;
  return `${Math.floor(n / unit)}.${Math.floor((n % unit) / 100)}.${n % 100}`;
};
