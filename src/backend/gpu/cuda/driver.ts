/** NVIDIA's driver API, and the one place where NVIDIA's libraries are opened. */
import { openCcl } from "../ccl.ts";
import type { GpuPlatform } from "../driver.ts";
import { addressOf, type Library, type LibrarySpec, openLibrary, textAt } from "../library.ts";
import { NativeDriver } from "../native-driver.ts";
import { systemMemory } from "../system-memory.ts";
import type { DriverPrototypes, OverlappingLaunch, Vendor } from "../vendor.ts";
import { boxMaps } from "./box-map.ts";
import { cublasSource } from "./cublas.ts";
import { cudaFiles } from "./folders.ts";
import { openNvrtc } from "./nvrtc.ts";

/** Paths of the libraries; those not given are searched for. */
export interface CudaLibraries {
  readonly cudaLibrary?: string;
  readonly nvrtcLibrary?: string;
  readonly cublasLibrary?: string;
  readonly ncclLibrary?: string;
}

const spec = (): LibrarySpec => ({
  title: "the CUDA driver",
  env: "WICK_CUDA_LIBRARY",
  ...cudaFiles("driver"),
  install: "install NVIDIA's driver",
});

const ncclSpec = (): LibrarySpec => ({
  title: "NCCL",
  env: "WICK_NCCL_LIBRARY",
  ...cudaFiles("nccl"),
  install: "install libnccl2, or PyTorch, which brings it",
});

// cuda.h of CUDA 13.0. The suffixes are those of its #defines; CUdeviceptr is 64-bit, CUdevice and the enums are int.
// cuEventElapsedTime keeps its first form, which every driver has.
const prototypes: DriverPrototypes = {
  count: "int cuDeviceGetCount(void *count)",
  name: "int cuDeviceGetName(void *name, int length, int device)",
  totalBytes: "int cuDeviceTotalMem_v2(void *bytes, int device)",
  attribute: "int cuDeviceGetAttribute(void *value, int attribute, int device)",
  busId: "int cuDeviceGetPCIBusId(void *id, int length, int device)",
  activate: "int cuCtxSetCurrent(void *context)",
  malloc: "int cuMemAlloc_v2(void *out, size_t bytes)",
  free: "int cuMemFree_v2(void *ptr)",
  memoryInfo: "int cuMemGetInfo_v2(void *free, void *total)",
  hostAlloc: "int cuMemHostAlloc(void *out, size_t bytes, unsigned int flags)",
  hostFree: "int cuMemFreeHost(void *ptr)",
  hostPointer: "int cuMemHostGetDevicePointer_v2(void *out, void *host, unsigned int flags)",
  toDevice: "int cuMemcpyHtoDAsync_v2(void *dst, void *src, size_t bytes, void *stream)",
  toHost: "int cuMemcpyDtoHAsync_v2(void *dst, void *src, size_t bytes, void *stream)",
  onDevice: "int cuMemcpyDtoDAsync_v2(void *dst, void *src, size_t bytes, void *stream)",
  canAccessPeer: "int cuDeviceCanAccessPeer(void *can, int device, int peer)",
  enablePeer: "int cuCtxEnablePeerAccess(void *peer, unsigned int flags)",
  toPeer: "int cuMemcpyPeerAsync(void *dst, void *to, void *src, void *from, size_t bytes, void *stream)",
  memset: "int cuMemsetD8Async(void *dst, unsigned char value, size_t bytes, void *stream)",
  streamCreate: "int cuStreamCreate(void *out, unsigned int flags)",
  streamDestroy: "int cuStreamDestroy_v2(void *stream)",
  streamSynchronize: "int cuStreamSynchronize(void *stream)",
  streamQuery: "int cuStreamQuery(void *stream)",
  streamWait: "int cuStreamWaitEvent(void *stream, void *event, unsigned int flags)",
  eventCreate: "int cuEventCreate(void *out, unsigned int flags)",
  eventDestroy: "int cuEventDestroy_v2(void *event)",
  eventRecord: "int cuEventRecord(void *event, void *stream)",
  eventSynchronize: "int cuEventSynchronize(void *event)",
  eventQuery: "int cuEventQuery(void *event)",
  eventElapsed: "int cuEventElapsedTime(void *milliseconds, void *start, void *end)",
  moduleLoad: "int cuModuleLoadData(void *out, void *image)",
  moduleUnload: "int cuModuleUnload(void *module)",
  moduleFunction: "int cuModuleGetFunction(void *out, void *module, const char *name)",
  launch:
    "int cuLaunchKernel(void *fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, void *stream, void *params, void *extra)",
  beginCapture: "int cuStreamBeginCapture_v2(void *stream, int mode)",
  endCapture: "int cuStreamEndCapture(void *stream, void *out)",
  instantiate: "int cuGraphInstantiateWithFlags(void *out, void *graph, unsigned long long flags)",
  graphLaunch: "int cuGraphLaunch(void *executable, void *stream)",
  graphDestroy: "int cuGraphDestroy(void *graph)",
  execDestroy: "int cuGraphExecDestroy(void *executable)",
};

