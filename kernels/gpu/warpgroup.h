// Products of a warpgroup, Hopper's four warps side by side: d (64 × N, in their registers) += a (64 × 16) · b (16 × N), begun and
// waited for later. b, and a unless it is in registers, is read from shared memory in rows of 64 halves whose pieces of 16 bytes are
// mixed as tile.h mixes them: piece p of row r lies where p ^ r mod 8 would. Only sm_90a has them (PTX ISA, "wgmma"); on the host
// GPU_HOST_WARPGROUPS asks for them, and they are done at once.
#ifndef WICK_GPU_WARPGROUP_H
#define WICK_GPU_WARPGROUP_H
#include "gpu/matrix.h"

#if (GPU_NVIDIA && defined(__CUDA_ARCH_FEAT_SM90_ALL)) || (GPU_HOST && defined(GPU_HOST_WARPGROUPS))
#define GPU_WARPGROUPS 1
#else
#define GPU_WARPGROUPS 0
#endif

#if GPU_WARPGROUPS
namespace gpu {
// Where rows along k lie one by one, a group of eight rows is `group` elements from the next. Where they lie side by side, a row is
// one k of 64 lines: eight k are a group, and the next 64 lines are `far` elements away.
#if GPU_NVIDIA
struct WarpgroupRef {
  u32 low, high;
  // In one word: all of shared memory has fewer than 2^14 pieces of 16 bytes.
  GPU_METHOD WarpgroupRef plus(u32 elements) const { return WarpgroupRef{low + elements / 8, high}; }
  GPU_METHOD u64 bits() const { return (u64)high << 32 | low; }
};
// `shared` is at a multiple of 1024 bytes. In a cluster the block's number is above its address.
template <bool CLUSTERED = false> GPU_FN WarpgroupRef warpgroup_ref(const void* shared, u32 group, u32 far) {
  const u32 address = (u32)__cvta_generic_to_shared(shared);
  return WarpgroupRef{(far / 8) << 16 | (CLUSTERED ? address & 0x3ffff : address) >> 4, 1u << 30 | group / 8};
}
// The same, where the compiler does not see that it is so for all lanes: else it is brought to where the unit reads it for each product.
GPU_FN WarpgroupRef uniform_ref(const WarpgroupRef& ref) { return WarpgroupRef{warp_most(ref.low), ref.high}; }
// What was written to shared memory before is seen by products begun after the next barrier.
GPU_FN void warpgroup_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Before the first product, and after registers of it were touched.
GPU_FN void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GPU_FN void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than the N latest committed are under way.
template <int N> GPU_FN void warpgroup_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Results that the compiler must not move across what is above.
GPU_FN void warpgroup_hold(f32& x) { asm volatile("" : "+f"(x)::"memory"); }
GPU_FN void warpgroup_hold(u32& x) { asm volatile("" : "+r"(x)::"memory"); }

// A meeting in two steps, over and over: each warp says that it has come, and waits later until all have. Its word in shared memory
// is opened by one thread, before a barrier. Rounds are counted from 0; a warp has waited for one before it comes to the next.
GPU_FN void meeting_open(u64* word, u32 warps) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(word)), "r"(warps) : "memory");
}
GPU_FN void meeting_come(u64* word) {
  wave_sync();
  if (lane_id() == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(word)) : "memory");
}
GPU_FN void meeting_wait(u64* word, u32 round) {
  u32 done;
  do
    asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
                 : "=r"(done)
                 : "r"((u32)__cvta_generic_to_shared(word)), "r"(round & 1)
                 : "memory");
  while (!done);
}

// Whether shared memory may be read that nobody wrote, where it does not matter what is there: the simulator tells whoever does.
constexpr bool READS_ANYTHING = true;
// Whether blocks may wait for others of the same launch, all of which fit on the device at once: until a counter has come so far. What
// they have written is then read from where they wrote it, not from where it was before.
constexpr bool WAITING_BLOCKS = true;
GPU_FN void await_count(const u32* counter, u32 least) {
  u32 count;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  while (count < least);
}
GPU_FN Vec<f32, 4> load_fresh(const f32* p) {
  Vec<f32, 4> x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3]) : "l"(p) : "memory");
  return x;
}

