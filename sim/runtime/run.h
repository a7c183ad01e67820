// The block being run: fibers, shared memory and its shadow. There is one; the runtime's lock protects it.
#pragma once
#include <setjmp.h>

#include "fiber.h"
#include "runtime.h"

namespace sim {

enum class State : uint8_t { Fresh, Ready, Barrier, Shuffle, Ballot, Done };

struct Thread {
  void* context;
  int stack;
  State state;
  uint32_t id[3];
  const char* file;  // where it waits
  int line;
  int source;  // lane asked of in a shuffle
  size_t bytes;
  alignas(16) unsigned char value[16];
  uint32_t votes;
};

struct Run {
  const Launch* launch;
  SimState* state;
  Thread threads[maxThreads];
  unsigned count;  // threads of the block
  int current;     // index of the running thread; -1 between threads
  void* scheduler;
  uint64_t serial;  // of the launch
  // Counts barriers over all blocks and launches: a shadow stamp from before blockEpoch belongs to another block.
  uint32_t epoch, blockEpoch;
  uint32_t ticks;   // accesses and switches since the clock was last looked at
  double deadline;  // in seconds of the monotonic clock
  jmp_buf target;
  char problem[512];
};
extern Run run;

/** Ends the launch with a message that names kernel, block and thread (the running one, or the given one). */
[[noreturn]] __attribute__((format(printf, 2, 3))) void fault(int thread, const char* format, ...);

/** Accesses to stacks between two looks at the clock. */
constexpr uint32_t quietAccesses = 1u << 20;

/** Ends a launch that has run past its deadline: an endless loop must not hang the process. */
void checkTime();
inline void tick() {
  if (++run.ticks == 1u << 20) checkTime();
}

// ---- access.cpp
/** Lays out shared memory anew for a launch. */
void resetShared(size_t dynamicBytes);
size_t staticSharedBytes();
void placeShared(SimShared* site);
void* dynamicShared();
/** The check behind every load and store of a kernel. */
void checkAccess(const void* address, size_t bytes, int kind);
/** A new stretch between barriers, or a new block. */
void nextEpoch(bool newBlock);

}  // namespace sim
