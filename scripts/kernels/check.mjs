// Compiles every kernel for every supported GPU and compares what the compilers made of it with the launcher's catalogue.
//
//   node scripts/kernels/check.mjs [--arch gfx1100,sm_90] [--file reduce,sort] [--table]
//
// Prints a line per kernel with --table (registers, shared memory, spills, waves per SIMD), a summary always. The exit code
// is 1 where the two disagree, a kernel spills registers that is not known to, or a matrix or dot unit goes unused. What
// was found right is noted in kernels/checked.json, and the tests fail where that is not about the sources as they stand.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { runnerImport } from "vite";
import {
  amdTargets,
  compileAmd,
  compileNvidia,
  findToolchain,
  inParallel,
  instructionsOf,
  nvidiaTargets,
  sourceHash,
} from "./compile.mjs";

const { values: options } = parseArgs({
  options: { arch: { type: "string" }, file: { type: "string" }, table: { type: "boolean", default: false } },
});
const source = async (name) => (await runnerImport(`./src/backend/gpu/${name}.ts`)).module;
const { argumentsHash, kernelFiles, kernels } = await source("catalogue");
const { compareWithCatalogue, occupancy, readCodeObject } = await source("codeobject");

/** Kernels that may spill, as "target name". */
const maySpill = [
  // A tile of 256 columns per thread: some spills cost less than a smaller tile.
  /^gfx(906|10|11|12)\w* attention_(decode_)?(masked_)?256_/,
  // Four registers, to the accumulators, in f32, which has no matrix unit there.
  /^gfx90a attention_masked_96_f32/,
  // A few registers.
  /^gfx11\w* attention_(decode|masked)_128_b?f16/,
];

/** Instructions that a file's kernels exist for, by the targets that have them. */
const mustUse = [
  { files: ["attention", "attention_decode"], archs: /^gfx1[12]/, instruction: "v_wmma" },
  { files: ["attention", "attention_decode"], archs: /^gfx(90a|942)/, instruction: "v_mfma" },
  { files: ["quant-matvec", "quant-matmul"], archs: /^gfx/, instruction: "v_dot4" },
];

const toolchain = findToolchain();
const chosen = (all, given) => (given ? given.split(",") : all);
const archs = chosen([...Object.keys(amdTargets), ...nvidiaTargets], options.arch);
const files = chosen(kernelFiles, options.file);
const problems = [];
const rows = [];
let compiled = 0;

const recordPath = "kernels/checked.json";
const record = existsSync(recordPath) ? JSON.parse(readFileSync(recordPath, "utf8")) : {};

/** Notes that `file` is right on `arch`; what was noted of other sources is forgotten. */
function note(file, arch, facts) {
  const about = { source: sourceHash(file), arguments: argumentsHash(file) };
  const old = record[file];
  const same = old && old.source === about.source && old.arguments === about.arguments;
  record[file] = { ...about, targets: { ...(same ? old.targets : {}), [arch]: facts } };
}

async function checkAmd(file, arch, path) {
  const before = problems.length;
  const found = readCodeObject(readFileSync(path));
  const expected = [...kernels.values()].filter((kernel) => kernel.file === file);
  for (const problem of compareWithCatalogue(found, expected)) problems.push(`${arch} ${file}: ${problem}`);
  for (const kernel of found) {
    const spills = kernel.vgprSpills + kernel.sgprSpills;
    if (kernel.vgprSpills > 0 && !maySpill.some((pattern) => pattern.test(`${arch} ${kernel.name}`))) {
      problems.push(`${arch} ${file}: ${kernel.name} spills ${kernel.vgprSpills} vector registers`);
    } else if (kernel.scratch > 0 && kernel.vgprSpills === 0) {
      problems.push(`${arch} ${file}: ${kernel.name} keeps ${kernel.scratch} bytes in private memory`);
    }
    rows.push([
      arch,
      kernel.name,
      kernel.vgprs,
      kernel.agprs,
      kernel.sgprs,
      kernel.lds,
      kernel.scratch,
      spills,
      occupancy(arch, kernel),
    ]);
  }
  const wanted = mustUse
    .filter((use) => use.files.includes(file) && use.archs.test(arch))
    .map((use) => use.instruction);
  const uses = wanted.length > 0 ? await instructionsOf(path, wanted) : [];
  for (const missing of wanted.filter((name) => !uses.includes(name))) {
    problems.push(`${arch} ${file}: no ${missing} instruction`);
  }
  if (problems.length > before) return;
  const most = (of) => Math.max(...found.map(of));
  note(file, arch, {
    kernels: found.length,
    vgprs: most((kernel) => kernel.vgprs),
    lds: most((kernel) => kernel.lds),
    spilling: found.filter((kernel) => kernel.vgprSpills > 0).length,
    ...(uses.length > 0 && { uses }),
  });
}

const compilers = {
  gfx: toolchain.amd && {
    compile: (file, arch) => compileAmd(toolchain.amd, file, arch),
    check: checkAmd,
  },
  sm_: toolchain.nvcc && {
    compile: (file, arch) => compileNvidia(toolchain.nvcc, file, arch),
    check: (file, arch) => note(file, arch, {}),
  },
};

const jobs = files.flatMap((file) =>
  archs.flatMap((arch) => {
    const compiler = compilers[arch.slice(0, 3)];
    if (!compiler) return [];
    return [
      async () => {
        try {
          const path = await compiler.compile(file, arch);
          compiled++;
          await compiler.check(file, arch, path);
        } catch (error) {
          const text = String(error.stderr ?? error.message);
          problems.push(`${arch} ${file}: ${text.split("\n").slice(0, 20).join("\n")}`);
        }
      },
    ];
  }),
);
const started = Date.now();
await inParallel(jobs, 2);

if (options.table) {
  const head = ["arch", "kernel", "vgpr", "agpr", "sgpr", "lds", "scratch", "spills", "waves"];
  rows.sort((a, b) => (a[1] === b[1] ? String(a[0]).localeCompare(b[0]) : a[1] < b[1] ? -1 : 1));
  for (const row of [head, ...rows]) {
    console.log(row.map((cell, i) => (i < 2 ? String(cell).padEnd(i ? 28 : 8) : String(cell).padStart(7))).join(" "));
  }
}
const sorted = (object) => Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));
const kept = kernelFiles.filter((file) => record[file]).map((file) => [file, record[file]]);
writeFileSync(
  recordPath,
  `${JSON.stringify(sorted(Object.fromEntries(kept.map(([file, entry]) => [file, { ...entry, targets: sorted(entry.targets) }]))), null, 1)}\n`,
);
if (!toolchain.amd) console.log("no AMD compiler: install clang-19, lld-19 and rocm-device-libs");
if (!toolchain.nvcc) console.log("no NVIDIA compiler: nvcc is not on the path");
for (const problem of problems) console.log(problem);
const seconds = ((Date.now() - started) / 1000).toFixed(1);
console.log(
  `${compiled} of ${jobs.length} files compiled in ${seconds} s, ${rows.length} AMD kernels, ${problems.length} problems`,
);
process.exit(problems.length > 0 || jobs.length === 0 ? 1 : 0);
