// Stand-ins for the MIOpen calls that Wick makes. They compute by MIOpen's formulas, quirks included, and refuse wrong
// use: dead or unset descriptors, shapes and types that do not fit, scales of the wrong type, a convolution without its
// search, too little workspace. Values as in ROCm/MIOpen include/miopen/miopen.h at 2d1fd99 (3.3).
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "halves.h"
#include "hip.h"

SIM_API int wickSimInDevice(const void* address, size_t bytes, const char* what);
SIM_API int wickSimEnqueue(hipStream_t stream, int (*work)(void*), void* data, void (*drop)(void*));
SIM_API void wickSimNote(const char* text);
SIM_API hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status);

#define MIOPEN_STATUSES(X)                                                                                  \
  X(Success, 0) X(NotInitialized, 1) X(InvalidValue, 2) X(BadParm, 3) X(AllocFailed, 4) X(InternalError, 5) \
  X(NotImplemented, 6) X(UnknownError, 7) X(UnsupportedOp, 8) X(GpuOperationsSkipped, 9) X(VersionMismatch, 10)
enum Status : int {
#define X(name, value) name = value,
  MIOPEN_STATUSES(X)
#undef X
};

enum Type : int { half = 0, single = 1, int32 = 2, int8 = 3, brain = 5, twofold = 6, int64 = 9 };
enum Softmax : int { softmaxFast, softmaxAccurate, softmaxLog };
enum Pooling : int { poolingMax, poolingAverage, poolingAverageInclusive };
enum Algorithm : int { algorithmGemm = 0, algorithmDirect = 1 };
enum MhaTensor : uint32_t {
  mhaK = 4, mhaQ, mhaV, mhaDescaleK, mhaDescaleQ, mhaDescaleV, mhaDescaleS, mhaScaleS, mhaScaleO,
  mhaDropoutProbability, mhaDropoutSeed, mhaDropoutOffset, mhaO, mhaAmaxO, mhaAmaxS, mhaM, mhaZInv,
  mhaMask = 1u << 31 | 1
};
struct TensorArgument {
  uint32_t id;
  void** descriptor;
  void* buffer;
};
struct ConvResult {
  int algorithm;
  float milliseconds;
  size_t bytes;
};

namespace {

struct Tensor {
  int type = -1;
  int64_t n = 0, c = 0, h = 0, w = 0;
  int64_t count() const { return n * c * h * w; }
  bool operator==(const Tensor& o) const { return type == o.type && n == o.n && c == o.c && h == o.h && w == o.w; }
  std::string text() const {
    return std::to_string(n) + "x" + std::to_string(c) + "x" + std::to_string(h) + "x" + std::to_string(w) + " of type " +
           std::to_string(type);
  }
};

enum Kind { handleKind, tensorKind, activationKind, convKind, poolKind, mhaKind, problemKind, solutionKind };
const char* const kindNames[] = {"handle", "tensor descriptor", "activation descriptor", "convolution descriptor",
                                 "pooling descriptor", "attention descriptor", "problem", "solution"};

/** Everything that a call creates; each kind uses its own fields. */
struct Object {
  Kind kind;
  bool isSet = false;
  hipStream_t stream = nullptr;
  std::map<std::string, std::vector<ConvResult>> searched;
  Tensor tensor;
  int mode = 0, groups = 1;
  int numbers[6] = {};
  double alpha = 0;
  double beta = 0;
  float scale = 0;
  std::map<uint32_t, Tensor> tensors;
  size_t bytes = 0;
};

std::mutex mutex;
std::map<void*, Kind>& objects() {
  static auto* live = new std::map<void*, Kind>;
  return *live;
}

__attribute__((format(printf, 2, 3))) Status refuse(Status status, const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  wickSimNote(text);
  return status;
}

Status create(void** out, Kind kind, Object** made = nullptr) {
  if (!out) return refuse(BadParm, "a place for the %s is missing", kindNames[kind]);
  auto* object = new Object;
  object->kind = kind;
  std::lock_guard<std::mutex> lock(mutex);
  objects()[object] = kind;
  *out = object;
  if (made) *made = object;
  return Success;
}

/** The live object of a kind behind a pointer, or null with the message set. */
Object* find(void* pointer, Kind kind, bool mustBeSet = true) {
  Kind actual;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = objects().find(pointer);
    if (found == objects().end()) {
      refuse(BadParm, "%p is no live %s", pointer, kindNames[kind]);
      return nullptr;
    }
    actual = found->second;
  }
  auto* object = static_cast<Object*>(pointer);
  if (actual != kind) refuse(BadParm, "%p is a %s, not a %s", pointer, kindNames[actual], kindNames[kind]);
  else if (mustBeSet && !object->isSet) refuse(BadParm, "the %s was never set", kindNames[kind]);
  else return object;
  return nullptr;
}

