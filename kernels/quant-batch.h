// The product of up to 16 rows with quantized weights in halves: out (rows, n) = x (rows, k) · W (n, k)ᵀ, sums in f32. It is bound by
// the time until a block's first weights are there, and by decoding.
//
// A warp decodes 16 lines of W straight into the registers that mma.sync takes its left operand from: each four neighbouring weights
// are columns 2t, 2t + 1, 2t + 8, 2t + 9 of the unit, and those of x in the same order. `splits` warps share the depth of their lines, a
// chunk each at a time, and add up in shared memory: no block waits for another. Chunks of both operands have two places.
// Only Hopper is given these products, for its shared memory.
// Traffic: W once, x once for each 16 · WARPS / splits lines, from the cache.
#ifndef WICK_QUANT_BATCH_H
#define WICK_QUANT_BATCH_H
#include "gpu/warpgroup.h"
#include "quant.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class T> struct IsF16 { static constexpr bool value = false; };
template <> struct IsF16<f16> { static constexpr bool value = true; };

// CHUNK: weights of a line that come at once.
template <class Q, class T, u32 CHUNK> struct QuantBatch {
  static constexpr u32 ROWS = QUANT_BATCH_ROWS, WARPS = QUANT_BATCH_WARPS, THREADS = 32 * WARPS, V = 8;
  static constexpr u32 RUN = 32 * Q::Parts, RUNS = CHUNK / RUN, PER_BLOCK = Q::Elements / RUN;
  // Lines are an odd number of vectors apart, so that words of eight lie in all banks.
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1) * 4, PLACE_WORDS = 16 * GAP;
  static_assert(ROWS == 16, "two tiles of the unit");

  T* shared;
  const u16* table;
  const T* x;
  const u8* w;
  T* out;
  size_t n;
  u32 rows, k, splits, chunks;

  GPU_FN void run(T* shared, const u16* table, const T* x, const u8* w, T* out, u32 rows, size_t n, u32 k, u32 splits) {
    const QuantBatch product{shared, table, x, w, out, n, rows, k, splits, (k + CHUNK - 1) / CHUNK};
    const size_t together = WARPS / splits;
    for (size_t group = bid_x() * together; group * 16 < n; group += gdim_x() * together) product.lines(group);
  }

  // Rows of x are so far apart that eight bytes of four of them lie in all banks.
  GPU_METHOD u32 pitch() const { return splits * CHUNK + 16; }
  GPU_METHOD T* x_place(u32 window) const { return shared + window % 2 * ROWS * pitch(); }
  GPU_METHOD u32* place(u32 window) const { return (u32*)(shared + 2 * ROWS * pitch()) + (tid_x() / 32 * 2 + window % 2) * PLACE_WORDS; }
  // This warp's chunk of a window; behind the last that is taken again, and multiplied with zeros.
  GPU_METHOD u32 chunk_of(u32 window) const {
    const u32 c = window * splits + tid_x() / 32 % splits;
    return c < chunks ? c : chunks - 1;
  }
  GPU_FN u32 skew(const u8* at) { return Q::Align == 16 ? 0 : (u32)(size_t)at & 15u; }

  // Four lanes bring a line, and the eighth behind it.
  GPU_METHOD void send_weights(const u8* const (&starts)[2], u32 window) const {
    const u32 c = chunk_of(window), t = lane_id() % 4;
    const u32 there = (k / Q::Elements) * Q::Bytes - c * BYTES, count = there < BYTES ? there : BYTES;
    UNROLL for (u32 h = 0; h < 2; h++) {
      const u8* const at = starts[h] + (size_t)c * BYTES;
      const u32 left = skew(at) + count;
      u32* const to = place(window) + (lane_id() / 4 + 8 * h) * GAP + 4 * t;
      const u8* const from = at - skew(at) + 16 * t;
      UNROLL for (u32 v = 0; v < VECTORS; v += 4) copy16_async(to + 4 * v, from + 16 * v, 16 * (v + t) < left);
    }
  }
  // All warps' chunks of x, zeros where there is none.
  GPU_METHOD void send_x(u32 window) const {
    const u32 pieces = splits * (CHUNK / V), first = window * splits * CHUNK;
    T* const to = x_place(window);
    UNROLL_SOME for (u32 i = tid_x(); i < ROWS * pieces; i += THREADS) {
      const u32 row = i / pieces, at = (i - row * pieces) * V;
      const bool valid = row < rows && first + at < k;
      copy16_async((void*)(to + row * pitch() + at), valid ? x + (size_t)row * k + first + at : x, valid, true);
    }
  }
  // Four weights of each of two lines as the left operand.
  GPU_FN void decode(u32 (&left)[4], int h, u32 q, f32 scale, f32 min) {
    if constexpr (IsF16<T>::value) {
      scaled_halves<Q::HasMin>(q, pack2(T{}, 16 * scale, 16 * scale), Q::HasMin ? pack2(T{}, min, min) : 0, left[h], left[2 + h]);
    } else {
      f32 y[4];
      scaled_bytes<Q::HasMin>(q, scale, min, y);
      left[h] = pack2(T{}, y[0], y[1]);
      left[2 + h] = pack2(T{}, y[2], y[3]);
    }
  }
  // c += run `run` of a chunk, whose lines' weights begin at chunk[h], with run `x_run` of x's rows.
  GPU_METHOD void multiply(f32 (&c)[8], const Staged<Q::Align> (&chunk)[2], u32 run, u32 x_run, const T* rows_at) const {
    typename Q::Frag f[2];
    UNROLL for (int h = 0; h < 2; h++)
      Q::fragment(Staged<Q::Align>{chunk[h].words, chunk[h].at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, table, f[h]);
    UNROLL for (int p = 0; p < Q::Parts; p++)
      UNROLL for (int half = 0; half < 2; half++) {
        const int s = Q::Halves == 1 ? 0 : half;
        u32 left[4];
        UNROLL for (int h = 0; h < 2; h++) decode(left, h, f[h].q[p][half], f[h].scale[s][p], Q::HasMin ? f[h].min[s][p] : 0.0f);
        UNROLL for (u32 j = 0; j < 2; j++) {
          const Vec<u32, 2> right = *(const Vec<u32, 2>*)(rows_at + j * 8 * pitch() + (x_run * Q::Parts + p) * 32 + half * 16);
          mma_m16n8k16(T{}, c + 4 * j, left, right.v);
        }
      }
  }

  // 16 lines for each `splits` warps, from group `first` of 16 on.
  GPU_METHOD void lines(size_t first) const {
    const u32 warp = tid_x() / 32, windows = (chunks + splits - 1) / splits;
    const u8* starts[2];
    UNROLL for (u32 h = 0; h < 2; h++) {
      // Past the last line it is taken again.
      const size_t line = (first + warp / splits) * 16 + lane_id() / 4 + 8 * h;
      starts[h] = w + (line < n ? line : n - 1) * ((size_t)(k / Q::Elements) * Q::Bytes);
    }
    send_weights(starts, 0);
    wait_for_previous();  // once a block has waited, this takes no time
    send_x(0);
    f32 c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    NO_UNROLL for (u32 i = 0; i < windows; i++) {
      copies_wait();
      barrier();
      // All have done with the window before this one: its places are free.
      if (i + 1 < windows) {
        send_weights(starts, i + 1);
        send_x(i + 1);
      }
      const u32 own = chunk_of(i);
      const T* const rows_at = x_place(i) + lane_id() / 4 * pitch() + warp % splits * CHUNK + lane_id() % 4 * 4;
      Staged<Q::Align> chunk[2];
      UNROLL for (u32 h = 0; h < 2; h++) chunk[h] = Staged<Q::Align>{place(i) + (lane_id() / 4 + 8 * h) * GAP, skew(starts[h] + (size_t)own * BYTES)};
      if ((i + 1) * splits * CHUNK <= k) UNROLL for (u32 r = 0; r < RUNS; r++) multiply(c, chunk, r, r, rows_at);
      else NO_UNROLL for (u32 r = 0; r < RUNS; r++) multiply(c, chunk, own * CHUNK + r * RUN < k ? r : 0, r, rows_at);
    }
    barrier();
    // Sums of all warps, by rows of 16 lines.
    f32* const sums = (f32*)shared;
    UNROLL for (u32 e = 0; e < 8; e++) sums[warp * 256 + (e / 4 * 8 + lane_id() % 4 * 2 + e % 2) * 16 + lane_id() / 4 + e / 2 % 2 * 8] = c[e];
    barrier();
    for (u32 i = tid_x(); i < WARPS / splits * 256; i += THREADS) {
      const size_t line = (first + i / 256) * 16 + i % 16;
      const u32 row = i / 16 % 16;
      if (row >= rows || line >= n) continue;
      f32 sum = 0;
      for (u32 s = 0; s < splits; s++) sum += sums[(i / 256 * splits + s) * 256 + i % 256];
      out[(size_t)row * n + line] = narrow<T>(sum);
    }
    barrier();  // the next lines' chunks go where these sums are
  }
};

}  // namespace gpu
#endif
#endif
