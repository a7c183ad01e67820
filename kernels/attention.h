// Fused attention: out = softmax(q·kᵀ·scale + mask)·v by online softmax, the parts that prefill and decode share.
//
// Scores of 16 rows at a time live in the registers of a wave (tile.h), keys and values pass through shared memory in tiles of
// KEYS. Each row carries its greatest score and the sum of powers of two so far; results are rescaled when the greatest grows.
// A score s counts as 2^(s·c) with c = scale·log₂e, one multiply-add and one instruction.
//
// A row that sees no key (an empty cache, a causal row before the first key) gives zeros; a row whose keys are all masked by −∞
// gives NaN, as 0/0 does. Keys beyond a sequence's length are never read. A sink is one more score of every row of a head, the
// same in all of them, and has no value: it enters the sums at the end.
#ifndef WICK_ATTENTION_H
#define WICK_ATTENTION_H
#include "cache-rows.h"
#include "tile.h"
namespace gpu {

constexpr f32 LOG2_E = 1.4426950408889634f;

// What a kernel's scores are: plain products, whatever there is, or products with a cap alone.
enum Kind { PLAIN, SHAPED, CAPPED };

// What a cap makes of products: softcap · tanh(y · scale / softcap), times `unit`. Where |y · scale / softcap| ≤ CURVED, which
// is nearly always, by four multiply-adds, right to softcap · 2⁻¹⁸: least greatest error among polynomials of that degree. The unit that
// powers of two wait for would have two more instructions to do for `any`.
struct Softcap {
  static constexpr f32 CURVED = 0.47f;
  f32 k[3], reach, inverse, most;
  GPU_METHOD Softcap(f32 scale, f32 softcap, f32 unit) : inverse(scale * approx_recip(softcap)), most(softcap * unit) {
    const f32 size = m_abs(inverse), z = inverse * inverse;
    k[0] = 0.99994694f * most * inverse;
    k[1] = -0.3313602f * most * inverse * z;
    k[2] = 0.11469979f * most * inverse * z * z;
    // Powers of other factors leave what a float holds.
    reach = size > 1e-4f && size < 1e4f ? CURVED * approx_recip(size) : -1;
  }
  GPU_METHOD f32 curved(f32 y) const {
    const f32 z = y * y;
    return y * (k[0] + z * (k[1] + z * k[2]));
  }
  // tanh(x) = 1 − 2 / (1 + e^2x), right to 2⁻²²; ends at ±1.
  GPU_METHOD f32 any(f32 y) const { return most - 2 * most * approx_recip(1 + approx_exp2(y * inverse * (2 * LOG2_E))); }
};

// What a launch is about; strides count elements. Values may be narrower than keys. With `tables` keys and values lie in pages of
// PAGE_SIZE positions, k_b and v_b apart: sequence b has page tables[b·tk/PAGE_SIZE + i] behind i others, and tk is what a table holds.
template <class T> struct Attention {
  const T *q, *k, *v, *mask, *sinks;
  T* out;
  const i64 *lengths, *tables;
  u32 batch, heads, kv_heads, tq, tk, d, dv;
  i64 q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, mask_b, mask_h, mask_i, mask_j;
  f32 scale, softcap;
  u32 causal, window;

  GPU_METHOD i32 length(u32 b) const {
    if (!lengths) return (i32)tk;
    const i64 n = lengths[b];
    return n < 0 ? 0 : n < (i64)tk ? (i32)n : (i32)tk;
  }
  // The first key that a tile may begin with: tiles of pages lie where tiles of `keys` do that begin with position 0.
  GPU_METHOD i32 aligned(i32 first, i32 keys) const { return tables ? first / keys * keys : first; }
};

#define ATTENTION_OPERANDS(T) const T *q, const T *k, const T *v, const T *mask, const T *sinks, const i64 *lengths, const i64 *tables, T *out
#define ATTENTION_SIZES \
  size_t batch, size_t heads, size_t kv_heads, size_t tq, size_t tk, size_t d, size_t dv, size_t q_b, size_t q_h, size_t q_t, size_t k_b, \
      size_t k_h, size_t k_t, size_t v_b, size_t v_h, size_t v_t, size_t mask_b, size_t mask_h, size_t mask_i, size_t mask_j, \
      size_t window, f64 scale, f64 softcap, u32 causal
#define ATTENTION_GATHER(T) \
  Attention<T> { \
    q, k, v, mask, sinks, out, lengths, tables, (u32)batch, (u32)heads, (u32)kv_heads, (u32)tq, (u32)tk, (u32)d, (u32)dv, (i64)q_b, (i64)q_h, (i64)q_t, \
        (i64)k_b, (i64)k_h, (i64)k_t, (i64)v_b, (i64)v_h, (i64)v_t, (i64)mask_b, (i64)mask_h, (i64)mask_i, (i64)mask_j, \
        (f32)scale, (f32)softcap, causal, (u32)window \
  }

// The keys that query t sees: first(t) … end(t) − 1. Few numbers, as they stay in registers. A window reaches back from a causal
// query, and to both sides of another.
struct Sight {
  i32 limit, reach, back;
  GPU_METHOD i32 end(i32 t) const { return t + reach < limit ? t + reach : limit; }
  GPU_METHOD i32 first(i32 t) const { return t + back > 0 ? t + back : 0; }
};
template <class T> GPU_FN Sight sight_of(const Attention<T>& a, i32 length, u32 tq) {
  constexpr i32 FAR = 1 << 30;
  const i32 shift = length - (i32)tq + 1;
  const bool windowed = a.window && a.window < FAR;
  const i32 window = (i32)a.window, ahead = a.causal ? 0 : window;
  return Sight{length, a.causal || windowed ? shift + ahead : FAR, windowed ? shift - window - (a.causal ? 0 : 1) : -FAR};
}

// Row r of a group of heads that share keys: query r / group of head first_head + r % group.
struct Group {
  u32 b, first_head, group, rows;
  GPU_METHOD i32 query(u32 r) const { return (i32)(r / group); }
  GPU_METHOD u32 head(u32 r) const { return first_head + r % group; }
};

typedef Vec<u32, 4> Piece;

// Rows of memory, any distance apart, `d` elements each, as 16-byte pieces.
template <class T> struct Rows {
  static constexpr int W = 16 / sizeof(T);
  // What a thread holds of a piece while it travels; here the piece itself, which copies beside arithmetic can bring.
  typedef Piece Held;
  static constexpr bool COPIED = true;
  GPU_FN Piece made(const Held& held) { return held; }
  const T* base;
  i64 stride;
  u32 d;
  bool vectors;
  // By a table of pages, `page` elements apart, where there is one: the first row's page is number `entry` in it.
  const i64* table;
  i64 page;
  u32 entry;
  GPU_METHOD Rows(const T* p, i64 row_stride, u32 elements)
      : base(p), stride(row_stride), d(elements), vectors(row_stride % W == 0 && aligned_to(p, 16)), table(nullptr), page(0), entry(0) {}
  // The same of sequence b in a launch, whose own rows begin `b_stride` behind those of the one before it, or lie in pages.
  GPU_METHOD Rows(const Attention<T>& a, const T* p, u32 b, i64 b_stride, i64 row_stride, u32 elements)
      : Rows(p + (a.tables ? 0 : b * b_stride), row_stride, elements) {
    table = a.tables;
    page = b_stride;
    entry = b * (a.tk / PAGE_SIZE);
    if (a.tables && b_stride % W != 0) vectors = false;
  }
  // From where rows would lie one behind the other to where those of a page do that `row` lies in; there are none from `end` on.
  GPU_METHOD i64 shift(i32 row, i32 end) const {
    const i32 i = (row < end ? row : end - 1) / PAGE_SIZE;
    return table[entry + i] * page - i * PAGE_SIZE * stride;
  }
  // The rows of that page, by the same numbers.
  GPU_METHOD Rows tile(i32 row, i32 end) const {
    Rows own = *this;
    if (table) own.base += shift(row, end);
    return own;
  }
  GPU_METHOD const T* at(i32 row, u32 piece) const { return base + row * stride + piece * W; }
  // Zeros for what is not there. Words in one variable: compilers make a choice between structures in memory.
  GPU_METHOD Piece load(i32 row, u32 piece, i32 end) const {
    Piece x;
    UNROLL for (int j = 0; j < 4; j++) x.v[j] = 0;
    if (row < end && piece * W < d) {
      const T* from = at(row, piece);
      if (vectors) {
        const Piece y = *(const Piece*)from;
        UNROLL for (int j = 0; j < 4; j++) x.v[j] = y.v[j];
      } else {
        const bits_t<T>* bits = (const bits_t<T>*)from;
        UNROLL for (int j = 0; j < W; j++) x.v[j / (W / 4)] |= (u32)bits[j] << j % (W / 4) * 8 * sizeof(T);
      }
    }
    return x;
  }
};

// The same of rows in 8 bits (cache-rows.h), any distance apart: pieces are made of them once they are there.
template <class T> struct F8Rows {
  static constexpr int W = 16 / sizeof(T);
  typedef RowPart<T> Held;
  static constexpr bool COPIED = false;
  GPU_FN Piece made(const Held& held) { return held.made(); }
  const u8* base;
  i64 stride;
  u32 d;
  const i64* table;
  i64 page;
  u32 entry;
  GPU_METHOD F8Rows(const Attention<T>& a, const T* p, i64 head, u32 b, i64 b_stride, i64 row_stride, u32 elements)
      : base((const u8*)p + head + (a.tables ? 0 : b * b_stride)), stride(row_stride), d(elements), table(a.tables), page(b_stride), entry(b * (a.tk / PAGE_SIZE)) {}
  GPU_METHOD F8Rows tile(i32 row, i32 end) const {
    F8Rows own = *this;
    const i32 i = (row < end ? row : end - 1) / PAGE_SIZE;
    if (table) own.base += table[entry + i] * page - i * PAGE_SIZE * stride;
    return own;
  }
  GPU_METHOD Held load(i32 row, u32 piece, i32 end) const {
    // Of pieces that are not there another one is read, of the last row or of its beginning.
    const bool there = row < end, inside = piece * W < d;
    return Held::load(base + (there ? row : end - 1) * stride, inside ? piece * W : 0, d, there && inside);
  }
};

// A tile of Count rows × D on its way from memory to shared memory, moved by Threads threads. Where copies run beside
// arithmetic `fetch` starts them; else it loads registers, and `settle` stores these later, unless they would be too many.
template <class T, int Count, int D, int Threads, int Pitch, bool Turned, class R = Rows<T>> struct Carrier {
  typedef typename R::Held Held;
  static constexpr bool ASYNC = tile_t<T>::ASYNC && !Turned && R::COPIED;
  static constexpr int W = 16 / sizeof(T), PIECES = D / W, PAIR = Turned ? 2 : 1;
  // Rows that the threads move at once, or, where a row is longer, how often they go over each.
  static constexpr int LINES = PIECES <= Threads ? Threads / PIECES : 1, TIMES = PIECES <= Threads ? 1 : PIECES / Threads;
  static constexpr int N = Turned ? (Count / 2 * PIECES + Threads - 1) / Threads : (Count + LINES - 1) / LINES * TIMES;
  static_assert(PIECES <= Threads || PIECES % Threads == 0, "");
  static constexpr bool HOLD = !ASYNC && N * PAIR * sizeof(Held) <= 128;
  // Every thread has SENT pieces, one below the other: few instructions for each, which can stand between others. Rows of 96
  // elements leave a quarter of the threads without.
  static constexpr int ACROSS = PIECES == 12 ? 16 : PIECES, DOWN = ACROSS <= Threads ? Threads / ACROSS : 1, SENT = Count / DOWN;
  static constexpr bool EVEN = ASYNC && ACROSS <= Threads && Threads % ACROSS == 0 && Count % DOWN == 0;
  Held x[HOLD ? N * PAIR : 1];
  // Of an even tile: where this thread's next piece is and its first one goes, rows from there to the end, whether it is wanted.
  const T* at;
  i64 step;
  T* to;
  u32 place;
  i32 left;
  bool wanted;

  GPU_METHOD void aim(T* shared, const Rows<T>& from, i32 first, i32 end, u32 thread, bool want) {
    const u32 r = thread / ACROSS, p = thread % ACROSS;
    at = from.at(first + (i32)r, p);
    step = from.stride * DOWN;
    to = shared;
    place = tile_t<T>::template place<Pitch>(r, p);
    left = p * W < from.d ? end - first - (i32)r : 0;
    wanted = want && from.vectors && p < PIECES;
    if (want && !from.vectors) fetch_slowly(shared, from, first, end, thread);
  }
  GPU_METHOD void send(int i) {
    // As place() of row r + i · DOWN, where r < DOWN.
    const u32 turn = Pitch % 64 == 0 ? i * DOWN % 8 * W : 0;
    tile_t<T>::copy(to + (place ^ turn) + i * DOWN * Pitch, at, i * DOWN < left, wanted);
    at += step;
  }

  // In a turned tile pairs of rows lie side by side, and neighbouring threads take neighbouring pairs.
  GPU_FN u32 row(u32 thread, int i) {
    return Turned ? (thread + i * Threads) % (Count / 2) * 2 : thread / PIECES + i / TIMES * LINES;
  }
  GPU_FN u32 piece(u32 thread, int i) {
    return Turned ? (thread + i * Threads) / (Count / 2) : thread % PIECES + i % TIMES * Threads;
  }
  GPU_FN bool exists(u32 thread, int i) {
    if (Turned) return Count / 2 * PIECES % Threads == 0 || thread + i * Threads < Count / 2 * PIECES;
    return (TIMES > 1 || Threads % PIECES == 0 || thread < LINES * PIECES) && (Count % LINES == 0 || row(thread, i) < Count);
  }

  GPU_METHOD void fetch(T* shared, const R& from, i32 first, i32 end, u32 thread) {
    if constexpr (EVEN) {
      aim(shared, from, first, end, thread, true);
      UNROLL for (int i = 0; i < SENT; i++) send(i);
    } else if constexpr (ASYNC) {
      if (!from.vectors) return fetch_slowly(shared, from, first, end, thread);
      UNROLL for (int i = 0; i < N; i++) if (exists(thread, i)) {
        const u32 r = row(thread, i), p = piece(thread, i);
        const bool there = first + (i32)r < end && p * W < from.d;
        tile_t<T>::copy(shared + tile_t<T>::template place<Pitch>(r, p), there ? from.at(first + (i32)r, p) : from.base, there, true);
      }
    } else if constexpr (HOLD) {
      UNROLL for (int i = 0; i < N; i++) if (exists(thread, i))
        UNROLL for (int w = 0; w < PAIR; w++) x[i * PAIR + w] = from.load(first + (i32)row(thread, i) + w, piece(thread, i), end);
    } else {
      fetch_slowly(shared, from, first, end, thread);
    }
  }
  // Straight to shared memory, which is free by the time of a fetch; a few pieces at a time.
  GPU_METHOD void fetch_slowly(T* shared, const R& from, i32 first, i32 end, u32 thread) {
    constexpr int G = ASYNC ? 1 : (R::COPIED ? 4 : 8) / PAIR;
    NO_UNROLL for (int base = 0; base < N; base += G) {
      Held y[G][PAIR];
      UNROLL for (int i = 0; i < G; i++) UNROLL for (int w = 0; w < PAIR; w++)
        if (base + i < N && exists(thread, base + i))
          y[i][w] = from.load(first + (i32)row(thread, base + i) + w, piece(thread, base + i), end);
      UNROLL for (int i = 0; i < G; i++)
        if (base + i < N && exists(thread, base + i)) store(shared, row(thread, base + i), piece(thread, base + i), y[i]);
    }
  }
  GPU_METHOD void settle(T* shared, u32 thread) {
    if constexpr (HOLD) UNROLL for (int i = 0; i < N; i++)
      if (exists(thread, i)) store(shared, row(thread, i), piece(thread, i), x + i * PAIR);
  }
  GPU_FN void store(T* shared, u32 r, u32 p, const Held* held) {
    if constexpr (Turned) {
      const Piece one = R::made(held[0]), other = R::made(held[1]);
      UNROLL for (int j = 0; j < 4; j++) {
        const u32 a = one.v[j], b = other.v[j];
        *(u32*)(shared + (p * W + 2 * j) * Pitch + r) = (a & 0xffffu) | b << 16;
        *(u32*)(shared + (p * W + 2 * j + 1) * Pitch + r) = a >> 16 | (b & 0xffff0000u);
      }
    } else {
      *(Piece*)(shared + tile_t<T>::template place<Pitch>(r, p)) = R::made(held[0]);
    }
  }
};

// Elements of shared memory that `keys` keys and values take, in rows of `pitch`.
template <class T> GPU_FN constexpr int stage_size(int d, int keys, int pitch) {
  return keys * pitch + (tile_t<T>::TRANSPOSED ? d * tile_pitch<T>(keys) : keys * pitch);
}
template <class T> GPU_FN constexpr int stage_size(int d, int keys) { return stage_size<T>(d, keys, tile_pitch<T>(d)); }

// Geometry of the waves' work: a wave has Strips × 16 rows; Threads threads share each tile of Keys keys.
template <class T_, int D_, int Keys, int Strips, int Threads, bool KeepQ, int Pitch = tile_pitch<T_>(D_), class R_ = Rows<T_>> struct Shape {
  typedef T_ T;
  typedef R_ R;
  typedef tile_t<T> Tile;
  static constexpr int D = D_, KEYS = Keys, STRIPS = Strips, THREADS = Threads;
  // Queries as operands in registers, or read from shared memory for every tile.
  static constexpr bool KEEP_Q = KeepQ && Tile::REGISTERS;
  static constexpr int PITCH = Pitch, V_PITCH = Tile::TRANSPOSED ? tile_pitch<T>(Keys) : PITCH;
  static constexpr bool ASYNC = Tile::ASYNC && R::COPIED;
  static constexpr int STAGES = ASYNC ? 2 : 1, STAGE = stage_size<T>(D, Keys, Pitch), SIZE = STAGES * STAGE, K_SIZE = Keys * PITCH;
  typedef Carrier<T, Keys, D, Threads, PITCH, false, R> KCarrier;
  typedef Carrier<T, Keys, D, Threads, V_PITCH, Tile::TRANSPOSED, R> VCarrier;
};

// One wave's rows: queries, statistics and results.
template <class S, bool Masked> struct Flash {
  typedef typename S::T T;
  typedef typename S::Tile Tile;
  typedef typename Tile::Ref Ref;
  static constexpr int STEPS = S::D / 16, KEY_TILES = S::KEYS / 16, M = S::STRIPS, R = Tile::ROWS;

  struct Scores { typename Tile::C c[M][KEY_TILES]; };

  const Attention<T>& a;
  const Group& group;
  const Sight& sight;
  u32 first_row;
  f32 c;
  Ref q_ref;
  typename Tile::A q[S::KEEP_Q ? M : 1][S::KEEP_Q ? STEPS : 1];
  typename Tile::C o[M][STEPS];
  f32 best[M][R], sum[M][R];

  // queries: this wave's rows in shared memory.
  GPU_METHOD Flash(const Attention<T>& a_, const Group& group_, const Sight& sight_, u32 row, const T* queries)
      : a(a_), group(group_), sight(sight_), first_row(row), c(Masked ? LOG2_E : a_.scale * LOG2_E), q_ref(Tile::ref(queries)) {
    UNROLL for (int m = 0; m < M; m++) {
      UNROLL for (int s = 0; s < STEPS; s++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) o[m][s].x[e] = 0;
      UNROLL for (int r = 0; r < R; r++) best[m][r] = Limits<f32>::lowest(), sum[m][r] = 0;
    }
  }
  // The queries are in shared memory; those that stay in registers are taken from there.
  GPU_METHOD void take_queries() {
    if constexpr (S::KEEP_Q) UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int s = 0; s < STEPS; s++) q[m][s] = Tile::template left<S::PITCH>(q_ref, m * 16 * S::PITCH + s * 16);
  }
  GPU_METHOD u32 row(int m, int r) const { return first_row + m * 16 + Tile::row(r); }
  GPU_METHOD u32 last_row() const { return first_row + M * 16 - 1; }

