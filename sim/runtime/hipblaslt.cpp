// Stand-ins for the hipBLASLt calls a matmul needs. They refuse dead or unset descriptors, layouts that do not fit each
// other, enums and attribute sizes that are not theirs, an algorithm of another problem and too little workspace. Values
// as in ROCm/hipBLASLt library/include/hipblaslt.h (0.6 to 1.x) and ROCm/hipBLAS-common hipblas-common.h.
#include <mutex>
#include <unordered_set>

#include "gemm.h"

SIM_API void wickSimNote(const char* text);

enum hipblasStatus_t : int {
  HIPBLAS_STATUS_SUCCESS = 0,
  HIPBLAS_STATUS_NOT_INITIALIZED = 1,
  HIPBLAS_STATUS_INVALID_VALUE = 3,
  HIPBLAS_STATUS_EXECUTION_FAILED = 5,
  HIPBLAS_STATUS_INTERNAL_ERROR = 6,
  HIPBLAS_STATUS_NOT_SUPPORTED = 7,
};
enum DataType : int { HIP_R_32F = 0, HIP_R_64F = 1, HIP_R_16F = 2, HIP_R_16BF = 14 };
enum ComputeType : int { HIPBLAS_COMPUTE_32F = 2, HIPBLAS_COMPUTE_64F = 7 };
enum Operation : int { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112 };
enum LayoutAttribute : int { layoutBatchCount = 0, layoutBatchOffset = 1 };
enum DescAttribute : int { descTransA = 0, descTransB = 1 };
enum PreferenceAttribute : int { preferenceWorkspace = 1 };

struct Algo {
  uint64_t data[2];
  size_t workspace;
};
struct HeuristicResult {
  Algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 56, "the layout of hipblasLtMatmulHeuristicResult_t");

namespace {

enum class Kind { handle, desc, layout, preference };
struct Object {
  Kind kind;
  int compute = 0, scale = 0, transA = HIPBLAS_OP_N, transB = HIPBLAS_OP_N;
  int type = 0, batch = 1;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0, stride = 0;
  uint64_t maxWorkspace = 0;
};

std::mutex mutex;
std::unordered_set<Object*>& objects() {
  static auto* live = new std::unordered_set<Object*>;
  return *live;
}
/** Searches and products so far, and descriptors alive: wickSimHipblasltCounts. */
int64_t searches = 0, products = 0;

hipblasStatus_t refuse(hipblasStatus_t status, const char* why) {
  wickSimNote(why);
  return status;
}

hipblasStatus_t create(Object** out, Object object) {
  if (!out) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: no place for what is created");
  std::lock_guard<std::mutex> lock(mutex);
  *out = new Object(object);
  objects().insert(*out);
  return HIPBLAS_STATUS_SUCCESS;
}
bool is(Object* object, Kind kind) {
  std::lock_guard<std::mutex> lock(mutex);
  return objects().count(object) && object->kind == kind;
}
hipblasStatus_t destroy(Object* object, Kind kind) {
  if (!is(object, kind)) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: what is destroyed is not alive");
  std::lock_guard<std::mutex> lock(mutex);
  objects().erase(object);
  delete object;
  return HIPBLAS_STATUS_SUCCESS;
}

template <class T>
hipblasStatus_t set(T& field, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an attribute of another size");
  memcpy(&field, value, bytes);
  return HIPBLAS_STATUS_SUCCESS;
}

bool typeOf(int type, gemm::Type& out) {
  switch (type) {
    case HIP_R_32F: out = gemm::Type::f32; return true;
    case HIP_R_16F: out = gemm::Type::f16; return true;
    case HIP_R_16BF: out = gemm::Type::bf16; return true;
    default: return false;
  }
}

/** The problem that descriptors describe; a message where they do not fit each other. */
const char* problemOf(Object* desc, Object* a, Object* b, Object* c, Object* d, gemm::Product& out) {
  if (!is(desc, Kind::desc)) return "hipblaslt: the matmul descriptor is not alive";
  for (Object* layout : {a, b, c, d}) {
    if (!is(layout, Kind::layout)) return "hipblaslt: a matrix layout is not alive";
    if (layout->batch != d->batch || layout->batch < 1) return "hipblaslt: the layouts' batch counts differ";
    if (layout->type != d->type) return "hipblaslt: the layouts' types differ";
    if (layout->ld < int64_t(layout->rows)) return "hipblaslt: a leading dimension below the rows";
  }
  bool transA = desc->transA == HIPBLAS_OP_T, transB = desc->transB == HIPBLAS_OP_T;
  uint64_t m = transA ? a->columns : a->rows, k = transA ? a->rows : a->columns;
  uint64_t n = transB ? b->rows : b->columns;
  if ((transB ? b->columns : b->rows) != k || d->rows != m || d->columns != n || c->rows != m || c->columns != n)
    return "hipblaslt: the layouts' sizes do not fit";
  gemm::Type type;
  if (!typeOf(d->type, type)) type = gemm::Type::f64;
  auto matrix = [&](Object* x) { return gemm::Matrix{nullptr, type, x->ld, x->stride}; };
  out = {"hipblaslt", transA, transB, int64_t(m), int64_t(n), int64_t(k), matrix(a), matrix(b), matrix(c), matrix(d),
         d->batch, gemm::Type::f32, 1, 0};
  return nullptr;
}

/** Tells the problem of an algorithm from others. */
uint64_t fingerprint(const gemm::Product& g) {
  uint64_t hash = 14695981039346656037u;
  for (int64_t part : {int64_t(g.transA), int64_t(g.transB), g.m, g.n, g.k, g.batch, int64_t(g.d.type), g.a.ld, g.a.stride,
                       g.b.ld, g.b.stride, g.d.ld, g.d.stride})
    hash = (hash ^ uint64_t(part)) * 1099511628211u;
  return hash;
}

}  // namespace

