// Compiles the programs that Wick compiles at run time with the hiprtc that is installed, through Wick's own binding (its
// processes, stacks and options), and compares what comes out with the launcher's catalogue. No GPU is needed.
//
//   node scripts/hiprtc.mjs [--arch gfx90a,gfx1030] [--only softmax,reduce] [--all]
//
// Without --arch: every target of the compile check that this compiler knows; all programs for one target of each generation,
// and for the others one program of each family of kernels (coverage.mjs), unless --all asks for more. Results are kept under
// node_modules/.cache, so that an interrupted run goes on where it was. The exit code is 1 where a program does not compile or is
// not what the catalogue says.
import { parseArgs } from "node:util";
import { runnerImport } from "vite";
import { amdTargets } from "./kernels/compile.mjs";
import { kernelsToCheck } from "./kernels/coverage.mjs";

const { values: options } = parseArgs({
  options: { arch: { type: "string" }, only: { type: "string" }, all: { type: "boolean", default: false } },
});
const source = async (name) => (await runnerImport(`./src/backend/gpu/${name}.ts`)).module;
const { probeProgram, programCodeAsync, programs } = await source("program");
const { compareWithCatalogue, readCodeObject } = await source("codeobject");
const { KernelCache } = await source("kernel-cache");
const { openHip } = await source("rocm/hip");

const { driver, compiler: open } = openHip();
const compiler = open();
const archs = options.arch?.split(",") ?? amdTargets.filter((arch) => compiler.supports(arch));
const files = options.only?.split(",");
const all = programs().filter(({ file }) => files?.includes(file) ?? true);
/** Those that hold a kernel of the sample. */
function programsFor(arch) {
  if (options.all) return [probeProgram, ...all];
  const ofFile = (file) => all.filter((program) => program.file === file).flatMap((program) => program.kernels);
  const sample = new Set(
    [...new Set(all.map(({ file }) => file))].flatMap((file) => kernelsToCheck("hiprtc", arch, ofFile(file))),
  );
  return [probeProgram, ...all.filter((program) => program.kernels.some((kernel) => sample.has(kernel)))];
}
const cache = new KernelCache("node_modules/.cache/wick-hiprtc", 2 ** 32);
console.log(`${driver.library}: ${compiler.identity}`);

const problems = [];
const started = Date.now();
let done = 0;
const total = archs.reduce((sum, arch) => sum + programsFor(arch).length, 0);
console.log(`${total} compilations for ${archs.join(", ")}`);
for (const arch of archs) {
  const before = problems.length;
  const work = programsFor(arch).map(async (program) => {
    try {
      const { code } = await programCodeAsync(program, { device: { name: arch, arch }, compiler, cache });
      const found = program === probeProgram ? [] : compareWithCatalogue(readCodeObject(code), program.kernels);
      problems.push(...found.map((problem) => `${arch} ${program.id}: ${problem}`));
    } catch (error) {
      problems.push(`${arch} ${program.id}: ${error.message.split("\n").slice(0, 12).join("\n")}`);
    }
    done++;
    const left = (((Date.now() - started) / done) * (total - done)) / 60_000;
    if (process.stderr.isTTY) process.stderr.write(`\r${done} of ${total}, ${arch}, ${left.toFixed(0)} min left\x1b[K`);
  });
  await Promise.all(work);
  if (process.stderr.isTTY) process.stderr.write("\r\x1b[K");
  const seconds = ((Date.now() - started) / 1000).toFixed(0);
  console.log(
    `${arch.padEnd(9)} ${work.length} programs, ${problems.length - before} problems, ${seconds} s since the start`,
  );
}
for (const problem of problems) console.log(problem);
console.log(`${total} compilations, ${problems.length} problems, ${((Date.now() - started) / 1000).toFixed(0)} s`);
process.exit(problems.length > 0 || total === 0 ? 1 : 0);
