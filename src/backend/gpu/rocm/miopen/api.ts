/**
 * MIOpen's C calls and numbers. Read in ROCm/MIOpen include/miopen/miopen.h at the tags rocm-5.0.0 (2.15), rocm-5.7.1
 * (2.20) and rocm-6.2.2 (3.2) and at commit 2d1fd99 (3.3), and in ROCm/rocm-libraries
 * projects/miopen/include/miopen/miopen.h (3.4): what is used here is the same in all of them, attention from 3.2 on.
 */
import { fail } from "../../../../core/errors.ts";
import { type Bound, type Library, type LibrarySpec, openLibrary, symbolOf } from "../../library.ts";
import { rocmFiles } from "../folders.ts";

const spec = (): LibrarySpec => ({
  title: "MIOpen",
  env: "WICK_MIOPEN_LIBRARY",
  ...rocmFiles("miopen"),
  install: "install ROCm's package miopen-hip, open the device without MIOpen",
});

// Handles, descriptors, problems and solutions are pointers; enums are 32-bit, bool is a byte.
const prototypes = {
  version: "int miopenGetVersion(void *major, void *minor, void *patch)",
  create: "int miopenCreateWithStream(void *out, void *stream)",
  destroy: "int miopenDestroy(void *handle)",

  tensorCreate: "int miopenCreateTensorDescriptor(void *out)",
  tensorSet: "int miopenSet4dTensorDescriptor(void *tensor, int type, int n, int c, int h, int w)",
  tensorDestroy: "int miopenDestroyTensorDescriptor(void *tensor)",

  softmax:
    "int miopenSoftmaxForward_V2(void *handle, void *alpha, void *xDesc, void *x, void *beta, void *yDesc, void *y, int algorithm, int mode)",

  activationCreate: "int miopenCreateActivationDescriptor(void *out)",
  activationSet: "int miopenSetActivationDescriptor(void *desc, int mode, double alpha, double beta, double gamma)",
  activationDestroy: "int miopenDestroyActivationDescriptor(void *desc)",
  activation:
    "int miopenActivationForward(void *handle, void *desc, void *alpha, void *xDesc, void *x, void *beta, void *yDesc, void *y)",

  convCreate: "int miopenCreateConvolutionDescriptor(void *out)",
  convSet:
    "int miopenInitConvolutionDescriptor(void *desc, int mode, int padH, int padW, int strideH, int strideW, int dilationH, int dilationW)",
  convGroups: "int miopenSetConvolutionGroupCount(void *desc, int groups)",
  convDestroy: "int miopenDestroyConvolutionDescriptor(void *desc)",
  convWorkspace:
    "int miopenConvolutionForwardGetWorkSpaceSize(void *handle, void *wDesc, void *xDesc, void *desc, void *yDesc, void *bytes)",
  convFind:
    "int miopenFindConvolutionForwardAlgorithm(void *handle, void *xDesc, void *x, void *wDesc, void *w, void *desc, void *yDesc, void *y, int wanted, void *found, void *results, void *workspace, size_t bytes, uint8_t exhaustive)",
  conv: "int miopenConvolutionForward(void *handle, void *alpha, void *xDesc, void *x, void *wDesc, void *w, void *desc, int algorithm, void *beta, void *yDesc, void *y, void *workspace, size_t bytes)",

  poolCreate: "int miopenCreatePoolingDescriptor(void *out)",
  poolSet:
    "int miopenSet2dPoolingDescriptor(void *desc, int mode, int windowH, int windowW, int padH, int padW, int strideH, int strideW)",
  poolDestroy: "int miopenDestroyPoolingDescriptor(void *desc)",
  pool: "int miopenPoolingForward(void *handle, void *desc, void *alpha, void *xDesc, void *x, void *beta, void *yDesc, void *y, uint8_t doBackward, void *workspace, size_t bytes)",

  batchNorm:
    "int miopenBatchNormalizationForwardInference(void *handle, int mode, void *alpha, void *beta, void *xDesc, void *x, void *yDesc, void *y, void *perChannel, void *scale, void *bias, void *mean, void *variance, double epsilon)",
} as const;

