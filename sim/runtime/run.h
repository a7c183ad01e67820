// The cluster being run, usually of one block: fibers, shared memory and its shadow. There is one; the runtime's lock protects it.
#pragma once
#include <setjmp.h>

#include "fiber.h"
#include "runtime.h"

namespace sim {

enum class State : uint8_t { Fresh, Ready, Barrier, Cluster, Signal, Phase, Crew, Wave, Shuffle, Ballot, Done };

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
  bool orders;         // of its meeting with the wave
  unsigned phase;      // of the signal that it waits for
  unsigned crew;       // threads that meet
  const void* signal;  // waited for
  bool heard;          // a signal: what other blocks have sent may be read
};

/** Lanes that share a clock. */
constexpr unsigned warp = 32;
constexpr unsigned maxWarps = maxThreads / warp + maxCluster;
/** Signals have a clock each, behind those of warps: what is copied comes before what is done by those who have waited for it. */
constexpr unsigned maxSignals = 160;
constexpr unsigned maxClocks = maxWarps + maxSignals;

/** What a block has of shared memory: 227 KiB at most and the gaps between arrays. */
constexpr size_t arenaBytes = 320 * 1024;

struct Run {
  const Launch* launch;
  SimState* state;
  Thread threads[maxThreads];
  unsigned count;  // threads of a block
  unsigned blocks;  // of the cluster
  int current;     // index of the running thread; -1 between threads
  void* scheduler;
  uint64_t serial;  // of the launch
  // Counts meetings over all blocks and launches: a shadow stamp from before clusterEpoch belongs to another cluster.
  uint32_t epoch, clusterEpoch;
  // When the threads of each block last met, and those of all.
  uint32_t met[maxCluster], allMet;
  unsigned warps;  // of a block
  // What another warp did before then comes before what this one does now: a vector clock for each.
  uint32_t seen[maxWarps][maxClocks];
  unsigned signals;  // that were made
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
/** The check behind every load and store of a kernel, and of what the running thread wrote where others read. */
void checkSuspect();
void checkAccess(const void* address, size_t bytes, int kind);
/** Bytes that another block sends: those of this block may read them when they have heard the signal. */
void noteSent(const void* address, size_t bytes);
uint32_t nextEpoch();
/** Bytes that a copy brings: written as from now on, to be read by who has waited for the signal of that number. */
void noteCopied(void* to, size_t bytes, unsigned signal);
void checkSource(const void* from, size_t bytes);
unsigned warpOf(unsigned thread);
/** Warps have met, those of a block have, or those of all, or a new cluster begins. */
void meetWarps(unsigned first, unsigned end);
void meet(unsigned block);
void meetAll(bool newCluster);

}  // namespace sim
