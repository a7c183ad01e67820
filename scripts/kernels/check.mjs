// Compiles kernels for every supported GPU by every compiler that is there (coverage.mjs says which where), and compares what
// they made of it with the launcher's catalogue.
//
//   node scripts/kernels/check.mjs [--compiler clang-19] [--arch gfx1100,sm_90a] [--file reduce,sort] [--jobs 2] [--table] [--all]
//   node scripts/kernels/check.mjs --report docs/kernels.md
//   node scripts/kernels/check.mjs --clang /path/bin/clang++ --bitcode /path/amdgcn/bitcode
//
// --all compiles every kernel everywhere, which takes hours. Prints a line per kernel with --table (registers, shared memory,
// spills, waves per SIMD, and of its hot loop the instructions, accesses and the matrix unit's share), a summary always;
// --report writes those of the kernels that matter into a page. The exit code is 1 where the two disagree, a matrix or dot unit
// goes unused, or a kernel shows a bad sign that expected.mjs does not list: spilt registers, a low share of the matrix unit, narrow
// loads. What was found right is noted in kernels/checked.json, and the tests fail where that is not about the sources as they
// stand. A run that was stopped goes on where it was; --merge FILE takes over what the record of another machine says.
import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { parseArgs } from "node:util";
import { runnerImport } from "vite";
import {
  amdTargets,
  amdToolchain,
  compiledFacts,
  compileNvidia,
  disassemble,
  findToolchains,
  inParallel,
  instructionsIn,
  knowsTarget,
  nvidiaTargets,
  sharesByMca,
  targetsOf,
} from "./compile.mjs";
import { kernelsToCheck } from "./coverage.mjs";
import { mayShow, maySpill, mustUse, shareOf, signsOf, unitsOf } from "./expected.mjs";
import { hotRound, roundFacts } from "./hot-loop.mjs";
import { plannedLaunch } from "./launches.mjs";
import { functionsOf } from "./listing.mjs";
import { Record } from "./record.mjs";
import { tableOf, writeReport } from "./report.mjs";

const { values: options } = parseArgs({
  options: {
    compiler: { type: "string" },
    arch: { type: "string" },
    file: { type: "string" },
    jobs: { type: "string", default: String(availableParallelism()) },
    clang: { type: "string" },
    bitcode: { type: "string" },
    merge: { type: "string" },
    report: { type: "string" },
    table: { type: "boolean", default: false },
    all: { type: "boolean", default: false },
  },
});
const source = async (name) => (await runnerImport(`./src/backend/gpu/${name}.ts`)).module;
const { argumentsHash, definesOf, kernelFiles, kernels } = await source("catalogue");
const { compareWithCatalogue, occupancy, readCodeObject } = await source("codeobject");
const { unitOf } = await source("matrix-unit");

const among = (given) => (name) => !given || given.split(",").includes(name);
const toolchains = findToolchains();
const amd = options.clang
  ? [amdToolchain(options.clang, options.bitcode ?? toolchains.amd[0]?.bitcode ?? "")]
  : toolchains.amd.filter(({ name }) => among(options.compiler)(name));
const nvcc = !options.clang && among(options.compiler)("nvcc") ? toolchains.nvcc : undefined;
const archs = [...amdTargets, ...nvidiaTargets].filter(among(options.arch));
const files = kernelFiles.filter(among(options.file));
const record = new Record(kernelFiles, argumentsHash);
if (options.merge) record.merge(options.merge);
const problems = [];
/** Compilers that had something to do; the others' results were there. */
const worked = new Set();
const rows = [];

/** Everything that is asked of a code object, however the rules may change. */
const look = (toolchain, file, arch) => async (path) => {
  const listing = await disassemble(toolchain, path);
  const functions = functionsOf(listing);
  const kernels = readCodeObject(readFileSync(path));
  const rounds = new Map(kernels.map(({ name }) => [name, hotRound(functions.get(name))]));
  const hot = new Map([...rounds].map(([name, round]) => [name, roundFacts(round, arch)]));
  const multiplying = new Map([...rounds].filter(([name]) => hot.get(name).matrix > 0));
  const alone = await sharesByMca(arch, multiplying);
  return {
    kernels: kernels.map((kernel) => {
      const share = alone.get(kernel.name);
      return {
        ...kernel,
        hot: { ...hot.get(kernel.name), ...(share !== undefined && { alone: Number(share.toFixed(2)) }) },
      };
    }),
    uses: instructionsIn(listing, mustUse(file, arch)),
  };
};

