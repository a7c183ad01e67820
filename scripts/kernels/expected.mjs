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
const users = { matrix: ["attention", "attention_decode", "product"], dot: ["quant-matvec", "quant-matmul"] };

/** The instructions that a file must use on a target, by how they begin. */
export const mustUse = (file, arch) =>
  Object.keys(users).flatMap((kind) => (users[kind].includes(file) ? (unitsOf(arch)?.[kind] ?? []) : []));

/** Kernels that may spill, as "compiler target name". */
export const maySpill = [
  // A tile of 256 columns per thread: some spills cost less than a smaller tile.
  /gfx(906|10|11|12)\w* attention_(decode_)?(masked_)?256_/,
  // Four registers, to the accumulators, in f32, which has no matrix unit there.
  /gfx90a attention_masked_96_f32/,
  // A few registers.
  /gfx11\w* attention_(decode_)?(masked_)?128_b?f16/,
  // Three registers; later releases need none.
  /clang-16 gfx11\w* attention_(masked_)?96_b?f16/,
  // Up to 49 registers, where rows are no power of two and there is no matrix unit; earlier releases need none.
  /clang-22 gfx(90[68]|103)\w* attention_decode_(masked_)?96_/,
  // One register, to the accumulators.
  /clang-22 gfx9(0a|42|50) attention_(masked_)?64_f32/,
];

/** Files whose kernels live by the matrix unit, with the least share of it in their hot loops: a third, or as much as stands here. */
const multiplying = [
  { file: "product", least: (arch) => (/^gfx(942|11)/.test(arch) ? 0.6 : 1 / 3) },
  { file: "attention", least: () => 1 / 3 },
];
/** Files whose kernels do little but read memory: halves must come in more than one at a time. */
const streaming = [
  ...["affine", "binary", "cast", "decode", "glu", "norm", "reduce", "rope", "softmax", "ternary", "unary"],
  ...["attention_decode", "linear", "quant-blocks", "quant-matvec"],
];

/** The matrix unit's share by which a loop is judged: llvm-mca's where it knows the unit, else the count's. */
export const shareOf = ({ alone, counted }) => alone ?? counted;

/** What is wrong with the hot loop of a kernel, each as the name of a sign and what was found. */
export function signsOf(file, arch, name, hot) {
  const signs = [];
  const widest = Math.max(0, ...hot.loads.map(([bytes]) => bytes));
  const has = (bytes) => hot.loads.some(([width]) => width === bytes);
  const gemm = multiplying.find((one) => one.file === file);
  if (gemm && unitsOf(arch)?.matrix && /_b?f16$/.test(name)) {
    if (hot.matrix === 0) signs.push(["no matrix unit", "no matrix instruction in its hot loop"]);
    else if (shareOf(hot) < gemm.least(arch))
      signs.push(["low share", `the matrix unit works ${shareOf(hot).toFixed(2)} of its hot loop`]);
    if (hot.loads.length > 0 && widest < 16)
      signs.push(["narrow loads", `loads of ${widest} bytes at most in its hot loop`]);
  }
  if ((gemm || streaming.includes(file)) && has(2)) signs.push(["2-byte loads", "loads of 2 bytes in its hot loop"]);
  return signs.map(([sign, found]) => ({ sign, found }));
}

/** Signs that are known and why they stay, for kernels as "compiler target name". */
export const mayShow = [];
