// Compiles every kernel for every supported GPU and compares what the compilers made of it with the launcher's catalogue.
//
//   node scripts/kernels/check.mjs [--arch gfx1100,sm_90] [--file reduce,sort] [--table]
//
// Prints a line per kernel with --table (registers, shared memory, spills, waves per SIMD), a summary always. The exit code
// is 1 where the two disagree, or a kernel spills registers that is not known to.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { runnerImport } from "vite";
import { amdTargets, compileAmd, compileNvidia, findToolchain, inParallel, nvidiaTargets } from "./compile.mjs";

const { values: options } = parseArgs({
  options: { arch: { type: "string" }, file: { type: "string" }, table: { type: "boolean", default: false } },
});
const source = async (name) => (await runnerImport(`./src/backend/gpu/${name}.ts`)).module;
const { kernelFiles, kernels } = await source("catalogue");
const { compareWithCatalogue, occupancy, readCodeObject } = await source("codeobject");

/** Kernels that may spill, as "target name". */
const maySpill = [
  // Blocks of 1024 threads leave 64 registers each on gfx906; a row kept there costs a few spills, another pass over it more.
  /^gfx906 \w+_wide_/,
  // A tile of 128 or 256 columns per thread: some spills cost less than a smaller tile.
  /^gfx\w+ attention_(decode_)?(masked_)?(128|256)_/,
  // Four registers, in f32, which has no matrix unit there.
  /^gfx90a attention_masked_96_f32/,
];

const toolchain = findToolchain();
const chosen = (all, given) => (given ? given.split(",") : all);
const archs = chosen([...Object.keys(amdTargets), ...nvidiaTargets], options.arch);
const files = chosen(kernelFiles, options.file);
const problems = [];
const rows = [];
let compiled = 0;

function checkAmd(file, arch, path) {
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
}

const jobs = files.flatMap((file) =>
  archs.flatMap((arch) => {
    const job = async (compile, check) => {
      try {
        const path = await compile();
        compiled++;
        check(path);
      } catch (error) {
        problems.push(
          `${arch} ${file}: ${String(error.stderr ?? error.message)
            .split("\n")
            .slice(0, 20)
            .join("\n")}`,
        );
      }
    };
    if (arch.startsWith("gfx")) {
      if (!toolchain.amd) return [];
      return [
        () =>
          job(
            () => compileAmd(toolchain.amd, file, arch),
            (path) => checkAmd(file, arch, path),
          ),
      ];
    }
    if (!toolchain.nvcc) return [];
    return [
      () =>
        job(
          () => compileNvidia(toolchain.nvcc, file, arch),
          () => {},
        ),
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
if (!toolchain.amd) console.log("no AMD compiler: install clang-19, lld-19 and rocm-device-libs");
if (!toolchain.nvcc) console.log("no NVIDIA compiler: nvcc is not on the path");
for (const problem of problems) console.log(problem);
const seconds = ((Date.now() - started) / 1000).toFixed(1);
console.log(
  `${compiled} of ${jobs.length} files compiled in ${seconds} s, ${rows.length} AMD kernels, ${problems.length} problems`,
);
process.exit(problems.length > 0 || jobs.length === 0 ? 1 : 0);