  // Scores of the keys j0 … j0 + KEYS − 1 as weights; false when this wave sees none of them. `between` is called with the number
  // of each step, before its products.
  template <class Between> GPU_METHOD bool score(Scores& s, const T* keys, i32 j0, Between between) {
    if (j0 >= sight.end(group.query(last_row())) || j0 + S::KEYS <= sight.first(group.query(first_row))) {
      UNROLL for (int i = 0; i < STEPS; i++) between(i);
      return false;
    }
    const Ref k_ref = Tile::ref(keys);
    UNROLL for (int m = 0; m < M; m++)
      UNROLL for (int j = 0; j < KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) s.c[m][j].x[e] = 0;
    UNROLL for (int i = 0; i < STEPS; i++) {
      between(i);
      typename Tile::A left[M];
      UNROLL for (int m = 0; m < M; m++)
        if constexpr (S::KEEP_Q) left[m] = q[m][i];
        else left[m] = Tile::template left<S::PITCH>(q_ref, m * 16 * S::PITCH + i * 16);
      UNROLL for (int j = 0; j < KEY_TILES; j++) {
        const typename Tile::B right = Tile::template rows<S::PITCH>(k_ref, j * 16 * S::PITCH + i * 16);
        UNROLL for (int m = 0; m < M; m++) Tile::template multiply<S::PITCH>(s.c[m][j], left[m], right);
      }
    }
    if constexpr (Masked) mask_scores(s, j0);
    if (j0 + S::KEYS > sight.end(group.query(first_row)) || j0 < sight.first(group.query(last_row()))) hide(s, j0);
    weigh(s);
    return true;
  }
  // Results += weights · values.
  GPU_METHOD void gather(const Scores& s, const T* values) {
    const Ref v_ref = Tile::ref(values);
    UNROLL for (int j = 0; j < KEY_TILES; j++) {
      typename Tile::P left[M];
      UNROLL for (int m = 0; m < M; m++) left[m] = Tile::operand(s.c[m][j]);
      UNROLL for (int i = 0; i < STEPS; i++) {
        const u32 at = Tile::TRANSPOSED ? i * 16 * S::V_PITCH + j * 16 : j * 16 * S::V_PITCH + i * 16;
        const typename Tile::B right = Tile::template cols<S::V_PITCH>(v_ref, at);
        UNROLL for (int m = 0; m < M; m++) Tile::template multiply<S::V_PITCH>(o[m][i], left[m], right);
      }
    }
  }

