// Stand-ins for the rocBLAS calls a matmul needs. Values as in ROCm/rocBLAS library/include/internal/rocblas-types.h.
#include <string.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "gemm.h"

SIM_API hipError_t hipMalloc(void** out, size_t bytes);
SIM_API hipError_t hipFree(void* pointer);

#define ROCBLAS_STATUSES(X)                                                                                        \
  X(success, 0) X(invalid_handle, 1) X(not_implemented, 2) X(invalid_pointer, 3) X(invalid_size, 4)                \
  X(memory_error, 5) X(internal_error, 6) X(perf_degraded, 7) X(size_query_mismatch, 8) X(size_increased, 9)       \
  X(size_unchanged, 10) X(invalid_value, 11) X(continue, 12) X(check_numerics_fail, 13)
enum rocblas_status : int {
#define X(name, value) rocblas_status_##name = value,
  ROCBLAS_STATUSES(X)
#undef X
};

enum Operation : int { none = 111, transpose = 112, conjugate = 113 };
enum Type : int { f16 = 150, f32 = 151, f64 = 152, i8 = 160, i32 = 162, bf16 = 168 };

struct rocblas_handle_ {
  hipStream_t stream = nullptr;
  int atomics = 1;
  void* workspace = nullptr;
  size_t workspaceBytes = 0;
  /** Set by the user; else the library's own, which grows by freeing and allocating. */
  bool userOwned = false;
};
using rocblas_handle = rocblas_handle_*;

namespace {

std::mutex mutex;
std::unordered_set<rocblas_handle>& handles() {
  static auto* live = new std::unordered_set<rocblas_handle>;
  return *live;
}
bool alive(rocblas_handle handle) {
  std::lock_guard<std::mutex> lock(mutex);
  return handles().count(handle) != 0;
}

struct Operand {
  const void* data;
  int type, ld;
  int64_t stride;
};
struct Call {
  int opA, opB, m, n, k;
  Operand a, b, c, d;
  int batch, compute;
};

gemm::Type typeOf(int type) {
  switch (type) {
    case f16: return gemm::Type::f16;
    case bf16: return gemm::Type::bf16;
    case f32: return gemm::Type::f32;
    case f64: return gemm::Type::f64;
    case i8: return gemm::Type::i8;
    default: return gemm::Type::i32;
  }
}

bool supported(const Call& g) {
  if (g.a.type != g.b.type || g.c.type != g.d.type) return false;
  static const int combinations[][3] = {  // A and B, C and D, compute
      {f64, f64, f64}, {f32, f32, f32}, {f16, f16, f16}, {f16, f16, f32}, {f16, f32, f32},
      {bf16, bf16, f32}, {bf16, f32, f32}, {i8, i32, i32}};
  for (const auto& c : combinations)
    if (c[0] == g.a.type && c[1] == g.c.type && c[2] == g.compute) return true;
  return false;
}

bool isOperation(int op) { return op >= none && op <= conjugate; }
bool isType(int type) { return type >= 150 && type <= 169; }

gemm::Matrix matrix(const Operand& x) { return {const_cast<void*>(x.data), typeOf(x.type), x.ld, x.stride}; }

/** What the last product found set on its handle: wickSimRocblasLast. */
struct Last {
  int64_t products, atomics, userOwned, workspaceBytes;
} last = {0, 0, 0, 0};

/** Whether the handle's workspace is large enough, having grown if it is the library's own. */
bool makeRoom(rocblas_handle handle, size_t bytes) {
  if (bytes <= handle->workspaceBytes) return true;
  if (handle->userOwned) return false;
  if (handle->workspace) hipFree(handle->workspace);
  handle->workspaceBytes = 0;
  if (hipMalloc(&handle->workspace, bytes) != hipSuccess) return false;
  handle->workspaceBytes = bytes;
  return true;
}

rocblas_status multiply(rocblas_handle handle, const Call& g, const void* alpha, const void* beta, int algo) {
  if (!alive(handle)) return rocblas_status_invalid_handle;
  if (!isOperation(g.opA) || !isOperation(g.opB) || algo < 0 || algo > 1) return rocblas_status_invalid_value;
  for (int type : {g.a.type, g.b.type, g.c.type, g.d.type, g.compute})
    if (!isType(type)) return rocblas_status_invalid_value;
  int rowsA = g.opA == none ? g.m : g.k, rowsB = g.opB == none ? g.k : g.n;
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0) return rocblas_status_invalid_size;
  if (g.a.ld < std::max(1, rowsA) || g.b.ld < std::max(1, rowsB) || g.c.ld < std::max(1, g.m) || g.d.ld < std::max(1, g.m))
    return rocblas_status_invalid_size;
  if (!g.m || !g.n || !g.batch) return rocblas_status_success;
  if (!alpha || !beta) return rocblas_status_invalid_pointer;
  if (!supported(g)) return rocblas_status_not_implemented;
  gemm::Type compute = typeOf(g.compute);
  gemm::Product product = {"rocblas", g.opA != none, g.opB != none, g.m, g.n, g.k, matrix(g.a), matrix(g.b), matrix(g.c),
                           matrix(g.d), g.batch, compute, gemm::scalar(alpha, compute), gemm::scalar(beta, compute)};
  product.workspaceBytes = gemm::neededWorkspace();
  if (!makeRoom(handle, product.workspaceBytes)) return rocblas_status_memory_error;
  product.workspace = handle->workspace;
  if (!gemm::inDevice(product)) return rocblas_status_invalid_pointer;
  gemm::meetFirst("rocBLAS");
  {
    std::lock_guard<std::mutex> lock(mutex);
    last = {last.products + 1, handle->atomics, handle->userOwned, int64_t(handle->workspaceBytes)};
  }
  return gemm::enqueue(handle->stream, product) ? rocblas_status_internal_error : rocblas_status_success;
}

