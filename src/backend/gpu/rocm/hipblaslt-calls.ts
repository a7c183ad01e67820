/** hipBLASLt's calls, numbers and structs, and the calls that describe and compute a product, as data. */
import { fail } from "../../../core/errors.ts";
import { type Step, type Words, word } from "../calls.ts";
import { symbolOf } from "../library.ts";
import type { ColumnGemm } from "../native-blas.ts";

// ROCm/hipBLASLt library/include/hipblaslt.h at rocm-6.0.2, 6.1.2, 6.2.2 and 0.11; ROCm/rocm-libraries
// projects/hipblaslt/library/include/hipblaslt/hipblaslt.h. Enums are int.
export const prototypes = {
  create: "int hipblasLtCreate(void *out)",
  destroy: "int hipblasLtDestroy(void *handle)",
  version: "int hipblasLtGetVersion(void *handle, void *version)",
  descCreate: "int hipblasLtMatmulDescCreate(void *out, int computeType, int scaleType)",
  descDestroy: "int hipblasLtMatmulDescDestroy(void *desc)",
  descSet: "int hipblasLtMatmulDescSetAttribute(void *desc, int attribute, void *value, size_t bytes)",
  layoutCreate:
    "int hipblasLtMatrixLayoutCreate(void *out, int type, uint64_t rows, uint64_t columns, int64_t leadingDimension)",
  layoutDestroy: "int hipblasLtMatrixLayoutDestroy(void *layout)",
  layoutSet: "int hipblasLtMatrixLayoutSetAttribute(void *layout, int attribute, void *value, size_t bytes)",
  preferenceCreate: "int hipblasLtMatmulPreferenceCreate(void *out)",
  preferenceDestroy: "int hipblasLtMatmulPreferenceDestroy(void *preference)",
  preferenceSet:
    "int hipblasLtMatmulPreferenceSetAttribute(void *preference, int attribute, void *value, size_t bytes)",
  heuristic:
    "int hipblasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int asked, void *results, void *found)",
  matmul:
    "int hipblasLtMatmul(void *handle, void *desc, void *alpha, void *a, void *aLayout, void *b, void *bLayout, void *beta, void *c, void *cLayout, void *d, void *dLayout, void *algo, void *workspace, size_t workspaceBytes, void *stream)",
} as const;

/** hipblasLtGetVersion: major · 100000 + minor · 100 + patch. */
const oldestVersion = 600;
export const versionText = (n: number): string => `${Math.floor(n / 100_000)}.${Math.floor(n / 100) % 1000}.${n % 100}`;

// hip/library_types.h hipDataType: HIP_R_32F, HIP_R_16F, HIP_R_16BF.
const types = { f32: 0, f16: 2, bf16: 14 } as const;
// hipblas-common.h: HIPBLAS_COMPUTE_32F, HIPBLAS_OP_N, HIPBLAS_OP_T.
const computeF32 = 2;
const operation = { none: 111, transpose: 112 } as const;
// hipblaslt.h: HIPBLASLT_MATMUL_DESC_TRANSA and _TRANSB, HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT and _STRIDED_BATCH_OFFSET,
// HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES.
const attribute = { transA: 0, transB: 1, batchCount: 0, batchOffset: 1, maxWorkspace: 1 } as const;
/** hipblasLtMatmulHeuristicResult_t in words: algo (16 bytes and a size), workspaceSize, state and wavesCount, reserved. */
const resultWords = 7;
export const stateWord = 4;

const statuses: Readonly<Record<number, string>> = {
  1: "NOT_INITIALIZED",
  2: "ALLOC_FAILED",
  3: "INVALID_VALUE",
  4: "MAPPING_ERROR",
  5: "EXECUTION_FAILED",
  6: "INTERNAL_ERROR",
  7: "NOT_SUPPORTED",
  8: "ARCH_MISMATCH",
  9: "HANDLE_IS_NULLPTR",
  10: "INVALID_ENUM",
  11: "UNKNOWN",
};
export const allocFailed = 2;
export const notSupported = 7;

/** What PyTorch gives it. The heuristic never names a kernel that needs more, so it does not grow. */
export const workspaceBytes = 76 * 2 ** 20;

export const setUp: readonly Step[] = [
  ["create", "&handle"],
  ["version", "handle", "&version"],
  ["preferenceCreate", "&preference"],
  ["preferenceSet", "preference", attribute.maxWorkspace, "&maxWorkspace", 8],
];
export const setUpCells: Words = {
  handle: [0n],
  version: [0n],
  preference: [0n],
  maxWorkspace: [BigInt(workspaceBytes)],
};