  // s := softcap(s·scale) + mask. Places beyond the rows and keys read some other place; they are hidden or dropped.
  GPU_METHOD void mask_scores(Scores& s, i32 j0) const {
    if (a.softcap != 0) {
      const Softcap cap(a.scale, a.softcap, 1);
      UNROLL for (int m = 0; m < M; m++) UNROLL for (int j = 0; j < KEY_TILES; j++)
        UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) s.c[m][j].x[e] = cap.any(s.c[m][j].x[e]);
    } else UNROLL for (int m = 0; m < M; m++) UNROLL for (int j = 0; j < KEY_TILES; j++)
      UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) s.c[m][j].x[e] *= a.scale;
    if (a.mask) UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) {
      const u32 at = row(m, r) < group.rows ? row(m, r) : group.rows - 1;
      const T* line = a.mask + group.b * a.mask_b + group.head(at) * a.mask_h + group.query(at) * a.mask_i;
      UNROLL for (int j = 0; j < KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++)
        if (Tile::row_of(e) == r) {
          const i32 key = j0 + j * 16 + (i32)Tile::col(e);
          s.c[m][j].x[e] += widen(line[(key < sight.limit ? key : 0) * a.mask_j]);
        }
    }
  }
  GPU_METHOD void hide(Scores& s, i32 j0) const {
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) {
      const i32 t = group.query(row(m, r)), first = sight.first(t) - j0, end = sight.end(t) - j0;
      UNROLL for (int j = 0; j < KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) {
        const i32 key = j * 16 + (i32)Tile::col(e);
        if (Tile::row_of(e) == r && (key < first || key >= end)) s.c[m][j].x[e] = Limits<f32>::lowest();
      }
    }
  }
  // Of a score against a row's greatest one. A mask may take scores to where only their difference can be multiplied.
  GPU_METHOD f32 power(f32 score, f32 shift) const { return approx_exp2(Masked ? (score - shift) * c : score * c - shift); }
  // Scores become powers of two against each row's greatest; sums and results follow when that grew.
  GPU_METHOD void weigh(Scores& s) {
    f32 shift[M][R], fix[M][R];
    bool grew = false;
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) {
      f32 top = best[m][r];
      UNROLL for (int j = 0; j < KEY_TILES; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++)
        if (Tile::row_of(e) == r) top = max_fast(top, s.c[m][j].x[e]);
      top = Tile::row_max(top);
      grew = grew || top != best[m][r];
      // A row that has seen nothing yet: against −∞ everything would be NaN.
      shift[m][r] = top == Limits<f32>::lowest() ? 0 : Masked ? top : top * c;
      fix[m][r] = power(best[m][r], shift[m][r]);
      best[m][r] = top;
    }
    if (wave_any(grew)) UNROLL for (int m = 0; m < M; m++) {
      UNROLL for (int r = 0; r < R; r++) sum[m][r] *= fix[m][r];
      UNROLL for (int i = 0; i < STEPS; i++)
        UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) o[m][i].x[e] *= fix[m][Tile::row_of(e)];
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int j = 0; j < KEY_TILES; j++)
      UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) {
        const f32 p = power(s.c[m][j].x[e], shift[m][Tile::row_of(e)]);
        sum[m][Tile::row_of(e)] += p;
        s.c[m][j].x[e] = p;
      }
  }

  // Joins the lanes' sums. A row that sees no key of `all` counts as one key of value zero, added where `first`.
  GPU_METHOD void finish(const Sight& all, bool first) {
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) {
      sum[m][r] = Tile::row_sum(sum[m][r]);
      const i32 t = group.query(row(m, r));
      if (first && all.first(t) >= all.end(t)) best[m][r] = 0, sum[m][r] = 1;
    }
  }
  // Once all keys are in: what is greater than anything else leaves zeros.
  GPU_METHOD void add_sinks() {
    if (a.sinks) UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++)
      sum[m][r] += approx_exp2(widen(a.sinks[group.head(row(m, r))]) * LOG2_E - best[m][r] * c);
  }
  // f(strip, which of the lane's rows, its number among the wave's rows, first column, RUN results)
  template <class F> GPU_METHOD void each_result(F f) const {
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int i = 0; i < STEPS; i++)
      UNROLL for (int e = 0; e < Tile::ELEMENTS; e += Tile::RUN)
        f(m, Tile::row_of(e), m * 16 + Tile::row(Tile::row_of(e)), i * 16 + Tile::out_col(e), &o[m][i].x[e]);
  }
};

