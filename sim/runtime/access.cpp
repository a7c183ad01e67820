// Every load and store of a kernel comes here: own stack, shared memory (with a shadow that knows who wrote and read
// each byte since the last barrier), device memory, or a mistake.
#include <stdio.h>
#include <string.h>

#include "run.h"

namespace sim {

static constexpr size_t arenaBytes = 256 * 1024;  // 64 KiB of shared memory and the gaps between arrays
static constexpr size_t gapBytes = 256;
static constexpr uint16_t manyReaders = 0xFFFE, atomicWriter = 0xFFFF;

struct Shadow {
  uint32_t written, read;
  uint16_t writer, reader;
};
struct Placement {
  const char* name;
  size_t low, high;
};
alignas(4096) static char arena[arenaBytes];
static Shadow shadow[arenaBytes];
static std::vector<Placement> placements;
static size_t arenaUsed, sharedUsed, dynamicBytes;

struct Range {
  uintptr_t low, high;
};
static Range recent[4];
static unsigned nextRecent;

void resetShared(size_t bytes) {
  placements.clear();
  arenaUsed = gapBytes;
  sharedUsed = dynamicBytes = bytes;
  placements.push_back({"dynamic shared memory", arenaUsed, arenaUsed + bytes});
  arenaUsed += (bytes + 15) / 16 * 16 + gapBytes;
  memset(recent, 0, sizeof recent);
  nextRecent = 1;
  recent[0] = {run.launch->module->low, run.launch->module->high};
}

size_t staticSharedBytes() { return sharedUsed - dynamicBytes; }
void* dynamicShared() { return arena + gapBytes; }

void placeShared(SimShared* site) {
  sharedUsed = (sharedUsed + site->align - 1) / site->align * site->align + site->bytes;
  if (sharedUsed > maxShared)
    fault(run.current, "shared memory: with array \"%s\" the block needs %zu bytes (%zu of them dynamic), %zu exist",
          site->name, sharedUsed, dynamicBytes, maxShared);
  arenaUsed = (arenaUsed + site->align - 1) / site->align * site->align;
  if (arenaUsed + site->bytes + gapBytes > arenaBytes)
    fault(run.current, "shared memory: more arrays than the simulator can place");
  placements.push_back({site->name, arenaUsed, arenaUsed + site->bytes});
  site->address = arena + arenaUsed;
  site->launch = run.serial;
  arenaUsed += site->bytes + gapBytes;
}

void nextEpoch(bool newBlock) {
  if (++run.epoch == UINT32_MAX) {
    memset(static_cast<void*>(shadow), 0, sizeof shadow);
    run.epoch = 1;
  }
  if (newBlock) run.blockEpoch = run.epoch;
}

static const Placement& placementOf(size_t offset, size_t bytes, const char* verb) {
  for (const Placement& p : placements)
    if (offset >= p.low && offset + bytes <= p.high) return p;
  const Placement* nearest = &placements[0];
  for (const Placement& p : placements)
    if (offset + gapBytes / 2 >= p.low) nearest = &p;
  fault(run.current, "%s %zu bytes at byte %ld of \"%s\", which has %zu bytes of shared memory", verb, bytes,
        long(offset) - long(nearest->low), nearest->name, nearest->high - nearest->low);
}

[[noreturn]] static void race(const char* verb, const Placement& place, size_t at, const char* did, uint16_t other) {
  char who[32] = "an atomic operation";
  if (other == manyReaders) strcpy(who, "other threads");
  else if (other != atomicWriter) snprintf(who, sizeof who, "thread %u", other);
  fault(run.current, "race: %s byte %zu of \"%s\" in shared memory, which %s %s since the last barrier", verb,
        at - place.low, place.name, who, did);
}

static void checkShared(size_t offset, size_t bytes, int kind) {
  static const char* const verbs[] = {"reads", "writes", "atomically updates"};
  const Placement& place = placementOf(offset, bytes, verbs[kind]);
  auto me = uint16_t(run.current);
  uint32_t epoch = run.epoch;
  for (size_t i = offset; i < offset + bytes; i++) {
    Shadow& s = shadow[i];
    if (kind != SIM_WRITE) {
      if (s.written < run.blockEpoch)
        fault(me, "%s byte %zu of \"%s\" in shared memory, which no thread of the block has written", verbs[kind],
              i - place.low, place.name);
      if (s.written == epoch && s.writer != me && !(kind == SIM_ATOMIC && s.writer == atomicWriter))
        race(verbs[kind], place, i, "wrote", s.writer);
    }
    if (kind != SIM_READ && s.read == epoch && s.reader != me) race(verbs[kind], place, i, "read", s.reader);
    if (kind == SIM_READ) {
      s.reader = s.read == epoch && s.reader != me ? manyReaders : me;
      s.read = epoch;
    } else {
      s.writer = kind == SIM_ATOMIC ? atomicWriter : me;
      s.written = epoch;
    }
  }
}

static void checkDevice(const void* address, size_t bytes, int kind) {
  const char* verb = kind == SIM_READ ? "reads" : "writes";
  const Allocation* found = findAllocation(address);
  auto at = reinterpret_cast<uintptr_t>(address);
  if (!found) fault(run.current, "%s %zu bytes at %s", verb, bytes, describeAddress(address).c_str());
  auto low = reinterpret_cast<uintptr_t>(found->base);
  if (at + bytes > low + found->size)
    fault(run.current, "%s %zu bytes at %s, past its end", verb, bytes, describeAddress(address).c_str());
  if (found->device >= 0 && found->device != run.launch->device)
    fault(run.current, "%s memory of device %d while running on device %d", verb, found->device, run.launch->device);
  recent[nextRecent] = {low, low + found->size};
  nextRecent = nextRecent == 3 ? 1 : nextRecent + 1;
}

void checkAccess(const void* address, size_t bytes, int kind) {
  auto at = reinterpret_cast<uintptr_t>(address);
  if (run.current < 0) return;
  tick();
  if (onStacks(at)) return;
  if (!(kind & SIM_UNALIGNED) && at & (bytes - 1))
    fault(run.current, "misaligned access of %zu bytes at %p", bytes, address);
  kind &= ~SIM_UNALIGNED;
  size_t offset = at - reinterpret_cast<uintptr_t>(arena);
  if (offset < arenaBytes) return checkShared(offset, bytes, kind);
  for (const Range& r : recent)
    if (at >= r.low && at + bytes <= r.high) return;
  checkDevice(address, bytes, kind);
}

}  // namespace sim
