/** Elementwise, cast, fill, copy and random kernels. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { binaryOps, compareOps, unaryOps } from "../../backend.ts";
import {
  all,
  BLOCK,
  blocks,
  byteSizes,
  elements,
  family,
  floats,
  ids,
  ints,
  layout,
  numbers,
  perThread,
  WIDE_BLOCK,
} from "./family.ts";

/** Vectors of 16 bytes per thread. */
const UNARY_VECTORS = 2;
const AFFINE_VECTORS = 4;
const CAST_VECTORS = 2;
const FILL_VECTORS = 4;
const TRANSPOSE_TILE = 64;

/** `count` vectors of 16 bytes per thread. */
const vectors = (n: number, type: DType, count: number) => perThread(n, (count * 16) / sizeOf(type));

/** A vector fills 16 bytes of the result, and at most 32 of the source. */
const casts = (n: number, from: number, to: number) => {
  const block = from < to ? WIDE_BLOCK : BLOCK;
  return blocks(n, CAST_VECTORS * block * Math.min(16 / to, 32 / from), block);
};

export const elementwise = [
  family({
    file: "unary",
    pattern: "{op}_{T}",
    over: { op: unaryOps.filter((op) => op !== "elu" && op !== "powf"), T: floats },
    apart: ["op"],
    args: `x* out* ${layout}`,
    defines: { UNARY_VECTORS },
    launch: (s, b) => vectors(s.numel, b.T, UNARY_VECTORS),
  }),
  family({
    file: "unary",
    pattern: "{op}_{T}",
    over: { op: ["neg", "abs", "sqr", "relu", "sign"], T: ints },
    apart: ["op"],
    args: `x* out* ${layout}`,
    defines: { UNARY_VECTORS },
    launch: (s, b) => vectors(s.numel, b.T, UNARY_VECTORS),
  }),
  family({
    file: "unary",
    pattern: "{op}_{T}",
    over: { op: ["elu", "powf"], T: floats },
    apart: ["op"],
    args: `x* out* ${layout} param:T`,
    defines: { UNARY_VECTORS },
    launch: (s, b) => vectors(s.numel, b.T, UNARY_VECTORS),
  }),
  family({
    file: "affine",
    pattern: "affine_{T}",
    over: { T: numbers },
    args: `x* out* ${layout} mul:T add:T`,
    defines: { AFFINE_VECTORS },
    launch: (s, b) => vectors(s.numel, b.T, sizeOf(b.T) < 4 ? AFFINE_VECTORS / 2 : AFFINE_VECTORS),
  }),
  family({
    file: "binary",
    pattern: "{op}_{T}",
    over: { op: [...binaryOps, ...compareOps], T: numbers },
    apart: ["op"],
    args: `lhs* rhs* out* ${layout}`,
    launch: (s, b) => elements(s.numel, b.T),
  }),
  family({
    file: "ternary",
    pattern: "where_{I}_{T}",
    over: { I: ids, T: all },
    args: `cond* on_true* on_false* out* ${layout}`,
    launch: (s, b) => elements(s.numel, b.T),
  }),
  family({
    file: "cast",
    pattern: "cast_{T}_{To}",
    over: { T: all, To: all },
    apart: ["To"],
    args: `x* out* ${layout}`,
    defines: { CAST_VECTORS },
    launch: (s, b) => casts(s.numel, sizeOf(b.T), sizeOf(b.To)),
  }),
  family({
    file: "fill",
    pattern: "fill_{T}",
    over: { T: all },
    args: "out* numel value:T",
    defines: { FILL_VECTORS },
    launch: (s, b) => vectors(s.numel, b.T, FILL_VECTORS),
  }),
  family({
    file: "fill",
    pattern: "copy2d_{T}",
    over: { T: all },
    args: "x* out* rows cols x_stride out_stride",
    launch: (s, b) => vectors(s.rows * s.cols, b.T, FILL_VECTORS),
  }),
  family({
    file: "fill",
    pattern: "copy_strided_{bytes}",
    over: { bytes: byteSizes },
    apart: ["bytes"],
    args: `x* out* ${layout}`,
    launch: (s, b) => perThread(s.numel, (FILL_VECTORS * 16) / Number(b.bytes)),
  }),
  family({
    file: "fill",
    pattern: "transpose_{bytes}",
    over: { bytes: byteSizes },
    apart: ["bytes"],
    args: "x* out* batch rows cols x_batch_stride x_row_stride out_batch_stride out_row_stride",
    defines: { TRANSPOSE_TILE },
    launch: (s, b) => {
      const tile = b.bytes === "8" ? TRANSPOSE_TILE / 2 : TRANSPOSE_TILE;
      return blocks(s.batch * Math.ceil(s.rows / tile) * Math.ceil(s.cols / tile));
    },
  }),
  family({
    file: "fill",
    pattern: "pad_lines_{bytes}",
    over: { bytes: ["2", "4"] },
    apart: ["bytes"],
    args: "x* out* batch lines length line_step step num_dims info*",
    launch: (s, b) => perThread(s.batch * s.lines * Math.ceil((s.length * Number(b.bytes)) / 16)),
  }),
  family({
    file: "random",
    pattern: "rand_uniform_{T}",
    over: { T: [...floats, "f8e4m3"] },
    args: "out* numel seed:u64 low:f64 high:f64",
    launch: (s) => perThread(s.numel / 2),
  }),
  family({
    file: "random",
    pattern: "rand_normal_{T}",
    over: { T: [...floats, "f8e4m3"] },
    args: "out* numel seed:u64 mean:f64 deviation:f64",
    launch: (s) => perThread(s.numel / 2),
  }),
] as const;
