// Device memory is host memory between two runs of canary bytes; a map of live allocations answers "whose is this?".
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>

#include "runtime.h"

namespace sim {

static constexpr size_t canaryBytes = 256;
static constexpr unsigned char canary = 0xC7;
// Fresh memory reads as NaN in every float type; only the start is filled, so that huge buffers stay untouched pages.
static constexpr unsigned char freshByte = 0xFF;
static constexpr size_t freshBytes = 1 << 20;

static std::map<uintptr_t, Allocation>& allocations() {
  static auto* live = new std::map<uintptr_t, Allocation>;
  return *live;
}
static size_t pinned = 0;
static std::deque<Allocation> freed;  // the latest few, for messages
static std::vector<std::string> suspects;

const Allocation* findAllocation(const void* address) {
  auto& live = allocations();
  auto at = live.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (at == live.begin()) return nullptr;
  const Allocation& found = std::prev(at)->second;
  return size_t(static_cast<const char*>(address) - found.base) < found.size ? &found : nullptr;
}

static std::string text(const void* address) {
  char buffer[32];
  snprintf(buffer, sizeof buffer, "%p", address);
  return buffer;
}

static std::string describe(const Allocation& a) {
  std::string where = a.device < 0 ? "pinned host memory" : "device " + std::to_string(a.device);
  return std::to_string(a.size) + " bytes at " + text(a.base) + " (" + where + ")";
}

std::string describeAddress(const void* address) {
  if (!address) return "a null pointer";
  auto* p = static_cast<const char*>(address);
  if (const Allocation* found = findAllocation(address))
    return "byte " + std::to_string(p - found->base) + " of the allocation of " + describe(*found);
  for (const auto& entry : allocations()) {
    const Allocation& a = entry.second;
    if (p >= a.base + a.size && p < a.base + a.size + canaryBytes)
      return std::to_string(p - a.base - a.size) + " bytes past the end of the allocation of " + describe(a);
    if (p < a.base && p >= a.base - canaryBytes)
      return std::to_string(a.base - p) + " bytes before the allocation of " + describe(a);
  }
  for (const Allocation& a : freed)
    if (p >= a.base && p < a.base + a.size) return "in the freed allocation of " + describe(a);
  return text(address) + ", which is no memory of the device";
}

bool inDevice(const void* address, size_t bytes, std::string* why) {
  const Allocation* found = findAllocation(address);
  if (!found) {
    if (why) *why = "the pointer is " + describeAddress(address);
    return false;
  }
  size_t offset = size_t(static_cast<const char*>(address) - found->base);
  if (bytes > found->size - offset) {
    if (why)
      *why = std::to_string(bytes) + " bytes from byte " + std::to_string(offset) + " pass the end of the allocation of " +
             describe(*found);
    return false;
  }
  return true;
}

void noteKernel(const char* name) {
  if (suspects.size() < 8 && std::find(suspects.begin(), suspects.end(), name) == suspects.end())
    suspects.push_back(name);
}

static bool damaged(unsigned char* bytes, size_t* where) {
  for (size_t i = 0; i < canaryBytes; i++)
    if (bytes[i] != canary) {
      *where = i;
      memset(bytes, canary, canaryBytes);
      return true;
    }
  return false;
}

static hipError_t checkCanary(const Allocation& a, const std::string& blame) {
  size_t where = 0;
  bool before = damaged(reinterpret_cast<unsigned char*>(a.base) - canaryBytes, &where);
  bool after = !before && damaged(reinterpret_cast<unsigned char*>(a.base) + a.size, &where);
  if (!before && !after) return hipSuccess;
  return fail(hipErrorLaunchFailure, "a write %zu bytes %s the allocation of %s by one of: %s",
              before ? canaryBytes - where : where, before ? "before" : "past the end of", describe(a).c_str(),
              blame.c_str());
}

hipError_t checkCanaries() {
  if (suspects.empty()) return hipSuccess;
  std::string blame;
  for (const std::string& name : suspects) blame += (blame.empty() ? "" : ", ") + name;
  suspects.clear();
  hipError_t result = hipSuccess;
  for (const auto& entry : allocations())
    if (hipError_t code = checkCanary(entry.second, blame)) result = code;
  return result;
}

size_t hostUsed() {
  size_t used = pinned;
  for (int i = 0; mallocTakesHost() && i < deviceCount(); i++) used += device(i).used;
  return used;
}

static size_t freeOf(size_t limit, size_t used) { return limit > used ? limit - used : 0; }
static size_t freeOnHost() { return freeOf(hostLimit(), hostUsed()); }
static size_t freeOnDevice(int ordinal) {
  return mallocTakesHost() ? freeOnHost() : freeOf(memoryLimit(), device(ordinal).used);
}

static hipError_t allocate(void** out, size_t bytes, int ordinal) {
  *out = nullptr;
  if (bytes == 0) return hipSuccess;
  const bool host = ordinal < 0;
  const size_t left = host ? freeOnHost() : freeOnDevice(ordinal);
  if (bytes > left)
    return fail(hipErrorOutOfMemory, "%zu bytes asked of %s, %zu of %zu are free", bytes,
                host ? "the host" : ("device " + std::to_string(ordinal)).c_str(), left,
                host || mallocTakesHost() ? hostLimit() : memoryLimit());
  void* block = nullptr;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&block, 256, bytes + 2 * canaryBytes))
    return fail(hipErrorOutOfMemory, "the host has no %zu bytes", bytes);
  char* base = static_cast<char*>(block) + canaryBytes;
  memset(base - canaryBytes, canary, canaryBytes);
  memset(base + bytes, canary, canaryBytes);
  memset(base, freshByte, std::min(bytes, freshBytes));
  allocations()[reinterpret_cast<uintptr_t>(base)] = {base, bytes, ordinal};
  (host ? pinned : device(ordinal).used) += bytes;
  *out = base;
  return hipSuccess;
}