Status destroy(void* pointer, Kind kind) {
  Object* object = find(pointer, kind, false);
  if (!object) return BadParm;
  std::lock_guard<std::mutex> lock(mutex);
  objects().erase(pointer);
  delete object;
  return Success;
}

#define FIND(variable, pointer, kind)        \
  Object* variable = find(pointer, kind);    \
  if (!variable) return BadParm

size_t sizeOf(int type) {
  switch (type) {
    case half: case brain: return 2;
    case single: case int32: return 4;
    case int8: return 1;
    case twofold: case int64: return 8;
  }
  return 0;
}
size_t bytesOf(const Tensor& t) { return size_t(t.count()) * sizeOf(t.type); }

struct Data {
  void* at;
  int type;
  double operator[](int64_t i) const {
    if (type == half) return fromHalf(static_cast<uint16_t*>(at)[i]);
    if (type == brain) return fromBrain(static_cast<uint16_t*>(at)[i]);
    return static_cast<float*>(at)[i];
  }
  void set(int64_t i, double value) const {
    if (type == half) static_cast<uint16_t*>(at)[i] = toHalf(float(value));
    else if (type == brain) static_cast<uint16_t*>(at)[i] = toBrain(float(value));
    else static_cast<float*>(at)[i] = float(value);
  }
};

struct Buffer {
  const void* at;
  size_t bytes;
  const char* what;
};
bool inDevice(const std::vector<Buffer>& buffers) {
  for (const Buffer& b : buffers)
    if (!wickSimInDevice(b.at, b.bytes, b.what)) return false;
  return true;
}

struct Work {
  std::vector<Buffer> buffers;
  std::function<void()> run;
};
/** Enqueues; the memory is looked at now and when the work runs, which may be in a graph later. */
Status enqueue(Object* handle, std::vector<Buffer> buffers, std::function<void()> run) {
  if (!inDevice(buffers)) return BadParm;
  int code = wickSimEnqueue(
      handle->stream,
      [](void* data) {
        auto* work = static_cast<Work*>(data);
        if (!inDevice(work->buffers)) return int(hipErrorLaunchFailure);
        work->run();
        return int(hipSuccess);
      },
      new Work{std::move(buffers), std::move(run)}, [](void* data) { delete static_cast<Work*>(data); });
  return code ? InternalError : Success;
}

/** Scales are f32 but for doubles, and only 1 and 0 are taken. A double 1 read as f32 is 0. */
Status checkScales(const char* call, const void* alpha, const void* beta, int type) {
  if (!alpha || !beta) return refuse(BadParm, "%s: alpha or beta is null", call);
  auto value = [type](const void* at) {
    return type == twofold ? *static_cast<const double*>(at) : double(*static_cast<const float*>(at));
  };
  if (value(alpha) != 1 || value(beta) != 0)
    return refuse(BadParm, "%s: alpha is %g and beta %g, not 1 and 0, read as %s", call, value(alpha), value(beta),
                  type == twofold ? "double" : "float");
  return Success;
}

Status checkType(const char* call, const Tensor& t, std::initializer_list<int> types) {
  if (std::count(types.begin(), types.end(), t.type)) return Success;
  return refuse(NotImplemented, "%s does not take data type %d", call, t.type);
}

#define TRY(expression)                       \
  do {                                        \
    if (Status status = expression) return status; \
  } while (0)

double activate(int mode, double x, double alpha, double beta) {
  switch (mode) {
    case 0: return x;
    case 1: return 1 / (1 + exp(-x));
    case 2: return beta * tanh(alpha * x);
    case 3: return x * (x > 0);
    case 4: return x > 0 ? x + log(1 + exp(-x)) : log(1 + exp(x));
    case 5: return fabs(x);
    case 7: return fmin(alpha, fmax(x, 0));
    case 8: return x * (x > 0 ? 1 : alpha);
    default: return x > 0 ? x : alpha * double(float(expf(float(x))) - 1.0f);  // loses digits near 0
  }
}

