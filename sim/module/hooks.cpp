// The entry points of the instrumentation, by the names that compilers emit. This is compiled once, without instrumentation, and
// linked into every module (hiprtc.cpp), whose own state they use. Most accesses are to the thread's own stack, which the hooks let
// pass by themselves.
#include "../abi.h"

extern "C" {
__attribute__((visibility("default"))) extern SimState wickSimState;

#define SIM_HOOK(name, n, kind)                                                                                      \
  void name(void* p) {                                                                                               \
    SimState& s = wickSimState;                                                                                      \
    if (reinterpret_cast<uintptr_t>(p) - s.stacks < s.stackBytes && --s.quiet) return;                               \
    s.access(p, n, kind);                                                                                            \
  }
#define SIM_HOOKS(n)                                                                                                 \
  SIM_HOOK(__tsan_read##n, n, SIM_READ)                                                                              \
  SIM_HOOK(__tsan_write##n, n, SIM_WRITE)                                                                            \
  SIM_HOOK(__tsan_unaligned_read##n, n, SIM_READ | SIM_UNALIGNED)                                                    \
  SIM_HOOK(__tsan_unaligned_write##n, n, SIM_WRITE | SIM_UNALIGNED)
SIM_HOOKS(1)
SIM_HOOKS(2)
SIM_HOOKS(4)
SIM_HOOKS(8)
SIM_HOOKS(16)
#undef SIM_HOOKS
#undef SIM_HOOK
void __tsan_read_range(void* p, size_t n) { wickSimState.access(p, n, SIM_READ | SIM_UNALIGNED); }
void __tsan_write_range(void* p, size_t n) { wickSimState.access(p, n, SIM_WRITE | SIM_UNALIGNED); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  wickSimState.access(from, n, SIM_READ | SIM_UNALIGNED);
  wickSimState.access(to, n, SIM_WRITE | SIM_UNALIGNED);
  return __builtin_memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  wickSimState.access(from, n, SIM_READ | SIM_UNALIGNED);
  wickSimState.access(to, n, SIM_WRITE | SIM_UNALIGNED);
  return __builtin_memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  wickSimState.access(to, n, SIM_WRITE | SIM_UNALIGNED);
  return __builtin_memset(to, value, n);
}

#define SIM_ATOMIC_FETCH(T, bits, name, expression)                                                                  \
  T __tsan_atomic##bits##_##name(volatile void* p, T value, int) {                                                   \
    wickSimState.access(const_cast<void*>(p), sizeof(T), SIM_ATOMIC);                                                \
    T old = *static_cast<volatile T*>(p);                                                                            \
    *static_cast<volatile T*>(p) = T(expression);                                                                    \
    return old;                                                                                                      \
  }
#define SIM_ATOMICS(T, bits)                                                                                         \
  SIM_ATOMIC_FETCH(T, bits, exchange, value)                                                                         \
  SIM_ATOMIC_FETCH(T, bits, fetch_add, old + value)                                                                  \
  SIM_ATOMIC_FETCH(T, bits, fetch_sub, old - value)                                                                  \
  SIM_ATOMIC_FETCH(T, bits, fetch_and, old & value)                                                                  \
  SIM_ATOMIC_FETCH(T, bits, fetch_or, old | value)                                                                   \
  SIM_ATOMIC_FETCH(T, bits, fetch_xor, old ^ value)                                                                  \
  T __tsan_atomic##bits##_load(const volatile void* p, int) {                                                        \
    wickSimState.access(const_cast<const void*>(p), sizeof(T), SIM_ATOMIC);                                          \
    return *static_cast<const volatile T*>(p);                                                                       \
  }                                                                                                                  \
  void __tsan_atomic##bits##_store(volatile void* p, T value, int) {                                                 \
    wickSimState.access(const_cast<void*>(p), sizeof(T), SIM_ATOMIC);                                                \
    *static_cast<volatile T*>(p) = value;                                                                            \
  }                                                                                                                  \
  T __tsan_atomic##bits##_compare_exchange_val(volatile void* p, T expected, T value, int, int) {                    \
    wickSimState.access(const_cast<void*>(p), sizeof(T), SIM_ATOMIC);                                                \
    T old = *static_cast<volatile T*>(p);                                                                            \
    if (old == expected) *static_cast<volatile T*>(p) = value;                                                       \
    return old;                                                                                                      \
  }                                                                                                                  \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile void* p, void* expected, T value,                      \
                                                                        int, int) {                                  \
    T wanted = *static_cast<T*>(expected);                                                                           \
    T old = __tsan_atomic##bits##_compare_exchange_val(p, wanted, value, 0, 0);                                      \
    *static_cast<T*>(expected) = old;                                                                                \
    return old == wanted;                                                                                            \
  }
SIM_ATOMICS(uint8_t, 8)
SIM_ATOMICS(uint16_t, 16)
SIM_ATOMICS(uint32_t, 32)
SIM_ATOMICS(uint64_t, 64)
#undef SIM_ATOMICS
#undef SIM_ATOMIC_FETCH
}
