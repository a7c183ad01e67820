// hipModuleLaunchKernel: what a driver refuses, the copy of the arguments, the hand-over to the stream.
#include <string.h>

#include "guard.h"
#include "runtime.h"

namespace sim {

static hipError_t checkShape(const Function& f, const unsigned* grid, const unsigned* block, size_t shared) {
  const SimKernel& k = *f.kernel;
  const size_t maxShared = f.module->state->maxShared;
  for (int d = 0; d < 3; d++) {
    if (!grid[d] || !block[d])
      return fail(hipErrorInvalidConfiguration, "kernel \"%s\": grid (%u,%u,%u), block (%u,%u,%u) has a zero", k.name,
                  grid[0], grid[1], grid[2], block[0], block[1], block[2]);
    // AMD counts threads, not blocks, in 32 bits per dimension.
    if (uint64_t(grid[d]) * block[d] > UINT32_MAX)
      return fail(hipErrorInvalidConfiguration, "kernel \"%s\": %u blocks of %u threads exceed 2^32 threads", k.name,
                  grid[d], block[d]);
  }
  uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
  if (threads > maxThreads)
    return fail(hipErrorInvalidConfiguration, "kernel \"%s\": a block of %zu threads, at most %u are possible", k.name,
                size_t(threads), maxThreads);
  if (threads > k.bounds.threads)
    return fail(hipErrorLaunchFailure, "kernel \"%s\": a block of %zu threads, it is compiled for at most %u", k.name,
                size_t(threads), k.bounds.threads);
  if (grid[0] % k.bounds.cluster)
    return fail(hipErrorInvalidConfiguration, "kernel \"%s\": %u blocks are no whole clusters of %u", k.name, grid[0],
                k.bounds.cluster);
  if (k.bounds.cluster > maxCluster || threads * k.bounds.cluster > maxThreads)
    return fail(hipErrorInvalidConfiguration, "kernel \"%s\": the simulator has no room for clusters of %u blocks of %zu threads",
                k.name, k.bounds.cluster, size_t(threads));
  if (shared > maxShared)
    return fail(hipErrorInvalidConfiguration, "kernel \"%s\": %zu bytes of shared memory, %zu exist", k.name, shared,
                maxShared);
  return hipSuccess;
}

/** Offsets of the arguments in an AMD argument block: each at its natural alignment. Returns the end of the last. */
static size_t layOut(const SimKernel& k, std::vector<size_t>& offsets) {
  size_t end = 0;
  for (uint32_t i = 0; i < k.argumentCount; i++) {
    const SimArgument& a = k.arguments[i];
    end = (end + a.align - 1) / a.align * a.align;
    offsets.push_back(end);
    end += a.size;
  }
  return end;
}

static hipError_t copyBuffer(const SimKernel& k, void** extra, std::vector<unsigned char>& to) {
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (int i = 0;; i += 2) {
    auto tag = reinterpret_cast<uintptr_t>(extra[i]);
    if (tag == launchEnd) break;
    if (tag == launchBufferPointer) buffer = extra[i + 1];
    else if (tag == launchBufferSize) bytes = *static_cast<size_t*>(extra[i + 1]);
    else return fail(hipErrorInvalidValue, "kernel \"%s\": unknown tag %zu in `extra`", k.name, size_t(tag));
  }
  size_t padded = (to.size() + 7) / 8 * 8;
  if (bytes != to.size() && bytes != padded)
    return fail(hipErrorInvalidValue, "kernel \"%s\": an argument buffer of %zu bytes, its %u arguments take %zu", k.name,
                bytes, k.argumentCount, to.size());
  if (!buffer && bytes) return fail(hipErrorInvalidValue, "kernel \"%s\": no argument buffer in `extra`", k.name);
  if (bytes) memcpy(to.data(), buffer, to.size());
  return hipSuccess;
}

static hipError_t copyParams(const SimKernel& k, void** params, const std::vector<size_t>& offsets,
                             std::vector<unsigned char>& to) {
  for (uint32_t i = 0; i < k.argumentCount; i++) {
    if (!params[i])
      return fail(hipErrorInvalidValue, "kernel \"%s\": the address of argument %u of %u is null", k.name, i,
                  k.argumentCount);
    memcpy(to.data() + offsets[i], params[i], k.arguments[i].size);
  }
  return hipSuccess;
}

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned gridX, unsigned gridY, unsigned gridZ,
                                         unsigned blockX, unsigned blockY, unsigned blockZ, unsigned sharedBytes,
                                         hipStream_t handle, void** params, void** extra) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!alive(function)) return fail(hipErrorInvalidHandle, "hipModuleLaunchKernel: the function is not alive");
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "hipModuleLaunchKernel: the stream is not alive");
  const SimKernel& k = *function->kernel;
  device(stream->device).faulted = false;  // who has not asked by now does not want to know
  auto launch = std::make_shared<Launch>(Launch{function,
                                                function->module->shared_from_this(),
                                                stream->device,
                                                {gridX, gridY, gridZ},
                                                {blockX, blockY, blockZ},
                                                sharedBytes,
                                                {},
                                                {}});
  if (hipError_t code = checkShape(*launch->function, launch->grid, launch->block, sharedBytes)) return code;
  if (params && extra) return fail(hipErrorInvalidValue, "kernel \"%s\": both kernelParams and extra given", k.name);
  if (!params && !extra && k.argumentCount)
    return fail(hipErrorInvalidValue, "kernel \"%s\": no arguments given, it has %u", k.name, k.argumentCount);
  std::vector<size_t> offsets;
  launch->arguments.resize(layOut(k, offsets));
  hipError_t copied = hipSuccess;
  if (!guarded([&] {
        if (extra) copied = copyBuffer(k, extra, launch->arguments);
        else if (params) copied = copyParams(k, params, offsets, launch->arguments);
      }))
    return fail(hipErrorInvalidValue, "kernel \"%s\": its %u arguments cannot be read", k.name, k.argumentCount);
  if (copied) return copied;
  for (size_t offset : offsets) launch->params.push_back(launch->arguments.data() + offset);
  return enqueue(*stream, [launch] {
    if (launch->module->loaded) return execute(*launch);
    return fail(hipErrorInvalidHandle, "a graph launches a kernel whose module was unloaded");
  });
}