// The problem and solution API (Find 2.0), for attention. No call destroys an attention descriptor.
const attention = {
  descCreate: "int miopenCreateMhaDescriptor(void *out)",
  descSet: "int miopenSetMhaDescriptor(void *desc, float scale)",
  problemCreate: "int miopenCreateMhaProblem(void *out, void *desc, int direction)",
  problemTensor: "int miopenSetProblemTensorDescriptor(void *problem, uint32_t id, void *tensor)",
  problemDestroy: "int miopenDestroyProblem(void *problem)",
  find: "int miopenFindSolutions(void *handle, void *problem, void *options, void *solutions, void *found, size_t wanted)",
  workspace: "int miopenGetSolutionWorkspaceSize(void *solution, void *bytes)",
  run: "int miopenRunSolution(void *handle, void *solution, size_t count, void *tensors, void *workspace, size_t bytes)",
  solutionDestroy: "int miopenDestroySolution(void *solution)",
} as const;

/** miopenDataType_t. */
export const types = { f16: 0, f32: 1, bf16: 5, i64: 9 } as const;
export type MiopenType = keyof typeof types;
/** miopenSoftmaxAlgorithm_t: the fast one does not subtract the maximum. miopenSoftmaxMode_t. */
export const softmaxAlgorithm = { accurate: 1, log: 2 } as const;
export const softmaxInstance = 0;
/** miopenActivationMode_t, under the names that Wick has for them. */
export const activationMode = {
  sigmoid: 1,
  tanh: 2,
  relu: 3,
  softplus: 4,
  abs: 5,
  clippedRelu: 7,
  leakyRelu: 8,
  elu: 9,
} as const;
/** miopenConvolutionMode_t: cross-correlation. */
export const convolutionMode = 0;
/** miopenConvAlgoPerf_t: { int algorithm; float milliseconds; size_t bytes }. */
export const convolutionResultBytes = 16;
/** miopenPoolingMode_t; without padding the two averages are one. */
export const poolingMode = { max: 0, avg: 2 } as const;
/** miopenBatchNormMode_t: statistics per channel. */
export const batchNormSpatial = 1;
/** miopenProblemDirection_t. */
export const directionForward = 0;
/** miopenTensorArgumentId_t. */
export const mhaTensor = {
  k: 4,
  q: 5,
  v: 6,
  descaleK: 7,
  descaleQ: 8,
  descaleV: 9,
  descaleS: 10,
  scaleS: 11,
  scaleO: 12,
  dropoutProbability: 13,
  dropoutSeed: 14,
  dropoutOffset: 15,
  o: 16,
  amaxO: 17,
  amaxS: 18,
  m: 19,
  zInv: 20,
} as const;
/** miopenTensorArgument_t: { uint32 id; void *descriptor; void *buffer }. */
export const mhaArgumentBytes = 24;
/** miopenStatus_t. */
const allocFailed = 4;

export interface MiopenApi {
  readonly library: string;
  readonly version: string;
  readonly calls: Bound<typeof prototypes>;
  /** Null in releases before 3.2. */
  readonly attention: Bound<typeof attention> | null;
  /** Throws what MIOpen says of the status of a call. */
  check(status: number, call: keyof typeof prototypes | keyof typeof attention): void;
}

export function openMiopenApi(hip: Library, explicit?: string): MiopenApi {
  const library = openLibrary(spec(), explicit, hip);
  const calls = library.bind(prototypes);
  const text = library.func<string | null>("const char *miopenGetErrorString(int status)");
  const check: MiopenApi["check"] = (status, call) => {
    if (status === 0) return;
    const symbol = symbolOf({ ...prototypes, ...attention }[call]);
    fail(
      status === allocFailed ? "OutOfMemory" : "DriverError",
      `${symbol} failed: ${text(status) ?? "unknown status"} (${status}); MIOPEN_ENABLE_LOGGING=1 makes MIOpen say more, and a device opened without MIOpen does the same with Wick's kernels`,
    );
  };
  const parts = new BigUint64Array(3);
  check(calls.version(parts.subarray(0, 1), parts.subarray(1, 2), parts.subarray(2, 3)), "version");
  const hasAttention = Object.values(attention).every((prototype) => library.has(symbolOf(prototype)));
  return {
    library: library.path,
    version: parts.join("."),
    calls,
    attention: hasAttention ? library.bind(attention) : null,
    check,
  };
}