SIM_API hipblasStatus_t hipblasLtCreate(Object** out) { return create(out, {Kind::handle}); }
SIM_API hipblasStatus_t hipblasLtDestroy(Object* handle) { return destroy(handle, Kind::handle); }
SIM_API hipblasStatus_t hipblasLtGetVersion(Object* handle, int* version) {
  if (!is(handle, Kind::handle)) return HIPBLAS_STATUS_NOT_INITIALIZED;
  const char* asked = getenv("WICK_SIM_HIPBLASLT_VERSION");
  *version = asked && *asked ? atoi(asked) : 1200;  // 0.12.0
  return HIPBLAS_STATUS_SUCCESS;
}

SIM_API hipblasStatus_t hipblasLtMatmulDescCreate(Object** out, int compute, int scale) {
  bool known = (compute == HIPBLAS_COMPUTE_32F && scale == HIP_R_32F) || (compute == HIPBLAS_COMPUTE_64F && scale == HIP_R_64F);
  if (!known) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: unknown compute or scale type");
  Object desc{Kind::desc};
  desc.compute = compute;
  desc.scale = scale;
  return create(out, desc);
}
SIM_API hipblasStatus_t hipblasLtMatmulDescDestroy(Object* desc) { return destroy(desc, Kind::desc); }
SIM_API hipblasStatus_t hipblasLtMatmulDescSetAttribute(Object* desc, int attribute, const void* value, size_t bytes) {
  if (!is(desc, Kind::desc)) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: the matmul descriptor is not alive");
  int operation = 0;
  if (attribute != descTransA && attribute != descTransB)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an unknown attribute of a matmul");
  if (hipblasStatus_t status = set(operation, value, bytes)) return status;
  if (operation != HIPBLAS_OP_N && operation != HIPBLAS_OP_T)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an unknown operation");
  (attribute == descTransA ? desc->transA : desc->transB) = operation;
  return HIPBLAS_STATUS_SUCCESS;
}

SIM_API hipblasStatus_t hipblasLtMatrixLayoutCreate(Object** out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (type != HIP_R_32F && type != HIP_R_64F && type != HIP_R_16F && type != HIP_R_16BF)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an unknown data type");
  Object layout{Kind::layout};
  layout.type = type;
  layout.rows = rows;
  layout.columns = columns;
  layout.ld = ld;
  return create(out, layout);
}
SIM_API hipblasStatus_t hipblasLtMatrixLayoutDestroy(Object* layout) { return destroy(layout, Kind::layout); }
SIM_API hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(Object* layout, int attribute, const void* value, size_t bytes) {
  if (!is(layout, Kind::layout)) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: a matrix layout is not alive");
  if (attribute == layoutBatchCount) return set(layout->batch, value, bytes);
  if (attribute == layoutBatchOffset) return set(layout->stride, value, bytes);
  return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an unknown attribute of a layout");
}