const char version[] = "4.4.0.wick-sim";

}  // namespace

SIM_API rocblas_status rocblas_create_handle(rocblas_handle* out) {
  if (!out) return rocblas_status_invalid_handle;
  *out = new rocblas_handle_;
  std::lock_guard<std::mutex> lock(mutex);
  handles().insert(*out);
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_destroy_handle(rocblas_handle handle) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!handles().erase(handle)) return rocblas_status_invalid_handle;
  if (handle->workspace && !handle->userOwned) hipFree(handle->workspace);
  delete handle;
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream) {
  if (!alive(handle)) return rocblas_status_invalid_handle;
  handle->stream = stream;
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_set_atomics_mode(rocblas_handle handle, int mode) {
  if (!alive(handle)) return rocblas_status_invalid_handle;
  if (mode != 0 && mode != 1) return rocblas_status_invalid_value;
  handle->atomics = mode;
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_set_workspace(rocblas_handle handle, void* address, size_t bytes) {
  if (!alive(handle)) return rocblas_status_invalid_handle;
  if (handle->workspace && !handle->userOwned) hipFree(handle->workspace);
  handle->userOwned = address && bytes;
  handle->workspace = handle->userOwned ? address : nullptr;
  handle->workspaceBytes = handle->userOwned ? bytes : 0;
  return rocblas_status_success;
}
/** Products of this process so far, and the atomics mode, the workspace's owner and its bytes at the last of them. */
SIM_API void wickSimRocblasLast(int64_t* out) {
  std::lock_guard<std::mutex> lock(mutex);
  memcpy(out, &last, sizeof last);
}
SIM_API rocblas_status rocblas_get_version_string_size(size_t* bytes) {
  if (!bytes) return rocblas_status_invalid_pointer;
  *bytes = sizeof version;
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_get_version_string(char* out, size_t bytes) {
  if (!out) return rocblas_status_invalid_pointer;
  if (bytes < sizeof version) return rocblas_status_invalid_size;
  memcpy(out, version, sizeof version);
  return rocblas_status_success;
}
SIM_API const char* rocblas_status_to_string(rocblas_status status) {
  switch (status) {
#define X(name, value)           \
  case rocblas_status_##name:    \
    return "rocblas_status_" #name;
    ROCBLAS_STATUSES(X)
#undef X
  }
  return "<undefined rocblas_status value>";
}
SIM_API rocblas_status rocblas_gemm_strided_batched_ex(
    rocblas_handle handle, int opA, int opB, int m, int n, int k, const void* alpha, const void* a, int aType, int lda,
    int64_t strideA, const void* b, int bType, int ldb, int64_t strideB, const void* beta, const void* c, int cType, int ldc,
    int64_t strideC, void* d, int dType, int ldd, int64_t strideD, int batch, int compute, int algo, int32_t, uint32_t) {
  Call call = {opA, opB, m, n, k, {a, aType, lda, strideA}, {b, bType, ldb, strideB}, {c, cType, ldc, strideC},
               {d, dType, ldd, strideD}, batch, compute};
  return multiply(handle, call, alpha, beta, algo);
}
SIM_API rocblas_status rocblas_gemm_ex(rocblas_handle handle, int opA, int opB, int m, int n, int k, const void* alpha,
                                       const void* a, int aType, int lda, const void* b, int bType, int ldb,
                                       const void* beta, const void* c, int cType, int ldc, void* d, int dType, int ldd,
                                       int compute, int algo, int32_t solution, uint32_t flags) {
  return rocblas_gemm_strided_batched_ex(handle, opA, opB, m, n, k, alpha, a, aType, lda, 0, b, bType, ldb, 0, beta, c,
                                         cType, ldc, 0, d, dType, ldd, 0, 1, compute, algo, solution, flags);
}
