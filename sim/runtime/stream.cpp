// Streams and events. Work runs when it is enqueued, or, with WICK_SIM_LAZY=1, not before a synchronising call needs
// it: then a read-back that forgot to synchronise sees old bytes, as it could on a device.
#include <time.h>

#include <map>
#include <utility>

#include "runtime.h"

namespace sim {

/** What queued work needs of an event; it may outlive the handle. */
struct EventState {
  uint64_t recorded = 0, completed = 0;
  double milliseconds = 0;
  Stream* stream = nullptr;
  std::shared_ptr<Capture> capture;
};
struct Event {
  unsigned flags;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

static std::unordered_set<const Stream*>& streams() {
  static auto* live = new std::unordered_set<const Stream*>;
  return *live;
}
static std::unordered_set<const Event*>& events() {
  static auto* live = new std::unordered_set<const Event*>;
  return *live;
}
static uint64_t sequence;
static Stream* defaults[2];

uint64_t lastSequence() { return sequence; }
bool alive(const Stream* stream) { return streams().count(stream) || stream == defaults[0] || stream == defaults[1]; }

static Stream& defaultStream(int ordinal) {
  if (!defaults[ordinal]) {
    defaults[ordinal] = new Stream{ordinal, 0, true, {}, nullptr};
  }
  return *defaults[ordinal];
}

Stream* findStream(hipStream_t handle) {
  if (!handle) return &defaultStream(currentDevice());
  return alive(handle) ? handle : nullptr;
}

static bool blocking(const Stream& stream) { return !stream.isDefault && !(stream.flags & hipStreamNonBlocking); }

/** The default stream waits for earlier work of blocking streams, and they for earlier work of the default stream. */
static hipError_t drainEarlier(Stream& stream, uint64_t before) {
  if (blocking(stream)) return drain(defaultStream(stream.device), before - 1);
  hipError_t result = hipSuccess;
  if (!stream.isDefault) return result;
  for (const Stream* other : streams())
    if (other->device == stream.device && blocking(*other))
      if (hipError_t code = drain(*const_cast<Stream*>(other), before - 1)) result = code;
  return result;
}

hipError_t drain(Stream& stream, uint64_t until) {
  hipError_t result = hipSuccess;
  auto keepFirst = [&](hipError_t code) {
    if (!result) result = code;
  };
  while (!stream.queue.empty() && stream.queue.front().sequence <= until) {
    Operation next = std::move(stream.queue.front());
    stream.queue.pop_front();
    keepFirst(drainEarlier(stream, next.sequence));
    keepFirst(next.run());
  }
  // Synchronising with the default stream includes the blocking streams, even when it holds no work itself.
  if (stream.isDefault && until == UINT64_MAX) keepFirst(drainEarlier(stream, sequence + 1));
  return result;
}

hipError_t drainAll() {
  hipError_t result = hipSuccess;
  for (Stream* stream : defaults)
    if (stream)
      if (hipError_t code = drain(*stream)) result = code;
  for (const Stream* stream : streams())
    if (hipError_t code = drain(*const_cast<Stream*>(stream))) result = code;
  return result;
}

bool progress(Stream& stream) {
  if (stream.queue.empty()) return false;
  drain(stream, stream.queue.front().sequence);
  return true;
}

hipError_t enqueue(Stream& stream, Work work) {
  if (stream.capture) {
    if (stream.capture->invalid) return fail(hipErrorStreamCaptureInvalidated, "the stream's capture is invalid");
    stream.capture->work.push_back(std::move(work));
    return hipSuccess;
  }
  if (stream.isDefault)
    for (const Stream* other : streams())
      if (other->capture && blocking(*other) && other->device == stream.device) {
        other->capture->invalid = true;
        return fail(hipErrorStreamCaptureImplicit, "work on the default stream while a blocking stream captures");
      }
  bool later = flag("WICK_SIM_LAZY");
  if (!later && stream.queue.empty()) return ++sequence, work();
  stream.queue.push_back({++sequence, std::move(work)});
  return later ? hipSuccess : drain(stream);
}

void endCapture(const Capture* capture) {
  for (const Stream* stream : streams())
    if (stream->capture.get() == capture) const_cast<Stream*>(stream)->capture = nullptr;
  for (const Event* event : events())
    if (event->state->capture.get() == capture) event->state->capture = nullptr;
}

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) * 1e3 + double(t.tv_nsec) * 1e-6;
}

