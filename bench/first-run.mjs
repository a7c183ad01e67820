// What a first run must compile, and whether the event loop notices:
//   node bench/first-run.mjs [--compiler clang-19] [--arch gfx1100,gfx942] [--model models/fable-7m.Q8_0.gguf] [--json FILE]
// First, CPU seconds of a compiler for the programs of a Llama in Q4_K and in bf16 (heads of 128), as Wick compiles them (a few
// kernels each) and as whole files of one dtype; clang stands in for hiprtc. Then the longest pauses of the event loop while
// the model loads on the simulator, whose hiprtc holds its lock for 100 ms before each compilation.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { runnerImport } from "vite";
import { amdCommand, findToolchains } from "../scripts/kernels/compile.mjs";

const { values: options } = parseArgs({
  options: {
    compiler: { type: "string", default: "clang-19" },
    arch: { type: "string", default: "gfx1100,gfx942" },
    model: { type: "string", default: "models/fable-7m.Q8_0.gguf" },
    json: { type: "string" },
  },
});
const source = async (name) => (await runnerImport(`./src/${name}.ts`)).module;
const { programsOf, programOptions } = await source("backend/gpu/program");
const { definesOf } = await source("backend/gpu/catalogue");
const { loadingKernels, transformerKernels } = await source("backend/gpu/transformer-kernels");

const llama = {
  ...{ dtype: "bf16", headDim: 128, hiddenSize: 4096, activation: "silu", scoresAreShaped: false },
  ...{ embeddingsAreScaled: false, logitsAreCapped: false, normsAreShifted: false },
};
const models = {
  "Llama Q4_K": { ...llama, quantTypes: ["Q4_K"], storedTypes: ["f32"], hasPlainWeights: false, interleaved: true },
  "Llama bf16": { ...llama, quantTypes: [], storedTypes: ["bf16"], hasPlainWeights: true, interleaved: false },
};

/** CPU seconds that the children of a shell took. */
function cpuSeconds([command, ...args]) {
  const { stdout, stderr, status } = spawnSync("sh", ["-c", '"$@" || exit 1; times', "sh", command, ...args], {
    encoding: "utf8",
  });
  if (status !== 0) throw new Error(stderr);
  const children = stdout.trim().split("\n").at(-1);
  return [...children.matchAll(/(\d+)m([\d.]+)s/g)].reduce((sum, [, m, s]) => sum + 60 * m + Number(s), 0);
}

const compiled = [];
const toolchain = findToolchains().amd.find(({ name }) => name === options.compiler);
if (toolchain) {
  const seconds = async (file, arch, flags) =>
    cpuSeconds(await amdCommand(toolchain, file, arch, [...definesOf(file, arch), ...flags]));
  for (const [name, needs] of Object.entries(models)) {
    const programs = programsOf([...loadingKernels(needs), ...transformerKernels(needs)]);
    for (const arch of options.arch.split(",")) {
      let parts = 0;
      for (const program of programs) parts += await seconds(program.file, arch, programOptions(program));
      let whole = 0;
      const units = new Map(programs.map(({ file, unit }) => [`${file} ${unit}`, { file, unit }]));
      for (const { file, unit } of units.values()) {
        whole += await seconds(file, arch, ["-DGPU_ONLY", `-DGPU_ONLY_${unit}`]);
      }
      compiled.push({ name, arch, compiler: toolchain.name, programs: programs.length, seconds: parts, whole });
      console.log(
        `${name} on ${arch} by ${toolchain.name}: ${programs.length} programs ${parts.toFixed(1)} s, whole files ${whole.toFixed(1)} s: ${(parts / whole).toFixed(2)}×`,
      );
    }
  }
} else console.log(`${options.compiler} is not here: npm run setup`);

process.env.WICK_CACHE = mkdtempSync(join(tmpdir(), "wick-first-run-"));
process.env.WICK_SIM_COMPILE_MS = "100";
const { Device } = await import("../dist/index.js");
const { loadModel } = await import("../dist/models/index.js");
const device = Device.from("sim:32");
const pauses = [];
let last = performance.now();
const watch = setInterval(() => {
  pauses.push(performance.now() - last);
  last = performance.now();
}, 1);
const start = performance.now();
await loadModel(options.model, { device });
const loadSeconds = (performance.now() - start) / 1000;
clearInterval(watch);
pauses.sort((a, b) => b - a);
if (options.json) {
  const result = { bench: "first-run", compiled, model: options.model, loadSeconds, pauses: pauses.slice(0, 5) };
  writeFileSync(options.json, `${JSON.stringify(result, null, 1)}\n`);
}
console.log(
  `${options.model} on ${device}: loaded with an empty kernel cache in ${loadSeconds.toFixed(1)} s, longest pauses of the event loop ${pauses
    .slice(0, 5)
    .map((ms) => ms.toFixed(0))
    .join(", ")} ms`,
);
rmSync(process.env.WICK_CACHE, { recursive: true });
process.exit(0);