/** One row of elements `step` apart. */
void softmaxRow(const Data& x, const Data& y, int64_t at, int64_t count, int64_t step, int algorithm) {
  double top = algorithm == softmaxFast ? 0 : -FLT_MAX, sum = 0;
  if (algorithm != softmaxFast)
    for (int64_t i = 0; i < count; i++) top = fmax(top, x[at + i * step]);
  for (int64_t i = 0; i < count; i++) {
    double e = exp(x[at + i * step] - top);
    if (algorithm != softmaxLog || e == e) sum += e;
  }
  for (int64_t i = 0; i < count; i++) {
    double d = x[at + i * step] - top;
    y.set(at + i * step, algorithm == softmaxLog ? d - log(sum) : exp(d) * (1 / sum));
  }
}

struct Conv {
  Tensor x, w, y;
  int padH, padW, strideH, strideW, dilationH, dilationW, groups;
  std::string key() const {
    std::string key = x.text() + " " + w.text();
    for (int n : {padH, padW, strideH, strideW, dilationH, dilationW, groups}) key += " " + std::to_string(n);
    return key;
  }
  /** What unrolled windows of one image take; none for 1x1 without stride. */
  size_t workspace() const {
    bool isProduct = w.h * w.w == 1 && strideH == 1 && strideW == 1 && padH == 0 && padW == 0;
    return isProduct ? 0 : size_t(w.c * w.h * w.w * groups * y.h * y.w) * sizeOf(x.type);
  }
};

Status describeConv(Conv& conv, void* xDesc, void* wDesc, void* desc, void* yDesc) {
  FIND(x, xDesc, tensorKind);
  FIND(w, wDesc, tensorKind);
  FIND(d, desc, convKind);
  FIND(y, yDesc, tensorKind);
  const int* n = d->numbers;
  conv = {x->tensor, w->tensor, y->tensor, n[0], n[1], n[2], n[3], n[4], n[5], d->groups};
  TRY(checkType("convolution", conv.x, {half, single, brain}));
  if (conv.w.type != conv.x.type || conv.y.type != conv.x.type)
    return refuse(BadParm, "convolution: data types %d, %d and %d differ", conv.x.type, conv.w.type, conv.y.type);
  int64_t g = conv.groups;
  if (conv.x.c % g || conv.w.n % g || conv.w.c * g != conv.x.c)
    return refuse(BadParm, "convolution: %s and %s do not fit %d groups", conv.x.text().c_str(), conv.w.text().c_str(), conv.groups);
  auto size = [](int64_t length, int pad, int kernel, int dilation, int stride) {
    return (length + 2 * pad - (int64_t(dilation) * (kernel - 1) + 1)) / stride + 1;
  };
  Tensor want = {conv.x.type, conv.x.n, conv.w.n, size(conv.x.h, conv.padH, int(conv.w.h), conv.dilationH, conv.strideH),
                 size(conv.x.w, conv.padW, int(conv.w.w), conv.dilationW, conv.strideW)};
  if (!(want == conv.y))
    return refuse(BadParm, "convolution: the output is %s, not %s", want.text().c_str(), conv.y.text().c_str());
  return Success;
}

void convolve(const Conv& p, const Data& x, const Data& w, const Data& y) {
  int64_t outputs = p.w.n / p.groups, at = 0;
  for (int64_t n = 0; n < p.y.n; n++)
    for (int64_t o = 0; o < p.y.c; o++)
      for (int64_t i = 0; i < p.y.h; i++)
        for (int64_t j = 0; j < p.y.w; j++) {
          double sum = 0;
          for (int64_t c = 0; c < p.w.c; c++)
            for (int64_t a = 0; a < p.w.h; a++)
              for (int64_t b = 0; b < p.w.w; b++) {
                int64_t row = i * p.strideH - p.padH + a * p.dilationH, column = j * p.strideW - p.padW + b * p.dilationW;
                if (row < 0 || row >= p.x.h || column < 0 || column >= p.x.w) continue;
                int64_t channel = o / outputs * p.w.c + c;
                sum += x[((n * p.x.c + channel) * p.x.h + row) * p.x.w + column] * w[((o * p.w.c + c) * p.w.h + a) * p.w.w + b];
              }
          y.set(at++, sum);
        }
}

constexpr uint32_t mhaFirst = mhaK, mhaLast = mhaZInv;