static hipError_t release(void* pointer, bool host, const char* call) {
  if (!pointer) return hipSuccess;
  if (hipError_t code = forbidInCapture(call)) return code;
  hipError_t result = drainAll();
  auto at = allocations().find(reinterpret_cast<uintptr_t>(pointer));
  if (at == allocations().end() || (at->second.device < 0) != host)
    return fail(hipErrorInvalidValue, "%s: the pointer is %s, not the start of a live allocation", call,
                describeAddress(pointer).c_str());
  hipError_t damage = checkCanaries();
  Allocation a = at->second;
  allocations().erase(at);
  (host ? pinned : device(a.device).used) -= a.size;
  freed.push_front(a);
  if (freed.size() > 64) freed.pop_back();
  free(a.base - canaryBytes);
  return result ? result : damage;
}

static LeakReport leakReport{[] {
  for (const auto& entry : allocations()) reportLeak(describe(entry.second));
}};

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipMalloc(void** pointer, size_t bytes) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!pointer) return fail(hipErrorInvalidValue, "hipMalloc: null result");
  if (hipError_t code = forbidInCapture("hipMalloc")) return code;
  return allocate(pointer, bytes, currentDevice());
}
SIM_API hipError_t hipFree(void* pointer) {
  Lock lock;
  return release(pointer, false, "hipFree");
}
// On some integrated parts it is not there; Wick does without.
SIM_API hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  Lock lock;
  if (integrated()) return fail(hipErrorNotSupported, "hipMallocManaged: an integrated device has no managed memory");
  if (!pointer || (flags != 1 && flags != 2)) return fail(hipErrorInvalidValue, "hipMallocManaged: no such flags");
  if (hipError_t code = requireDevice()) return code;
  return allocate(pointer, bytes, currentDevice());
}
SIM_API hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  Lock lock;
  // Portable, Mapped, WriteCombined, NumaUser, Coherent, NonCoherent; the last two exclude each other.
  constexpr unsigned known = 0x1 | 0x2 | 0x4 | 0x20000000, coherence = 0xC0000000;
  if (flags & ~(known | coherence) || (flags & coherence) == coherence)
    return fail(hipErrorInvalidValue, "hipHostMalloc: flags %#x", flags);
  if (hipError_t code = requireDevice()) return code;
  if (!pointer) return fail(hipErrorInvalidValue, "hipHostMalloc: null result");
  if (hipError_t code = forbidInCapture("hipHostMalloc")) return code;
  return allocate(pointer, bytes, -1);
}
SIM_API hipError_t hipHostFree(void* pointer) {
  Lock lock;
  return release(pointer, true, "hipHostFree");
}
SIM_API hipError_t hipHostGetDevicePointer(void** pointer, void* host, unsigned flags) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  const Allocation* found = findAllocation(host);
  if (!pointer || flags || !found || found->device >= 0)
    return fail(hipErrorInvalidValue, "hipHostGetDevicePointer: the pointer is %s, not host memory of the runtime's",
                describeAddress(host).c_str());
  *pointer = host;
  return hipSuccess;
}
SIM_API hipError_t hipMemGetInfo(size_t* available, size_t* total) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!available || !total) return fail(hipErrorInvalidValue, "hipMemGetInfo: null result");
  *total = mallocTakesHost() ? hostLimit() : memoryLimit();
  *available = freeOnDevice(currentDevice());
  return hipSuccess;
}
/** For the stand-in libraries: whether a range lies in live device memory; keeps a message when not. */
SIM_API int wickSimInDevice(const void* address, size_t bytes, const char* what) {
  Lock lock;
  std::string why;
  if (inDevice(address, bytes, &why)) return 1;
  fail(hipErrorInvalidValue, "%s: %s", what, why.c_str());
  return 0;
}
