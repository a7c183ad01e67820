/**
 * Every kernel in kernels/*.hip: its name, its arguments in order and how it is launched. The launcher packs arguments
 * from this table alone, and the compile check compares it with the metadata of the compiled kernels.
 */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { type QuantType, quantTypeNames } from "../../core/quant-types.ts";
import { ATTENTION_BLOCK, decodeBlocks, headDims } from "./attention-plan.ts";

/** "size" is a 64-bit size or stride; "T" a scalar of the kernel's dtype. */
export type ArgKind = "size" | "ptr" | "u8" | "u32" | "i32" | "u64" | "f64" | "T";

export interface Arg {
  readonly name: string;
  readonly kind: ArgKind;
}

export interface Launch {
  readonly grid: number;
  readonly block: number;
  /** Bytes of dynamic shared memory. */
  readonly shared: number;
}

/** The values of a kernel's arguments that are sizes or 32-bit numbers, by name. */
export type Sizes = Readonly<Record<string, number>>;

export interface Kernel {
  readonly name: string;
  /** The pattern of names that it was made from. */
  readonly family: string;
  /** kernels/<file>.hip */
  readonly file: string;
  /** The part of the file that holds it: a program built with GPU_ONLY and GPU_ONLY_<unit> has just these kernels. */
  readonly unit: DType | Lowercase<QuantType> | "bytes";
  readonly args: readonly Arg[];
  launch(sizes: Sizes): Launch;
}

const BLOCK = 256;
/** Blocks of one launch: kernels loop beyond it, and grid × block must stay below 2^32 on AMD. */
const MAX_GRID = 2 ** 22;

const blocks = (items: number, perBlock = 1, block = BLOCK): Launch => ({
  grid: Math.max(1, Math.min(MAX_GRID, Math.ceil(items / perBlock))),
  block,
  shared: 0,
});

/** One vector per thread, of elements that fill 16 bytes. */
const elements = (n: number, type: DType): Launch => blocks(n, (BLOCK * 16) / sizeOf(type));
const perThread = (n: number, count = 1): Launch => blocks(n, BLOCK * count);
/** Two vectors, four where the result is wider; a vector fills 16 bytes of the result, and at most 32 of the source. */
const castPerThread = (from: number, to: number): number => (to > from ? 4 : 2) * Math.min(16 / to, 32 / from);

const floats = ["bf16", "f16", "f32", "f64"] as const;
const ints = ["u8", "u32", "i16", "i32", "i64"] as const;
const numbers = [...floats, ...ints] as const;
const all = [...numbers, "f8e4m3"] as const;
const ids = ["u8", "u32", "i64"] as const;
const byteSizes = ["1", "2", "4", "8"] as const;
const quants = quantTypeNames.map((name) => name.toLowerCase());
const quantFloats = ["bf16", "f16", "f32"] as const;

type Bindings = Readonly<Record<string, string>>;

interface Family {
  readonly file: string;
  /** The kernels' names; each {placeholder} ranges over the values of the same name in `over`. */
  readonly pattern: string;
  readonly over: Readonly<Record<string, readonly string[]>>;
  /** `name` is a size, `name*` a pointer, `name:kind` anything else. */
  readonly args: string;
  readonly launch: (sizes: Sizes, bound: Bindings) => Launch;
}

const dtype = (bound: Bindings): DType => bound.T as DType;
const layout = "numel num_dims info*";
const scatterTail =
  "inp* out* left src_dim dst_dim right num_dims info* ids_stride src_stride dst_stride blocks:u32 error*";
const scattered = (s: Sizes): Launch => (s.blocks ? blocks(s.left! * s.right!) : perThread(s.left! * s.right!));
const attention =
  "q* k* v* mask* out* lengths* batch heads kv_heads tq tk d q_b q_h q_t k_b k_h k_t v_b v_h v_t mask_b mask_h mask_i mask_j scale:f64 softcap:f64 causal:u32 window";
