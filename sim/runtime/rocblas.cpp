// Stand-ins for the rocBLAS calls a matmul needs. Values as in ROCm/rocBLAS library/include/internal/rocblas-types.h.
#include <string.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "halves.h"
#include "hip.h"

SIM_API int wickSimInDevice(const void* address, size_t bytes, const char* what);
SIM_API int wickSimEnqueue(hipStream_t stream, int (*work)(void*), void* data, void (*drop)(void*));

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
  hipStream_t stream;
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

struct Matrix {
  void* data;
  int type, ld;
  int64_t stride;
};
struct Gemm {
  int opA, opB, m, n, k;
  Matrix a, b, c, d;
  int batch, compute;
  double alpha, beta;
};

int sizeOf(int type) { return type == i8 ? 1 : type == f16 || type == bf16 ? 2 : type == f64 ? 8 : 4; }

template <class T>
T load(const Matrix& x, int64_t index) {
  switch (x.type) {
    case f16: return T(fromHalf(static_cast<uint16_t*>(x.data)[index]));
    case bf16: return T(fromBrain(static_cast<uint16_t*>(x.data)[index]));
    case f32: return T(static_cast<float*>(x.data)[index]);
    case f64: return T(static_cast<double*>(x.data)[index]);
    case i8: return T(static_cast<int8_t*>(x.data)[index]);
    default: return T(static_cast<int32_t*>(x.data)[index]);
  }
}
template <class T>
void store(const Matrix& x, int64_t index, T value) {
  switch (x.type) {
    case f16: static_cast<uint16_t*>(x.data)[index] = toHalf(float(value)); break;
    case bf16: static_cast<uint16_t*>(x.data)[index] = toBrain(float(value)); break;
    case f32: static_cast<float*>(x.data)[index] = float(value); break;
    case f64: static_cast<double*>(x.data)[index] = double(value); break;
    default: static_cast<int32_t*>(x.data)[index] = int32_t(value);
  }
}

/** D = alpha · op(A) · op(B) + beta · C, column-major, with op(A) unpacked once per batch to rows of k. */
template <class T>
void multiply(const Gemm& g) {
  std::vector<T> a(size_t(g.m) * size_t(g.k)), b(size_t(g.k));
  for (int64_t batch = 0; batch < g.batch; batch++) {
    for (int64_t i = 0; i < g.m; i++)
      for (int64_t p = 0; p < g.k; p++)
        a[size_t(i * g.k + p)] = load<T>(g.a, batch * g.a.stride + (g.opA == none ? i + p * g.a.ld : p + i * g.a.ld));
    for (int64_t j = 0; j < g.n; j++) {
      for (int64_t p = 0; p < g.k; p++)
        b[size_t(p)] = load<T>(g.b, batch * g.b.stride + (g.opB == none ? p + j * g.b.ld : j + p * g.b.ld));
      for (int64_t i = 0; i < g.m; i++) {
        T sum = 0;
        for (int64_t p = 0; p < g.k; p++) sum += a[size_t(i * g.k + p)] * b[size_t(p)];
        sum *= T(g.alpha);
        if (g.beta != 0) sum += T(g.beta) * load<T>(g.c, batch * g.c.stride + i + j * g.c.ld);
        store<T>(g.d, batch * g.d.stride + i + j * g.d.ld, sum);
      }
    }
  }
}

bool supported(const Gemm& g) {
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

/** Bytes from the first element to the last of a batch of rows × columns matrices. */
bool inDevice(const Matrix& x, int64_t rows, int64_t columns, int64_t batch, const char* what) {
  int64_t first = std::min<int64_t>(0, (batch - 1) * x.stride), last = std::max<int64_t>(0, (batch - 1) * x.stride);
  last += (columns - 1) * x.ld + rows;
  auto* start = static_cast<char*>(x.data) + first * sizeOf(x.type);
  return wickSimInDevice(start, size_t(last - first) * size_t(sizeOf(x.type)), what);
}

double scalar(const void* at, int compute) { return load<double>({const_cast<void*>(at), compute, 0, 0}, 0); }

/** Whether every matrix lies in live device memory. Asked again when the work runs: a graph may replay it later. */
bool inDevice(const Gemm& g) {
  bool plainA = g.opA == none, plainB = g.opB == none;
  if (g.k && (!inDevice(g.a, plainA ? g.m : g.k, plainA ? g.k : g.m, g.batch, "rocblas gemm, A") ||
              !inDevice(g.b, plainB ? g.k : g.n, plainB ? g.n : g.k, g.batch, "rocblas gemm, B")))
    return false;
  if (g.beta != 0 && !inDevice(g.c, g.m, g.n, g.batch, "rocblas gemm, C")) return false;
  return inDevice(g.d, g.m, g.n, g.batch, "rocblas gemm, D");
}

rocblas_status gemm(rocblas_handle handle, Gemm g, const void* alpha, const void* beta, int algo) {
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
  g.alpha = scalar(alpha, g.compute);
  g.beta = scalar(beta, g.compute);
  if (!inDevice(g)) return rocblas_status_invalid_pointer;
  int code = wickSimEnqueue(
      handle->stream,
      [](void* data) {
        const Gemm& work = *static_cast<Gemm*>(data);
        if (!inDevice(work)) return int(hipErrorLaunchFailure);
        if (work.compute == f64) multiply<double>(work);
        else if (work.compute == i32) multiply<int64_t>(work);
        else multiply<float>(work);
        return int(hipSuccess);
      },
      new Gemm(g), [](void* data) { delete static_cast<Gemm*>(data); });
  return code ? rocblas_status_internal_error : rocblas_status_success;
}

const char version[] = "4.4.0.wick-sim";

}  // namespace

SIM_API rocblas_status rocblas_create_handle(rocblas_handle* out) {
  if (!out) return rocblas_status_invalid_handle;
  *out = new rocblas_handle_{nullptr};
  std::lock_guard<std::mutex> lock(mutex);
  handles().insert(*out);
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_destroy_handle(rocblas_handle handle) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!handles().erase(handle)) return rocblas_status_invalid_handle;
  delete handle;
  return rocblas_status_success;
}
SIM_API rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream) {
  if (!alive(handle)) return rocblas_status_invalid_handle;
  handle->stream = stream;
  return rocblas_status_success;
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
  Gemm g = {opA, opB, m, n, k, {const_cast<void*>(a), aType, lda, strideA}, {const_cast<void*>(b), bType, ldb, strideB},
            {const_cast<void*>(c), cType, ldc, strideC}, {d, dType, ldd, strideD}, batch, compute, 0, 0};
  return gemm(handle, g, alpha, beta, algo);
}
SIM_API rocblas_status rocblas_gemm_ex(rocblas_handle handle, int opA, int opB, int m, int n, int k, const void* alpha,
                                       const void* a, int aType, int lda, const void* b, int bType, int ldb,
                                       const void* beta, const void* c, int cType, int ldc, void* d, int dType, int ldd,
                                       int compute, int algo, int32_t solution, uint32_t flags) {
  return rocblas_gemm_strided_batched_ex(handle, opA, opB, m, n, k, alpha, a, aType, lda, 0, b, bType, ldb, 0, beta, c,
                                         cType, ldc, 0, d, dType, ldd, 0, 1, compute, algo, solution, flags);
}
