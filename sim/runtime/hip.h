// The part of AMD's HIP C API that the simulator offers: types and values as published in
// ROCm/HIP include/hip/{hip_runtime_api,driver_types,hiprtc}.h (checked at commit c5e11fc, HIP 6.4).
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SIM_API extern "C" __attribute__((visibility("default")))

// name, value, text
#define HIP_ERRORS(X)                                                        \
  X(hipSuccess, 0, "no error")                                               \
  X(hipErrorInvalidValue, 1, "invalid argument")                             \
  X(hipErrorOutOfMemory, 2, "out of memory")                                 \
  X(hipErrorNotInitialized, 3, "initialization error")                       \
  X(hipErrorDeinitialized, 4, "driver shutting down")                        \
  X(hipErrorInvalidConfiguration, 9, "invalid configuration argument")       \
  X(hipErrorInvalidDevicePointer, 17, "invalid device pointer")              \
  X(hipErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy") \
  X(hipErrorInvalidDeviceFunction, 98, "invalid device function")            \
  X(hipErrorNoDevice, 100, "no ROCm-capable device is detected")             \
  X(hipErrorInvalidDevice, 101, "invalid device ordinal")                    \
  X(hipErrorInvalidImage, 200, "device kernel image is invalid")             \
  X(hipErrorInvalidContext, 201, "invalid device context")                   \
  X(hipErrorNoBinaryForGpu, 209, "no kernel image is available for the GPU") \
  X(hipErrorFileNotFound, 301, "file not found")                             \
  X(hipErrorInvalidHandle, 400, "invalid resource handle")                   \
  X(hipErrorIllegalState, 401, "the operation cannot be performed now")      \
  X(hipErrorNotFound, 500, "named symbol not found")                         \
  X(hipErrorNotReady, 600, "device not ready")                               \
  X(hipErrorIllegalAddress, 700, "an illegal memory access was encountered") \
  X(hipErrorLaunchOutOfResources, 701, "too many resources for launch")      \
  X(hipErrorLaunchTimeOut, 702, "the launch timed out and was terminated")   \
  X(hipErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")  \
  X(hipErrorContextIsDestroyed, 709, "context is destroyed")                 \
  X(hipErrorLaunchFailure, 719, "unspecified launch failure")                \
  X(hipErrorNotSupported, 801, "operation not supported")                    \
  X(hipErrorStreamCaptureUnsupported, 900, "not permitted in a capture")     \
  X(hipErrorStreamCaptureInvalidated, 901, "the capture was invalidated")    \
  X(hipErrorStreamCaptureMerge, 902, "would merge two captures")             \
  X(hipErrorStreamCaptureUnmatched, 903, "not the stream of this capture")   \
  X(hipErrorStreamCaptureUnjoined, 904, "capture has unjoined streams")      \
  X(hipErrorStreamCaptureIsolation, 905, "would depend across the capture")  \
  X(hipErrorStreamCaptureImplicit, 906, "implicit dependency on a capture")  \
  X(hipErrorCapturedEvent, 907, "not permitted on a captured event")         \
  X(hipErrorStreamCaptureWrongThread, 908, "capture began on another thread") \
  X(hipErrorUnknown, 999, "unknown error")                                   \
  X(hipErrorRuntimeMemory, 1052, "runtime memory call returned error")       \
  X(hipErrorRuntimeOther, 1053, "runtime call other than memory failed")

enum hipError_t : int {
#define X(name, value, text) name = value,
  HIP_ERRORS(X)
#undef X
};

#define HIPRTC_RESULTS(X)                      \
  X(HIPRTC_SUCCESS, 0)                         \
  X(HIPRTC_ERROR_OUT_OF_MEMORY, 1)             \
  X(HIPRTC_ERROR_PROGRAM_CREATION_FAILURE, 2)  \
  X(HIPRTC_ERROR_INVALID_INPUT, 3)             \
  X(HIPRTC_ERROR_INVALID_PROGRAM, 4)           \
  X(HIPRTC_ERROR_INVALID_OPTION, 5)            \
  X(HIPRTC_ERROR_COMPILATION, 6)               \
  X(HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE, 7) \
  X(HIPRTC_ERROR_INTERNAL_ERROR, 11)

enum hiprtcResult : int {
#define X(name, value) name = value,
  HIPRTC_RESULTS(X)
#undef X
};

enum hipMemcpyKind : int {
  hipMemcpyHostToHost,
  hipMemcpyHostToDevice,
  hipMemcpyDeviceToHost,
  hipMemcpyDeviceToDevice,
  hipMemcpyDefault
};
enum hipStreamCaptureMode : int { hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal, hipStreamCaptureModeRelaxed };
enum hipStreamCaptureStatus : int {
  hipStreamCaptureStatusNone,
  hipStreamCaptureStatusActive,
  hipStreamCaptureStatusInvalidated
};
enum hipFunction_attribute : int {
  HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_NUM_REGS,
  HIP_FUNC_ATTRIBUTE_PTX_VERSION,
  HIP_FUNC_ATTRIBUTE_BINARY_VERSION,
  HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA,
  HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
  HIP_FUNC_ATTRIBUTE_MAX
};

constexpr unsigned hipStreamNonBlocking = 1;
constexpr unsigned hipEventBlockingSync = 1, hipEventDisableTiming = 2;
// HIP_LAUNCH_PARAM_*: the tags in the `extra` list of a launch
constexpr uintptr_t launchBufferPointer = 1, launchBufferSize = 2, launchEnd = 3;

namespace sim {
struct Stream;
struct Event;
struct Module;
struct Function;
struct Graph;
struct GraphExec;
struct Program;
}  // namespace sim
using hipDevice_t = int;
using hipDeviceptr_t = void*;
using hipStream_t = sim::Stream*;
using hipEvent_t = sim::Event*;
using hipModule_t = sim::Module*;
using hipFunction_t = sim::Function*;
using hipGraph_t = sim::Graph*;
using hipGraphExec_t = sim::GraphExec*;
using hipGraphNode_t = void*;
using hiprtcProgram = sim::Program*;