Status checkMha(const std::map<uint32_t, Tensor>& tensors) {
  for (uint32_t id = mhaFirst; id <= mhaLast; id++)
    if (!tensors.count(id)) return refuse(InvalidValue, "attention: tensor %u has no descriptor", id);
  const Tensor& k = tensors.at(mhaK);
  Tensor rows = k, one = {single, 1, 1, 1, 1}, wide = {int64, 1, 1, 1, 1};
  rows.w = 1;
  for (uint32_t id = mhaFirst; id <= mhaLast; id++) {
    const Tensor& t = tensors.at(id);
    bool isData = id == mhaK || id == mhaQ || id == mhaV || id == mhaO;
    const Tensor& want = isData                                       ? k
                         : id == mhaM || id == mhaZInv                ? rows
                         : id == mhaDropoutSeed || id == mhaDropoutOffset ? wide
                                                                      : one;
    if (!(t == want)) return refuse(BadParm, "attention: tensor %u is %s, not %s", id, t.text().c_str(), want.text().c_str());
  }
  return Success;
}

struct Leaks {
  ~Leaks() {
    const char* wanted = getenv("WICK_SIM_LEAKS");
    if (!wanted || !*wanted || !strcmp(wanted, "0")) return;
    for (const auto& entry : objects())
      if (entry.second != mhaKind) fprintf(stderr, "wick-sim: leaked a MIOpen %s\n", kindNames[entry.second]);
  }
} leaks;

}  // namespace

/** How many descriptors, problems and solutions there are; MIOpen has no call to destroy attention descriptors. */
SIM_API int wickSimMiopenAlive() {
  std::lock_guard<std::mutex> lock(mutex);
  auto counts = [](const auto& entry) { return entry.second != handleKind && entry.second != mhaKind; };
  return int(std::count_if(objects().begin(), objects().end(), counts));
}

SIM_API const char* miopenGetErrorString(Status status) {
  switch (status) {
#define X(name, value) \
  case name:           \
    return "miopenStatus" #name;
    MIOPEN_STATUSES(X)
#undef X
  }
  return "Unknown error status";
}
SIM_API Status miopenGetVersion(size_t* major, size_t* minor, size_t* patch) {
  if (major) *major = 3;
  if (minor) *minor = 3;
  if (patch) *patch = 0;
  return Success;
}
SIM_API Status miopenCreateWithStream(void** out, hipStream_t stream) {
  hipStreamCaptureStatus status;
  if (hipStreamIsCapturing(stream, &status) != hipSuccess) return BadParm;
  Object* handle;
  TRY(create(out, handleKind, &handle));
  handle->stream = stream;
  handle->isSet = true;
  return Success;
}
SIM_API Status miopenDestroy(void* handle) { return destroy(handle, handleKind); }

SIM_API Status miopenCreateTensorDescriptor(void** out) { return create(out, tensorKind); }
SIM_API Status miopenDestroyTensorDescriptor(void* desc) { return destroy(desc, tensorKind); }
SIM_API Status miopenSet4dTensorDescriptor(void* desc, int type, int n, int c, int h, int w) {
  Object* object = find(desc, tensorKind, false);
  if (!object) return BadParm;
  if (!sizeOf(type)) return refuse(BadParm, "%d is no data type", type);
  if (n < 1 || c < 1 || h < 1 || w < 1) return refuse(BadParm, "a tensor of %dx%dx%dx%d", n, c, h, w);
  object->tensor = {type, n, c, h, w};
  object->isSet = true;
  return Success;
}

SIM_API Status miopenSoftmaxForward_V2(void* handle, const void* alpha, void* xDesc, void* x, const void* beta,
                                       void* yDesc, void* y, int algorithm, int mode) {
  FIND(h, handle, handleKind);
  FIND(in, xDesc, tensorKind);
  FIND(out, yDesc, tensorKind);
  Tensor t = in->tensor;
  TRY(checkType("softmax", t, {half, single}));
  if (!(t == out->tensor)) return refuse(BadParm, "softmax: %s to %s", t.text().c_str(), out->tensor.text().c_str());
  TRY(checkScales("softmax", alpha, beta, t.type));
  if (algorithm < softmaxFast || algorithm > softmaxLog) return refuse(BadParm, "%d is no softmax algorithm", algorithm);
  if (mode < 0 || mode > 1) return refuse(BadParm, "%d is no softmax mode", mode);
  return enqueue(h, {{x, bytesOf(t), "softmax, x"}, {y, bytesOf(t), "softmax, y"}}, [=] {
    int64_t count = mode == 0 ? t.c * t.h * t.w : t.c, step = mode == 0 ? 1 : t.h * t.w;
    for (int64_t n = 0; n < t.n; n++)
      for (int64_t s = 0; s < step; s++)
        softmaxRow({x, t.type}, {y, t.type}, n * count * step + s, count, step, algorithm);
  });
}

