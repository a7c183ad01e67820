// Latent attention (MLA): all heads share one key of up to LATENT_DIM elements per position, and its first dv are the value, too.
//
// attention_latent_T: 16 rows (a query of a head each) and a part of the keys to a block. A tile of keys lies in shared memory once for
// both products. For the scores each wave has a share of the elements, whose sums meet in shared memory; for the results
// each has a share of the columns. Between them eight threads have a row and turn its scores into weights.
// Launch: ATTENTION_BLOCK threads and `shared_bytes` as in attention-plan.ts, batch · ceil(heads·tq / 16) · splits blocks. Queries lie as
// latent_append.hip leaves them. Parts and scratch are as in attention_decode.hip, 64 parts at most, but joined by eights: by the last of
// eight, and those by the last of all. Each 16 rows have LATENT_COUNTERS counters. Causal; a mask is added.
// Memory: keys once for each 16 rows, out of the cache but for the first.
#include "attention-parts.h"
namespace gpu {

template <class T> struct Latent {
  typedef tile_t<T> Tile;
  static constexpr int D = LATENT_DIM, RANK = LATENT_RANK, WAVES = ATTENTION_BLOCK / Tile::LANES;
  static constexpr int KEYS = LATENT_KEYS, KEY_TILES = KEYS / 16;
  // For mma.sync a tile is columns by the 64, those of all keys, then the next 64; else whole rows. Of queries in memory: whole rows.
  static constexpr int PITCH = Tile::ASYNC ? 64 : tile_pitch<T>(D), V_PITCH = Tile::TRANSPOSED ? tile_pitch<T>(KEYS) : PITCH;
  static constexpr int Q_PITCH = Tile::ASYNC ? D : PITCH, K_SIZE = KEYS * Q_PITCH, STAGE = K_SIZE + (Tile::TRANSPOSED ? RANK * V_PITCH : 0), STAGES = Tile::ASYNC ? 2 : 1;
  // A wave's share of the elements and of the columns, in steps of 16.
  static constexpr int STEPS = D / 16 / WAVES, COLS = RANK / 16 / WAVES;
  static_assert(STEPS * WAVES * 16 == D && COLS * WAVES * 16 == RANK && ATTENTION_BLOCK / 8 == 16, "");
  // Behind the tiles: sums of scores of each wave, weights, and two numbers of each row.
  static constexpr int SCORE_PITCH = KEYS + 4, WEIGHT_PITCH = tile_pitch<T>(KEYS), W = 16 / sizeof(T), PIECES = D / W;

  // Where the 16 × 16 elements that begin at a row and a column of a tile lie, and a piece of a row.
  GPU_FN u32 at(u32 row, u32 col) { return Tile::ASYNC ? col / 64 * (KEYS * 64) + row * 64 + col % 64 : row * PITCH + col; }
  GPU_FN u32 place(u32 row, u32 piece) {
    return Tile::ASYNC ? piece / 8 * (KEYS * 64) + Tile::template place<PITCH>(row, piece % 8) : Tile::template place<PITCH>(row, piece);
  }
};

// Rows first … first + KEYS − 1 to a stage, zeros from `end` on; with copies beside arithmetic they are only begun.
template <class L, class T> GPU_FN void load_latents(T* stage, const Rows<T>& keys, i32 first, i32 end) {
  typedef typename L::Tile Tile;
  NO_UNROLL for (u32 i = tid_x(); i < L::KEYS * L::PIECES; i += ATTENTION_BLOCK) {
    const u32 r = i / L::PIECES, p = i % L::PIECES;
    T* const to = stage + L::place(r, p);
    if constexpr (Tile::ASYNC) {
      if (keys.vectors) {
        const bool there = first + (i32)r < end && p * L::W < keys.d;
        Tile::copy(to, there ? keys.at(first + (i32)r, p) : keys.base, there, true);
        continue;
      }
    }
    const Piece x = keys.load(first + (i32)r, p, end);
    *(Piece*)to = x;
  }
  if constexpr (Tile::TRANSPOSED) {
    typedef Carrier<T, L::KEYS, L::RANK, ATTENTION_BLOCK, L::V_PITCH, true> Turned;
    NO_UNROLL for (u32 i = tid_x(); i < L::KEYS / 2 * (L::RANK / L::W); i += ATTENTION_BLOCK) {
      const u32 r = i % (L::KEYS / 2) * 2, p = i / (L::KEYS / 2);
      const Piece x[2] = {keys.load(first + (i32)r, p, end), keys.load(first + (i32)r + 1, p, end)};
      Turned::store(stage + L::K_SIZE, r, p, x);
    }
  }
}

// Sixteen keys' weights as the left operand of a product.
template <class L, class T> GPU_FN typename L::Tile::P weights_operand(const T* weights, u32 first) {
  typedef typename L::Tile Tile;
  if constexpr (Tile::REGISTERS) {
    return Tile::template left<L::WEIGHT_PITCH>(Tile::ref(weights), first);
  } else {
    typename Tile::P p;
    UNROLL for (int r = 0; r < Tile::ROWS; r++)
      UNROLL for (int k = 0; k < 16; k++) p.x[r][k] = widen(weights[Tile::row(r) * L::WEIGHT_PITCH + first + k]);
    return p;
  }
}

// Joins up to eight parts of each row, `step` apart from `first` on: to results where there are no more, else to the first of them.
template <class T>
GPU_FN void join_latents(f32* shared, const Attention<T>& a, const Group& group, u32 row0, u32 rows, f32* scratch, f32* pairs, u32 splits,
                         u32 first, u32 count, u32 step, bool last) {
  const auto place = [&](u32 row) { return ((size_t)group.b * a.heads + group.head(row0 + row)) * a.tq + (u32)group.query(row0 + row); };
  {
    // Eight threads have a row, and a part each: it weighs 2^(its greatest − the greatest of all).
    const u32 row = tid_x() / 8, part = tid_x() % 8;
    f32* const pair = pairs + (place(row < rows ? row : 0) * splits + first + (part < count ? part : 0) * step) * 2;
    const f32 own = part < count ? pair[0] : Limits<f32>::lowest();
    f32 top = own;
    UNROLL for (u32 lanes = 1; lanes < 8; lanes *= 2) top = max_fast(top, shfl_xor(top, lanes));
    f32 weight = approx_exp2(own - (top == Limits<f32>::lowest() ? 0 : top)), total = part < count ? pair[1] * weight : 0;
    UNROLL for (u32 lanes = 1; lanes < 8; lanes *= 2) total += shfl_xor(total, lanes);
    if (last) weight /= total;
    else if (part == 0 && row < rows) pair[0] = top, pair[1] = total;
    shared[tid_x()] = weight;
  }
  barrier();
  const u32 quads = a.dv / 4;
  // Two rows at a time, all parts of which are on their way at once.
  for (u32 item = tid_x(); item < rows * quads; item += 2 * ATTENTION_BLOCK) {
    f32* from[2];
    Vec<f32, 4> x[2][8];
    u32 row[2];
    UNROLL for (int i = 0; i < 2; i++) {
      const u32 own = item + i * ATTENTION_BLOCK < rows * quads ? item + i * ATTENTION_BLOCK : item;
      row[i] = own / quads;
      from[i] = scratch + (place(row[i]) * splits + first) * a.dv + own % quads * 4;
      UNROLL for (u32 p = 0; p < 8; p++) x[i][p] = *(const Vec<f32, 4>*)(from[i] + (size_t)(p < count ? p * step : 0) * a.dv);
    }
    UNROLL for (int i = 0; i < 2; i++) {
      if (i && item + ATTENTION_BLOCK >= rows * quads) continue;
      Vec<f32, 4> sum{{0, 0, 0, 0}};
      UNROLL for (u32 p = 0; p < 8; p++) {
        const f32 weight = p < count ? shared[row[i] * 8 + p] : 0;
        UNROLL for (int k = 0; k < 4; k++) sum.v[k] += p < count ? x[i][p].v[k] * weight : 0;
      }
      if (last) {
        T* const out = a.out + place(row[i]) * a.dv + (item + i * ATTENTION_BLOCK) % quads * 4;
        UNROLL for (int k = 0; k < 4; k++) out[k] = narrow<T>(sum.v[k]);
      } else {
        *(Vec<f32, 4>*)from[i] = sum;
      }
    }
  }
}

template <class L, class T> GPU_FN void attend_latent(T* shared, const Attention<T>& a, f32* scratch, u32* counters, u32 splits) {
  typedef typename L::Tile Tile;
  typedef typename Tile::C C;
  f32* const scores = (f32*)(shared + L::STAGES * L::STAGE);
  T* const weights = (T*)(scores + L::WAVES * 16 * L::SCORE_PITCH);
  f32* const stats = (f32*)(weights + 16 * L::WEIGHT_PITCH);
  const u32 wave = tid_x() / Tile::LANES, own_row = tid_x() / 8, own_key = tid_x() % 8, row_tiles = (a.heads * a.tq + 15) / 16;
  const size_t items = (size_t)a.batch * row_tiles * splits;
  f32* const pairs = scratch + (size_t)a.batch * a.heads * a.tq * splits * a.dv;
  const f32 c = a.scale * LOG2_E;
  NO_UNROLL for (size_t item = bid_x(); item < items; item += gdim_x()) {
    const size_t place = divide(item, splits), b = divide(place, row_tiles);
    const u32 split = (u32)(item - place * splits), row0 = (u32)(place - b * row_tiles) * 16;
    const Group group{(u32)b, 0, a.heads, a.heads * a.tq};
    const u32 rows = group.rows - row0 < 16 ? group.rows - row0 : 16;
    const Sight all = sight_of(a, a.length((u32)b), a.tq);
    const i32 begin = all.first(group.query(row0)), stop = all.end(group.query(row0 + rows - 1));
    const u32 span = stop > begin ? (u32)(stop - begin) : 0, tiles = (span + L::KEYS - 1) / L::KEYS;
    const u32 parts = tiles <= 2 ? 1 : tiles < splits ? tiles : splits;
    if (split >= parts) continue;
    const i32 first = begin + (i32)(divide((u64)tiles * split, parts) * L::KEYS);
    const i32 next = begin + (i32)(divide((u64)tiles * (split + 1), parts) * L::KEYS), end = next < stop ? next : stop;
    const Rows<T> keys(a, a.k, (u32)b, a.k_b, a.k_t, a.d);
    const T* const queries = a.q + (b * group.rows + row0) * L::Q_PITCH;
    if (Tile::ASYNC && first < end) load_latents<L>(shared, keys.tile(first, end), first, end);
    typename Tile::A q[Tile::REGISTERS ? L::STEPS : 1];
    if constexpr (Tile::REGISTERS) {
      // Through the place of a tile that is not used yet.
      T* const staged = shared + (L::STAGES - 1) * L::STAGE;
      const Rows<T> from(queries, L::Q_PITCH, L::D);
      for (u32 i = tid_x(); i < 16 * L::PIECES; i += ATTENTION_BLOCK) {
        const Piece x = from.load((i32)(i / L::PIECES), i % L::PIECES, (i32)rows);
        *(Piece*)(staged + L::place(i / L::PIECES, i % L::PIECES)) = x;
      }
      barrier();
      UNROLL for (int i = 0; i < L::STEPS; i++) q[i] = Tile::template left<L::PITCH>(Tile::ref(staged), L::at(0, (wave * L::STEPS + i) * 16));
      barrier();
    }
    // Of a row that this thread turns scores into weights of; its query decides what it sees.
    const i32 query = group.query(own_row < rows ? row0 + own_row : row0), sees = all.end(query) < end ? all.end(query) : end;
    const T* const mask = a.mask + b * a.mask_b + group.head(own_row < rows ? row0 + own_row : row0) * a.mask_h + query * a.mask_i;
    f32 best = Limits<f32>::lowest(), sum = 0;
    C o[L::COLS];
    UNROLL for (int i = 0; i < L::COLS; i++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) o[i].x[e] = 0;
    u32 now = 0;
    NO_UNROLL for (i32 j0 = first; j0 < end; j0 += L::KEYS) {
      if constexpr (Tile::ASYNC) {
        Tile::copies_arrive();
        barrier();
        if (j0 + L::KEYS < end) load_latents<L>(shared + (L::STAGE - now), keys.tile(j0 + L::KEYS, end), j0 + L::KEYS, end);
      } else {
        barrier();
        load_latents<L>(shared, keys.tile(j0, end), j0, end);
        barrier();
      }
      T* const tile = shared + now;
      if (Tile::ASYNC) now = L::STAGE - now;
      {
        C s[L::KEY_TILES];
        UNROLL for (int j = 0; j < L::KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) s[j].x[e] = 0;
        UNROLL for (int i = 0; i < L::STEPS; i++) {
          const u32 at = (wave * L::STEPS + i) * 16;
          typename Tile::A left;
          if constexpr (Tile::REGISTERS) left = q[i];
          else left = Tile::template left<L::PITCH>(Tile::ref(queries), at);
          UNROLL for (int j = 0; j < L::KEY_TILES; j++) {
            const typename Tile::B right = Tile::template rows<L::PITCH>(Tile::ref(tile), L::at(j * 16, at));
            Tile::template multiply<L::PITCH>(s[j], left, right);
          }
          schedule_fence();
        }
        UNROLL for (int j = 0; j < L::KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++)
          scores[(wave * 16 + Tile::row(Tile::row_of(e))) * L::SCORE_PITCH + j * 16 + Tile::col(e)] = s[j].x[e];
      }
      barrier();
      {
        f32 x[L::KEYS / 8], top = best;
        UNROLL for (int i = 0; i < L::KEYS / 8; i++) {
          const u32 at = own_key + i * 8;
          const i32 key = j0 + (i32)at;
          f32 s = 0;
          UNROLL for (int w = 0; w < L::WAVES; w++) s += scores[(w * 16 + own_row) * L::SCORE_PITCH + at];
          s *= c;
          if (a.mask && key < sees) s += widen(mask[key * a.mask_j]) * LOG2_E;
          x[i] = key < sees ? s : Limits<f32>::lowest();
          top = max_fast(top, x[i]);
        }
        UNROLL for (u32 lanes = 1; lanes < 8; lanes *= 2) top = max_fast(top, shfl_xor(top, lanes));
        // A row that has seen nothing yet: against −∞ everything would be NaN.
        const f32 shift = top == Limits<f32>::lowest() ? 0 : top, fix = approx_exp2(best - shift);
        best = top;
        sum *= fix;
        UNROLL for (int i = 0; i < L::KEYS / 8; i++) {
          const f32 p = approx_exp2(x[i] - shift);
          sum += p;
          weights[own_row * L::WEIGHT_PITCH + own_key + i * 8] = narrow<T>(p);
        }
        if (own_key == 0) stats[own_row] = fix;
      }
      barrier();
      f32 fix[Tile::ROWS];
      UNROLL for (int r = 0; r < Tile::ROWS; r++) fix[r] = stats[Tile::row(r)];
      UNROLL for (int i = 0; i < L::COLS; i++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) o[i].x[e] *= fix[Tile::row_of(e)];
      const T* const values = Tile::TRANSPOSED ? tile + L::K_SIZE : tile;
      UNROLL for (int j = 0; j < L::KEY_TILES; j++) {
        const typename Tile::P left = weights_operand<L>(weights, j * 16);
        UNROLL for (int i = 0; i < L::COLS; i++) {
          const u32 col = (wave * L::COLS + i) * 16;
          const u32 at = Tile::TRANSPOSED ? col * L::V_PITCH + j * 16 : L::at(j * 16, col);
          const typename Tile::B right = Tile::template cols<L::V_PITCH>(Tile::ref(values), at);
          Tile::template multiply<L::V_PITCH>(o[i], left, right);
          schedule_fence();
        }
      }
    }
    UNROLL for (u32 lanes = 1; lanes < 8; lanes *= 2) sum += shfl_xor(sum, lanes);
    // A row that sees no key gives zeros.
    if (split == 0 && all.first(query) >= all.end(query)) best = 0, sum = 1;
    barrier();
    if (own_key == 0) stats[own_row] = best, stats[16 + own_row] = sum;
    barrier();
    UNROLL for (int r = 0; r < Tile::ROWS; r++) {
      const u32 row = Tile::row(r);
      if (row >= rows) continue;
      const size_t at = ((size_t)b * a.heads + group.head(row0 + row)) * a.tq + (u32)group.query(row0 + row);
      T* const out = a.out + at * a.dv;
      f32* const part = scratch + (at * splits + split) * a.dv;
      const f32 by = 1 / stats[16 + row];
      UNROLL for (int i = 0; i < L::COLS; i++) {
        UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) {
          const u32 col = (wave * L::COLS + i) * 16 + Tile::out_col(e);
          if (Tile::row_of(e) != r || col >= a.dv) continue;
          if (parts == 1) out[col] = narrow<T>(o[i].x[e] * by);
          else part[col] = o[i].x[e];
        }
        schedule_fence();
      }
    }
    if (parts > 1 && tid_x() < rows) {
      const u32 row = tid_x();
      const size_t at = ((size_t)b * a.heads + group.head(row0 + row)) * a.tq + (u32)group.query(row0 + row);
      *(Vec<f32, 2>*)(pairs + (at * splits + split) * 2) = Vec<f32, 2>{{stats[row], stats[16 + row]}};
    }
    if (parts > 1) {
      const u32 bunch = split / 8, bunches = (parts + 7) / 8, size = bunch + 1 < bunches ? 8 : parts - bunch * 8;
      u32* const counter = counters + place * LATENT_COUNTERS;
      f32* const joining = (f32*)shared + 4;
      if (ends_last((u32*)shared, counter + 1 + bunch, size)) {
        join_latents(joining, a, group, row0, rows, scratch, pairs, splits, bunch * 8, size, 1, bunches == 1);
        if (bunches > 1 && ends_last((u32*)shared, counter, bunches))
          join_latents(joining, a, group, row0, rows, scratch, pairs, splits, 0, bunches, 8, true);
      }
    }
    barrier();
  }
}

#define LATENT(T) \
  KERNEL_CROWDED(ATTENTION_BLOCK, LATENT_CROWD, attention_latent_##T, const T* q, const T* k, const T* mask, const i64* lengths, const i64* tables, T* out, f32* scratch, \
                 u32* counters, size_t batch, size_t heads, size_t tq, size_t tk, size_t d, size_t dv, size_t k_b, size_t k_t, \
                 size_t mask_b, size_t mask_h, size_t mask_i, size_t mask_j, f64 scale, u32 splits) { \
    DYNAMIC_SHARED(T, tiles); \
    const Attention<T> a{q, k, k, mask, nullptr, out, lengths, tables, (u32)batch, (u32)heads, 1, (u32)tq, (u32)tk, (u32)d, (u32)dv, 0, 0, 0, \
                         (i64)k_b, 0, (i64)k_t, (i64)k_b, 0, (i64)k_t, (i64)mask_b, (i64)mask_h, (i64)mask_i, (i64)mask_j, (f32)scale, \
                         0, 1, 0}; \
    attend_latent<Latent<T>>(tiles, a, scratch, counters, splits); \
  }
GPU_bf16(LATENT)
GPU_f16(LATENT)
GPU_f32(LATENT)

}  // namespace gpu
