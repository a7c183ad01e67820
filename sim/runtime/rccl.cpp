// A stand-in for RCCL between processes of one machine, over shared memory. Names and values as in ROCm/rccl's nccl.h.in.
// A communicator is a file of shared memory that its unique id names: a place for each rank, with the call that it is at
// and a piece of its data. Calls run in the order of their stream and are captured with it; ranks whose calls differ, and
// ranks that are gone, are errors.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halves.h"
#include "hip.h"

SIM_API int wickSimInDevice(const void* address, size_t bytes, const char* what);
SIM_API int wickSimEnqueue(hipStream_t stream, int (*work)(void*), void* data, void (*drop)(void*));
SIM_API void wickSimNote(const char* text);
SIM_API hipError_t hipGetDevice(int* out);

#define NCCL_RESULTS(X)                                                                                             \
  X(ncclSuccess, 0, "no error") X(ncclUnhandledCudaError, 1, "unhandled hip error")                                 \
  X(ncclSystemError, 2, "unhandled system error") X(ncclInternalError, 3, "internal error")                         \
  X(ncclInvalidArgument, 4, "invalid argument") X(ncclInvalidUsage, 5, "invalid usage")                             \
  X(ncclRemoteError, 6, "remote process exited or there was a network error") X(ncclInProgress, 7, "in progress")
enum ncclResult_t : int {
#define X(name, value, text) name = value,
  NCCL_RESULTS(X)
#undef X
};
struct ncclUniqueId {
  char internal[128];
};