SIM_API Status miopenCreateActivationDescriptor(void** out) { return create(out, activationKind); }
SIM_API Status miopenDestroyActivationDescriptor(void* desc) { return destroy(desc, activationKind); }
SIM_API Status miopenSetActivationDescriptor(void* desc, int mode, double alpha, double beta, double) {
  Object* object = find(desc, activationKind, false);
  if (!object) return BadParm;
  if (mode < 0 || mode > 9) return refuse(BadParm, "%d is no activation", mode);
  if (mode == 6) return refuse(NotImplemented, "the stand-in has no power");
  object->mode = mode;
  object->alpha = alpha;
  object->beta = beta;
  object->isSet = true;
  return Success;
}
SIM_API Status miopenActivationForward(void* handle, void* desc, const void* alpha, void* xDesc, void* x,
                                       const void* beta, void* yDesc, void* y) {
  FIND(h, handle, handleKind);
  FIND(d, desc, activationKind);
  FIND(in, xDesc, tensorKind);
  FIND(out, yDesc, tensorKind);
  Tensor t = in->tensor;
  TRY(checkType("activation", t, {half, single}));
  if (!(t == out->tensor)) return refuse(BadParm, "activation: %s to %s", t.text().c_str(), out->tensor.text().c_str());
  TRY(checkScales("activation", alpha, beta, t.type));
  int mode = d->mode;
  double a = d->alpha, b = d->beta;
  return enqueue(h, {{x, bytesOf(t), "activation, x"}, {y, bytesOf(t), "activation, y"}}, [=] {
    Data from = {x, t.type}, to = {y, t.type};
    for (int64_t i = 0; i < t.count(); i++) to.set(i, activate(mode, from[i], a, b));
  });
}

SIM_API Status miopenCreateConvolutionDescriptor(void** out) { return create(out, convKind); }
SIM_API Status miopenDestroyConvolutionDescriptor(void* desc) { return destroy(desc, convKind); }
SIM_API Status miopenInitConvolutionDescriptor(void* desc, int mode, int padH, int padW, int strideH, int strideW,
                                               int dilationH, int dilationW) {
  Object* object = find(desc, convKind, false);
  if (!object) return BadParm;
  if (mode < 0 || mode > 3) return refuse(BadParm, "%d is no convolution mode", mode);
  if (mode != 0) return refuse(NotImplemented, "the stand-in has no convolution mode %d", mode);
  if (padH < 0 || padW < 0 || strideH < 1 || strideW < 1 || dilationH < 1 || dilationW < 1)
    return refuse(BadParm, "padding %dx%d, stride %dx%d, dilation %dx%d", padH, padW, strideH, strideW, dilationH, dilationW);
  int numbers[] = {padH, padW, strideH, strideW, dilationH, dilationW};
  std::copy(numbers, numbers + 6, object->numbers);
  object->isSet = true;
  return Success;
}
SIM_API Status miopenSetConvolutionGroupCount(void* desc, int groups) {
  FIND(object, desc, convKind);
  if (groups < 1) return refuse(BadParm, "%d groups", groups);
  object->groups = groups;
  return Success;
}
SIM_API Status miopenConvolutionForwardGetWorkSpaceSize(void* handle, void* wDesc, void* xDesc, void* desc, void* yDesc,
                                                        size_t* bytes) {
  FIND(h, handle, handleKind);
  (void)h;
  Conv conv;
  TRY(describeConv(conv, xDesc, wDesc, desc, yDesc));
  if (!bytes) return refuse(BadParm, "convolution: a place for the size is missing");
  *bytes = conv.workspace();
  return Success;
}
SIM_API Status miopenFindConvolutionForwardAlgorithm(void* handle, void* xDesc, void* x, void* wDesc, void* w, void* desc,
                                                     void* yDesc, void* y, int wanted, int* found, ConvResult* results,
                                                     void* workspace, size_t bytes, bool) {
  FIND(h, handle, handleKind);
  Conv conv;
  TRY(describeConv(conv, xDesc, wDesc, desc, yDesc));
  if (wanted < 1 || !found || !results) return refuse(BadParm, "convolution search: no room for results");
  if (bytes < conv.workspace())
    return refuse(BadParm, "convolution search: %zu bytes of workspace, not %zu", bytes, conv.workspace());
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  hipStreamIsCapturing(h->stream, &status);
  if (status != hipStreamCaptureStatusNone) return refuse(UnknownError, "convolution search: it cannot be captured");
  size_t size = conv.workspace();
  std::vector<Buffer> buffers = {{x, bytesOf(conv.x), "convolution search, x"},
                                 {w, bytesOf(conv.w), "convolution search, w"},
                                 {y, bytesOf(conv.y), "convolution search, y"}};
  if (size) buffers.push_back({workspace, size, "convolution search, workspace"});
  // A search leaves anything in its outputs.
  TRY(enqueue(h, buffers, [=] {
    memset(y, 0xff, bytesOf(conv.y));
    if (size) memset(workspace, 0xff, size);
  }));
  std::vector<ConvResult> all = {{algorithmGemm, 0.1f, size}, {algorithmDirect, 0.2f, 0}};
  all.resize(size_t(std::min(wanted, 2)));
  std::copy(all.begin(), all.end(), results);
  *found = int(all.size());
  h->searched[conv.key()] = all;
  return Success;
}
SIM_API Status miopenConvolutionForward(void* handle, const void* alpha, void* xDesc, void* x, void* wDesc, void* w,
                                        void* desc, int algorithm, const void* beta, void* yDesc, void* y, void* workspace,
                                        size_t bytes) {
  FIND(h, handle, handleKind);
  Conv conv;
  TRY(describeConv(conv, xDesc, wDesc, desc, yDesc));
  TRY(checkScales("convolution", alpha, beta, conv.y.type));
  auto searched = h->searched.find(conv.key());
  if (searched == h->searched.end()) return refuse(UnknownError, "convolution: no search was made for %s", conv.key().c_str());
  const ConvResult* result = nullptr;
  for (const ConvResult& r : searched->second)
    if (r.algorithm == algorithm) result = &r;
  if (!result) return refuse(UnknownError, "convolution: the search did not give algorithm %d", algorithm);
  size_t size = result->bytes;
  if (bytes < size) return refuse(BadParm, "convolution: %zu bytes of workspace, not %zu", bytes, size);
  std::vector<Buffer> buffers = {{x, bytesOf(conv.x), "convolution, x"},
                                 {w, bytesOf(conv.w), "convolution, w"},
                                 {y, bytesOf(conv.y), "convolution, y"}};
  if (size) buffers.push_back({workspace, size, "convolution, workspace"});
  return enqueue(h, buffers, [=] {
    if (size) memset(workspace, 0xff, size);
    convolve(conv, {x, conv.x.type}, {w, conv.x.type}, {y, conv.x.type});
  });
}