static hipError_t synchronize(const char* call, Stream& stream) {
  if (stream.capture) return forbidInCapture(call, &stream);
  hipError_t result = drain(stream);
  hipError_t damage = checkCanaries();
  return result ? result : damage;
}

/** As HIP 6 does: an event of a stream that captures cannot be waited for, although it was recorded before. */
static hipError_t forbidOnEvent(const char* call, EventState& state) {
  if (state.capture) return fail(hipErrorCapturedEvent, "%s: the event is part of a capture", call);
  if (!state.stream || !alive(state.stream) || !state.stream->capture) return hipSuccess;
  state.stream->capture->invalid = true;
  return fail(hipErrorCapturedEvent, "%s: the event's stream captures", call);
}

static LeakReport leakReport{[] {
  if (!streams().empty()) reportLeak(std::to_string(streams().size()) + " streams");
  if (!events().empty()) reportLeak(std::to_string(events().size()) + " events");
}};

}  // namespace sim

using namespace sim;

#define SIM_STREAM(call, handle)                                                   \
  Lock lock;                                                                       \
  if (hipError_t code = requireDevice()) return code;                              \
  Stream* stream = findStream(handle);                                             \
  if (!stream) return fail(hipErrorInvalidHandle, call ": the stream is not alive")
#define SIM_EVENT(call, event)                                                                             \
  if (!(event)) return fail(hipErrorInvalidHandle, call ": null event");                                   \
  if (!events().count(event)) return fail(hipErrorInvalidHandle, call ": the event is not alive")

SIM_API hipError_t hipStreamCreateWithFlags(hipStream_t* out, unsigned flags) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!out || flags > hipStreamNonBlocking) return fail(hipErrorInvalidValue, "hipStreamCreate: flags %u", flags);
  *out = new Stream{currentDevice(), flags, false, {}, nullptr};
  streams().insert(*out);
  return hipSuccess;
}
SIM_API hipError_t hipStreamCreate(hipStream_t* out) { return hipStreamCreateWithFlags(out, 0); }
SIM_API hipError_t hipStreamDestroy(hipStream_t handle) {
  SIM_STREAM("hipStreamDestroy", handle);
  if (stream->isDefault) return fail(hipErrorInvalidHandle, "hipStreamDestroy: the default stream stays");
  if (stream->capture) return forbidInCapture("hipStreamDestroy", stream);
  hipError_t result = drain(*stream);
  streams().erase(stream);
  delete stream;
  return result;
}
SIM_API hipError_t hipStreamSynchronize(hipStream_t handle) {
  SIM_STREAM("hipStreamSynchronize", handle);
  return synchronize("hipStreamSynchronize", *stream);
}
SIM_API hipError_t hipStreamQuery(hipStream_t handle) {
  SIM_STREAM("hipStreamQuery", handle);
  if (stream->capture) return forbidInCapture("hipStreamQuery", stream);
  // Who asks after a fault is told so once; a device of its own kind would go on telling.
  if (std::exchange(device(stream->device).faulted, false))
    return fail(hipErrorLaunchFailure, "hipStreamQuery: a kernel faulted");
  return progress(*stream) ? hipErrorNotReady : hipSuccess;
}
SIM_API hipError_t hipDeviceSynchronize() {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (hipError_t code = forbidInCapture("hipDeviceSynchronize")) return code;
  hipError_t result = drainAll();
  hipError_t damage = checkCanaries();
  return result ? result : damage;
}

