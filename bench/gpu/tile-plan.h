// How linear layers of few rows with quantized weights are launched.
#ifndef WICK_BENCH_TILE_PLAN_H
#define WICK_BENCH_TILE_PLAN_H
#include "bench.h"

// What src/backend/gpu/families/linear.ts plans for weights of type Q that fit beside x; `bytes` is of shared memory.
struct TileLaunch {
  u32 threads, splits, blocks, bytes;
};
template <class Q> static TileLaunch plan_tiles(size_t n, size_t k, u32 columns, u32 sms) {
  const auto over = [](u32 a, u32 b) { return (a + b - 1) / b; };
  const u32 stage = 256 * (((TILE_CHUNK / Q::Elements * Q::Bytes + 31 - Q::Align) / 16) | 1), fit = TILE_STAGES / stage;
  const u32 places = fit < 2 ? 2 : fit > 4 ? 4 : fit, rows = columns > 4 ? 8 : columns > 2 ? 4 : columns, enough = over((rows == 1 ? 36 : 72) * 1024, stage);
  const u32 groups = over((u32)n, 16), chunks = over((u32)k, TILE_CHUNK), budget = 227 * 1024;
  TileLaunch best{0, 0, 0, 0};
  u32 least = ~0u;
  for (u32 splits = 1; splits <= (chunks < 16 ? chunks : 16); splits *= 2)
    for (u32 together = 1; together * splits <= 16; together++) {
      const u32 warps = together * splits, bytes = rows * (u32)(2 * k + k / 4) + (rows == 1 ? TILE_CHUNK + 64 : 0) + warps * (places * stage + 4 * (32 * (columns > 4 ? 4 : 2) + 8));
      const u32 all = over(groups, together), rounds = over(all, sms);
      const u32 cost = rounds * over(chunks, splits) * std::max(warps, enough) + (rows == 1 ? 5 * over((u32)k / 256, warps) : 0) + (splits > 1 ? 4 * rounds : 0);
      if (bytes > budget - 1024 || cost >= least) continue;
      least = cost;
      best = TileLaunch{32 * warps, splits, over(all, rounds), std::max(bytes, budget / 2)};
    }
  return best;
}

#endif