// Runs the tiles of keys first, first + step, … below `stop` through `flash`; keys from `end` on do not exist. `sync` makes
// what the sharing threads have written visible to all of them. Waves that are not `active` only carry. `ready` is called once
// the first tile is on its way.
template <class S, class F, class Ready, class Sync>
GPU_FN void attend(F& flash, bool active, typename S::T* shared, const typename S::R& keys, const typename S::R& values,
                   i32 first, i32 step, i32 stop, i32 end, u32 thread, Ready ready, Sync sync) {
  typedef typename S::T T;
  typename S::KCarrier k;
  typename S::VCarrier v;
  if (first >= stop) return;
  if constexpr (S::ASYNC) {
    // While one tile is used the next one travels; one meeting per tile.
    k.fetch(shared, keys.tile(first, end), first, end, thread);
    v.fetch(shared + S::K_SIZE, values.tile(first, end), first, end, thread);
    ready();
    u32 now = 0;
    NO_UNROLL for (i32 j = first; j < stop; j += step) {
      S::Tile::copies_arrive();
      sync();
      T* tile = shared + now;
      now = S::STAGE - now;
      const bool more = j + step < stop;
      typename F::Scores s;
      bool seen = false;
      if constexpr (S::KCarrier::EVEN) {
        // Copies between products.
        k.aim(shared + now, keys.tile(j + step, end), j + step, end, thread, more);
        v.aim(shared + now + S::K_SIZE, values.tile(j + step, end), j + step, end, thread, more);
        auto send = [&](int step) {
          constexpr int SENT = S::KCarrier::SENT, OVER = SENT > F::STEPS ? SENT : F::STEPS;
          UNROLL for (int i = step * OVER / F::STEPS; i < (step + 1) * OVER / F::STEPS; i++)
            if (i < SENT) k.send(i), v.send(i);
        };
        if (active) seen = flash.score(s, tile, j, send);
        else UNROLL for (int i = 0; i < F::STEPS; i++) send(i);
      } else {
        if (more) {
          k.fetch(shared + now, keys.tile(j + step, end), j + step, end, thread);
          v.fetch(shared + now + S::K_SIZE, values.tile(j + step, end), j + step, end, thread);
        }
        seen = active && flash.score(s, tile, j, [](int) {});
      }
      if (seen) flash.gather(s, tile + S::K_SIZE);
    }
  } else {
    // Values travel in registers while keys are used, and the next keys while values are.
    T* value_tile = shared + S::K_SIZE;
    k.fetch(shared, keys.tile(first, end), first, end, thread);
    ready();
    k.settle(shared, thread);
    NO_UNROLL for (i32 j = first; j < stop; j += step) {
      typename F::Scores s;
      sync();
      v.fetch(value_tile, values.tile(j, end), j, end, thread);
      const bool seen = active && flash.score(s, shared, j, [](int) {});
      v.settle(value_tile, thread);
      sync();
      if (j + step < stop) k.fetch(shared, keys.tile(j + step, end), j + step, end, thread);
      if (seen) flash.gather(s, value_tile);
      if (j + step < stop) k.settle(shared, thread);
    }
  }
}

// Row r of a group to shared memory, `count` rows by all threads of the block. queries: the first one of the group's sequence.
template <class S>
GPU_FN void load_queries(typename S::T* shared, const Attention<typename S::T>& a, const typename S::T* queries, const Group& group, u32 first, u32 count) {
  typedef typename S::T T;
  constexpr int W = 16 / sizeof(T), PIECES = S::D / W;
  for (u32 item = tid_x(); item < count * PIECES; item += bdim_x()) {
    const u32 r = first + item / PIECES;
    const Rows<T> row(queries + (i64)group.head(r) * a.q_h + group.query(r) * a.q_t, 0, a.d);
    const Piece x = row.load(0, item % PIECES, r < group.rows);
    *(Piece*)(shared + S::Tile::template place<S::PITCH>(item / PIECES, item % PIECES)) = x;
  }
}

}  // namespace gpu
#endif
