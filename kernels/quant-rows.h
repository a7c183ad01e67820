// The product of some rows with quantized weights on mma.sync, bound by memory: a warp decodes 16 lines straight into the registers
// that the unit takes its left operand from, and meets the others only where the next chunk of x comes. The unit is given each four
// neighbouring weights as its columns 2t, 2t + 1, 2t + 8, 2t + 9, and those of x in the same order.
#ifndef WICK_QUANT_ROWS_H
#define WICK_QUANT_ROWS_H
#include "product.h"
#include "quant-feed.h"

#if GPU_TILE == TILE_MMA
namespace gpu {

// BM lines by BN rows of x. Chunks of both operands have STAGES places: all but one are on their way.
template <class Q, class T, int BM, int BN, int STAGES, bool SPLIT> struct RowsProduct {
  static constexpr int THREADS = BM * 2;
  typedef QuantFeed<Q, T, BM, 64, THREADS, STAGES, false, SPLIT> Weights;
  // Rows of x are so far apart that eight bytes of four of them lie in all banks.
  static constexpr u32 CHUNK = Weights::CHUNK, RUN = 32 * Q::Parts, RUNS = CHUNK / RUN, WIDTH = SPLIT ? 2 : 1;
  static constexpr u32 ROW = WIDTH * CHUNK, PITCH = ROW + 16, X_SIZE = BN * PITCH, V = 8;

  // Chunk c of x, zeros where there is none.
  template <class X> GPU_FN void send(T* to, const X& x, size_t first, u32 c) {
    constexpr u32 PIECES = ROW / V;
    UNROLL for (u32 i = tid_x(); i < BN * PIECES; i += THREADS) {
      const u32 row = i / PIECES, at = i % PIECES * V;
      const bool valid = first + row < x.lines && c * ROW + at < x.depth;
      copy16_async((void*)(to + row * PITCH + at), valid ? x.line(first + row) + c * ROW + at : x.at, valid, true);
    }
  }
  // Four weights of each of two lines as the left operand.
  struct Left {
    u32 x[4];
    GPU_METHOD void put(int h, const f32 (&w)[4]) {
      x[h] = pack2(T{}, w[0], w[1]);
      x[2 + h] = pack2(T{}, w[2], w[3]);
    }
    // What is left of weights when these are taken off.
    GPU_METHOD f32 rest(int h, int i, f32 w) const {
      const u32 two = x[h + i / 2 * 2];
      return w - f32_from_bits(i % 2 ? two & 0xffff0000u : two << 16);
    }
  };
  // c += run `run` of a chunk, the weights of which begin at block[h], with x's rows.
  GPU_FN void multiply(f32 (&c)[BN / 2], const Weights& weights, const Staged<Q::Align> (&chunk)[2], u32 run, const T* x) {
    constexpr u32 PER_BLOCK = Q::Elements / RUN;
    typename Q::Frag f[2];
    UNROLL for (int h = 0; h < 2; h++)
      Q::fragment(Staged<Q::Align>{chunk[h].words, chunk[h].at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, f[h]);
    UNROLL for (int p = 0; p < Q::Parts; p++)
      UNROLL for (int half = 0; half < 2; half++) {
        Left left, rest;
        UNROLL for (int h = 0; h < 2; h++) {
          f32 w[4];
          const int s = Q::Halves == 1 ? 0 : half;
          scaled_bytes<Q::HasMin>(f[h].q[p][half], f[h].scale[s][p], Q::HasMin ? f[h].min[s][p] : 0.0f, w);
          left.put(h, w);
          if constexpr (SPLIT) {
            f32 lower[4];
            UNROLL for (int i = 0; i < 4; i++) lower[i] = left.rest(h, i, w[i]);
            rest.put(h, lower);
          }
        }
        const T* const at = x + lane_id() / 4 * PITCH + (run * Q::Parts + p) * 32 * WIDTH + half * 16 + lane_id() % 4 * 4;
        UNROLL for (int j = 0; j < BN / 8; j++) {
          const Vec<u32, 2> right = *(const Vec<u32, 2>*)(at + j * 8 * PITCH);
          mma_m16n8k16(T{}, c + 4 * j, left.x, right.v);
          if constexpr (SPLIT) {
            const Vec<u32, 2> lower = *(const Vec<u32, 2>*)(at + j * 8 * PITCH + 32);
            mma_m16n8k16(T{}, c + 4 * j, left.x, lower.v);
            mma_m16n8k16(T{}, c + 4 * j, rest.x, right.v);
          }
        }
      }
  }

  template <class X, class Sink> GPU_FN void run(T* shared, const Weights& weights, const X& x, size_t first, const Sink& sink) {
    const u32 depth = weights.depth, chunks = (depth + CHUNK - 1) / CHUNK;
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    NO_UNROLL for (u32 i = 0; i < STAGES - 1; i++) {
      if (i < chunks) send(shared + i * X_SIZE, x, first, i);
      copies_bunch();
    }
    NO_UNROLL for (u32 i = 0; i < chunks; i++) {
      copies_wait_but<STAGES - 2>();
      barrier();
      // All have done with the chunk before this one: its places are free.
      const u32 next = i + STAGES - 1;
      if (next < chunks) {
        weights.send(next);
        send(shared + next % STAGES * X_SIZE, x, first, next);
      }
      copies_bunch();
      const T* const rows = shared + i % STAGES * X_SIZE;
      Staged<Q::Align> chunk[2];
      UNROLL for (u32 h = 0; h < 2; h++)
        chunk[h] = Staged<Q::Align>{weights.place_of(i) + (lane_id() / 4 + 8 * h) * Weights::GAP, Weights::skew((u32)weights.line_start(lane_id() / 4 + 8 * h) + i * Weights::BYTES)};
      if (Q::Elements > 32 || (i + 1) * CHUNK <= depth) UNROLL for (u32 r = 0; r < RUNS; r++) multiply(c, weights, chunk, r, rows);
      else NO_UNROLL for (u32 r = 0; i * CHUNK + r * RUN < depth; r++) multiply(c, weights, chunk, r, rows);
    }
    barrier();
    const u32 line = tid_x() / 32 * 16 + lane_id() / 4, row = lane_id() % 4 * 2;
    UNROLL for (int e = 0; e < BN / 2; e++) sink.bring(line + e / 2 % 2 * 8, row + e / 4 * 8 + e % 2, c[e]);
    sink.leave();
    barrier();  // the next tile's chunks go where this one's are read
  }
};

}  // namespace gpu
#endif
#endif
