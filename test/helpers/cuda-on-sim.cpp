// NVIDIA's driver API, nvrtc and cuBLAS on top of the simulator, so that the CUDA bindings run without an NVIDIA GPU.
// It is stricter than it needs to be where real drivers may be: a thread without a current context can do nothing.
#include <stddef.h>
#include <stdint.h>

#include <map>

#define API extern "C" __attribute__((visibility("default")))
using Word = intptr_t;
using Any = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

static thread_local Word current = 0;
constexpr int invalidValue = 1, invalidContext = 201;

// Integer arguments only, so passing on as many as the longest call has is the same call.
#define FORWARD_IF(condition, name, target)                                                                     \
  extern "C" int target();                                                                                      \
  API int name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k) {        \
    if (!(condition)) return invalidContext;                                                                    \
    return reinterpret_cast<Any>(reinterpret_cast<void*>(&target))(a, b, c, d, e, f, g, h, i, j, k);            \
  }
#define ANYWHERE(name, target) FORWARD_IF(true, name, target)
#define IN_CONTEXT(name, target) FORWARD_IF(current != 0, name, target)

ANYWHERE(cuDeviceGetCount, hipGetDeviceCount)
ANYWHERE(cuDeviceGetName, hipDeviceGetName)
ANYWHERE(cuDeviceTotalMem_v2, hipDeviceTotalMem)
ANYWHERE(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)
IN_CONTEXT(cuMemAlloc_v2, hipMalloc)
IN_CONTEXT(cuMemFree_v2, hipFree)
IN_CONTEXT(cuMemGetInfo_v2, hipMemGetInfo)
IN_CONTEXT(cuMemHostAlloc, hipHostMalloc)
IN_CONTEXT(cuMemFreeHost, hipHostFree)
IN_CONTEXT(cuMemHostGetDevicePointer_v2, hipHostGetDevicePointer)
IN_CONTEXT(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)
IN_CONTEXT(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)
IN_CONTEXT(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)
ANYWHERE(cuDeviceCanAccessPeer, hipDeviceCanAccessPeer)
IN_CONTEXT(cuMemsetD8Async, hipMemsetD8Async)
IN_CONTEXT(cuStreamCreate, hipStreamCreateWithFlags)
IN_CONTEXT(cuStreamDestroy_v2, hipStreamDestroy)
IN_CONTEXT(cuStreamSynchronize, hipStreamSynchronize)
IN_CONTEXT(cuStreamQuery, hipStreamQuery)
IN_CONTEXT(cuStreamWaitEvent, hipStreamWaitEvent)
IN_CONTEXT(cuEventCreate, hipEventCreateWithFlags)
IN_CONTEXT(cuEventDestroy_v2, hipEventDestroy)
IN_CONTEXT(cuEventRecord, hipEventRecord)
IN_CONTEXT(cuEventSynchronize, hipEventSynchronize)
IN_CONTEXT(cuEventQuery, hipEventQuery)
IN_CONTEXT(cuEventElapsedTime, hipEventElapsedTime)
IN_CONTEXT(cuModuleLoadData, hipModuleLoadData)
IN_CONTEXT(cuModuleUnload, hipModuleUnload)
IN_CONTEXT(cuModuleGetFunction, hipModuleGetFunction)
IN_CONTEXT(cuStreamBeginCapture_v2, hipStreamBeginCapture)
IN_CONTEXT(cuStreamEndCapture, hipStreamEndCapture)
IN_CONTEXT(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)
IN_CONTEXT(cuGraphLaunch, hipGraphLaunch)
IN_CONTEXT(cuGraphDestroy, hipGraphDestroy)
IN_CONTEXT(cuGraphExecDestroy, hipGraphExecDestroy)

ANYWHERE(nvrtcCreateProgram, hiprtcCreateProgram)
ANYWHERE(nvrtcDestroyProgram, hiprtcDestroyProgram)
ANYWHERE(nvrtcCompileProgram, hiprtcCompileProgram)
ANYWHERE(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize)
ANYWHERE(nvrtcGetProgramLog, hiprtcGetProgramLog)
ANYWHERE(nvrtcGetCUBINSize, hiprtcGetCodeSize)
ANYWHERE(nvrtcGetCUBIN, hiprtcGetCode)
ANYWHERE(nvrtcGetPTXSize, hiprtcGetCodeSize)
ANYWHERE(nvrtcGetPTX, hiprtcGetCode)

extern "C" {
int hipSetDevice(int);
int hipModuleLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int hipDeviceGetAttribute(int*, int, int);
int hipDeviceEnablePeerAccess(int, unsigned);
int hipMemcpyPeerAsync(void*, int, const void*, int, size_t, void*);
const char* hipGetErrorName(int);
const char* hipGetErrorString(int);
const char* hiprtcGetErrorString(int);
int rocblas_create_handle(void**);
int rocblas_destroy_handle(void*);
int rocblas_set_stream(void*, void*);
int rocblas_gemm_ex(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
                    const void*, int, int, void*, int, int, int, int, int, unsigned);
int rocblas_gemm_strided_batched_ex(void*, int, int, int, int, int, const void*, const void*, int, int, int64_t,
                                    const void*, int, int, int64_t, const void*, const void*, int, int, int64_t, void*,
                                    int, int, int64_t, int, int, int, int, unsigned);
}