async function checkAmd(toolchain, file, arch) {
  const ofFile = [...kernels.values()].filter((kernel) => kernel.file === file);
  const wanted = options.all ? ofFile : kernelsToCheck(toolchain.name, arch, ofFile);
  const picks =
    wanted.length === ofFile.length ? [] : ["-DGPU_PICK", ...wanted.map(({ name }) => `-DGPU_PICK_${name}`)];
  const facts = await compiledFacts(toolchain, file, arch, look(toolchain, file, arch), [
    ...definesOf(file, arch),
    ...picks,
  ]);
  const found = facts.kernels;
  if (facts.fresh) worked.add(toolchain.name);
  const before = problems.length;
  const complain = (text) => problems.push(`${toolchain.name} ${arch} ${file}: ${text}`);
  const shares = [];
  for (const problem of compareWithCatalogue(found, wanted)) complain(problem);
  for (const kernel of found) {
    const name = `${toolchain.name} ${arch} ${kernel.name}`;
    const isKnown = maySpill.some((pattern) => pattern.test(name));
    if (kernel.vgprSpills > 0 && !isKnown) complain(`${kernel.name} spills ${kernel.vgprSpills} vector registers`);
    else if (kernel.scratch > 0 && kernel.vgprSpills === 0 && !isKnown)
      complain(`${kernel.name} keeps ${kernel.scratch} bytes in private memory`);
    const launch = plannedLaunch(kernel.name, arch);
    const row = { ...kernel, waves: occupancy(arch, kernel, launch) };
    for (const { sign, found } of signsOf(file, arch, row)) {
      if (!mayShow.some((known) => known.sign === sign && known.kernels.test(name)))
        complain(`${kernel.name}: ${found}`);
    }
    rows.push({ ...row, compiler: toolchain.name, arch, lds: Math.max(kernel.lds, launch?.shared ?? 0) });
    const share = shareOf(kernel.hot, row.waves);
    if (share !== undefined) shares.push(share);
  }
  for (const missing of mustUse(file, arch).filter((name) => !facts.uses.includes(name))) {
    complain(`no ${missing} instruction`);
  }
  if (problems.length > before) return facts.seconds;
  const most = (of) => Math.max(...found.map(of));
  record.note(file, toolchain.name, arch, {
    kernels: found.length,
    vgprs: most((kernel) => kernel.vgprs),
    lds: most((kernel) => kernel.lds),
    spilling: found.filter((kernel) => kernel.vgprSpills > 0).length,
    seconds: Number(facts.seconds.toFixed(1)),
    ...(facts.uses.length > 0 && { uses: facts.uses.join(" ") }),
    ...(shares.length > 0 && { share: Number(Math.min(...shares).toFixed(2)) }),
  });
  return facts.seconds;
}

/** The unit that the compiler took is the one that the target has. */
async function checkProbe(toolchain, arch) {
  const look = async (path) => ({ unit: unitOf(readFileSync(path), arch) });
  const { unit, seconds } = await compiledFacts(toolchain, "probe", arch, look, definesOf("probe", arch));
  if (unit !== unitsOf(arch)?.unit) {
    problems.push(`${toolchain.name} ${arch}: takes ${unit} for products, ${unitsOf(arch)?.unit} was expected`);
  }
  return seconds;
}

async function checkNvidia(file, arch) {
  const started = performance.now();
  await compileNvidia(nvcc, file, arch, definesOf(file, arch));
  record.note(file, "nvcc", arch, {});
  return (performance.now() - started) / 1000;
}

const jobs = [];
const job = (compiler, arch, file, check) => jobs.push({ compiler, arch, file, check });
for (const toolchain of amd) {
  const knows = new Map();
  await inParallel(
    archs
      .filter((arch) => amdTargets.includes(arch))
      .map((arch) => async () => knows.set(arch, await knowsTarget(toolchain, arch))),
    Number(options.jobs),
  );
  for (const [arch, known] of knows) {
    if (known) {
      job(toolchain.name, arch, "probe", () => checkProbe(toolchain, arch));
      for (const file of files) job(toolchain.name, arch, file, () => checkAmd(toolchain, file, arch));
    } else if (targetsOf(toolchain.name).includes(arch)) {
      problems.push(`${toolchain.name}: does not know ${arch}`);
    }
  }
}
if (nvcc) {
  for (const arch of archs.filter((arch) => nvidiaTargets.includes(arch))) {
    for (const file of files) job("nvcc", arch, file, () => checkNvidia(file, arch));
  }
}

// The longest first, so that the last ones to run are short; what a file took on other targets says what is left.
jobs.sort((a, b) => record.secondsOf(b.file) - record.secondsOf(a.file));
const started = performance.now();
const elapsed = () => (performance.now() - started) / 1000;
const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
const workOf = (list) => list.reduce((sum, { file }) => sum + record.secondsOf(file), 0);
const done = new Set();
function progress({ compiler, arch, file }) {
  const left = (elapsed() / workOf([...done])) * workOf(jobs.filter((one) => !done.has(one)));
  const text = `${done.size} of ${jobs.length}, ${clock(elapsed())}, about ${clock(left)} left, ${problems.length} problems: ${compiler} ${arch} ${file}`;
  if (process.stderr.isTTY) process.stderr.write(`\r${text}\x1b[K`);
  else if (done.size % 50 === 0) console.error(text);
}

await inParallel(
  jobs.map((one) => async () => {
    try {
      await one.check();
    } catch (error) {
      const text = String(error.stderr || error.message);
      problems.push(`${one.compiler} ${one.arch} ${one.file}: ${text.split("\n").slice(0, 20).join("\n")}`);
    }
    done.add(one);
    // Kept while it goes on: a run may be stopped.
    if (done.size % 100 === 0) record.save();
    progress(one);
  }),
  Number(options.jobs),
);
if (process.stderr.isTTY) process.stderr.write("\r\x1b[K");

if (options.table) console.log(tableOf(rows));
if (options.report) writeReport(options.report, rows);
record.took(worked, elapsed(), Number(options.jobs));
record.save();
if (amd.length === 0) console.log("no AMD compiler: `npm run setup` installs them, with rocm-device-libs");
if (!nvcc) console.log("no NVIDIA compiler: nvcc is not on the path");
for (const problem of problems) console.log(problem);
console.log(
  `${jobs.length} compilations in ${elapsed().toFixed(1)} s, ${rows.length} AMD kernels, ${problems.length} problems`,
);
process.exit(problems.length > 0 || jobs.length === 0 ? 1 : 0);
