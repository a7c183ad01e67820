// Copies and fills. Ranges are checked when the call is made and again when it runs: a graph replays it later.
#include <string.h>

#include "guard.h"
#include "runtime.h"

namespace sim {

static bool touches(const void* address) { return findAllocation(address) && findAllocation(address)->device >= 0; }

static hipError_t checkSide(const char* call, const char* side, const void* address, size_t bytes, bool device) {
  std::string why;
  if (!device) {
    if (!address) return fail(hipErrorInvalidValue, "%s: the %s is null", call, side);
    if (!touches(address)) return hipSuccess;
    return fail(hipErrorInvalidValue, "%s: the %s is device memory (%s), host memory is needed", call, side,
                describeAddress(address).c_str());
  }
  if (inDevice(address, bytes, &why)) return hipSuccess;
  return fail(hipErrorInvalidValue, "%s: %s: %s", call, side, why.c_str());
}

static hipError_t checkCopy(const char* call, void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  bool toDevice = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  bool fromDevice = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  if (hipError_t code = checkSide(call, "destination", to, bytes, toDevice)) return code;
  if (hipError_t code = checkSide(call, "source", from, bytes, fromDevice)) return code;
  auto distance = static_cast<char*>(to) - static_cast<const char*>(from);
  if (kind == hipMemcpyDeviceToDevice && size_t(distance < 0 ? -distance : distance) < bytes)
    return fail(hipErrorInvalidValue, "%s: source and destination overlap", call);
  return hipSuccess;
}

static hipError_t copy(const char* call, void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t handle) {
  if (hipError_t code = requireDevice()) return code;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "%s: the stream is not alive", call);
  if (unsigned(kind) > hipMemcpyDefault)
    return fail(hipErrorInvalidMemcpyDirection, "%s: there is no copy kind %d", call, kind);
  if (bytes == 0) return hipSuccess;
  if (kind == hipMemcpyDefault)
    kind = hipMemcpyKind((touches(from) ? hipMemcpyDeviceToHost : 0) | (touches(to) ? hipMemcpyHostToDevice : 0));
  if (hipError_t code = checkCopy(call, to, from, bytes, kind)) return code;
  // The runtime stages pageable sources before it returns; pinned ones are read when the copy runs.
  std::shared_ptr<std::vector<char>> staged;
  if (!stream->capture && flag("WICK_SIM_LAZY") && kind == hipMemcpyHostToDevice && !findAllocation(from)) {
    staged = std::make_shared<std::vector<char>>(bytes);
    if (!guarded([&] { memcpy(staged->data(), from, bytes); }))
      return fail(hipErrorInvalidValue, "%s: the source cannot be read", call);
  }
  return enqueue(*stream, [=] {
    const void* source = staged ? staged->data() : from;
    if (hipError_t code = checkCopy(call, to, source, bytes, kind)) return code;
    if (guarded([&] { memcpy(to, source, bytes); })) return hipSuccess;
    return fail(hipErrorInvalidValue, "%s: host memory at %s cannot be touched", call,
                kind == hipMemcpyDeviceToHost ? "the destination" : "the source");
  });
}

static hipError_t fill(const char* call, void* to, int value, size_t bytes, hipStream_t handle) {
  if (hipError_t code = requireDevice()) return code;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "%s: the stream is not alive", call);
  if (bytes == 0) return hipSuccess;
  auto check = [=] { return checkSide(call, "destination", to, bytes, true); };
  if (hipError_t code = check()) return code;
  return enqueue(*stream, [=] {
    hipError_t code = check();
    if (!code) memset(to, value, bytes);
    return code;
  });
}

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  Lock lock;
  return copy("hipMemcpyAsync", to, from, bytes, kind, stream);
}
SIM_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, void* from, size_t bytes, hipStream_t stream) {
  Lock lock;
  return copy("hipMemcpyHtoDAsync", to, from, bytes, hipMemcpyHostToDevice, stream);
}
SIM_API hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
  Lock lock;
  return copy("hipMemcpyDtoHAsync", to, from, bytes, hipMemcpyDeviceToHost, stream);
}
SIM_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
  Lock lock;
  return copy("hipMemcpyDtoDAsync", to, from, bytes, hipMemcpyDeviceToDevice, stream);
}
SIM_API hipError_t hipMemcpyPeerAsync(void* to, int toDevice, const void* from, int fromDevice, size_t bytes,
                                      hipStream_t stream) {
  Lock lock;
  auto lies = [&](const void* address, int ordinal) {
    const Allocation* found = findAllocation(address);
    return bytes == 0 || (found && (found->device == ordinal || found->device < 0));
  };
  if (!lies(to, toDevice) || !lies(from, fromDevice))
    return fail(hipErrorInvalidValue, "hipMemcpyPeerAsync: the memory is not that of devices %d and %d", toDevice, fromDevice);
  return copy("hipMemcpyPeerAsync", to, from, bytes, hipMemcpyDeviceToDevice, stream);
}
SIM_API hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  Lock lock;
  if (hipError_t code = forbidInCapture("hipMemcpy")) return code;
  if (hipError_t code = copy("hipMemcpy", to, from, bytes, kind, nullptr)) return code;
  if (hipError_t code = drain(*findStream(nullptr))) return code;
  return checkCanaries();
}
SIM_API hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count, hipStream_t stream) {
  Lock lock;
  return fill("hipMemsetD8Async", to, value, count, stream);
}
SIM_API hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  Lock lock;
  return fill("hipMemsetAsync", to, value & 255, bytes, stream);
}
