/** What a decode step does around its attention: turning, appending to the cache, counting on. */
import { F8_ROW_TAIL } from "../../../core/cache-rows.ts";
import { PAGE_SIZE } from "../../paged-attention.ts";
import { family, perThread, quantFloats } from "./family.ts";

/** Both sides of a thread's pairs fill 16 bytes where all is aligned; elsewhere a thread has one pair, and more turns. */
export const decode = [
  family({
    file: "decode",
    pattern: "rope_append{f8}{i}_{T}",
    over: { f8: ["", "_f8"], i: ["", "_i"], T: quantFloats },
    args: "q* k* v* cos* sin* q_norm* k_norm* lengths* padding* tables* offsets* out* k_cache* v_cache* batch t heads kv_heads d rotary past q_row k_row v_row cache_b cache_h sequences singles width eps:f64",
    defines: { PAGE_SIZE, F8_ROW_TAIL },
    launch: (s, b) => perThread(s.batch * s.t * (s.heads + 2 * s.kv_heads) * s.d, b.T === "f32" ? 4 : 8),
  }),
  family({
    file: "decode",
    pattern: "cache_rows_{T}",
    over: { T: quantFloats },
    args: "rows* lengths* tables* out* groups group_stride count d sequences width",
    launch: (s, b) =>
      perThread((s.tables ? s.sequences * s.width : 1) * s.groups * s.count * s.d, b.T === "f32" ? 4 : 8),
  }),
  family({
    file: "decode",
    pattern: "advance_{T}",
    over: { T: ["i64"] },
    args: "counts* numel by",
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "decode",
    pattern: "copy_page_{T}",
    over: { T: ["i64"] },
    args: "x* starts* count vectors from to",
    launch: (s) => perThread(s.count * s.vectors),
  }),
] as const;
