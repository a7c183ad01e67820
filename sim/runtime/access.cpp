// Every load and store of a kernel comes here: own stack, shared memory (with a shadow that knows who wrote and read
// each byte, and when threads met), device memory, or a mistake.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "run.h"

namespace sim {

static constexpr size_t gapBytes = 256;
static constexpr uint16_t copier = 0x8000, sender = 0xFFFC, manyLanes = 0xFFFD, manyReaders = 0xFFFE, atomicWriter = 0xFFFF;
static constexpr size_t allBytes = maxCluster * arenaBytes;

struct Shadow {
  uint32_t written, read;
  uint16_t writer, reader;
};
struct Placement {
  const char* name;
  size_t low, high;
};
alignas(4096) static char arena[allBytes];
// A word has one shadow until a part of it is touched by itself; then, for the rest of the launch, each of its bytes has one.
static constexpr size_t wordBytes = 4;
static Shadow words[allBytes / wordBytes], bytes[allBytes];
static bool split[allBytes / wordBytes];
/** When each warp last came to a place, and by which of its lanes. */
struct Visit {
  uint32_t stamp;
  uint16_t lane;
};
using Visits = Visit[maxWarps];
static size_t splitEnd;
static std::vector<Placement> placements;
static size_t arenaUsed, sharedUsed, dynamicBytes;

/**
 * A write, noted before it is done, of what others read or have written meanwhile. One that leaves what was there is no race with
 * those who read, and says the same as those who have written.
 */
static struct {
  size_t offset, count;
  unsigned char before[16];
  bool isRead;
  uint16_t reader, writer;
  uint32_t stamp;
  struct {
    Shadow* at;
    uint16_t writer;
    uint32_t written;
  } others[16];
  unsigned otherCount;
} suspect;
/** Whether any has said the same in this launch. */
static bool anyAgreed;

struct Range {
  uintptr_t low, high;
};
static Range recent[4];
static unsigned nextRecent;

void resetShared(size_t bytes) {
  suspect.count = 0;
  anyAgreed = false;
  placements.clear();
  arenaUsed = gapBytes;
  sharedUsed = dynamicBytes = bytes;
  placements.push_back({"dynamic shared memory", arenaUsed, arenaUsed + bytes});
  arenaUsed += (bytes + 15) / 16 * 16 + gapBytes;
  memset(split, 0, splitEnd);
  splitEnd = 0;
  memset(recent, 0, sizeof recent);
  nextRecent = 1;
  recent[0] = {run.launch->module->low, run.launch->module->high};
}

size_t staticSharedBytes() { return sharedUsed - dynamicBytes; }
void* dynamicShared() { return arena + gapBytes; }

void placeShared(SimShared* site) {
  sharedUsed = (sharedUsed + site->align - 1) / site->align * site->align + site->bytes;
  const size_t maxShared = run.launch->module->state->maxShared;
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

uint32_t nextEpoch() {
  if (++run.epoch == UINT32_MAX) {
    memset(static_cast<void*>(words), 0, sizeof words);
    memset(static_cast<void*>(bytes), 0, sizeof bytes);
    memset(run.seen, 0, sizeof run.seen);
    memset(run.met, 0, sizeof run.met);
    run.allMet = run.clusterEpoch = 0;
    run.epoch = 1;
  }
  return run.epoch;
}
void meetWarps(unsigned first, unsigned end) {
  const uint32_t now = nextEpoch();
  const unsigned all = run.blocks * run.warps;
  for (unsigned v = 0; v < maxWarps + run.signals; v == all - 1 ? v = maxWarps : v++) {
    uint32_t most = v >= first && v < end ? now : 0;
    for (unsigned w = first; w < end; w++) most = std::max(most, run.seen[w][v]);
    for (unsigned w = first; w < end; w++) run.seen[w][v] = most;
  }
}
void meet(unsigned block) {
  if (run.blocks == 1) return meetAll(false);
  meetWarps(block * run.warps, (block + 1) * run.warps);
  run.met[block] = run.epoch;
}
void meetAll(bool newCluster) {
  run.allMet = nextEpoch();
  for (unsigned b = 0; b < run.blocks; b++) run.met[b] = run.allMet;
  if (newCluster) run.clusterEpoch = run.allMet;
}

static const Placement& placementOf(size_t at, size_t bytes, const char* verb) {
  const size_t offset = at % arenaBytes;
  for (const Placement& p : placements)
    if (offset >= p.low && offset + bytes <= p.high) return p;
  const Placement* nearest = &placements[0];
  for (const Placement& p : placements)
    if (offset + gapBytes / 2 >= p.low) nearest = &p;
  fault(run.current, "%s %zu bytes at byte %ld of \"%s\", which has %zu bytes of shared memory", verb, bytes,
        long(offset) - long(nearest->low), nearest->name, nearest->high - nearest->low);
}

[[noreturn]] static void race(const char* verb, size_t at, const char* did, uint16_t other) {
  const Placement& place = placementOf(at, 1, verb);
  char who[32] = "an atomic operation";
  if (other == sender) strcpy(who, "another block");
  else if (other == manyReaders) strcpy(who, "other threads");
  else if (other >= copier && other < sender) strcpy(who, "a copy on its way");
  else if (other != atomicWriter) snprintf(who, sizeof who, "thread %u", other % run.count);
  if (other < copier && other / run.count != unsigned(run.current) / run.count) strcat(who, " of another block");
  fault(run.current, "race: %s byte %zu of \"%s\" in shared memory, which %s %s since they last met", verb,
        at % arenaBytes - place.low, place.name, who, did);
}

/** The clock that tells what a thread, or a copy, has done. */
unsigned warpOf(unsigned thread) {
  if (thread >= copier) return maxWarps + thread - copier;
  const unsigned rank = thread / run.count;
  return rank * run.warps + (thread - rank * run.count) / warp;
}

/** Whether `other`, which came to the place `at` at `stamp`, may have come at the same time as the running thread. */
static inline bool isRace(uint16_t other, uint32_t stamp, size_t at) {
  if (other == run.current || stamp < run.allMet) return false;
  if (other < sender) return stamp >= run.seen[warpOf(unsigned(run.current))][warpOf(other)];
  // Atomic operations are the block's own; what is sent comes whenever it likes.
  const unsigned mine = unsigned(run.current) / run.count;
  return at / arenaBytes != mine || stamp >= run.met[mine];
}

/** Of the word or byte that has this shadow: those who read, or who wrote the same. Room that is not touched takes no memory. */
static Visits& visitsTo(const Shadow& s, bool writes) {
  constexpr size_t ofWords = allBytes / wordBytes, all = ofWords + allBytes;
  static Visits* const room = static_cast<Visits*>(mmap(nullptr, 2 * all * sizeof(Visits), PROT_READ | PROT_WRITE,
                                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (room == MAP_FAILED) fault(run.current, "shared memory: no room to note who comes to it");
  const bool isWord = &s >= words && &s < words + ofWords;
  return room[(writes ? all : 0) + (isWord ? size_t(&s - words) : ofWords + size_t(&s - bytes))];
}
static Visits& readingsOf(const Shadow& s) { return visitsTo(s, false); }

/** Whether some of those who have read may do so at the same time as the running thread comes. */
static inline bool isReadMeanwhile(const Shadow& s, size_t at) {
  if (s.reader != manyReaders) return isRace(s.reader, s.read, at);
  if (s.read < run.allMet) return false;
  const uint32_t* const seen = run.seen[warpOf(unsigned(run.current))];
  const Visits& readings = readingsOf(s);
  for (unsigned w = 0; w < run.blocks * run.warps; w++)
    if (readings[w].lane != run.current && readings[w].stamp >= std::max(run.allMet, seen[w])) return true;
  return false;
}

static inline void noteRead(Shadow& s, size_t at) {
  const auto me = uint16_t(run.current);
  if (!isReadMeanwhile(s, at)) {
    s.reader = me;
  } else {
    Visits& readings = readingsOf(s);
    if (s.reader != manyReaders) {
      for (Visit& reading : readings) reading = {0, 0};
      readings[warpOf(s.reader)] = {s.read, s.reader};
      s.reader = manyReaders;
    }
    Visit& own = readings[warpOf(me)];
    const bool isAlone = own.lane == me || own.stamp < std::max(run.allMet, run.seen[warpOf(me)][warpOf(me)]);
    own = {run.epoch, isAlone ? me : manyLanes};
  }
  s.read = run.epoch;
}

/** Whether somebody whom the running thread has met since wrote what is there, too. */
static bool isAgreed(const Shadow& s) {
  if (!anyAgreed) return false;
  const uint32_t* const seen = run.seen[warpOf(unsigned(run.current))];
  const Visits& writings = visitsTo(s, true);
  for (unsigned w = 0; w < run.blocks * run.warps; w++)
    if (writings[w].stamp >= s.written && (writings[w].lane == run.current || writings[w].stamp < seen[w])) return true;
  return false;
}

void checkSuspect() {
  if (!suspect.count) return;
  const size_t count = suspect.count;
  suspect.count = 0;
  const bool isSame = !memcmp(suspect.before, arena + suspect.offset, count);
  if (!isSame && suspect.isRead) race("writes", suspect.offset, "read", suspect.reader);
  for (unsigned i = 0; isSame && i < suspect.otherCount; i++) {
    auto& [at, writer, written] = suspect.others[i];
    anyAgreed = true;
    visitsTo(*at, true)[warpOf(suspect.writer)] = {suspect.stamp, suspect.writer};
    at->writer = writer;
    at->written = written;
  }
}

static const char* const verbs[] = {"reads", "writes", "atomically updates"};

/** One access to what a shadow stands for; `offset` is where that begins. */
static inline void note(Shadow& s, size_t offset, int kind) {
  auto me = uint16_t(run.current);
  if (kind != SIM_WRITE) {
    if (s.written < run.clusterEpoch) {
      const Placement& place = placementOf(offset, 1, verbs[kind]);
      fault(me, "%s byte %zu of \"%s\" in shared memory, which no thread of the block has written", verbs[kind],
            offset % arenaBytes - place.low, place.name);
    }
    const bool allowed = s.writer == sender ? run.threads[me].heard : kind == SIM_ATOMIC && s.writer == atomicWriter;
    if (!allowed && isRace(s.writer, s.written, offset) && !isAgreed(s)) race(verbs[kind], offset, "wrote", s.writer);
  }
  if (kind != SIM_READ && isReadMeanwhile(s, offset)) {
    if (kind == SIM_ATOMIC) race(verbs[kind], offset, "read", s.reader);
    suspect.isRead = true;
    suspect.reader = s.reader;
  }
  constexpr unsigned most = sizeof suspect.others / sizeof *suspect.others;
  if (kind == SIM_WRITE && s.writer < copier && s.written >= run.clusterEpoch && suspect.otherCount < most &&
      isRace(s.writer, s.written, offset))
    suspect.others[suspect.otherCount++] = {&s, s.writer, s.written};
  if (kind == SIM_READ) {
    noteRead(s, offset);
  } else {
    s.writer = kind == SIM_ATOMIC ? atomicWriter : me;
    s.written = run.epoch;
  }
}

static void noteBytes(size_t low, size_t high, int kind) {
  for (size_t i = low; i < high; i++) {
    const size_t w = i / wordBytes;
    if (!split[w]) {
      split[w] = true;
      splitEnd = std::max(splitEnd, w + 1);
      for (size_t b = 0; b < wordBytes; b++) {
        Shadow& one = bytes[w * wordBytes + b];
        one = words[w];
        if (one.reader == manyReaders) memcpy(readingsOf(one), readingsOf(words[w]), sizeof(Visits));
        if (anyAgreed) memcpy(visitsTo(one, true), visitsTo(words[w], true), sizeof(Visits));
      }
    }
    note(bytes[i], i, kind);
  }
}

/** Shared memory of another block is there from when that has begun, which only a meeting tells, until it ends. */
static void requireBlock(unsigned block, const char* verb) {
  const Thread* const threads = run.threads + block * run.count;
  bool ended = true;
  for (unsigned i = 0; i < run.count; i++) {
    if (threads[i].state == State::Fresh)
      fault(run.current, "%s shared memory of a block of its cluster that may not have begun: they must meet before", verb);
    ended &= threads[i].state == State::Done;
  }
  if (ended) fault(run.current, "%s shared memory of a block of its cluster that has ended", verb);
}

static void checkShared(size_t offset, size_t count, int kind) {
  placementOf(offset, count, verbs[kind]);
  const unsigned block = unsigned(offset / arenaBytes);
  if (run.blocks > 1 && block != unsigned(run.current) / run.count) requireBlock(block, verbs[kind]);
  suspect.isRead = false;
  suspect.otherCount = 0;
  if ((offset | count) % wordBytes) {
    noteBytes(offset, offset + count, kind);
  } else {
    for (size_t i = offset; i < offset + count; i += wordBytes) {
      if (split[i / wordBytes]) noteBytes(i, i + wordBytes, kind);
      else note(words[i / wordBytes], i, kind);
    }
  }
  if (!suspect.isRead && !suspect.otherCount) return;
  if (count <= sizeof suspect.before) {
    suspect.offset = offset;
    suspect.count = count;
    suspect.writer = uint16_t(run.current);
    suspect.stamp = run.epoch;
    memcpy(suspect.before, arena + offset, count);
  } else if (suspect.isRead) race("writes", offset, "read", suspect.reader);
}

void noteSent(const void* address, size_t count) {
  const size_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(arena);
  if (offset >= run.blocks * arenaBytes) fault(run.current, "sends %zu bytes to a block that there is not", count);
  checkShared(offset, count, SIM_WRITE);
  for (size_t i = offset; i < offset + count; i += wordBytes) {
    words[i / wordBytes].writer = sender;
    for (size_t b = 0; b < wordBytes; b++) bytes[i + b].writer = sender;
  }
}

void noteCopied(void* to, size_t count, unsigned signal) {
  const size_t offset = reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(arena);
  if (offset >= run.blocks * arenaBytes) fault(run.current, "copies %zu bytes to what is no shared memory", count);
  checkShared(offset, count, SIM_WRITE);
  for (size_t i = offset; i < offset + count; i += wordBytes) {
    words[i / wordBytes].writer = uint16_t(copier + signal);
    for (size_t b = 0; b < wordBytes; b++) bytes[i + b].writer = uint16_t(copier + signal);
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

void checkSource(const void* from, size_t count) { checkDevice(from, count, SIM_READ); }

void checkAccess(const void* address, size_t bytes, int kind) {
  auto at = reinterpret_cast<uintptr_t>(address);
  if (run.current < 0) return;
  checkSuspect();
  tick();
  if (onStacks(at)) {
    // The hooks let many of these pass for each that comes here.
    if (!run.state->quiet) run.state->quiet = quietAccesses, checkTime();
    return;
  }
  if (!(kind & SIM_UNALIGNED) && at & (bytes - 1))
    fault(run.current, "misaligned access of %zu bytes at %p", bytes, address);
  kind &= ~SIM_UNALIGNED;
  size_t offset = at - reinterpret_cast<uintptr_t>(arena);
  if (offset < run.blocks * arenaBytes) return checkShared(offset, bytes, kind);
  for (const Range& r : recent)
    if (at >= r.low && at + bytes <= r.high) return;
  checkDevice(address, bytes, kind);
}

}  // namespace sim