SIM_API Status miopenCreatePoolingDescriptor(void** out) { return create(out, poolKind); }
SIM_API Status miopenDestroyPoolingDescriptor(void* desc) { return destroy(desc, poolKind); }
SIM_API Status miopenSet2dPoolingDescriptor(void* desc, int mode, int windowH, int windowW, int padH, int padW,
                                            int strideH, int strideW) {
  Object* object = find(desc, poolKind, false);
  if (!object) return BadParm;
  if (mode < poolingMax || mode > poolingAverageInclusive) return refuse(BadParm, "%d is no pooling mode", mode);
  if (windowH < 1 || windowW < 1 || padH < 0 || padW < 0 || strideH < 1 || strideW < 1)
    return refuse(BadParm, "window %dx%d, padding %dx%d, stride %dx%d", windowH, windowW, padH, padW, strideH, strideW);
  int numbers[] = {windowH, windowW, padH, padW, strideH, strideW};
  std::copy(numbers, numbers + 6, object->numbers);
  object->mode = mode;
  object->isSet = true;
  return Success;
}
SIM_API Status miopenPoolingForward(void* handle, void* desc, const void* alpha, void* xDesc, void* x, const void* beta,
                                    void* yDesc, void* y, bool doBackward, void*, size_t) {
  FIND(h, handle, handleKind);
  FIND(d, desc, poolKind);
  FIND(in, xDesc, tensorKind);
  FIND(out, yDesc, tensorKind);
  Tensor from = in->tensor, to = out->tensor;
  TRY(checkType("pooling", from, {half, single}));
  TRY(checkScales("pooling", alpha, beta, from.type));
  if (doBackward) return refuse(NotImplemented, "the stand-in does not pool for a backward pass");
  int kh = d->numbers[0], kw = d->numbers[1], ph = d->numbers[2], pw = d->numbers[3], sh = d->numbers[4], sw = d->numbers[5];
  Tensor want = {from.type, from.n, from.c, (from.h + 2 * ph - kh) / sh + 1, (from.w + 2 * pw - kw) / sw + 1};
  if (kh > from.h + 2 * ph || kw > from.w + 2 * pw || !(want == to))
    return refuse(BadParm, "pooling: the output is %s, not %s", want.text().c_str(), to.text().c_str());
  int mode = d->mode;
  return enqueue(h, {{x, bytesOf(from), "pooling, x"}, {y, bytesOf(to), "pooling, y"}}, [=] {
    Data source = {x, from.type}, target = {y, to.type};
    int64_t at = 0;
    for (int64_t plane = 0; plane < to.n * to.c; plane++)
      for (int64_t i = 0; i < to.h; i++)
        for (int64_t j = 0; j < to.w; j++) {
          double value = mode == poolingMax ? (from.type == half ? -65504 : -FLT_MAX) : 0;
          int64_t seen = 0;
          for (int64_t row = i * sh - ph; row < i * sh - ph + kh; row++)
            for (int64_t column = j * sw - pw; column < j * sw - pw + kw; column++) {
              if (row < 0 || row >= from.h || column < 0 || column >= from.w) continue;
              double element = source[(plane * from.h + row) * from.w + column];
              value = mode == poolingMax ? fmax(value, element) : value + element;
              seen++;
            }
          if (mode == poolingAverage) value /= double(std::max<int64_t>(seen, 1));
          if (mode == poolingAverageInclusive) value /= kh * kw;
          target.set(at++, value);
        }
  });
}

