// What the compilers must make of the kernels: the matrix and dot units of each family of targets, and which kernels may spill.

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
const users = { matrix: ["attention", "attention_decode", "product", "quant-product"], dot: ["quant-matvec"] };

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