#define WG_R0(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_R1(d, i) WG_R0(d, i), WG_R0(d, i + 4)
#define WG_R2(d, i) WG_R1(d, i), WG_R1(d, i + 8)
#define WG_R3(d, i) WG_R2(d, i), WG_R2(d, i + 16)
#define WG_R4(d, i) WG_R3(d, i), WG_R3(d, i + 32)
#define WG_R5(d, i) WG_R4(d, i), WG_R4(d, i + 64)
#define WG_8 "%0, %1, %2, %3"
#define WG_16 WG_8 ", %4, %5, %6, %7"
#define WG_24 WG_16 ", %8, %9, %10, %11"
#define WG_32 WG_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_40 WG_32 ", %16, %17, %18, %19"
#define WG_48 WG_40 ", %20, %21, %22, %23"
#define WG_56 WG_48 ", %24, %25, %26, %27"
#define WG_64 WG_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_96 WG_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_128 WG_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_256 WG_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WG_REGISTERS_8 WG_R0(d, 0)
#define WG_REGISTERS_16 WG_R1(d, 0)
#define WG_REGISTERS_24 WG_R1(d, 0), WG_R0(d, 8)
#define WG_REGISTERS_32 WG_R2(d, 0)
#define WG_REGISTERS_40 WG_R2(d, 0), WG_R0(d, 16)
#define WG_REGISTERS_48 WG_R2(d, 0), WG_R1(d, 16)
#define WG_REGISTERS_56 WG_REGISTERS_48, WG_R0(d, 24)
#define WG_REGISTERS_64 WG_R3(d, 0)
#define WG_REGISTERS_96 WG_R3(d, 0), WG_R2(d, 32)
#define WG_REGISTERS_128 WG_R4(d, 0)
#define WG_REGISTERS_256 WG_R5(d, 0)
// AT, BT: whether a, and b, lies side by side. p0 … p6: the numbers of the operands behind the results.
#define WG_MMA(T, N, registers, p0, p1, p2, p3, p4, p5, p6) \
  template <int AT, int BT> GPU_FN void warpgroup_multiply(T, f32 (&d)[N / 2], WarpgroupRef a, WarpgroupRef b, bool add) { \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " p2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" WG_##N "}, " p0 \
                 ", " p1 ", add, 1, 1, " p3 ", " p4 "; }" \
                 : registers \
                 : "l"(a.bits()), "l"(b.bits()), "r"((u32)add), "n"(AT), "n"(BT)); \
  } \
  template <int BT> GPU_FN void warpgroup_multiply(T, f32 (&d)[N / 2], const u32 (&a)[4], WarpgroupRef b, bool add) { \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " p5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" WG_##N "}, {" p0 \
                 ", " p1 ", " p2 ", " p3 "}, " p4 ", add, 1, 1, " p6 "; }" \
                 : registers \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"((u32)add), "n"(BT)); \
  }
#define WG_WIDTHS(T) \
  WG_MMA(T, 8, WG_REGISTERS_8, "%4", "%5", "%6", "%7", "%8", "%9", "%10") \
  WG_MMA(T, 16, WG_REGISTERS_16, "%8", "%9", "%10", "%11", "%12", "%13", "%14") \
  WG_MMA(T, 24, WG_REGISTERS_24, "%12", "%13", "%14", "%15", "%16", "%17", "%18") \
  WG_MMA(T, 32, WG_REGISTERS_32, "%16", "%17", "%18", "%19", "%20", "%21", "%22") \
  WG_MMA(T, 40, WG_REGISTERS_40, "%20", "%21", "%22", "%23", "%24", "%25", "%26") \
  WG_MMA(T, 48, WG_REGISTERS_48, "%24", "%25", "%26", "%27", "%28", "%29", "%30") \
  WG_MMA(T, 56, WG_REGISTERS_56, "%28", "%29", "%30", "%31", "%32", "%33", "%34") \
  WG_MMA(T, 64, WG_REGISTERS_64, "%32", "%33", "%34", "%35", "%36", "%37", "%38") \
  WG_MMA(T, 96, WG_REGISTERS_96, "%48", "%49", "%50", "%51", "%52", "%53", "%54") \
  WG_MMA(T, 128, WG_REGISTERS_128, "%64", "%65", "%66", "%67", "%68", "%69", "%70") \
  WG_MMA(T, 256, WG_REGISTERS_256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
WG_WIDTHS(bf16)
WG_WIDTHS(f16)
#undef WG_WIDTHS
#undef WG_MMA
#else
struct WarpgroupRef {
  const u8* shared;
  u32 group, far, at;
  WarpgroupRef plus(u32 elements) const { return WarpgroupRef{shared, group, far, at + elements * 2}; }
  SIM_RAW u64 element(bool side_by_side, u32 line, u32 k) const {
    const u32 o = at + (side_by_side ? line / 64 * far * 2 + k / 8 * group * 2 + k % 8 * 128 + line % 64 * 2 : line / 8 * group * 2 + line % 8 * 128 + k * 2);
    return *(const u16*)(shared + (o ^ (o >> 7 & 7) << 4));
  }
};
template <bool CLUSTERED = false> GPU_FN WarpgroupRef warpgroup_ref(const void* shared, u32 group, u32 far) { return WarpgroupRef{(const u8*)shared, group, far, 0}; }
GPU_FN WarpgroupRef uniform_ref(const WarpgroupRef& ref) { return ref; }
GPU_FN void warpgroup_publish() {}
GPU_FN void warpgroup_begin() {}
GPU_FN void warpgroup_commit() {}
template <int N> GPU_FN void warpgroup_wait() {}
GPU_FN void warpgroup_hold(f32&) {}
GPU_FN void warpgroup_hold(u32&) {}
GPU_FN void meeting_open(u64* word, u32 warps) { sim::make_signal(word, warps); }
GPU_FN void meeting_come(u64* word) {
  wave_sync();
  if (lane_id() == 0) sim::arrive(word, 0);
}
GPU_FN void meeting_wait(u64* word, u32 round) { sim::await_phase(word, round & 1); }
constexpr bool READS_ANYTHING = false;
constexpr bool WAITING_BLOCKS = false;
GPU_FN void await_count(const u32*, u32) {}
GPU_FN Vec<f32, 4> load_fresh(const f32* p) { return *(const Vec<f32, 4>*)p; }
// One thread's results, where left(m, k) has the left operand's bits. They are in two rows, and every column has one in each.
template <class T, int R, class Left> SIM_RAW static void host_warpgroup(f32 (&d)[R], Left left, const WarpgroupRef& b, bool b_side_by_side, bool add) {
  const u32 row = tid_x() % 128 / 32 * 16 + lane_id() / 4;
  f32 rows[2][16], column[16];
  for (u32 k = 0; k < 32; k++) rows[k / 16][k % 16] = widen(T{(u16)left(row + k / 16 * 8, k % 16)});
  for (u32 i = 0; i < R / 2; i++) {
    const u32 n = i / 2 * 8 + lane_id() % 4 * 2 + i % 2;
    for (u32 k = 0; k < 16; k++) column[k] = widen(T{(u16)b.element(b_side_by_side, n, k)});
    for (u32 half = 0; half < 2; half++) {
      f32& result = d[i / 2 * 4 + half * 2 + i % 2];
      f32 sum = add ? result : 0;
      for (u32 k = 0; k < 16; k++) sum += rows[half][k] * column[k];
      result = sum;
    }
  }
}
template <int AT, int BT, class T, int R> static void warpgroup_multiply(T, f32 (&d)[R], WarpgroupRef a, WarpgroupRef b, bool add) {
  host_warpgroup<T>(d, [&](u32 m, u32 k) { return a.element(AT, m, k); }, b, BT, add);
}
template <int BT, class T, int R> static void warpgroup_multiply(T, f32 (&d)[R], const u32 (&a)[4], WarpgroupRef b, bool add) {
  host_publish(0, a, 4);
  sim::wave(false);
  host_warpgroup<T>(
      d, [](u32 m, u32 k) { return host_register<32>(m % 8 * 4 + k % 8 / 2, (int)(m % 16 / 8 + k / 8 * 2)) >> 16 * (k % 2); }, b, BT, add);
  sim::wave(false);
}
#endif
}  // namespace gpu
#endif

#endif  // WICK_GPU_WARPGROUP_H