const extras = {
  init: "int cuInit(unsigned int flags)",
  errorName: "int cuGetErrorName(int code, void *text)",
  errorText: "int cuGetErrorString(int code, void *text)",
  version: "int cuDriverGetVersion(void *version)",
  retain: "int cuDevicePrimaryCtxRetain(void *out, int device)",
  release: "int cuDevicePrimaryCtxRelease_v2(int device)",
  setAttribute: "int cuFuncSetAttribute(void *fn, int attribute, int value)",
} as const;

// CUdevice_attribute: WARP_SIZE, MULTIPROCESSOR_COUNT, MAX_THREADS_PER_BLOCK, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN (launches
// opt in by themselves), INTEGRATED, COMPUTE_CAPABILITY_MAJOR and _MINOR.
const attributes = {
  waveSize: 10,
  multiprocessors: 16,
  maxThreadsPerBlock: 1,
  sharedBytes: 97,
  integrated: 18,
} as const;
const capabilityMajor = 75;
const capabilityMinor = 76;
// CU_MEMHOSTALLOC_DEVICEMAP
const mappedFlags = 2;
// CUfunction_attribute
const maxDynamicSharedBytes = 8;
const sharedCarveOut = 9;

const launchEx = "int cuLaunchKernelEx(void *config, void *fn, void *params, void *extra)";
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
const programmaticSerialization = 6;

// CUresult: ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED,
// ASSERT, HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED,
// TENSOR_MEMORY_LEAK, MPS_CLIENT_TERMINATED.
const lost = new Set([214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810]);
const none = new Set([100]); // NO_DEVICE

export function openCuda(libraries: CudaLibraries = {}): GpuPlatform {
  const library = openLibrary(spec(), libraries.cudaLibrary);
  const driver = new NativeDriver(cudaVendor(library));
  return {
    driver,
    compiler: () => openNvrtc(libraries.nvrtcLibrary),
    blas: () => [cublasSource(libraries.cublasLibrary)],
    collectives: () => openCcl("NCCL", ncclSpec(), libraries.ncclLibrary),
    memory: systemMemory(),
  };
}

function cudaVendor(library: Library): Vendor {
  const calls = library.bind(extras);
  const attribute = library.func(prototypes.attribute);
  const cell = new BigUint64Array(1);
  /** 12040 is 12.4. */
  const version = (): string => {
    const value = new Int32Array(1);
    const known = calls.version(value) === 0;
    return known ? `${Math.floor(value[0]! / 1000)}.${Math.floor((value[0]! % 1000) / 10)}` : "unknown";
  };
  const text = (code: number, read: (code: number, out: BigUint64Array) => number): string =>
    read(code, cell) === 0 ? textAt(cell[0]!) : "unknown";
  return {
    vendor: "cuda",
    maker: "NVIDIA",
    library,
    prototypes,
    attributes,
    mappedFlags,
    kernelsWritePinned: true,
    lost,
    isLostCertain: true,
    none,
    describe: (code) => `${text(code, calls.errorName)} (${code}): ${text(code, calls.errorText)}`,
    initialize: () => calls.init(0),
    arch(ordinal, check) {
      const [major, minor] = [capabilityMajor, capabilityMinor].map((number) => {
        const value = new Int32Array(1);
        check(attribute(value, number, ordinal), "cuDeviceGetAttribute");
        return value[0]!;
      });
      // Hopper's own instructions exist for its arch by this name only.
      return `sm_${major}${minor}${major === 9 && minor === 0 ? "a" : ""}`;
    },
    describeRelease: () => `CUDA ${version()}`,
    // The driver API is all there is of a runtime here.
    versions: () => ({ driver: version(), runtime: version() }),
    retain(ordinal, check) {
      // The primary context, which cuBLAS uses as well.
      check(calls.retain(cell, ordinal), "cuDevicePrimaryCtxRetain");
      return cell[0]!;
    },
    release: (ordinal) => void calls.release(ordinal),
    waitsSpoilRecordings: false,
    recordingProblem: null,
    overlapping: (arch) => (Number(/^sm_(\d+)/.exec(arch)?.[1]) >= 90 ? overlappingLaunch(library) : null),
    allowShared: (fn, bytes, crowds) =>
      calls.setAttribute(fn, maxDynamicSharedBytes, bytes) ||
      (crowds ? calls.setAttribute(fn, sharedCarveOut, 100) : 0),
    boxMap: boxMaps(library),
  };
}

/**
 * CUlaunchConfig: seven 32-bit sizes, then at 32 the stream, at 40 the attributes, at 48 their number; behind it one
 * CUlaunchAttribute: its number, and at 8 its value, of 64 bytes.
 */
function overlappingLaunch(library: Library): OverlappingLaunch {
  const launch = library.func(launchEx);
  const config = new DataView(new ArrayBuffer(56 + 72));
  const address = addressOf(config);
  config.setBigUint64(40, address + 56n, true);
  config.setUint32(48, 1, true);
  config.setUint32(56, programmaticSerialization, true);
  config.setUint32(64, 1, true);
  return (fn, { grid, block, sharedBytes }, stream, args) => {
    const sizes = [...grid, ...block, sharedBytes];
    for (let i = 0; i < sizes.length; i++) config.setUint32(4 * i, sizes[i]!, true);
    config.setBigUint64(32, stream, true);
    return launch(address, fn, args.pointers, 0n);
  };
}
