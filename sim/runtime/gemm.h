// Matrix products on the host, for the stand-ins of AMD's BLAS libraries: what they share beyond their names and rules.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "halves.h"
#include "hip.h"

SIM_API int wickSimInDevice(const void* address, size_t bytes, const char* what);
SIM_API int wickSimEnqueue(hipStream_t stream, int (*work)(void*), void* data, void (*drop)(void*));

namespace gemm {

enum class Type { f16, bf16, f32, f64, i8, i32 };

struct Matrix {
  void* data;
  Type type;
  int64_t ld, stride;
};
/** D = alpha · op(A) · op(B) + beta · C, column-major. */
struct Product {
  const char* library;
  bool transA, transB;
  int64_t m, n, k;
  Matrix a, b, c, d;
  int64_t batch;
  Type compute;
  double alpha, beta;
  /** Scratch memory that the product writes: a graph that replays it needs it as it was. */
  void* workspace = nullptr;
  size_t workspaceBytes = 0;
};

inline int sizeOf(Type type) {
  switch (type) {
    case Type::i8: return 1;
    case Type::f16:
    case Type::bf16: return 2;
    case Type::f64: return 8;
    default: return 4;
  }
}

template <class T>
T load(const Matrix& x, int64_t index) {
  switch (x.type) {
    case Type::f16: return T(fromHalf(static_cast<uint16_t*>(x.data)[index]));
    case Type::bf16: return T(fromBrain(static_cast<uint16_t*>(x.data)[index]));
    case Type::f32: return T(static_cast<float*>(x.data)[index]);
    case Type::f64: return T(static_cast<double*>(x.data)[index]);
    case Type::i8: return T(static_cast<int8_t*>(x.data)[index]);
    default: return T(static_cast<int32_t*>(x.data)[index]);
  }
}
template <class T>
void store(const Matrix& x, int64_t index, T value) {
  switch (x.type) {
    case Type::f16: static_cast<uint16_t*>(x.data)[index] = toHalf(float(value)); break;
    case Type::bf16: static_cast<uint16_t*>(x.data)[index] = toBrain(float(value)); break;
    case Type::f32: static_cast<float*>(x.data)[index] = float(value); break;
    case Type::f64: static_cast<double*>(x.data)[index] = double(value); break;
    default: static_cast<int32_t*>(x.data)[index] = int32_t(value);
  }
}

inline double scalar(const void* at, Type compute) { return load<double>({const_cast<void*>(at), compute, 0, 0}, 0); }

/** With op(A) unpacked once per batch to rows of k. */
template <class T>
void multiply(const Product& g) {
  std::vector<T> a(size_t(g.m) * size_t(g.k)), b(size_t(g.k));
  for (int64_t batch = 0; batch < g.batch; batch++) {
    for (int64_t i = 0; i < g.m; i++)
      for (int64_t p = 0; p < g.k; p++)
        a[size_t(i * g.k + p)] = load<T>(g.a, batch * g.a.stride + (g.transA ? p + i * g.a.ld : i + p * g.a.ld));
    for (int64_t j = 0; j < g.n; j++) {
      for (int64_t p = 0; p < g.k; p++)
        b[size_t(p)] = load<T>(g.b, batch * g.b.stride + (g.transB ? j + p * g.b.ld : p + j * g.b.ld));
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

/** From the first element to the last of a batch of rows × columns matrices. */
inline bool inDevice(const Matrix& x, int64_t rows, int64_t columns, const Product& g, const char* operand) {
  int64_t first = std::min<int64_t>(0, (g.batch - 1) * x.stride), last = std::max<int64_t>(0, (g.batch - 1) * x.stride);
  last += (columns - 1) * x.ld + rows;
  auto* start = static_cast<char*>(x.data) + first * sizeOf(x.type);
  return wickSimInDevice(start, size_t(last - first) * size_t(sizeOf(x.type)),
                         (std::string(g.library) + " gemm, " + operand).c_str());
}

/** Whether every matrix lies in live device memory. Asked again when the work runs: a graph may replay it later. */
inline bool inDevice(const Product& g) {
  if (g.k && (!inDevice(g.a, g.transA ? g.k : g.m, g.transA ? g.m : g.k, g, "A") ||
              !inDevice(g.b, g.transB ? g.n : g.k, g.transB ? g.k : g.n, g, "B")))
    return false;
  if (g.beta != 0 && !inDevice(g.c, g.m, g.n, g, "C")) return false;
  if (g.workspaceBytes && !wickSimInDevice(g.workspace, g.workspaceBytes, (std::string(g.library) + " workspace").c_str()))
    return false;
  return inDevice(g.d, g.m, g.n, g, "D");
}

/** Enqueues a product whose memory was looked at; the runtime's error code. */
inline int enqueue(hipStream_t stream, const Product& product) {
  return wickSimEnqueue(
      stream,
      [](void* data) {
        const Product& g = *static_cast<Product*>(data);
        if (!inDevice(g)) return int(hipErrorLaunchFailure);
        if (g.workspaceBytes) memset(g.workspace, 0xee, g.workspaceBytes);
        if (g.compute == Type::f64) multiply<double>(g);
        else if (g.compute == Type::i32) multiply<int64_t>(g);
        else multiply<float>(g);
        return int(hipSuccess);
      },
      new Product(product), [](void* data) { delete static_cast<Product*>(data); });
}

/** As much stack as a real library may need to read its kernels' tables; a small one overflows here, too. */
inline __attribute__((noinline)) void needStack() {
  volatile char deep[1 << 20];
  for (size_t i = 0; i < sizeof deep; i += 4096) deep[sizeof deep - 1 - i] = 0;
}

/**
 * WICK_SIM_BLAS_FIRST: what the first product of a process does. A real library loads its kernels there: that takes long,
 * and where it has none for the card it ends the process.
 */
inline void meetFirst(const char* library) {
  static std::atomic<bool> met{false};
  if (met.exchange(true)) return;
  needStack();
  const char* asked = getenv("WICK_SIM_BLAS_FIRST");
  if (!asked || !*asked) return;
  std::string what = asked;
  if (what == "abort") {
    fprintf(stderr, "%s error: Cannot read TensileLibrary.dat: No such file or directory\n", library);
    abort();
  }
  if (what == "hang")
    for (;;) sleep(1);
  usleep(useconds_t(atoi(asked)) * 1000);
}

/** WICK_SIM_BLAS_WORKSPACE: bytes of scratch memory that a product needs; none unless set. */
inline size_t neededWorkspace() {
  const char* asked = getenv("WICK_SIM_BLAS_WORKSPACE");
  return asked && *asked ? strtoull(asked, nullptr, 0) : 0;
}

}  // namespace gemm
