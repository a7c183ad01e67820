// The runtime's own state. One lock guards all of it: every API call takes it, so the parts below need none.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "../abi.h"
#include "hip.h"

namespace sim {

// ---- errors.cpp
/** Keeps the message for wickSimLastMessage, the code for hipGetLastError, and returns the code. */
__attribute__((format(printf, 2, 3))) hipError_t fail(hipError_t code, const char* format, ...);
/** Adds to stderr's account of what was still alive when the process ended. */
void reportLeak(const std::string& what);
/** A static one of these lists what its file still holds when the process ends, if WICK_SIM_LEAKS=1. */
struct LeakReport {
  void (*list)();
  ~LeakReport();
};

struct Lock {
  Lock();
  ~Lock();
};

bool flag(const char* name);

// ---- device.cpp
struct Device {
  int ordinal, wave;
  const char *name, *arch;
  int major, minor, units, clock, memoryClock, busWidth, l2;
  size_t used;
  bool faulted = false;
};
constexpr unsigned maxThreads = 1024;
/** Blocks of a cluster, which together have no more than so many threads either. */
constexpr unsigned maxCluster = 8;
constexpr size_t maxShared = 65536;
int deviceCount();
/** Whether the devices are integrated ones, and whether hipMalloc gives such a device the host's memory. */
bool integrated();
bool mallocTakesHost();
size_t memoryLimit();
/** Bytes of host memory that may be pinned or mapped. */
size_t hostLimit();
Device& device(int ordinal);
int currentDevice();
/** hipSuccess, or the error every call gives on a machine without devices. */
hipError_t requireDevice();

// ---- memory.cpp
struct Allocation {
  char* base;
  size_t size;
  int device;  // -1: pinned host memory
};
/** The live allocation that holds the address, or null. The end of an allocation belongs to it only for size 0. */
const Allocation* findAllocation(const void* address);
/** Whether [address, address + bytes) lies in one live device allocation; says what is wrong otherwise. */
bool inDevice(const void* address, size_t bytes, std::string* why);
std::string describeAddress(const void* address);
/** Looks for writes beyond the ends of allocations since the last look, blaming the kernels launched since. */
hipError_t checkCanaries();
void noteKernel(const char* name);
/** Bytes of host memory that are pinned or mapped, or that hipMalloc gave. */
size_t hostUsed();

// ---- stream.cpp
using Work = std::function<hipError_t()>;
struct Operation {
  uint64_t sequence;
  Work run;
};
/** One capture, shared by the stream it began on and the streams that joined through events. */
struct Capture {
  Stream* origin;
  int mode;
  size_t thread;
  bool invalid = false;
  std::vector<Work> work;
};
struct Stream {
  int device;
  unsigned flags;
  bool isDefault = false;
  std::deque<Operation> queue;
  std::shared_ptr<Capture> capture;
};
/** The stream behind a handle (null: the current device's default stream), or null for a handle that is not alive. */
Stream* findStream(hipStream_t handle);
/** Runs work in the stream's order: now, at the next synchronising call (WICK_SIM_LAZY=1), or into a capture. */
hipError_t enqueue(Stream& stream, Work work);
hipError_t drain(Stream& stream, uint64_t until = UINT64_MAX);
hipError_t drainAll();
bool progress(Stream& stream);
uint64_t lastSequence();
bool alive(const Stream* stream);
/** Takes every stream and event out of a capture that has ended. */
void endCapture(const Capture* capture);

// ---- graph.cpp
/** Refuses a call that a capture under way does not permit, and invalidates that capture. */
hipError_t forbidInCapture(const char* call, const Stream* stream = nullptr);
extern std::unordered_set<Capture*> captures;

// ---- module.cpp
struct Module : std::enable_shared_from_this<Module> {
  int file = -1;  // stays open: the loader tells libraries apart by name, and the name is the descriptor's number
  void* library = nullptr;
  SimState* state = nullptr;
  uintptr_t low = 0, high = 0;
  bool loaded = true;
  std::vector<std::unique_ptr<Function>> functions;
  ~Module();
};
struct Function {
  const SimKernel* kernel;
  Module* module;
  size_t staticShared = 0;  // known once the kernel has run
};
bool alive(const Function* function);

// ---- block.cpp
struct Launch {
  Function* function;
  std::shared_ptr<Module> module;
  int device;
  unsigned grid[3], block[3];
  size_t dynamicShared;
  std::vector<unsigned char> arguments;
  std::vector<void*> params;
};
/** Runs every block; a fault in the kernel ends the launch with hipErrorLaunchFailure. */
hipError_t execute(const Launch& launch);
/** Gives a freshly loaded module its calls into the runtime. */
void bind(SimState& state);

}  // namespace sim
