// What a kernel module and the runtime share: descriptors, the running thread's state, the calls back.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Raised with every change of this file, sim.h or module/: modules of another version are neither loaded nor found in a cache.
#define SIM_VERSION 10
#define SIM_ABI (0x57534d00u + SIM_VERSION)

enum SimArgumentKind : uint32_t { SIM_POINTER, SIM_INTEGER, SIM_FLOAT, SIM_AGGREGATE };
// SIM_UNALIGNED is added to a kind where the source itself allows any alignment.
enum SimAccess : int { SIM_READ, SIM_WRITE, SIM_ATOMIC, SIM_UNALIGNED = 4 };

struct SimArgument {
  uint32_t size, align;
  SimArgumentKind kind;
};

/** Of a launch: threads of a block at most, and blocks of a cluster, which run at the same time. */
struct SimBounds {
  uint32_t threads, cluster;
};

struct SimKernel {
  uint32_t abi;
  const char* name;
  void (*run)(void* const* params);
  uint32_t argumentCount;
  const SimArgument* arguments;
  SimBounds bounds;
  const char* file;
  int line;
};

/** One declaration of a static shared array; the runtime places it once per launch, in every block of a cluster alike. */
struct SimShared {
  const char* name;
  size_t bytes, align;
  uint64_t launch;
  void* address;
};

/** The running thread's identity and the calls into the runtime, which fills this in when it loads the module. */
struct SimState {
  uint32_t abi;
  /** Bytes of shared memory that a block may have on the card that the module is compiled for. */
  uint32_t maxShared;
  uint32_t thread[3], block[3], blockDim[3], gridDim[3];
  uint32_t lane;
  /** The block's number in its cluster, and how far apart the same place is in two that follow each other. */
  uint32_t rank;
  size_t blockBytes;
  uint64_t launch;
  /** Of the cluster's first block, as are the addresses of static arrays. */
  void* dynamicShared;
  /** Where stacks are: what lies there needs no check, and is not asked about while `quiet` counts down. */
  uintptr_t stacks;
  size_t stackBytes;
  uint32_t quiet;
  void (*placeShared)(SimShared*);
  void (*access)(const void* address, size_t bytes, int kind);
  void (*barrier)(const char* file, int line);
  /** A meeting of the wave; one that orders makes what a lane wrote to shared memory before it seen by the others. */
  void (*wave)(int orders, const char* file, int line);
  /** Gives value, gets the value of `source` (0…31) in the same group of 32 lanes. */
  void (*shuffle)(void* value, size_t bytes, int source, const char* file, int line);
  uint32_t (*ballot)(int predicate, const char* file, int line);
  /** A barrier of all blocks of the cluster. */
  void (*clusterBarrier)(const char* file, int line);
  /** What a signal in shared memory waits for grows; bytes that come to another block's memory, and are counted by its signal; until all have. */
  void (*expect)(const void* signal, size_t bytes);
  void (*send)(void* to, const void* value, size_t bytes, const void* signal);
  void (*await)(const void* signal, const char* file, int line);
  /**
   * Of signals that are up again and again (Hopper's mbarrier): made for so many arrivals; an arrival, which expects bytes; a copy of
   * bytes that come when they like, of zeros where it is from nowhere; until it was up more often than the phase tells, modulo 2.
   */
  void (*make)(const void* signal, uint32_t arrivals);
  void (*arrive)(const void* signal, size_t bytes);
  void (*copy)(void* to, const void* from, size_t bytes, const void* signal);
  void (*awaitPhase)(const void* signal, uint32_t phase, const char* file, int line);
  /** A barrier of the block's first threads. */
  void (*crew)(uint32_t threads, const char* file, int line);
  void (*trap)(const char* why);
};