const rowBlocks = (rows: number, rowThreads: number): Launch => blocks(rows, BLOCK / rowThreads);

const families: readonly Family[] = [
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: {
      op: [
        ...[
          "copy",
          "neg",
          "recip",
          "exp",
          "log",
          "sin",
          "cos",
          "tanh",
          "erf",
          "ceil",
          "floor",
          "round",
          "normcdf",
          "abs",
        ],
        ...["sqr", "sqrt", "gelu", "gelu_erf", "relu", "silu", "sign", "sigmoid"],
      ],
      T: floats,
    },
    args: `${layout} inp* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: { op: ["copy", "neg", "abs", "sqr", "relu", "sign"], T: ints },
    args: `${layout} inp* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "unary",
    pattern: "ucopy_{T}",
    over: { T: ["f8e4m3"] },
    args: `${layout} inp* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "unary",
    pattern: "u{op}_{T}",
    over: { op: ["elu", "powf"], T: floats },
    args: `${layout} param:T inp* out*`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "affine",
    pattern: "affine_{T}",
    over: { T: numbers },
    args: `${layout} inp* out* mul:T add:T`,
    launch: (s, b) => elements(s.numel!, dtype(b)),
  },
  {
    file: "binary",
    pattern: "{op}_{T}",
    over: {
      op: [
        ...["badd", "bsub", "bmul", "bdiv", "bmaximum", "bminimum", "bpow"],
        ...["eq", "ne", "lt", "le", "gt", "ge"],
      ],
      T: numbers,
    },
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
    args: `${layout} inp* out*`,
    launch: (s, b) => perThread(s.numel!, castPerThread(sizeOf(dtype(b)), sizeOf(b.D as DType))),
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
    args: `${layout} src* dst*`,
    launch: (s, b) => perThread(s.numel!, 64 / Number(b.bytes)),
  },
  {
    file: "fill",
    pattern: "transpose_{bytes}",
    over: { bytes: byteSizes },
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
  {
    file: "indexing",
    pattern: "is_{I}_{T}",
    over: { I: ids, T: all },
    args: `${layout} ids* inp* out* left src_dim ids_dim right left_stride dim_stride error*`,
    launch: (s, b) => perThread(s.numel!, (2 * 16) / sizeOf(dtype(b))),
  },
  {
    file: "indexing",
    pattern: "gather_{I}_{T}",
    over: { I: ids, T: all },
    args: "numel ids* inp* out* left src_dim ids_dim right num_dims info* src_stride error*",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "indexing",
    pattern: "{op}_{I}_{T}",
    over: { op: ["s", "sa"], I: ids, T: all },
    args: `ids* ${scatterTail}`,
    launch: scattered,
  },
  {
    file: "indexing",
    pattern: "ia_{I}_{T}",
    over: { I: ids, T: all },
    args: `ids* ids_dim ${scatterTail}`,
    launch: scattered,
  },
  {
    file: "reduce",
    pattern: "fast_{op}_{T}",
    over: { op: ["sum", "min", "max", "argmin", "argmax"], T: numbers },
    args: "src_numel el_per_block num_dims info* src* dst* row_threads:u32 pieces:u32 partial*",
    launch: (s) => rowBlocks((s.src_numel! / s.el_per_block!) * s.pieces!, s.row_threads!),
  },
  {
    file: "reduce",
    pattern: "fast_{op}_cols_{T}",
    over: { op: ["sum", "min", "max", "argmin", "argmax"], T: numbers },
    args: "outer el inner outer_stride el_stride src* dst* col_threads:u32 pieces:u32 partial*",
    launch: (s, b) =>
      blocks(s.outer! * s.pieces! * Math.ceil(s.inner! / (s.col_threads! * columnsPerThread(dtype(b))))),
  },
  {
    file: "reduce",
    pattern: "fast_{op}_join_{T}",
    over: { op: ["sum", "min", "max", "argmin", "argmax"], T: numbers },
    args: "rows inner pieces:u32 partial* dst*",
    launch: (s) => rowBlocks(s.rows!, 32),
  },
  {
    file: "reduce",
    pattern: "cumsum_{T}",
    over: { T: numbers },
    args: "rows cols src* dst*",
    launch: (s) => blocks(s.rows!),
  },
  {
    file: "sort",
    pattern: "asort_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* dst* ncols:i32 ncols_pad:i32 rows",
    launch: (s, b) => blocks(s.rows!, 1, s.ncols_pad! / sortItems(s.ncols_pad!, dtype(b))),
  },
  {
    file: "sort",
    pattern: "asort_tile_{direction}_{T}",
    over: { direction: ["asc", "desc"], T: numbers },
    args: "x* keys_out* dst* ncols rows",
    launch: (s, b) => blocks(s.rows! * Math.ceil(s.ncols! / sortTile(dtype(b)))),
  },
  {
    file: "sort",
    pattern: "asort_merge_{K}",
    over: { K: ["u32", "u64"] },
    args: "rows ncols run keys_in* index_in* keys_out* index_out*",
    launch: (s) => blocks(s.rows! * Math.ceil(s.ncols! / 2048)),
  },
  {
    file: "conv",
    pattern: "conv1d_{T}",
    over: { T: numbers },
    args: "numel l_out stride padding dilation info* src* kernel* dst* groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "conv2d_{T}",
    over: { T: numbers },
    args: "numel w_out h_out stride padding dilation info* src* kernel* dst* stride_h padding_h dilation_h groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "im2col1d_{T}",
    over: { T: numbers },
    args: "dst_numel l_out l_k stride padding dilation info* src* dst*",
    launch: (s) => perThread(s.dst_numel!),
  },
  {
    file: "conv",
    pattern: "im2col_{T}",
    over: { T: numbers },
    args: "dst_numel h_out w_out h_k w_k stride padding dilation info* src* dst* stride_h padding_h dilation_h",
    launch: (s) => perThread(s.dst_numel!),
  },
  {
    file: "conv",
    pattern: "col2im1d_{T}",
    over: { T: numbers },
    args: "dst_el l_out l_in c_out k_size stride src* dst* padding dilation",
    launch: (s) => perThread(s.dst_el!),
  },
  {
    file: "conv",
    pattern: "conv_transpose1d_{T}",
    over: { T: numbers },
    args: "numel l_out stride padding out_padding dilation info* src* kernel* dst* groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "conv",
    pattern: "conv_transpose2d_{T}",
    over: { T: numbers },
    args: "numel w_out h_out stride padding out_padding dilation info* src* kernel* dst* stride_h padding_h dilation_h groups",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "{kind}_pool2d_{T}",
    over: { kind: ["avg", "max"], T: numbers },
    args: "numel w_k h_k w_stride h_stride info* src* dst*",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "upsample_nearest2d_{T}",
    over: { T: numbers },
    args: "w_out h_out w_scale:f64 h_scale:f64 info* src* dst* numel",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "pool",
    pattern: "upsample_bilinear2d_{T}",
    over: { T: numbers },
    args: "w_out h_out align_corners:u8 has_scale_h:u8 scale_h:f64 has_scale_w:u8 scale_w:f64 info* src* dst* numel",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "gemm",
    pattern: "gemm_{T}",
    over: { T: numbers },
    args: "batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* a* b* c*",
    launch: (s, b) => gemmTiles(s, sizeOf(dtype(b)) === 8 ? 64 : 128),
  },
  {
    file: "gemm",
    pattern: "gemm_small_{T}",
    over: { T: numbers },
    args: "batch m n k a_row_stride a_col_stride b_row_stride b_col_stride num_dims info* a* b* c*",
    launch: (s, b) => gemmTiles(s, sizeOf(dtype(b)) === 8 ? 32 : 64),
  },
  {
    file: "gemm",
    pattern: "gemv_{T}",
    over: { T: numbers },
    args: "batch m k a_row_stride a_col_stride x_stride num_dims info* a* x* y* row_threads:u32",
    launch: (s, b) =>
      s.a_row_stride === 1 && s.a_col_stride !== 1
        ? blocks(s.batch! * Math.ceil(s.m! / ((2 * 16) / sizeOf(dtype(b)))))
        : rowBlocks(s.batch! * s.m!, s.row_threads!),
  },
  {
    file: "attention",
    pattern: "attention{mask}_{D}_{T}",
    over: { mask: ["", "_masked"], D: headDims.map(String), T: ["bf16", "f16", "f32"] },
    args: `${attention} rows:u32 shared_bytes:u32`,
    launch: (s) => ({
      ...blocks(s.batch! * s.heads! * Math.ceil(s.tq! / s.rows!), 1, ATTENTION_BLOCK),
      shared: s.shared_bytes!,
    }),
  },
  {
    file: "attention_decode",
    pattern: "attention_decode{mask}_{D}_{T}",
    over: { mask: ["", "_masked"], D: headDims.map(String), T: ["bf16", "f16", "f32"] },
    args: `${attention} scratch* splits:u32 threads:u32 shared_bytes:u32`,
    launch: (s) => ({
      ...blocks(decodeBlocks(s.batch!, s.heads!, s.kv_heads!, s.tq!) * s.splits!, 1, s.threads!),
      shared: s.shared_bytes!,
    }),
  },
  {
    file: "attention_decode",
    pattern: "attention_merge_{T}",
    over: { T: ["bf16", "f16", "f32"] },
    args: "scratch* out* rows splits d",
    launch: (s) => blocks(s.rows!, ATTENTION_BLOCK / 32, ATTENTION_BLOCK),
  },
  {
    file: "softmax",
    pattern: "{op}_{T}",
    over: { op: ["softmax", "softmax_wide", "log_softmax", "log_softmax_wide"], T: floats },
    args: "src* dst* n_cols n_rows block_size:u32",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* dst* alpha* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "layernorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* dst* alpha* beta* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "norm",
    pattern: "add_rmsnorm{wide}_{T}",
    over: { wide: ["", "_wide"], T: floats },
    args: "src* residual* sum* dst* alpha* n_cols block_size:u32 eps:f64 n_rows",
    launch: wholeRows,
  },
  {
    file: "rope",
    pattern: "rope_i_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* bh td stride_b d table_stride",
    launch: (s, b) => ropeBlocks(s.bh! * s.td!, dtype(b)),
  },
  {
    file: "rope",
    pattern: "rope_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* bh td d stride_b table_stride",
    launch: (s, b) => ropeBlocks(s.bh! * s.td!, dtype(b)),
  },
  {
    file: "rope",
    pattern: "rope_thd_{T}",
    over: { T: floats },
    args: "src* cos* sin* dst* b t h d stride_b table_stride",
    launch: (s, b) => ropeBlocks(s.b! * s.t! * s.h! * s.d!, dtype(b)),
  },
  {
    file: "glu",
    pattern: "{op}_{T}",
    over: { op: ["swiglu", "geglu"], T: floats },
    args: "gate* up* dst* rows width row_stride",
    launch: (s, b) => perThread(s.rows! * s.width!, 16 / sizeOf(dtype(b))),
  },
  {
    file: "quant-blocks",
    pattern: "dequantize_block_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "numel w* out*",
    launch: (s) => blocks(s.numel!, QUANT_CHUNK),
  },
  {
    file: "quant-blocks",
    pattern: "get_rows_{Q}_{T}",
    over: { Q: quants, T: quantFloats },
    args: "count rows k w* ids* out* id_bytes:u32 error*",
    launch: (s) => blocks(s.count! * Math.ceil(s.k! / QUANT_CHUNK)),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_q8_{T}",
    over: { T: quantFloats },
    args: "numel src* xq* xs*",
    launch: (s) => perThread(s.numel!, 4),
  },
  {
    file: "quant-quantize",
    pattern: "quantize_{blocks}",
    over: { blocks: ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"], T: ["f32"] },
    args: "numel src* dst*",
    launch: (s) => perThread(s.numel!, 32),
  },
  {
    file: "quant-matvec",
    pattern: "mul_mat_vec_{Q}_q8_b{columns}",
    over: { Q: quants, columns: ["1", "2", "4", "8"] },
    args: "n k w* xq* xs* y* batch:u32 dtype:u32",
    launch: (s, b) => blocks(s.n!, ...matVecBlock[b.columns!]!),
  },
  {
    file: "quant-matmul",
    pattern: "mul_mat_{Q}_q8",
    over: { Q: quants },
    args: "batch n k w* xq* xs* y* dtype:u32",
    launch: (s) => blocks(Math.ceil(s.n! / 128) * Math.ceil(s.batch! / 64)),
  },
];

/** A thread turns two vectors of pairs, 16 bytes each. */
function ropeBlocks(elements: number, type: DType): Launch {
  return perThread(elements, (2 * 16) / sizeOf(type));
}

/** Several short rows per block, a warp each; or a block per row. */
function wholeRows(s: Sizes): Launch {
  return s.block_size === 32 ? blocks(s.n_rows!, BLOCK / 32) : blocks(s.n_rows!, 1, s.block_size!);
}

/** Weights that a block dequantizes at a time. */
const QUANT_CHUNK = 8192;
/** Rows of quantized weights and threads per block, by the activation rows that a kernel is made for. */
const matVecBlock: Readonly<Record<string, [rows: number, threads: number]>> = {
  "1": [4, 128],
  "2": [8, 256],
  "4": [8, 128],
  "8": [16, 256],
};
/** The kernel that multiplies 1 … 8 activation rows with quantized weights. */
export const matVecName = (type: QuantType, batch: number): string =>
  `mul_mat_vec_${type.toLowerCase()}_q8_b${2 ** Math.ceil(Math.log2(batch))}`;
/** How kernels that take the dtype of their output as a number know it. */
export const quantOutput: Readonly<Partial<Record<DType, number>>> = { f32: 0, f16: 1, bf16: 2 };

export interface RowPlan {
  /** Threads per row. */
  readonly threads: number;
  /** "_wide" for the kernels that take more than 256 threads. */
  readonly suffix: "" | "_wide";
}

/** Threads per row of softmax and norms: as many as keep the row in registers, 64 bytes each (16 in the wide kernels). */
export function planWholeRows(columns: number, type: DType): RowPlan {
  const bytes = Math.max(1, columns * sizeOf(type));
  const threads = (each: number): number => 2 ** Math.ceil(Math.log2(bytes / each));
  if (threads(64) <= BLOCK) return { threads: Math.max(32, threads(64)), suffix: "" };
  return { threads: Math.min(1024, Math.max(512, threads(16))), suffix: "_wide" };
}

function gemmTiles(s: Sizes, tile: number): Launch {
  return blocks(s.batch! * Math.ceil(s.m! / tile) * Math.ceil(s.n! / tile));
}

const powerOfTwoUpTo = (x: number): number => 2 ** Math.floor(Math.log2(Math.max(1, x)));

/** Threads that fill a large device. */
const ENOUGH_THREADS = 2 ** 18;

export interface ReducePlan {
  /** Threads per row, or side by side along the columns. */
  readonly threads: number;
  /** Parts of each row that are reduced by themselves and joined by a second launch. */
  readonly pieces: number;
}

/** How to reduce `rows` rows of `length` elements each: a few lanes, a warp, a block or several blocks per row. */
export function planRows(rows: number, length: number, type: DType): ReducePlan {
  const vectors = Math.ceil((length * sizeOf(type)) / 16);
  let threads = Math.min(32, powerOfTwoUpTo(vectors / 4));
  while (threads < BLOCK && rows * threads < ENOUGH_THREADS && vectors / threads > 4) threads *= 2;
  const missing = Math.floor(ENOUGH_THREADS / (rows * threads));
  const pieces = Math.min(missing, Math.floor(vectors / (threads * 16)));
  return { threads, pieces: threads === BLOCK && pieces > 1 ? pieces : 1 };
}

/** How to reduce `outer` × `inner` columns of `length` elements each, where neighbouring columns are neighbours in memory. */
export function planColumns(outer: number, length: number, inner: number, type: DType): ReducePlan {
  const wide = Math.ceil(inner / columnsPerThread(type));
  const threads = Math.min(32, 2 ** Math.ceil(Math.log2(wide)));
  const tiles = outer * Math.ceil(wide / threads);
  const rounds = Math.ceil(length / (BLOCK / threads));
  const pieces = Math.min(Math.floor(ENOUGH_THREADS / BLOCK / tiles), Math.floor(rounds / 16));
  return { threads, pieces: Math.max(1, pieces) };
}

/** Threads per row of a matrix-vector product whose rows are contiguous. */
export function planMatVec(rows: number, length: number, type: DType): number {
  return Math.max(32, planRows(rows, length, type).threads);
}

const columnsPerThread = (type: DType): number => Math.min(8, 16 / sizeOf(type));

/** Bytes of one partial result of a reduction that is cut into pieces. */
export function partialBytes(op: string, type: DType): number {
  const value = Math.max(4, sizeOf(type));
  return op.startsWith("arg") ? 2 * value : value;
}

/** The widest row that one block sorts. */
export const sortTile = (type: DType): number => (sizeOf(type) === 8 ? 2048 : 4096);
/** `ncols_pad` for a row of at most sortTile columns: a power of two, at least 4 columns for each of 32 threads. */
export const sortPad = (columns: number): number => Math.max(128, 2 ** Math.ceil(Math.log2(columns)));
const sortItems = (padded: number, type: DType): number => (padded <= 1024 ? 4 : sortTile(type) / BLOCK);
/** The dtype of the keys that wide rows are merged by. */
export const sortKey = (type: DType): "u32" | "u64" => (sizeOf(type) === 8 ? "u64" : "u32");

/** Whether scatter and index_add give each lane (a place on the other dims) to a block rather than to a thread. */
export const scatterByBlocks = (lanes: number, length: number): boolean => lanes < 16384 && length > 32;

function parseArgs(text: string): Arg[] {
  return text.split(" ").map((word) => {
    if (word.endsWith("*")) return { name: word.slice(0, -1), kind: "ptr" };
    const [name, kind] = word.split(":");
    return { name: name!, kind: (kind ?? "size") as ArgKind };
  });
}

function expand(family: Family): Kernel[] {
  const args = parseArgs(family.args);
  let bindings: Bindings[] = [{}];
  for (const [name, values] of Object.entries(family.over)) {
    bindings = bindings.flatMap((b) => values.map((value) => ({ ...b, [name]: value })));
  }
  return bindings.map((bound) => ({
    name: family.pattern.replace(/\{(\w+)\}/g, (_, key: string) => bound[key]!),
    family: family.pattern,
    file: family.file,
    unit: (bound.Q ?? bound.T ?? "bytes") as Kernel["unit"],
    args,
    launch: (sizes) => family.launch(sizes, bound),
  }));
}

export const kernels: ReadonlyMap<string, Kernel> = new Map(families.flatMap(expand).map((k) => [k.name, k]));
export const kernelFiles: readonly string[] = [...new Set(families.map((f) => f.file))];

export function kernelNamed(name: string): Kernel {
  return (
    kernels.get(name) ?? fail("UnsupportedDTypeForOp", `there is no kernel ${name}; see kernels/ for those there are`)
  );
}

/** Bytes of an argument, which is also its alignment. */
export function argBytes(kernel: Kernel, arg: Arg): number {
  switch (arg.kind) {
    case "size":
    case "ptr":
    case "u64":
    case "f64":
      return 8;
    case "u32":
    case "i32":
      return 4;
    case "u8":
      return 1;
    case "T":
      return sizeOf(kernel.unit as DType);
    default:
      return arg.kind satisfies never;
  }
}
