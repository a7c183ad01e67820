/** Elementwise, cast, fill, copy and random kernels. */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { binaryOps, compareOps, unaryOps } from "../../backend.ts";
import {
  all,
  BLOCK,
  blocks,
  byteSizes,
  dtype,
  elements,
  type Family,
  floats,
  ids,
  ints,
  layout,
  numbers,
  perThread,
} from "./family.ts";

/** `count` vectors of 16 bytes per thread. */
const vectors = (n: number, type: DType, count: number) => perThread(n, (count * 16) / sizeOf(type));

/** Two vectors per thread; a vector fills 16 bytes of the result, and at most 32 of the source. */
const casts = (n: number, from: number, to: number) => {
  const block = from < to ? 4 * BLOCK : BLOCK;
  return blocks(n, 2 * block * Math.min(16 / to, 32 / from), block);
};

export const elementwise: readonly Family[] = [
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: {
      op: ["copy", ...unaryOps.filter((op) => op !== "elu" && op !== "powf")],
      T: floats,
    },
    apart: ["op"],
    args: `${layout} inp* out*`,
    launch: (s, b) => vectors(s.numel!, dtype(b), 2),
  },
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: { op: ["copy", "neg", "abs", "sqr", "relu", "sign"], T: ints },
    apart: ["op"],
    args: `${layout} inp* out*`,
    launch: (s, b) => vectors(s.numel!, dtype(b), 2),
  },
  {
    file: "unary",
    pattern: "ucopy_{T}",
    over: { T: ["f8e4m3"] },
    args: `${layout} inp* out*`,
    launch: (s, b) => vectors(s.numel!, dtype(b), 2),
  },
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: { op: ["elu", "powf"], T: floats },
    apart: ["op"],
    args: `${layout} param:T inp* out*`,
    launch: (s, b) => vectors(s.numel!, dtype(b), 2),
  },
  {
    file: "affine",
    pattern: "affine_{T}",
    over: { T: numbers },
    args: `${layout} inp* out* mul:T add:T`,
    launch: (s, b) => vectors(s.numel!, dtype(b), sizeOf(dtype(b)) < 4 ? 2 : 4),
  },
  {
    file: "binary",
    pattern: "{op}_{T}",
    over: {
      op: [...binaryOps.map((op) => `b${op}`), ...compareOps],
      T: numbers,
    },
    apart: ["op"],
    args: `${layout} lhs* rhs* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "ternary",
    pattern: "where_{I}_{T}",
    over: { I: ids, T: all },
    args: `${layout} ids* t* f* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "cast",
    pattern: "cast_{T}_{D}",
    over: { T: all, D: all },
    apart: ["D"],
    args: `${layout} inp* out*`,
    launch: (s, b) => casts(s.numel!, sizeOf(dtype(b)), sizeOf(b.D as DType)),
  },
  {
    file: "fill",
    pattern: "const_set_{T}",
    over: { T: all },
    args: `${layout} value:T out*`,
    launch: (s, b) => perThread(s.numel!, (4 * 16) / sizeOf(dtype(b))),
  },
  {
    file: "fill",
    pattern: "copy2d_{T}",
    over: { T: all },
    args: "src* dst* d1 d2 src_stride dst_stride",
    launch: (s, b) => perThread(s.d1! * s.d2!, (4 * 16) / sizeOf(dtype(b))),
  },
  {
    file: "fill",
    pattern: "copy_strided_{bytes}",
    over: { bytes: byteSizes },
    apart: ["bytes"],
    args: `${layout} src* dst*`,
    launch: (s, b) => perThread(s.numel!, 64 / Number(b.bytes)),
  },
  {
    file: "fill",
    pattern: "transpose_{bytes}",
    over: { bytes: byteSizes },
    apart: ["bytes"],
    args: "batch rows cols src_batch_stride src_row_stride dst_batch_stride dst_row_stride src* dst*",
    launch: (s, b) => {
      const tile = b.bytes === "8" ? 32 : 64;
      return blocks(s.batch! * Math.ceil(s.rows! / tile) * Math.ceil(s.cols! / tile));
    },
  },
  {
    file: "random",
    pattern: "rand_uniform_{T}",
    over: { T: [...floats, "f8e4m3"] },
    args: "numel seed:u64 low:f64 high:f64 out*",
    launch: (s) => perThread(s.numel! / 2),
  },
  {
    file: "random",
    pattern: "rand_normal_{T}",
    over: { T: [...floats, "f8e4m3"] },
    args: "numel seed:u64 mean:f64 deviation:f64 out*",
    launch: (s) => perThread(s.numel! / 2),
  },
];
