// What the compilers must make of the kernels: the matrix and dot units of each family of targets, what the hot loops must look
// like, and which kernels may do otherwise, and why.

/** By family of targets; every compiler that knows a target has its units. `unit` is what kernels/probe.hip must name. */
const families = [
  { archs: /^gfx90[68]$/, unit: "fma", dot: "v_dot4" },
  { archs: /^gfx(90a|942|950)$/, unit: "mfma", matrix: "v_mfma", dot: "v_dot4" },
  { archs: /^gfx103\d$/, unit: "fma", dot: "v_dot4" },
  { archs: /^gfx11\d\d$/, unit: "wmma11", matrix: "v_wmma", dot: "v_dot4" },
  { archs: /^gfx120\d$/, unit: "wmma12", matrix: "v_wmma", dot: "v_dot4" },
];
export const unitsOf = (arch) => families.find((family) => family.archs.test(arch));

/** Which files exist for which of these instructions. */
const users = {
  matrix: [
    "attention",
    "attention_decode",
    "attention_latent",
    "attention_split",
    "conv-product",
    "expert-dense",
    "expert-quant",
    "product",
    "quant-product",
  ],
  dot: ["quant-matvec"],
};

/** The instructions that a file must use on a target, by how they begin. */
export const mustUse = (file, arch) =>
  Object.keys(users).flatMap((kind) => (users[kind].includes(file) ? (unitsOf(arch)?.[kind] ?? []) : []));

/** Kernels that may spill, or keep something in private memory, as "compiler target name". */
export const maySpill = [
  // Weights on their way, decoded ones and sums at once: most where there is no matrix unit, to whose targets no faster form was given.
  /gfx(906|103\d|11\d\d|120\d) (quant_product|expert_quant)_/,
  // Two registers.
  /gfx942 conv_spread_bf16/,
  // 32 bytes, where results are stored: LLVM 16 takes an array of them for memory, later releases do not.
  /clang-16 gfx11\w* (product|expert_dense)_/,
  // A tile of 256 columns per thread: some spills cost less than a smaller tile.
  /gfx(906|10|11|12)\w* attention_(decode_)?(masked_|f8_)?256_/,
  // Four registers, to the accumulators, in f32, which has no matrix unit there.
  /gfx90a attention_masked_96_f32/,
  // A few registers.
  /gfx11\w* attention_(decode_)?(masked_|f8_)?128_b?f16/,
  // Up to 721 registers with one release or the other: AMD's devices take smaller heads only (ops/attention.ts).
  /gfx\w* attention_split_(masked_)?(96|128|256)_/,
  /gfx950 attention_split_(masked_)?\d+_f32/,
  // Three registers; later releases need none.
  /clang-16 gfx11\w* attention_(masked_)?96_b?f16/,
  // Up to 49 registers, where rows are no power of two and there is no matrix unit; earlier releases need none.
  /clang-22 gfx(90[68]|103)\w* attention_decode_(masked_|f8_)?96_/,
  // Up to four registers, to the accumulators.
  /gfx9(0a|42|50) attention_masked_(128|256)_/,
  // Two registers, to the accumulators.
  /clang-22 gfx950 attention_256_bf16/,
  // Up to 23 registers, where there is no matrix unit and bf16 is widened by hand; later releases need none.
  /clang-16 gfx103\d attention_(masked_)?128_bf16/,
  // Up to four registers, of rows that are no power of two, besides which a table of pages is walked.
  /clang-19 gfx103\d attention_decode_(masked_)?96_bf16/,
  /clang-19 gfx1\d+ attention_masked_96_f32/,
  // To the accumulators, in f32, which has no matrix unit there.
  /clang-16 gfx90a attention_256_f32/,
  // Up to ten registers: a block of 1024 threads leaves 64 to each.
  /gfx906 sample_draw/,
  // One register, to the accumulators.
  /clang-22 gfx9(0a|42|50) attention_(masked_)?64_f32/,
];

