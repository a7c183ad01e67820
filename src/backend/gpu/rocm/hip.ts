/** The HIP runtime of ROCm from 5.2 on, and the one place where AMD's libraries are opened. */
import { fail } from "../../../core/errors.ts";
import { openCcl } from "../ccl.ts";
import type { GpuPlatform } from "../driver.ts";
import { type Library, type LibrarySpec, openLibrary, symbolOf } from "../library.ts";
import { cString, NativeDriver } from "../native-driver.ts";
import { type SystemMemory, systemMemory } from "../system-memory.ts";
import type { DriverPrototypes, Vendor } from "../vendor.ts";
import { rocmFiles } from "./folders.ts";
import { hipblasltSource } from "./hipblaslt.ts";
import { openHiprtc } from "./hiprtc.ts";
import { type MiopenApi, openMiopenApi } from "./miopen/api.ts";
import { rocblasSource } from "./rocblas.ts";

/** Paths of the libraries; those not given are searched for. */
export interface HipLibraries {
  readonly hipLibrary?: string;
  readonly hiprtcLibrary?: string;
  readonly comgrLibrary?: string;
  readonly rocblasLibrary?: string;
  readonly hipblasltLibrary?: string;
  readonly miopenLibrary?: string;
  readonly rcclLibrary?: string;
  /** Where the compiler's code runs on every device: the name to keep it under. */
  readonly commonArch?: string;
  /** What stands in for the system's figures of memory. */
  readonly systemMemory?: (hip: Library) => SystemMemory;
  /** What makes maps of matrices, as NVIDIA's driver does. */
  readonly boxMap?: (hip: Library) => Vendor["boxMap"];
}

export interface HipPlatform extends GpuPlatform {
  /** Throws `LibraryNotFound`; MIOpen is used only by devices that are asked for with it. */
  miopen(): MiopenApi;
}

const spec = (): LibrarySpec => ({
  title: "the HIP runtime",
  env: "WICK_HIP_LIBRARY",
  ...rocmFiles("hip"),
  install: "install ROCm",
});

const rcclSpec = (): LibrarySpec => ({
  title: "RCCL",
  env: "WICK_RCCL_LIBRARY",
  ...rocmFiles("rccl"),
  install: "install rccl, which is part of ROCm",
});

// ROCm/HIP include/hip/hip_runtime_api.h (branches rocm-5.0.x to amd-staging). Handles and hipDeviceptr_t are pointers,
// hipDevice_t and the enums are int.
const prototypes: DriverPrototypes = {
  count: "int hipGetDeviceCount(void *count)",
  name: "int hipDeviceGetName(void *name, int length, int device)",
  totalBytes: "int hipDeviceTotalMem(void *bytes, int device)",
  attribute: "int hipDeviceGetAttribute(void *value, int attribute, int device)",
  busId: "int hipDeviceGetPCIBusId(void *id, int length, int device)",
  activate: "int hipSetDevice(int device)",
  malloc: "int hipMalloc(void *out, size_t bytes)",
  free: "int hipFree(void *ptr)",
  memoryInfo: "int hipMemGetInfo(void *free, void *total)",
  hostAlloc: "int hipHostMalloc(void *out, size_t bytes, unsigned int flags)",
  hostFree: "int hipHostFree(void *ptr)",
  hostPointer: "int hipHostGetDevicePointer(void *out, void *host, unsigned int flags)",
  toDevice: "int hipMemcpyHtoDAsync(void *dst, void *src, size_t bytes, void *stream)",
  toHost: "int hipMemcpyDtoHAsync(void *dst, void *src, size_t bytes, void *stream)",
  onDevice: "int hipMemcpyDtoDAsync(void *dst, void *src, size_t bytes, void *stream)",
  canAccessPeer: "int hipDeviceCanAccessPeer(void *can, int device, int peer)",
  enablePeer: "int hipDeviceEnablePeerAccess(int peer, unsigned int flags)",
  toPeer: "int hipMemcpyPeerAsync(void *dst, int to, void *src, int from, size_t bytes, void *stream)",
  memset: "int hipMemsetD8Async(void *dst, unsigned char value, size_t bytes, void *stream)",
  streamCreate: "int hipStreamCreateWithFlags(void *out, unsigned int flags)",
  streamDestroy: "int hipStreamDestroy(void *stream)",
  streamSynchronize: "int hipStreamSynchronize(void *stream)",
  streamQuery: "int hipStreamQuery(void *stream)",
  streamWait: "int hipStreamWaitEvent(void *stream, void *event, unsigned int flags)",
  eventCreate: "int hipEventCreateWithFlags(void *out, unsigned int flags)",
  eventDestroy: "int hipEventDestroy(void *event)",
  eventRecord: "int hipEventRecord(void *event, void *stream)",
  eventSynchronize: "int hipEventSynchronize(void *event)",
  eventQuery: "int hipEventQuery(void *event)",
  eventElapsed: "int hipEventElapsedTime(void *milliseconds, void *start, void *end)",
  moduleLoad: "int hipModuleLoadData(void *out, void *image)",
  moduleUnload: "int hipModuleUnload(void *module)",
  moduleFunction: "int hipModuleGetFunction(void *out, void *module, const char *name)",
  launch:
    "int hipModuleLaunchKernel(void *fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, void *stream, void *params, void *extra)",
  beginCapture: "int hipStreamBeginCapture(void *stream, int mode)",
  endCapture: "int hipStreamEndCapture(void *stream, void *out)",
  instantiate: "int hipGraphInstantiateWithFlags(void *out, void *graph, unsigned long long flags)",
  graphLaunch: "int hipGraphLaunch(void *executable, void *stream)",
  graphDestroy: "int hipGraphDestroy(void *graph)",
  execDestroy: "int hipGraphExecDestroy(void *executable)",
};