SIM_API Status miopenBatchNormalizationForwardInference(void* handle, int mode, void* alpha, void* beta, void* xDesc,
                                                        void* x, void* yDesc, void* y, void* perChannelDesc, void* scale,
                                                        void* bias, void* mean, void* variance, double epsilon) {
  FIND(h, handle, handleKind);
  FIND(in, xDesc, tensorKind);
  FIND(out, yDesc, tensorKind);
  FIND(channel, perChannelDesc, tensorKind);
  Tensor t = in->tensor;
  if (mode < 0 || mode > 1) return refuse(BadParm, "%d is no batch norm mode", mode);
  if (mode == 0) return refuse(NotImplemented, "the stand-in normalises per channel only");
  TRY(checkType("batch norm", t, {half, single}));
  TRY(checkScales("batch norm", alpha, beta, t.type));
  Tensor want = {single, 1, t.c, 1, 1};
  if (!(t == out->tensor) || !(want == channel->tensor))
    return refuse(BadParm, "batch norm: %s to %s with %s", t.text().c_str(), out->tensor.text().c_str(), channel->tensor.text().c_str());
  size_t bytes = bytesOf(want);
  std::vector<Buffer> buffers = {{x, bytesOf(t), "batch norm, x"}, {y, bytesOf(t), "batch norm, y"},
                                 {scale, bytes, "batch norm, scale"}, {bias, bytes, "batch norm, bias"},
                                 {mean, bytes, "batch norm, mean"}, {variance, bytes, "batch norm, variance"}};
  return enqueue(h, buffers, [=] {
    Data from = {x, t.type}, to = {y, t.type}, s = {scale, single}, b = {bias, single}, m = {mean, single}, v = {variance, single};
    for (int64_t i = 0; i < t.count(); i++) {
      int64_t c = i / (t.h * t.w) % t.c;
      to.set(i, s[c] * ((from[i] - m[c]) / sqrt(v[c] + epsilon)) + b[c]);
    }
  });
}