SIM_API hipblasStatus_t hipblasLtMatmulPreferenceCreate(Object** out) { return create(out, {Kind::preference}); }
SIM_API hipblasStatus_t hipblasLtMatmulPreferenceDestroy(Object* preference) {
  return destroy(preference, Kind::preference);
}
SIM_API hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(Object* preference, int attribute, const void* value,
                                                              size_t bytes) {
  if (!is(preference, Kind::preference) || attribute != preferenceWorkspace)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: an unknown preference");
  return set(preference->maxWorkspace, value, bytes);
}

SIM_API hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(Object* handle, Object* desc, Object* a, Object* b, Object* c,
                                                        Object* d, Object* preference, int asked,
                                                        HeuristicResult* results, int* found) {
  if (!is(handle, Kind::handle)) return HIPBLAS_STATUS_NOT_INITIALIZED;
  gemm::Product g;
  if (const char* why = problemOf(desc, a, b, c, d, g)) return refuse(HIPBLAS_STATUS_INVALID_VALUE, why);
  if (!is(preference, Kind::preference) || asked < 1 || !results || !found)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: a search without a preference or a place for results");
  *found = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    searches++;
  }
  size_t needed = gemm::neededWorkspace();
  // As the real one: what it has no kernel for is not supported, and it never asks for more than is offered.
  if (d->type == HIP_R_64F || desc->compute != HIPBLAS_COMPUTE_32F || needed > preference->maxWorkspace)
    return refuse(HIPBLAS_STATUS_NOT_SUPPORTED, "hipblaslt: no algorithm for this problem");
  results[0] = {{{fingerprint(g), 0}, preference->maxWorkspace}, needed, HIPBLAS_STATUS_SUCCESS, 1, {}};
  *found = 1;
  return HIPBLAS_STATUS_SUCCESS;
}

SIM_API hipblasStatus_t hipblasLtMatmul(Object* handle, Object* desc, const void* alpha, const void* a, Object* aLayout,
                                        const void* b, Object* bLayout, const void* beta, const void* c, Object* cLayout,
                                        void* d, Object* dLayout, const Algo* algo, void* workspace, size_t workspaceBytes,
                                        hipStream_t stream) {
  if (!is(handle, Kind::handle)) return HIPBLAS_STATUS_NOT_INITIALIZED;
  gemm::Product g;
  if (const char* why = problemOf(desc, aLayout, bLayout, cLayout, dLayout, g))
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, why);
  if (!alpha || !beta || !algo) return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: alpha, beta or the algorithm is null");
  if (algo->data[0] != fingerprint(g))
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: the algorithm is of another problem");
  if (gemm::neededWorkspace() > workspaceBytes)
    return refuse(HIPBLAS_STATUS_INVALID_VALUE, "hipblaslt: too little workspace");
  g.a.data = const_cast<void*>(a);
  g.b.data = const_cast<void*>(b);
  g.c.data = const_cast<void*>(c);
  g.d.data = d;
  g.alpha = gemm::scalar(alpha, gemm::Type::f32);
  g.beta = gemm::scalar(beta, gemm::Type::f32);
  g.workspace = workspace;
  g.workspaceBytes = gemm::neededWorkspace();
  if (!gemm::inDevice(g)) return HIPBLAS_STATUS_INVALID_VALUE;
  gemm::meetFirst("hipBLASLt");
  {
    std::lock_guard<std::mutex> lock(mutex);
    products++;
  }
  return gemm::enqueue(stream, g) ? HIPBLAS_STATUS_EXECUTION_FAILED : HIPBLAS_STATUS_SUCCESS;
}

/** Searches and products of this process so far, and the objects that are alive. */
SIM_API void wickSimHipblasltCounts(int64_t* out) {
  std::lock_guard<std::mutex> lock(mutex);
  out[0] = searches;
  out[1] = products;
  out[2] = int64_t(objects().size());
}