const extras = {
  driverVersion: "int hipDriverGetVersion(void *version)",
  runtimeVersion: "int hipRuntimeGetVersion(void *version)",
} as const;

/** A release of HIP, whose first two numbers are ROCm's: major · 10⁷ + minor · 10⁵ + patch. */
const release = (major: number, minor: number): number => major * 1e7 + minor * 1e5;
/** The oldest whose compiler is known to take the kernels; what is older was never tried. */
export const oldestHip = release(5, 2);
/** Before this one hipModuleLaunchKernel is not captured: it runs at once and is missing from the graph. */
const recordingHip = release(5, 3);

/**
 * The structs differ between releases, so only the name of the arch is read from them. Offsets of gcnArchName in
 * hipDeviceProp_tR0600 (ROCm 6 and later) and in hipDeviceProp_t of ROCm 5, which the unversioned symbol still fills.
 */
const propertyCalls = [
  { prototype: "int hipGetDevicePropertiesR0600(void *out, int device)", archOffset: 1160 },
  { prototype: "int hipGetDeviceProperties(void *out, int device)", archOffset: 396 },
] as const;
/** The structs have 1472 and 792 bytes; a later release may add to them. */
const propertyBytes = 8192;

// hipDeviceAttribute_t: WarpSize, MultiprocessorCount, MaxThreadsPerBlock, MaxSharedMemoryPerBlock, Integrated.
const attributes = {
  waveSize: 87,
  multiprocessors: 63,
  maxThreadsPerBlock: 56,
  sharedBytes: 74,
  integrated: 16,
} as const;

/**
 * hipHostMallocNonCoherent: memory that the GPU caches, which it does not do with coherent memory. All that hipHostMalloc
 * gives is mapped (ihipHostMalloc in ROCm/clr's hip_memory.cpp).
 */
const mappedFlags = 0x80000000;

// hipError_t: ECCNotCorrectable, IllegalAddress, LaunchTimeOut, ContextIsDestroyed, Assert, LaunchFailure, Unknown,
// RuntimeMemory, RuntimeOther. HIP gives some of them for less: LaunchFailure for a block above the launch bounds,
// ContextIsDestroyed for a stream, event or graph that is not alive.
const lost = new Set([214, 700, 702, 709, 710, 719, 999, 1052, 1053]);
// NoDevice, and InvalidDevice, which most calls give on a machine without a GPU.
const none = new Set([100, 101]);

