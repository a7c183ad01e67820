// Stored bytes of quantized weights on their way to a warp's own part of shared memory, where it decodes them.
#ifndef WICK_QUANT_CHUNKS_H
#define WICK_QUANT_CHUNKS_H
#include "quant.h"
namespace gpu {

// Weights `from` … `to` of every line of (lines, k); `from` is a multiple of a chunk.
struct Blocks {
  const u8* w;
  size_t lines;
  u32 k, from, to;
};
template <class T> struct IsF16 { static constexpr bool value = false; };
template <> struct IsF16<f16> { static constexpr bool value = true; };

// Chunks of CHUNK weights of 8 · COUNT lines; there are PLACES for them. Four lanes bring, and decode, COUNT lines: number `own` below
// eight, and every eighth behind it. Lines are an odd number of vectors apart, so that words of eight lie in all banks.
template <class Q, u32 CHUNK, int COUNT, int PLACES> struct LineChunks {
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1) * 4;
  static constexpr u32 PLACE_WORDS = 8 * COUNT * GAP;
  static_assert(BYTES > 0, "chunks have whole blocks");
  u32* raw;
  u32 own, bytes;  // bytes: of a line
  const u8* lines[COUNT];

  GPU_METHOD LineChunks(const Blocks& b, u32* shared, size_t first, u32 own_) : raw(shared), own(own_), bytes((b.to - b.from) / Q::Elements * Q::Bytes) {
    const size_t row_bytes = (size_t)(b.k / Q::Elements) * Q::Bytes, start = (size_t)(b.from / Q::Elements) * Q::Bytes;
    UNROLL for (u32 h = 0; h < COUNT; h++) {
      // Past the last line it is taken again.
      const size_t line = first + own + 8 * h;
      lines[h] = b.w + (line < b.lines ? line : b.lines - 1) * row_bytes + start;
    }
  }
  GPU_FN u32 skew(const u8* at) { return Q::Align == 16 ? 0 : (u32)(size_t)at & 15u; }
  GPU_METHOD u32* place(u32 c, u32 h) const { return raw + c % PLACES * PLACE_WORDS + (own + 8 * h) * GAP; }
  GPU_METHOD void send(u32 c) const {
    const u32 there = bytes - c * BYTES, count = there < BYTES ? there : BYTES, t = lane_id() % 4;
    UNROLL for (u32 h = 0; h < COUNT; h++) {
      const u8* const at = lines[h] + (size_t)c * BYTES;
      const u32 left = skew(at) + count;
      u32* const to = place(c, h) + 4 * t;
      const u8* const from = at - skew(at) + 16 * t;
      UNROLL for (u32 v = 0; v < VECTORS; v += 4) copy16_async(to + 4 * v, from + 16 * v, 16 * (v + t) < left);
    }
  }
  GPU_METHOD Staged<Q::Align> staged(u32 c, u32 h) const { return Staged<Q::Align>{place(c, h), skew(lines[h] + (size_t)c * BYTES)}; }
};

}  // namespace gpu
#endif