/** Kernels that live by the matrix unit, by file and name, and the least share of it in their hot loops. */
const multiplying = [
  { file: "product", kernels: /^product_[km][kn]_/, least: 0.6 },
  { file: "product", kernels: /^product_small_/, least: 1 / 3 },
  { file: "conv-product", kernels: /^conv_(product|spread)(_small)?_b?f16$/, least: 1 / 3 },
  { file: "attention", kernels: /_b?f16$/, least: 1 / 3 },
];
/** Files whose kernels do little but read memory: halves must come in more than one at a time. */
const streaming = [
  ...["affine", "binary", "cast", "decode", "glu", "norm", "reduce", "rope", "softmax", "ternary", "unary"],
  ...["attention_decode", "linear", "quant-blocks", "quant-matvec"],
];

/**
 * The matrix unit's share by which a hot loop is judged: what the units allow by count, and where llvm-mca knows what a wave alone
 * reaches, no more than so many waves as fit on a SIMD reach together.
 */
export const shareOf = ({ alone, counted }, waves) =>
  alone === undefined ? counted : Math.min(counted, waves * alone);

/** What is wrong with the hot loop of a kernel: the names of the signs and what was found. */
export function signsOf(file, arch, { name, hot, waves }) {
  const signs = [];
  const show = (sign, found) => signs.push({ sign, found: `${found} in its hot loop` });
  const widest = Math.max(0, ...hot.loads.map(([bytes]) => bytes));
  const product = multiplying.find((one) => one.file === file && one.kernels.test(name));
  if (product && unitsOf(arch)?.matrix) {
    const share = shareOf(hot, waves);
    if (hot.matrix === 0) show("no matrix unit", "no matrix instruction");
    else if (share < product.least) show("low share", `${share.toFixed(2)} of the matrix unit's time`);
    if (hot.loads.length > 0 && widest < 16) show("narrow loads", `loads of ${widest} bytes at most`);
  }
  if (product || streaming.includes(file)) {
    if (hot.loads.some(([bytes]) => bytes === 2)) show("2-byte loads", "loads of 2 bytes");
    if (hot.flat > 0) show("flat loads", `${hot.flat} accesses that may be to any memory, for which every wait waits,`);
  }
  return signs;
}

/** Signs that are known and why they stay, for kernels as "compiler target name". */
export const mayShow = [
  {
    sign: "low share",
    kernels: /gfx9\w+ attention_/,
    why: "Softmax takes longer than the products: an MFMA is done in 16 or 32 cycles, and every other instruction takes 4.",
  },
  {
    sign: "low share",
    kernels: /gfx(1\w+ attention_masked_32|12\w+ attention_masked_(64|96))_/,
    why: "The mask of 32 keys takes as long as products over 64 elements or, walking a table of pages, 96; both sides of the branch around it are counted.",
  },
  {
    sign: "low share",
    kernels: /(gfx12\w+|clang-16 gfx11\w+) attention_32_/,
    why: "Products over 32 elements are few beside the powers of two of their scores.",
  },
  {
    sign: "2-byte loads",
    kernels: / attention_(decode_)?(masked|f8)_/,
    why: "A mask may have any strides, and its elements are read where the lanes have their scores.",
  },
  {
    sign: "2-byte loads",
    kernels: /clang-16 gfx\w+ attention_/,
    why: "LLVM 16 reads one by one the values that are turned on their way; later releases read them whole.",
  },
  {
    sign: "2-byte loads",
    kernels: /clang-16 gfx\w+ (linear_(fine_)?i?q|expert_linear_)\w+$/,
    why: "What LLVM 16 makes of it is hottest by count where x is read that is not aligned, in a branch beside the one that reads 16 bytes.",
  },
  {
    sign: "2-byte loads",
    kernels: / expert_sum_/,
    why: "What an expert counts may be a half, of which there is one for every 32 elements.",
  },
  {
    sign: "2-byte loads",
    kernels: / (pow_\w+|div_i16)$/,
    why: "A power or a quotient of integers takes a hundred instructions an element, beside which its load is nothing.",
  },
  {
    sign: "2-byte loads",
    kernels: / cumsum_/,
    why: "A running sum goes along any axis, and neighbouring threads have neighbouring elements or rows.",
  },
  {
    sign: "2-byte loads",
    kernels: / rope_append_/,
    why: "Heads that are no whole pieces go element by element, in a branch beside the one that reads 16 bytes.",
  },
];