SIM_API hipError_t hipEventCreateWithFlags(hipEvent_t* out, unsigned flags) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!out || flags & ~(hipEventBlockingSync | hipEventDisableTiming | 4u | 0xE0000000u))
    return fail(hipErrorInvalidValue, "hipEventCreate: flags %u", flags);
  *out = new Event{flags};
  events().insert(*out);
  return hipSuccess;
}
SIM_API hipError_t hipEventCreate(hipEvent_t* out) { return hipEventCreateWithFlags(out, 0); }
SIM_API hipError_t hipEventDestroy(hipEvent_t event) {
  Lock lock;
  SIM_EVENT("hipEventDestroy", event);
  events().erase(event);
  delete event;
  return hipSuccess;
}
SIM_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t handle) {
  SIM_STREAM("hipEventRecord", handle);
  SIM_EVENT("hipEventRecord", event);
  auto state = event->state;
  state->capture = stream->capture;
  if (stream->capture) return hipSuccess;
  state->stream = stream;
  uint64_t mark = state->recorded = lastSequence() + 1;
  return enqueue(*stream, [state, mark] {
    state->completed = mark;
    state->milliseconds = now();
    return hipSuccess;
  });
}
SIM_API hipError_t hipEventSynchronize(hipEvent_t event) {
  Lock lock;
  SIM_EVENT("hipEventSynchronize", event);
  EventState& state = *event->state;
  if (hipError_t code = forbidOnEvent("hipEventSynchronize", state)) return code;
  hipError_t result = hipSuccess;
  if (state.completed < state.recorded && alive(state.stream)) result = drain(*state.stream, state.recorded);
  hipError_t damage = checkCanaries();
  return result ? result : damage;
}
SIM_API hipError_t hipEventQuery(hipEvent_t event) {
  Lock lock;
  SIM_EVENT("hipEventQuery", event);
  EventState& state = *event->state;
  if (hipError_t code = forbidOnEvent("hipEventQuery", state)) return code;
  if (state.completed == state.recorded || !alive(state.stream)) return hipSuccess;
  progress(*state.stream);
  return hipErrorNotReady;
}
SIM_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  Lock lock;
  SIM_EVENT("hipEventElapsedTime", start);
  SIM_EVENT("hipEventElapsedTime", stop);
  if (!milliseconds) return fail(hipErrorInvalidValue, "hipEventElapsedTime: null result");
  for (const Event* event : {start, stop}) {
    if (!event->state->recorded) return fail(hipErrorInvalidHandle, "hipEventElapsedTime: an event was never recorded");
    if (event->flags & hipEventDisableTiming)
      return fail(hipErrorInvalidHandle, "hipEventElapsedTime: an event was created without timing");
    if (event->state->completed < event->state->recorded) return hipErrorNotReady;
  }
  *milliseconds = float(stop->state->milliseconds - start->state->milliseconds);
  return hipSuccess;
}
SIM_API hipError_t hipStreamWaitEvent(hipStream_t handle, hipEvent_t event, unsigned flags) {
  SIM_STREAM("hipStreamWaitEvent", handle);
  SIM_EVENT("hipStreamWaitEvent", event);
  if (flags) return fail(hipErrorInvalidValue, "hipStreamWaitEvent: flags must be 0");
  auto state = event->state;
  if (state->capture) {
    if (stream->capture && stream->capture != state->capture)
      return fail(hipErrorStreamCaptureMerge, "hipStreamWaitEvent: the event belongs to another capture");
    stream->capture = state->capture;  // the stream joins the capture
    return hipSuccess;
  }
  if (stream->capture) {
    if (!state->recorded) return hipSuccess;
    stream->capture->invalid = true;
    return fail(hipErrorStreamCaptureIsolation, "hipStreamWaitEvent: the event was recorded outside the capture");
  }
  uint64_t mark = state->recorded;
  if (state->completed >= mark) return hipSuccess;
  return enqueue(*stream, [state, mark] {
    if (state->completed < mark && alive(state->stream)) return drain(*state->stream, mark);
    return hipSuccess;
  });
}
/** For the stand-in libraries: runs work(data) in the stream's order, then or never calls drop(data) once. */
SIM_API int wickSimEnqueue(hipStream_t handle, int (*work)(void*), void* data, void (*drop)(void*)) {
  std::shared_ptr<void> owned(data, drop);
  SIM_STREAM("a library call", handle);
  return enqueue(*stream, [work, owned] { return hipError_t(work(owned.get())); });
}