namespace {

constexpr int maxRanks = 16;
constexpr size_t pieceBytes = 1 << 18;
enum Kind : int { allReduce, allGather, reduceScatter, broadcast, sendTo, receiveFrom };
const char* const names[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclSend", "ncclRecv"};
enum Type : int { i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16 };
enum Reduction : int { sum, product, maximum, minimum };

int sizeOf(int type) { return type <= u8 ? 1 : type == f16 || type == bf16 ? 2 : type == i64 || type == u64 || type == f64 ? 8 : 4; }

/** What a rank is at. Ranks must agree in it. */
struct Asked {
  int kind, type, reduction, root;
  uint64_t count;
  bool operator==(const Asked& other) const { return !memcmp(this, &other, sizeof *this); }
};
struct Place {
  std::atomic<int> pid;
  std::atomic<uint64_t> given, taken;
  Asked asked;
  alignas(64) char piece[pieceBytes];
};
/** Data on its way from one rank to another. */
struct Channel {
  std::atomic<uint64_t> given, taken;
  uint64_t total;
  char piece[1 << 14];
};
struct Shared {
  std::atomic<int> size, joined;
  Place places[maxRanks];
  Channel channels[maxRanks][maxRanks];
};

struct Comm {
  Shared* shared;
  int rank, size;
  uint64_t step = 0;
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> aborted{false};
};

/** A process that nobody has waited for yet is gone, too. */
bool isGone(int pid) {
  if (pid == 0) return false;
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  if (!file) return true;
  size_t read = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[read] = 0;
  const char* end = strrchr(text, ')');
  return end && (end[2] == 'Z' || end[2] == 'X');
}

/** Until `done`, unless the communicator is aborted or a rank is gone. */
template <class Done>
bool await(Comm& comm, Done done) {
  for (int asked = 0; !done(); asked++) {
    if (comm.aborted) {
      int none = ncclSuccess;
      comm.error.compare_exchange_strong(none, ncclRemoteError);
      return false;
    }
    if (asked < 200) continue;
    if (asked % 64 == 0)
      for (int rank = 0; rank < comm.size; rank++)
        if (isGone(comm.shared->places[rank].pid)) {
          comm.error = ncclRemoteError;
          return false;
        }
    timespec pause = {0, asked < 2000 ? 20000 : 500000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

struct Call {
  std::shared_ptr<Comm> comm;
  Asked asked;
  const char* from;
  char* to;
};

bool refuse(Call& call, const char* why) {
  call.comm->error = ncclInvalidUsage;
  wickSimNote((std::string(names[call.asked.kind]) + ": " + why).c_str());
  return false;
}

template <class T>
T joined(T a, T b, int reduction) {
  switch (reduction) {
    case product: return T(a * b);
    case maximum: return a > b || a != a ? a : b;
    case minimum: return a < b || a != a ? a : b;
    default: return T(a + b);
  }
}
/** Sums are over the ranks in their order, so that all have the same; halves are added up in f32. */
template <class T, class Wide>
void reduce(Comm& comm, char* out, size_t count, int reduction, Wide (*load)(T), T (*store)(Wide), size_t skip) {
  for (size_t i = 0; i < count; i++) {
    Wide value{};
    for (int rank = 0; rank < comm.size; rank++) {
      T element;
      memcpy(&element, comm.shared->places[rank].piece + (skip + i) * sizeof(T), sizeof(T));
      value = rank ? joined(value, load(element), reduction) : load(element);
    }
    T result = store(value);
    memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}
template <class T>
T same(T x) {
  return x;
}
void reduceAs(Comm& comm, char* out, size_t count, int type, int reduction, size_t skip) {
  switch (type) {
    case i8: return reduce<int8_t, int8_t>(comm, out, count, reduction, same, same, skip);
    case u8: return reduce<uint8_t, uint8_t>(comm, out, count, reduction, same, same, skip);
    case i32: return reduce<int32_t, int32_t>(comm, out, count, reduction, same, same, skip);
    case u32: return reduce<uint32_t, uint32_t>(comm, out, count, reduction, same, same, skip);
    case i64: return reduce<int64_t, int64_t>(comm, out, count, reduction, same, same, skip);
    case u64: return reduce<uint64_t, uint64_t>(comm, out, count, reduction, same, same, skip);
    case f16: return reduce<uint16_t, float>(comm, out, count, reduction, fromHalf, toHalf, skip);
    case bf16: return reduce<uint16_t, float>(comm, out, count, reduction, fromBrain, toBrain, skip);
    case f64: return reduce<double, double>(comm, out, count, reduction, same, same, skip);
    default: return reduce<float, float>(comm, out, count, reduction, same, same, skip);
  }
}

/** One piece of a collective: all give, all look, all have looked. */
template <class Take>
bool exchange(Call& call, const char* data, size_t bytes, Take take) {
  Comm& comm = *call.comm;
  Place& own = comm.shared->places[comm.rank];
  uint64_t step = ++comm.step;
  if (bytes) memcpy(own.piece, data, bytes);
  own.asked = call.asked;
  own.given = step;
  Place* places = comm.shared->places;
  if (!await(comm, [&] {
        return std::all_of(places, places + comm.size, [&](Place& place) { return place.given >= step; });
      }))
    return false;
  bool agree = std::all_of(places, places + comm.size, [&](Place& place) { return place.asked == own.asked; });
  if (agree) take();
  own.taken = step;
  if (!await(comm, [&] {
        return std::all_of(places, places + comm.size, [&](Place& place) { return place.taken >= step; });
      }))
    return false;
  return agree || refuse(call, "the ranks are at different calls, or at calls of different sizes");
}

bool collective(Call& call) {
  Comm& comm = *call.comm;
  const Asked& asked = call.asked;
  size_t size = size_t(sizeOf(asked.type)), most = pieceBytes / size;
  if (asked.kind == reduceScatter) most /= size_t(comm.size);
  size_t done = 0;
  std::vector<char> packed;
  do {
    size_t count = std::min<size_t>(most, asked.count - done);
    const char* from = call.from + done * size;
    if (asked.kind == reduceScatter) {
      packed.resize(count * size * size_t(comm.size));
      for (int rank = 0; rank < comm.size; rank++)
        memcpy(packed.data() + size_t(rank) * count * size, call.from + (size_t(rank) * asked.count + done) * size, count * size);
      from = packed.data();
    }
    size_t bytes = asked.kind == broadcast && comm.rank != asked.root ? 0
                   : asked.kind == reduceScatter                     ? packed.size()
                                                                     : count * size;
    bool went = exchange(call, from, bytes, [&] {
      char* to = call.to + done * size;
      if (asked.kind == allReduce) reduceAs(comm, to, count, asked.type, asked.reduction, 0);
      if (asked.kind == reduceScatter)
        reduceAs(comm, to, count, asked.type, asked.reduction, size_t(comm.rank) * count);
      if (asked.kind == broadcast) memcpy(to, comm.shared->places[asked.root].piece, count * size);
      if (asked.kind == allGather)
        for (int rank = 0; rank < comm.size; rank++)
          memcpy(to + size_t(rank) * asked.count * size, comm.shared->places[rank].piece, count * size);
    });
    if (!went) return false;
    done += count;
  } while (done < asked.count);
  return true;
}

/** Sends and receives of a group go on side by side: each does what it can, until all are done. */
bool pass(std::vector<Call*>& calls) {
  if (calls.empty()) return true;
  std::vector<uint64_t> done(calls.size());
  bool failed = false;
  bool went = await(*calls[0]->comm, [&] {
    bool all = true;
    for (size_t i = 0; i < calls.size() && !failed; i++) {
      Call& call = *calls[i];
      Comm& comm = *call.comm;
      uint64_t total = call.asked.count * uint64_t(sizeOf(call.asked.type));
      bool sends = call.asked.kind == sendTo;
      Channel& channel = sends ? comm.shared->channels[comm.rank][call.asked.root] : comm.shared->channels[call.asked.root][comm.rank];
      uint64_t part = std::min<uint64_t>(sizeof channel.piece, total - done[i]);
      if (part && sends && channel.given == channel.taken) {
        memcpy(channel.piece, call.from + done[i], part);
        channel.total = total;
        channel.given++;
        done[i] += part;
      } else if (part && !sends && channel.given > channel.taken) {
        if (channel.total != total) failed = !refuse(call, "what was sent has another size");
        else memcpy(call.to + done[i], channel.piece, part);
        channel.taken++;
        done[i] += part;
      }
      all = all && done[i] == total;
    }
    return all || failed;
  });
  return went && !failed;
}

struct Group {
  std::vector<Call> calls;
};

/** Errors are told by ncclCommGetAsyncError; a rank that is gone does not spoil the stream. */
int run(void* data) {
  auto& group = *static_cast<Group*>(data);
  std::vector<Call*> passed;
  for (Call& call : group.calls) {
    if (call.comm->error) return call.comm->error == ncclRemoteError ? hipSuccess : hipErrorLaunchFailure;
    if (call.asked.kind >= sendTo) passed.push_back(&call);
    else if (!collective(call)) return call.comm->error == ncclRemoteError ? hipSuccess : hipErrorLaunchFailure;
  }
  if (pass(passed)) return hipSuccess;
  return passed[0]->comm->error == ncclRemoteError ? hipSuccess : hipErrorLaunchFailure;
}

thread_local int depth = 0;
thread_local std::vector<std::pair<hipStream_t, Call>> pending;

ncclResult_t flush() {
  std::vector<std::pair<hipStream_t, Call>> calls;
  calls.swap(pending);
  while (!calls.empty()) {
    hipStream_t stream = calls[0].first;
    auto* group = new Group;
    std::vector<std::pair<hipStream_t, Call>> rest;
    for (auto& one : calls) {
      if (one.first == stream) group->calls.push_back(std::move(one.second));
      else rest.push_back(std::move(one));
    }
    std::shared_ptr<Comm> comm = group->calls[0].comm;
    int code = wickSimEnqueue(stream, run, group, [](void* data) { delete static_cast<Group*>(data); });
    if (comm->error && comm->error != ncclRemoteError) return ncclResult_t(comm->error.load());
    if (code) return ncclUnhandledCudaError;
    calls.swap(rest);
  }
  return ncclSuccess;
}

struct Handle {
  std::shared_ptr<Comm> comm;
};
std::mutex* mutex = new std::mutex;
std::vector<Handle*>* handles = new std::vector<Handle*>;
std::shared_ptr<Comm> find(void* handle) {
  std::lock_guard<std::mutex> lock(*mutex);
  auto found = std::find(handles->begin(), handles->end(), handle);
  return found == handles->end() ? nullptr : (*found)->comm;
}

ncclResult_t ask(void* handle, hipStream_t stream, Asked asked, const void* from, void* to) {
  auto comm = find(handle);
  if (!comm) return ncclInvalidArgument;
  if (comm->aborted) return ncclInvalidUsage;
  if (asked.type < i8 || asked.type > bf16 || asked.reduction < sum || asked.reduction > minimum) return ncclInvalidArgument;
  if (asked.root < 0 || asked.root >= comm->size) return ncclInvalidArgument;
  // What a rank sends to itself would wait for ever, unless it is received in the same group.
  if (asked.kind >= sendTo && asked.root == comm->rank && !depth) return ncclInvalidUsage;
  size_t bytes = asked.count * size_t(sizeOf(asked.type)), ranks = size_t(comm->size);
  size_t fromBytes = asked.kind == reduceScatter ? bytes * ranks : bytes, toBytes = asked.kind == allGather ? bytes * ranks : bytes;
  bool reads = asked.kind != receiveFrom && !(asked.kind == broadcast && comm->rank != asked.root);
  if (reads && fromBytes && !wickSimInDevice(from, fromBytes, names[asked.kind])) return ncclInvalidArgument;
  if (asked.kind != sendTo && toBytes && !wickSimInDevice(to, toBytes, names[asked.kind])) return ncclInvalidArgument;
  if (asked.count == 0) return ncclSuccess;
  pending.push_back({stream, Call{comm, asked, static_cast<const char*>(from), static_cast<char*>(to)}});
  return depth ? ncclSuccess : flush();
}

ncclResult_t drop(void* handle, bool aborts) {
  std::shared_ptr<Comm> comm;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    auto found = std::find(handles->begin(), handles->end(), handle);
    if (found == handles->end()) return ncclInvalidArgument;
    comm = (*found)->comm;
    // Another thread may be inside a call: the handle stays known, and is of no use.
    if (!aborts) {
      delete *found;
      handles->erase(found);
    }
  }
  if (aborts) comm->aborted = true;
  comm->shared->places[comm->rank].pid = 0;
  return ncclSuccess;
}

}  // namespace

SIM_API ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = 22205;
  return ncclSuccess;
}
SIM_API const char* ncclGetErrorString(int code) {
  switch (code) {
#define X(name, value, text) \
  case value: return text;
    NCCL_RESULTS(X)
#undef X
  }
  return "unknown result code";
}
SIM_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (!id) return ncclInvalidArgument;
  memset(id, 0, sizeof *id);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(id->internal, sizeof id->internal, "/wick-rccl-%d-%lx%lx", getpid(), long(now.tv_sec), now.tv_nsec);
  int file = shm_open(id->internal, O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) return ncclSystemError;
  bool sized = ftruncate(file, sizeof(Shared)) == 0;
  close(file);
  return sized ? ncclSuccess : ncclSystemError;
}
SIM_API ncclResult_t ncclCommInitRank(void** out, int size, ncclUniqueId id, int rank) {
  int device;
  if (!out || size < 1 || size > maxRanks || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (hipGetDevice(&device) != hipSuccess) return ncclUnhandledCudaError;
  int file = shm_open(id.internal, O_RDWR, 0600);
  if (file < 0) return ncclSystemError;
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return ncclSystemError;
  auto comm = std::make_shared<Comm>();
  comm->shared = static_cast<Shared*>(at);
  comm->rank = rank;
  comm->size = size;
  int none = 0;
  if (!comm->shared->size.compare_exchange_strong(none, size) && none != size) return ncclInvalidUsage;
  if (comm->shared->places[rank].pid.exchange(getpid())) return ncclInvalidUsage;
  comm->shared->joined++;
  if (!await(*comm, [&] { return comm->shared->joined >= size; })) return ncclRemoteError;
  // All are here: nobody needs the name any more, and nothing is left behind.
  if (rank == 0) shm_unlink(id.internal);
  auto* handle = new Handle{comm};
  std::lock_guard<std::mutex> lock(*mutex);
  handles->push_back(handle);
  *out = handle;
  return ncclSuccess;
}
SIM_API ncclResult_t ncclCommDestroy(void* comm) { return drop(comm, false); }
SIM_API ncclResult_t ncclCommAbort(void* comm) { return drop(comm, true); }
SIM_API ncclResult_t ncclCommGetAsyncError(void* handle, int* out) {
  auto comm = find(handle);
  if (!comm || !out) return ncclInvalidArgument;
  *out = comm->error;
  return ncclSuccess;
}
SIM_API ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
SIM_API ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  return --depth ? ncclSuccess : flush();
}

SIM_API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, void* comm, hipStream_t stream) {
  return ask(comm, stream, {allReduce, type, reduction, 0, count}, from, to);
}
SIM_API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, hipStream_t stream) {
  return ask(comm, stream, {allGather, type, 0, 0, count}, from, to);
}
SIM_API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, void* comm, hipStream_t stream) {
  return ask(comm, stream, {reduceScatter, type, reduction, 0, count}, from, to);
}
SIM_API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm, hipStream_t stream) {
  return ask(comm, stream, {broadcast, type, 0, root, count}, from, to);
}
SIM_API ncclResult_t ncclSend(const void* at, size_t count, int type, int peer, void* comm, hipStream_t stream) {
  return ask(comm, stream, {sendTo, type, 0, peer, count}, at, nullptr);
}
SIM_API ncclResult_t ncclRecv(void* at, size_t count, int type, int peer, void* comm, hipStream_t stream) {
  return ask(comm, stream, {receiveFrom, type, 0, peer, count}, nullptr, at);
}