SIM_API Status miopenCreateMhaDescriptor(void** out) { return create(out, mhaKind); }
SIM_API Status miopenSetMhaDescriptor(void* desc, float scale) {
  Object* object = find(desc, mhaKind, false);
  if (!object) return BadParm;
  object->scale = scale;
  object->isSet = true;
  return Success;
}
SIM_API Status miopenCreateMhaProblem(void** out, void* desc, int direction) {
  FIND(d, desc, mhaKind);
  if (direction < 0 || direction > 2) return refuse(BadParm, "%d is no direction", direction);
  if (direction != 0) return refuse(NotImplemented, "the stand-in has no backward attention");
  Object* problem;
  TRY(create(out, problemKind, &problem));
  problem->scale = d->scale;
  problem->isSet = true;
  return Success;
}
SIM_API Status miopenDestroyProblem(void* problem) { return destroy(problem, problemKind); }
SIM_API Status miopenSetProblemTensorDescriptor(void* problem, uint32_t id, void* desc) {
  FIND(p, problem, problemKind);
  FIND(t, desc, tensorKind);
  if (id < mhaFirst || id > mhaLast) return refuse(BadParm, "attention has no tensor %u", id);
  if (!p->tensors.emplace(id, t->tensor).second) return refuse(BadParm, "attention: tensor %u has a descriptor already", id);
  return Success;
}
SIM_API Status miopenFindSolutions(void* handle, void* problem, void* options, void** solutions, size_t* found, size_t wanted) {
  FIND(h, handle, handleKind);
  (void)h;
  FIND(p, problem, problemKind);
  if (options) return refuse(NotImplemented, "the stand-in has no options for a search");
  if (!solutions || !wanted) return refuse(BadParm, "attention search: no room for solutions");
  TRY(checkMha(p->tensors));
  const Tensor& k = p->tensors.at(mhaK);
  if (found) *found = 0;
  if (k.type != single) return Success;
  Object* solution;
  TRY(create(solutions, solutionKind, &solution));
  solution->scale = p->scale;
  solution->tensors = p->tensors;
  solution->bytes = size_t(k.n * k.c * k.h) * size_t(k.h + std::max(k.h, k.w)) * sizeof(float);
  solution->isSet = true;
  if (found) *found = 1;
  return Success;
}
SIM_API Status miopenDestroySolution(void* solution) { return destroy(solution, solutionKind); }
SIM_API Status miopenGetSolutionWorkspaceSize(void* solution, size_t* bytes) {
  FIND(s, solution, solutionKind);
  if (!bytes) return refuse(BadParm, "attention: a place for the size is missing");
  *bytes = s->bytes;
  return Success;
}
SIM_API Status miopenRunSolution(void* handle, void* solution, size_t count, const TensorArgument* arguments, void* workspace,
                                 size_t bytes) {
  FIND(h, handle, handleKind);
  FIND(s, solution, solutionKind);
  if (!arguments) return refuse(BadParm, "attention: no tensors");
  std::map<uint32_t, float*> at;
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < count; i++) {
    const TensorArgument& a = arguments[i];
    if (a.id == mhaMask) continue;  // as MIOpen: read, and never applied
    if (a.descriptor) return refuse(NotImplemented, "the stand-in takes descriptors with the problem only");
    auto tensor = s->tensors.find(a.id);
    if (tensor == s->tensors.end()) return refuse(BadParm, "attention has no tensor %u", a.id);
    at[a.id] = static_cast<float*>(a.buffer);
    buffers.push_back({a.buffer, bytesOf(tensor->second), "attention"});
  }
  for (const auto& entry : s->tensors)
    if (!at.count(entry.first)) return refuse(InvalidValue, "attention: tensor %u is missing", entry.first);
  if (bytes < s->bytes) return refuse(BadParm, "attention: %zu bytes of workspace, not %zu", bytes, s->bytes);
  buffers.push_back({workspace, s->bytes, "attention, workspace"});
  Tensor k = s->tensors.at(mhaK);
  float scale = s->scale;
  return enqueue(h, buffers, [=]() mutable {
    int64_t length = k.h, size = k.w;
    auto* scores = static_cast<float*>(workspace);
    // Dropout is never asked for: anything but 0 shows as NaN.
    double kept = *at[mhaDropoutProbability] == 0 ? 1 : NAN;
    *at[mhaAmaxS] = *at[mhaAmaxO] = 0;
    for (int64_t row = 0; row < k.n * k.c * length; row++) {
      int64_t first = row / length * length;
      float* line = scores + row * length;
      for (int64_t j = 0; j < length; j++) {
        double sum = 0;
        for (int64_t i = 0; i < size; i++) sum += double(at[mhaQ][row * size + i]) * at[mhaK][(first + j) * size + i];
        line[j] = float(sum * scale * *at[mhaDescaleQ] * *at[mhaDescaleK]);
      }
      double top = -FLT_MAX, sum = 0;
      for (int64_t j = 0; j < length; j++) top = fmax(top, line[j]);
      for (int64_t j = 0; j < length; j++) sum += exp(line[j] - top);
      at[mhaM][row] = float(top);
      at[mhaZInv][row] = float(1 / sum);
      for (int64_t j = 0; j < length; j++) {
        line[j] = float(exp(line[j] - top) * (1 / sum));
        *at[mhaAmaxS] = fmaxf(*at[mhaAmaxS], line[j]);
        line[j] = float(line[j] * *at[mhaScaleS] * kept);
      }
      for (int64_t i = 0; i < size; i++) {
        double mixed = 0;
        for (int64_t j = 0; j < length; j++) mixed += double(line[j]) * at[mhaV][(first + j) * size + i];
        mixed *= double(*at[mhaDescaleS]) * *at[mhaDescaleV];
        *at[mhaAmaxO] = fmaxf(*at[mhaAmaxO], fabsf(float(mixed)));
        at[mhaO][row * size + i] = float(mixed * *at[mhaScaleO]);
      }
    }
  });
}