API int cuInit(unsigned flags) { return flags ? invalidValue : 0; }
API int cuDriverGetVersion(int* version) { return *version = 12040, 0; }
API int cuGetErrorName(int code, const char** text) { return *text = hipGetErrorName(code), 0; }
API int cuGetErrorString(int code, const char** text) { return *text = hipGetErrorString(code), 0; }
// Contexts are devices' numbers plus one.
API int cuCtxEnablePeerAccess(Word peer, unsigned flags) {
  return current ? hipDeviceEnablePeerAccess(int(peer) - 1, flags) : invalidContext;
}
API int cuMemcpyPeerAsync(void* to, Word toContext, const void* from, Word fromContext, size_t bytes, void* stream) {
  return current ? hipMemcpyPeerAsync(to, int(toContext) - 1, from, int(fromContext) - 1, bytes, stream) : invalidContext;
}
API int cuDevicePrimaryCtxRetain(Word* out, int device) { return *out = device + 1, 0; }
API int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
API int cuCtxSetCurrent(Word context) { return current = context, hipSetDevice(int(context) - 1); }
API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 75: return *value = 9, 0;
    case 76: return *value = 0, 0;
    case 10: return hipDeviceGetAttribute(value, 87, device);
    case 16: return hipDeviceGetAttribute(value, 63, device);
    case 1: return hipDeviceGetAttribute(value, 56, device);
    case 97: return hipDeviceGetAttribute(value, 74, device);
    case 18: return hipDeviceGetAttribute(value, 16, device);
  }
  return invalidValue;
}
// As on a device: more than 48 KB of dynamic shared memory must be asked for, and a block cannot have more than there is.
static std::map<void*, unsigned> allowed;
API int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8 || value > 65536) return invalidValue;
  return allowed[function] = unsigned(value), 0;
}
API int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, void* stream, void** params, void** extra) {
  if (!current) return invalidContext;
  if (shared > 49152 && allowed[function] < shared) return invalidValue;
  return hipModuleLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
// As cuda.h lays them out. Nothing overlaps here: what asks for it is counted, and refused where it is not understood.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int allowed;
  } value;
};
struct LaunchConfig {
  unsigned gx, gy, gz, bx, by, bz, shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
static int overlapping = 0;
API int shimOverlapping() { return overlapping; }
API int cuLaunchKernelEx(const LaunchConfig* c, void* function, void** params, void** extra) {
  if (c->count != 1 || c->attributes->id != 6 || c->attributes->value.allowed != 1) return invalidValue;
  overlapping++;
  return cuLaunchKernel(function, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params, extra);
}

API int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 4, 0; }
API const char* nvrtcGetErrorString(int code) { return hiprtcGetErrorString(code); }
API int nvrtcGetNumSupportedArchs(int* count) { return *count = 2, 0; }
API int nvrtcGetSupportedArchs(int* archs) { return archs[0] = 80, archs[1] = 90, 0; }

API int cublasCreate_v2(void** out) { return current ? rocblas_create_handle(out) : 1; }
API int cublasDestroy_v2(void* handle) { return rocblas_destroy_handle(handle); }
API int cublasGetVersion_v2(void*, int* version) { return *version = 120402, 0; }
API int cublasSetStream_v2(void* handle, void* stream) { return rocblas_set_stream(handle, stream); }
API int cublasSetWorkspace_v2(void*, void* workspace, size_t) { return workspace ? 0 : 7; }
API int cublasSetMathMode(void*, int mode) { return mode & ~16 ? 7 : 0; }

/** Statuses are numbered differently; INVALID_VALUE stands for all of them. */
static int statusOf(int status) { return status ? 7 : 0; }
static int typeOf(int type) { return type == 2 ? 150 : type == 14 ? 168 : type == 0 ? 151 : type == 1 ? 152 : 0; }
static int computeOf(int type) { return type == 68 ? 151 : type == 70 ? 152 : 0; }
API int cublasGemmEx(void* handle, int opA, int opB, int m, int n, int k, const void* alpha, const void* a, int aType,
                     int lda, const void* b, int bType, int ldb, const void* beta, void* c, int cType, int ldc,
                     int compute, int algo) {
  if (algo != -1) return 7;
  return statusOf(rocblas_gemm_ex(handle, 111 + opA, 111 + opB, m, n, k, alpha, a, typeOf(aType), lda, b, typeOf(bType),
                                  ldb, beta, c, typeOf(cType), ldc, c, typeOf(cType), ldc, computeOf(compute), 0, 0, 0));
}
API int cublasGemmStridedBatchedEx(void* handle, int opA, int opB, int m, int n, int k, const void* alpha, const void* a,
                                   int aType, int lda, long long strideA, const void* b, int bType, int ldb,
                                   long long strideB, const void* beta, void* c, int cType, int ldc, long long strideC,
                                   int batch, int compute, int algo) {
  if (algo != -1) return 7;
  return statusOf(rocblas_gemm_strided_batched_ex(
      handle, 111 + opA, 111 + opB, m, n, k, alpha, a, typeOf(aType), lda, strideA, b, typeOf(bType), ldb, strideB, beta, c,
      typeOf(cType), ldc, strideC, c, typeOf(cType), ldc, strideC, batch, computeOf(compute), 0, 0, 0));
}
