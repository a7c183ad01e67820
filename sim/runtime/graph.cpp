// Captures and graphs: a graph is the list of work captured, in enqueue order, which respects every dependency.
#include <functional>
#include <thread>

#include "runtime.h"

namespace sim {

struct Graph {
  std::vector<Work> work;
};
struct GraphExec {
  std::vector<Work> work;
};

std::unordered_set<Capture*> captures;

static std::unordered_set<const Graph*>& graphs() {
  static auto* live = new std::unordered_set<const Graph*>;
  return *live;
}
static std::unordered_set<const GraphExec*>& executables() {
  static auto* live = new std::unordered_set<const GraphExec*>;
  return *live;
}

static size_t threadId() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }

hipError_t forbidInCapture(const char* call, const Stream* stream) {
  hipError_t result = hipSuccess;
  for (Capture* capture : captures) {
    bool concerned = stream ? stream->capture.get() == capture
                            : capture->mode == hipStreamCaptureModeGlobal ||
                                  (capture->mode == hipStreamCaptureModeThreadLocal && capture->thread == threadId());
    if (!concerned) continue;
    capture->invalid = true;
    result = fail(hipErrorStreamCaptureUnsupported, "%s is not permitted while a stream captures", call);
  }
  return result;
}

static LeakReport leakReport{[] {
  if (!graphs().empty()) reportLeak(std::to_string(graphs().size()) + " graphs");
  if (!executables().empty()) reportLeak(std::to_string(executables().size()) + " executable graphs");
}};

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode) {
  Lock lock;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "hipStreamBeginCapture: the stream is not alive");
  if (unsigned(mode) > hipStreamCaptureModeRelaxed)
    return fail(hipErrorInvalidValue, "hipStreamBeginCapture: there is no mode %d", mode);
  if (stream->isDefault)
    return fail(hipErrorStreamCaptureUnsupported, "hipStreamBeginCapture: the default stream cannot capture");
  if (stream->capture) return fail(hipErrorIllegalState, "hipStreamBeginCapture: the stream captures already");
  stream->capture.reset(new Capture{stream, mode, threadId(), false, {}}, [](Capture* capture) {
    captures.erase(capture);
    delete capture;
  });
  captures.insert(stream->capture.get());
  return hipSuccess;
}

SIM_API hipError_t hipStreamEndCapture(hipStream_t handle, hipGraph_t* out) {
  Lock lock;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "hipStreamEndCapture: the stream is not alive");
  if (!out) return fail(hipErrorInvalidValue, "hipStreamEndCapture: null result");
  *out = nullptr;
  if (!stream->capture) return fail(hipErrorIllegalState, "hipStreamEndCapture: the stream does not capture");
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream)
    return fail(hipErrorStreamCaptureUnmatched, "hipStreamEndCapture: the capture began on another stream");
  if (capture->mode != hipStreamCaptureModeRelaxed && capture->thread != threadId())
    return fail(hipErrorStreamCaptureWrongThread, "hipStreamEndCapture: the capture began on another thread");
  endCapture(capture.get());
  captures.erase(capture.get());
  if (capture->invalid)
    return fail(hipErrorStreamCaptureInvalidated, "hipStreamEndCapture: a forbidden call invalidated the capture");
  *out = new Graph{std::move(capture->work)};
  graphs().insert(*out);
  return hipSuccess;
}

SIM_API hipError_t hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus* status) {
  Lock lock;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "hipStreamIsCapturing: the stream is not alive");
  if (!status) return fail(hipErrorInvalidValue, "hipStreamIsCapturing: null result");
  *status = !stream->capture           ? hipStreamCaptureStatusNone
            : stream->capture->invalid ? hipStreamCaptureStatusInvalidated
                                       : hipStreamCaptureStatusActive;
  return hipSuccess;
}

SIM_API hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* out, hipGraph_t graph, unsigned long long) {
  Lock lock;
  if (!out || !graphs().count(graph)) return fail(hipErrorInvalidValue, "hipGraphInstantiate: the graph is not alive");
  *out = new GraphExec{graph->work};
  executables().insert(*out);
  return hipSuccess;
}
SIM_API hipError_t hipGraphInstantiate(hipGraphExec_t* out, hipGraph_t graph, hipGraphNode_t* errorNode, char* log,
                                       size_t logBytes) {
  if (errorNode) *errorNode = nullptr;
  if (log && logBytes) *log = 0;
  return hipGraphInstantiateWithFlags(out, graph, 0);
}
SIM_API hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t handle) {
  Lock lock;
  Stream* stream = findStream(handle);
  if (!stream) return fail(hipErrorInvalidHandle, "hipGraphLaunch: the stream is not alive");
  if (!executables().count(exec)) return fail(hipErrorInvalidValue, "hipGraphLaunch: the graph is not alive");
  for (const Work& work : exec->work)
    if (hipError_t code = enqueue(*stream, work)) return code;
  return hipSuccess;
}
SIM_API hipError_t hipGraphExecDestroy(hipGraphExec_t exec) {
  Lock lock;
  if (!executables().erase(exec)) return fail(hipErrorInvalidValue, "hipGraphExecDestroy: the graph is not alive");
  delete exec;
  return hipSuccess;
}
SIM_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  Lock lock;
  if (!graphs().erase(graph)) return fail(hipErrorInvalidValue, "hipGraphDestroy: the graph is not alive");
  delete graph;
  return hipSuccess;
}
