// Where kernels of a step begin to overlap. NVIDIA's devices from sm_90 on can start a kernel while the one before it ends, if the
// launch allows it (src/backend/gpu/native-driver.ts: only recorded launches do, and only behind kernels made of these macros).
// A kernel therefore
// - waits, before it reads or writes any memory that others write, until the one before has ended and its writes are seen. Every
//   kernel waits, also one that needs nothing of its predecessor: that has ended only when it, in turn, has waited, so that order
//   holds from each kernel to all before it, and memory that is reused within a step is free;
// - lets the next one begin then, and no sooner: where all let it begin at once, whole steps gather on the device, and the layers of
//   a mixture of experts took 58 µs in place of 47. The next may read, before it waits in turn, what was there when this one began.
// GPU_KERNEL does both before a body begins, so that no kernel can forget it. Those of KERNEL_EARLY wait by themselves, when what
// is constant as long as a step runs, their weights, is on its way.
#ifndef WICK_GPU_ENTRY_H
#define WICK_GPU_ENTRY_H

namespace gpu {
GPU_FN void wait_for_previous() {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#if GPU_NVIDIA
// The type of a function's argument I.
template <int I, class F> struct ArgumentOf;
template <class A, class... Others> struct ArgumentOf<0, void(A, Others...)> { typedef A type; };
template <int I, class A, class... Others> struct ArgumentOf<I, void(A, Others...)> : ArgumentOf<I - 1, void(Others...)> {};
#endif
}  // namespace gpu

#if GPU_NVIDIA
// A kernel around its body: the names and number of arguments are all that the preprocessor must know.
#define GPU_KERNEL(entry_and_bounds, name, ...) GPU_KERNEL_OF(entry_and_bounds, name, __VA_ARGS__)
#define GPU_KERNEL_OF(entry, bounds, name, ...) \
  GPU_FN void name##_body(__VA_ARGS__); \
  extern "C" __global__ void bounds name(GPU_EACH(GPU_PARAMETER, name##_body, __VA_ARGS__)) { \
    entry; \
    name##_body(GPU_EACH(GPU_ARGUMENT, name##_body, __VA_ARGS__)); \
  } \
  GPU_FN void name##_body(__VA_ARGS__)
#define GPU_PARAMETER(body, i) typename gpu::ArgumentOf<i, decltype(body)>::type a##i
#define GPU_ARGUMENT(body, i) a##i

// make(body, 0), … make(body, n − 1) for n further arguments, of which there are up to 40.
#define GPU_EACH(make, body, ...) GPU_EACH_JOIN(GPU_COUNT(__VA_ARGS__))(make, body)
#define GPU_EACH_JOIN(n) GPU_EACH_JOINED(n)
#define GPU_EACH_JOINED(n) GPU_EACH_##n
#define GPU_COUNT(...) GPU_COUNTED(__VA_ARGS__, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, \
  22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, )
#define GPU_COUNTED(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, \
  _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, _33, _34, _35, _36, _37, _38, _39, _40, n, ...) n
#define GPU_EACH_1(make, body) make(body, 0)
#define GPU_EACH_2(make, body) GPU_EACH_1(make, body), make(body, 1)
#define GPU_EACH_3(make, body) GPU_EACH_2(make, body), make(body, 2)
#define GPU_EACH_4(make, body) GPU_EACH_3(make, body), make(body, 3)
#define GPU_EACH_5(make, body) GPU_EACH_4(make, body), make(body, 4)
#define GPU_EACH_6(make, body) GPU_EACH_5(make, body), make(body, 5)
#define GPU_EACH_7(make, body) GPU_EACH_6(make, body), make(body, 6)
#define GPU_EACH_8(make, body) GPU_EACH_7(make, body), make(body, 7)
#define GPU_EACH_9(make, body) GPU_EACH_8(make, body), make(body, 8)
#define GPU_EACH_10(make, body) GPU_EACH_9(make, body), make(body, 9)
#define GPU_EACH_11(make, body) GPU_EACH_10(make, body), make(body, 10)
#define GPU_EACH_12(make, body) GPU_EACH_11(make, body), make(body, 11)
#define GPU_EACH_13(make, body) GPU_EACH_12(make, body), make(body, 12)
#define GPU_EACH_14(make, body) GPU_EACH_13(make, body), make(body, 13)
#define GPU_EACH_15(make, body) GPU_EACH_14(make, body), make(body, 14)
#define GPU_EACH_16(make, body) GPU_EACH_15(make, body), make(body, 15)
#define GPU_EACH_17(make, body) GPU_EACH_16(make, body), make(body, 16)
#define GPU_EACH_18(make, body) GPU_EACH_17(make, body), make(body, 17)
#define GPU_EACH_19(make, body) GPU_EACH_18(make, body), make(body, 18)
#define GPU_EACH_20(make, body) GPU_EACH_19(make, body), make(body, 19)
#define GPU_EACH_21(make, body) GPU_EACH_20(make, body), make(body, 20)
#define GPU_EACH_22(make, body) GPU_EACH_21(make, body), make(body, 21)
#define GPU_EACH_23(make, body) GPU_EACH_22(make, body), make(body, 22)
#define GPU_EACH_24(make, body) GPU_EACH_23(make, body), make(body, 23)
#define GPU_EACH_25(make, body) GPU_EACH_24(make, body), make(body, 24)
#define GPU_EACH_26(make, body) GPU_EACH_25(make, body), make(body, 25)
#define GPU_EACH_27(make, body) GPU_EACH_26(make, body), make(body, 26)
#define GPU_EACH_28(make, body) GPU_EACH_27(make, body), make(body, 27)
#define GPU_EACH_29(make, body) GPU_EACH_28(make, body), make(body, 28)
#define GPU_EACH_30(make, body) GPU_EACH_29(make, body), make(body, 29)
#define GPU_EACH_31(make, body) GPU_EACH_30(make, body), make(body, 30)
#define GPU_EACH_32(make, body) GPU_EACH_31(make, body), make(body, 31)
#define GPU_EACH_33(make, body) GPU_EACH_32(make, body), make(body, 32)
#define GPU_EACH_34(make, body) GPU_EACH_33(make, body), make(body, 33)
#define GPU_EACH_35(make, body) GPU_EACH_34(make, body), make(body, 34)
#define GPU_EACH_36(make, body) GPU_EACH_35(make, body), make(body, 35)
#define GPU_EACH_37(make, body) GPU_EACH_36(make, body), make(body, 36)
#define GPU_EACH_38(make, body) GPU_EACH_37(make, body), make(body, 37)
#define GPU_EACH_39(make, body) GPU_EACH_38(make, body), make(body, 38)
#define GPU_EACH_40(make, body) GPU_EACH_39(make, body), make(body, 39)
#endif

#endif  // WICK_GPU_ENTRY_H