export function openHip(libraries: HipLibraries = {}): HipPlatform {
  const library = openLibrary(spec(), libraries.hipLibrary);
  const driver = new NativeDriver(hipVendor(library, requireVersion(library), libraries.boxMap?.(library) ?? null));
  return {
    driver,
    compiler: () => openHiprtc(library, libraries.hiprtcLibrary, libraries.comgrLibrary, libraries.commonArch),
    blas: (arch) => [
      hipblasltSource(library, prototypes, arch, libraries.hipblasltLibrary),
      rocblasSource(library, prototypes, libraries.rocblasLibrary),
    ],
    collectives: () => openCcl("RCCL", rcclSpec(), libraries.rcclLibrary, library),
    memory: libraries.systemMemory?.(library) ?? systemMemory(),
    miopen: () => openMiopenApi(library, libraries.miopenLibrary),
  };
}

/** The runtime's number, 0 where it does not tell; one that is too old is refused before any other call. */
function requireVersion(library: Library): number {
  const value = new Int32Array(1);
  const number = library.bind(extras).runtimeVersion(value) === 0 ? value[0]! : 0;
  if (number > 0 && number < oldestHip) {
    fail(
      "DeviceUnavailable",
      `${library.path} is HIP ${hipVersion(number)}, and the oldest that Wick runs on is ${shortVersion(oldestHip)}; install a newer ROCm, or set ${spec().env} to the library of one that is installed`,
    );
  }
  return number;
}

function hipVendor(library: Library, number: number, boxMap: Vendor["boxMap"]): Vendor {
  const calls = library.bind(extras);
  const errorName = library.func<string | null>("const char *hipGetErrorName(int code)");
  const errorText = library.func<string | null>("const char *hipGetErrorString(int code)");
  const version = (read: (out: Int32Array) => number): string => {
    const value = new Int32Array(1);
    return read(value) === 0 ? hipVersion(value[0]!) : "unknown";
  };
  return {
    vendor: "rocm",
    maker: "AMD",
    library,
    prototypes,
    attributes,
    mappedFlags,
    // An event releases to the device alone by default, and whether such memory is coherent is a setting of the runtime.
    kernelsWritePinned: false,
    lost,
    isLostCertain: false,
    none,
    describe: (code) => `${errorName(code)} (${code}): ${errorText(code)}`,
    initialize: () => 0, // counting initializes, and unlike hipInit tells "no device" from a failure
    arch: (ordinal, check) => readArch(library, ordinal, check),
    describeRelease: () => `HIP ${version(calls.runtimeVersion)}, ${shortVersion(oldestHip)} or later is needed`,
    versions: () => ({ driver: version(calls.driverVersion), runtime: version(calls.runtimeVersion) }),
    retain: (ordinal) => ordinal,
    release: () => {},
    // HIP 6 refuses to wait for an event whose stream records, whenever it was recorded, and gives the recording up.
    waitsSpoilRecordings: true,
    recordingProblem:
      number > 0 && number < recordingHip ? `HIP ${shortVersion(number)} does not capture launches` : null,
    overlapping: () => null,
    allowShared: null,
    boxMap,
  };
}

const shortVersion = (n: number): string => `${Math.floor(n / 1e7)}.${Math.floor(n / 1e5) % 100}`;
/** Before HIP 4 the numbers were smaller and made in another way. */
const hipVersion = (n: number): string => (n < 1e7 ? `${n}` : `${shortVersion(n)}.${n % 1e5}`);

function readArch(library: Library, ordinal: number, check: (code: number, call: string) => void): string {
  const call = propertyCalls.find(({ prototype }) => library.has(symbolOf(prototype)));
  if (!call) return fail("LibraryNotFound", `${library.path} lacks hipGetDeviceProperties`);
  const bytes = new Uint8Array(propertyBytes);
  check(library.func(call.prototype)(bytes, ordinal), symbolOf(call.prototype));
  return findArch(bytes, call.archOffset);
}

/** The arch at its offset, or wherever the struct has one: "gfx90a:sramecc+:xnack-". The simulator plays NVIDIA's, too. */
export function findArch(properties: Uint8Array, offset: number): string {
  const expected = cString(properties.subarray(offset, offset + 256));
  if (/^(gfx[0-9a-f]+(:[a-z+-]+)*|sm_[0-9]+[a-f]?)$/.test(expected)) return expected;
  const found = /gfx[0-9a-f]{3,}(:[a-z]+[+-])*(?=\0)/.exec(Buffer.from(properties).toString("latin1"));
  return found?.[0] ?? fail("DriverError", "the HIP runtime does not tell the device's architecture (gcnArchName)");
}