export const layouts = ["aLayout", "bLayout", "dLayout"] as const;
export type Supported = keyof typeof types;
export const isSupported = (type: string): type is Supported => Object.hasOwn(types, type);

/** The steps that describe a problem; C and D are the same matrix. */
export function describeProblem(g: ColumnGemm<unknown>, type: Supported): Step[] {
  const t = types[type];
  return [
    ["descCreate", "&desc", computeF32, types.f32],
    ["descSet", "desc", attribute.transA, "&opA", 4],
    ["descSet", "desc", attribute.transB, "&opB", 4],
    ["layoutCreate", "&aLayout", t, g.transA ? g.k : g.m, g.transA ? g.m : g.k, g.lda],
    ["layoutCreate", "&bLayout", t, g.transB ? g.n : g.k, g.transB ? g.k : g.n, g.ldb],
    ["layoutCreate", "&dLayout", t, g.m, g.n, g.ldc],
    ...(g.batch === 1
      ? []
      : layouts.flatMap((layout): Step[] => [
          ["layoutSet", layout, attribute.batchCount, "&batch", 4],
          ["layoutSet", layout, attribute.batchOffset, `&${layout}Stride`, 8],
        ])),
  ];
}

export const problemCells = (g: ColumnGemm<unknown>): Words => {
  const code = (trans: boolean): bigint[] => [word(trans ? operation.transpose : operation.none)];
  return {
    desc: [0n],
    opA: code(g.transA),
    opB: code(g.transB),
    aLayout: [0n],
    bLayout: [0n],
    dLayout: [0n],
    batch: [word(g.batch)],
    aLayoutStride: [word(g.strideA)],
    bLayoutStride: [word(g.strideB)],
    dLayoutStride: [word(g.strideC)],
    result: Array.from({ length: resultWords }, () => 0n),
    found: [0n],
  };
};

// biome-ignore format: one line per operand
export const search: Step = ["heuristic", "handle", "desc",
  "aLayout", "bLayout", "dLayout", "dLayout",
  "preference", 1, "&result", "&found"];

export interface Matmul<Pointer> {
  readonly handle: Pointer;
  readonly desc: Pointer;
  readonly aLayout: Pointer;
  readonly bLayout: Pointer;
  readonly dLayout: Pointer;
  readonly algo: Pointer;
  readonly workspace: Pointer;
  readonly stream: Pointer;
}

/** The arguments of a product. The algorithm is what the search's result begins with. */
export function matmul<Pointer>(x: Matmul<Pointer>, g: ColumnGemm<Pointer>): (Pointer | number)[] {
  // biome-ignore format: one line per operand
  return [x.handle, x.desc,
    g.one, g.a, x.aLayout,
    g.b, x.bLayout,
    g.beta, g.c, x.dLayout,
    g.c, x.dLayout,
    x.algo, x.workspace, workspaceBytes, x.stream];
}

export const names: Matmul<string> = {
  handle: "handle",
  desc: "desc",
  aLayout: "aLayout",
  bLayout: "bLayout",
  dLayout: "dLayout",
  algo: "&result",
  workspace: "workspace",
  stream: "stream",
};

export const describe = (status: number): string => `HIPBLAS_STATUS_${statuses[status] ?? "UNKNOWN"} (${status})`;
export const check = (status: number, call: string): void => {
  if (status === 0) return;
  fail(
    "DriverError",
    `${symbolOf(prototypes[call as keyof typeof prototypes])} failed: ${describe(status)}; WICK_BLAS=rocblas avoids it`,
  );
};

/** Why a version is not used; empty from the oldest one on. */
export const tooOld = (version: number): string =>
  version >= oldestVersion
    ? ""
    : `is version ${versionText(version)}; ${versionText(oldestVersion)} (ROCm 6.0) is the oldest that Wick can use`;

/** The cells of a product that transposes nothing and has no batch: all that cells say of a problem. */
export const trialProblem: ColumnGemm<unknown> = {
  type: "f32",
  m: 0,
  n: 0,
  k: 0,
  a: 0,
  transA: false,
  lda: 0,
  strideA: 0,
  b: 0,
  transB: false,
  ldb: 0,
  strideB: 0,
  c: 0,
  ldc: 0,
  strideC: 0,
  batch: 1,
  one: 0,
  beta: 0,
};

/** What tells problems apart. */
export const keyOf = (g: ColumnGemm<unknown>): string =>
  `${g.type} ${g.transA} ${g.transB} ${g.m} ${g.n} ${g.k} ${g.lda} ${g.ldb} ${g.ldc} ${g.batch} ${g.strideA} ${g.strideB} ${g.strideC}`;
