// Compiles kernels/*.hip without a GPU: for AMD with clang and the ROCm device libraries, for NVIDIA with nvcc. Results are
// cached under node_modules/.cache by the hash of source, flags and compiler.
import { execFile, spawnSync } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, realpathSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { deviceSource } from "./device-source.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
const kernels = join(root, "kernels");
const cache = join(root, "node_modules", ".cache", "wick-kernels");
const execute = promisify(execFile);

/** clang leaves empty folders behind where temporary files go: not in everybody's. */
const temporary = join(cache, "temporary");
mkdirSync(temporary, { recursive: true });
const run = (command, args, options) =>
  execute(command, args, { env: { ...process.env, TMPDIR: temporary }, ...options });

/** The compilers that must build everything: of the releases of LLVM that ROCm 5.5, 6.4 and 7.2 carry (docs/devices.md). */
export const amdCompilers = ["clang-16", "clang-19", "clang-22"];

/** The targets that must build, by the first of the compilers that knows them. */
const known = {
  "clang-16": [
    ...["gfx906", "gfx908", "gfx90a", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"],
    ...["gfx1100", "gfx1101", "gfx1102", "gfx1103"],
  ],
  "clang-19": ["gfx942", "gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201"],
  "clang-22": ["gfx950", "gfx1153"],
};
export const amdTargets = Object.values(known).flat();
export const targetsOf = (compiler) =>
  amdCompilers.slice(0, amdCompilers.indexOf(compiler) + 1).flatMap((name) => known[name]);
/** Ampere, and Hopper with its warpgroups and clusters. */
export const nvidiaTargets = ["sm_80", "sm_90a"];

const works = (command) => spawnSync(command, ["--version"], { stdio: "ignore" }).status === 0;

function findBitcode() {
  const places = [
    process.env.ROCM_DEVICE_LIB_PATH,
    "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode",
    "/usr/lib/amdgcn/bitcode",
    "/opt/rocm/amdgcn/bitcode",
  ];
  return places.find((folder) => folder && existsSync(join(folder, "ocml.bc")));
}

/** A compiler under the name that the record has for its release: "clang-19", or "amd-clang-18" for AMD's own. */
export function amdToolchain(clang, bitcode) {
  const { stdout, status } = spawnSync(clang, ["--version"], { encoding: "utf8" });
  const [, amd, release] = /(AMD )?clang version (\d+)/.exec(stdout ?? "") ?? [];
  if (status !== 0 || !release) throw new Error(`${clang} is no clang`);
  if (!existsSync(join(bitcode, "ocml.bc"))) throw new Error(`${bitcode} has no device libraries (ocml.bc)`);
  return { name: `${amd ? "amd-" : ""}clang-${release}`, clang, bitcode, objdump: beside(clang, "llvm-objdump") };
}

/** A tool of the same release: the one in the compiler's own folder. */
function beside(clang, tool) {
  const folders = clang.includes("/") ? [""] : process.env.PATH.split(delimiter);
  const place = folders.map((folder) => join(folder, clang)).find((path) => existsSync(path));
  return join(dirname(realpathSync(place)), tool);
}

/** What there is to compile with; without the releases above, ROCm's own. */
export function findToolchains() {
  const bitcode = findBitcode();
  const named = amdCompilers.map((name) => name.replace("clang", "clang++")).filter(works);
  const clangs = named.length > 0 ? named : ["/opt/rocm/llvm/bin/clang++"].filter(works);
  return {
    amd: bitcode ? clangs.map((clang) => amdToolchain(clang, bitcode)) : [],
    nvcc: works("nvcc") ? "nvcc" : undefined,
  };
}

const onlyDevice = (arch) => ["-x", "hip", "--offload-device-only", `--offload-arch=${arch}`, "-nogpuinc", "-nogpulib"];

/** Whether a compiler knows a target: newer ones forget old targets, too. */
export async function knowsTarget({ clang }, arch) {
  return run(clang, [...onlyDevice(arch), "-fsyntax-only", "/dev/null"]).then(
    () => true,
    () => false,
  );
}

/** The file with its headers, as compilers for GPUs see them: what the result depends on. */
function sourceOf(file) {
  const seen = new Set();
  const read = (name) => {
    if (seen.has(name) || !existsSync(join(kernels, name))) return "";
    seen.add(name);
    const text = deviceSource(readFileSync(join(kernels, name), "utf8"));
    return text + [...text.matchAll(/^#include "([^"]+)"$/gm)].map((match) => read(match[1])).join("");
  };
  return read(`${file}.hip`);
}

const digest = (...parts) => createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 32);

/** The hash of what a kernel file is made of, its headers included. */
export function sourceHash(file) {
  return createHash("sha256").update(sourceOf(file)).digest("hex").slice(0, 16);
}

const versions = new Map();
function versionOf(command) {
  if (!versions.has(command))
    versions.set(
      command,
      run(command, ["--version"]).then(({ stdout }) => stdout),
    );
  return versions.get(command);
}

/** Where the result of a compilation is kept, by all that goes into it. */
async function placeOf(file, source, extension, command, args) {
  const hash = digest(source, command, await versionOf(command), args);
  return join(cache, `${file}-${hash}.${extension}`);
}

/** A file that appears whole: `make` writes it beside its place. */
async function appearing(path, make) {
  if (existsSync(path)) return path;
  mkdirSync(cache, { recursive: true });
  const fresh = `${path}.${randomUUID()}`;
  try {
    await make(fresh);
    renameSync(fresh, path);
  } finally {
    rmSync(fresh, { force: true });
  }
  return path;
}

const whole = (args, file, to) => [...args, "-I", kernels, "-o", to, join(kernels, `${file}.hip`)];
const compile = (command, args, file, to) => run(command, whole(args, file, to), { maxBuffer: 2 ** 26 });
const preprocessed = async (command, args, file) =>
  (await run(command, whole([...args, "-E", "-P"], file, "-"), { maxBuffer: 2 ** 26 })).stdout;

/** How the device libraries number a target: gfx90a is 9.0.10, gfx1151 is 11.5.1. */
function isaVersion(arch) {
  const [, major, minor, step] = /^gfx(\d+)([0-9a-f])([0-9a-f])$/.exec(arch);
  return Number(major) * 1000 + Number.parseInt(minor, 16) * 100 + Number.parseInt(step, 16);
}

/** The driver knows no device libraries for new targets, so each is linked by name, with a constant for the ISA version. */
async function isaConstant({ name, clang }, arch) {
  const version = isaVersion(arch);
  return appearing(join(cache, `isa-${name}-${version}.bc`), async (fresh) => {
    const source = `${fresh}.ll`;
    writeFileSync(
      source,
      `target triple = "amdgcn-amd-amdhsa"
@__oclc_ISA_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 ${version}
`,
    );
    const flags = ["--target=amdgcn-amd-amdhsa", "-nogpulib", "-Wno-override-module", "-x", "ir", "-emit-llvm", "-c"];
    await run(clang, [...flags, source, "-o", fresh]);
    rmSync(source);
  });
}

async function amdArguments(toolchain, arch, options) {
  const wave = arch.startsWith("gfx9") ? "on" : "off";
  const libraries = [
    ...["ocml", "ockl", "oclc_abi_version_500", "oclc_correctly_rounded_sqrt_on", "oclc_daz_opt_off"],
    ...["oclc_finite_only_off", "oclc_unsafe_math_off", `oclc_wavefrontsize64_${wave}`],
  ].map((name) => join(toolchain.bitcode, `${name}.bc`));
  return [
    ...[...onlyDevice(arch), "--no-gpu-bundle-output", "-nostdinc", "-std=c++17", "-O3", "-mcode-object-version=5"],
    ...["-Wall", "-Werror", "-Wno-linker-warnings", "-Wno-error=pass-failed"],
    ...[...libraries, await isaConstant(toolchain, arch)].flatMap((path) => [
      ...["-Xclang", "-mlink-builtin-bitcode", "-Xclang", path],
    ]),
    ...options,
  ];
}

/** The path of the code object of kernels/<file>.hip for one AMD target, with further options of the compiler's. */
export async function compileAmd(toolchain, file, arch, options) {
  const args = await amdArguments(toolchain, arch, options);
  const path = await placeOf(file, sourceOf(file), `${arch}.co`, toolchain.clang, args);
  return appearing(path, (fresh) => compile(toolchain.clang, args, file, fresh));
}

/** The command that compiles a file and keeps nothing, for those who measure. */
export async function amdCommand(toolchain, file, arch, options) {
  return [toolchain.clang, ...whole(await amdArguments(toolchain, arch, options), file, "/dev/null")];
}

/** What reads the disassembly: facts that it found are of its text, too. */
const readers = ["listing.mjs", "hot-loop.mjs"].map((name) =>
  readFileSync(join(root, "scripts", "kernels", name), "utf8"),
);

/** What `look` finds in the code object, and the seconds that it took to compile. Only that is kept: all code objects are GBs. */
export async function compiledFacts(toolchain, file, arch, look, options) {
  const args = await amdArguments(toolchain, arch, options);
  // By what the compiler sees: comments, and what is for other compilers, change nothing.
  const source = await preprocessed(toolchain.clang, args, file);
  const path = await placeOf(file, source, `${arch}.json`, toolchain.clang, [...args, look.toString(), ...readers]);
  const fresh = !existsSync(path);
  await appearing(path, async (to) => {
    const object = `${to}.co`;
    try {
      const started = performance.now();
      await compile(toolchain.clang, args, file, object);
      const seconds = (performance.now() - started) / 1000;
      writeFileSync(to, JSON.stringify({ ...(await look(object)), seconds }));
    } finally {
      rmSync(object, { force: true });
    }
  });
  return { ...JSON.parse(readFileSync(path, "utf8")), fresh };
}

/** The code of a code object as text, an instruction with its address on each line. */
export async function disassemble({ objdump }, path) {
  const { stdout } = await run(objdump, ["-d", "--no-show-raw-insn", path], { maxBuffer: 2 ** 30 });
  return stdout;
}

/** Which of these instructions, given by how their names begin, a listing has. */
export const instructionsIn = (listing, prefixes) => prefixes.filter((prefix) => listing.includes(`\t${prefix}`));

/**
 * An instruction as llvm-mca should see it. It lets every wait for shared memory wait for global loads, too, which are told from
 * flat ones by what it cannot see; so they are given as loads through a buffer from the same registers.
 */
function forMca({ name, operands }) {
  const [, way, width] = /^global_(load|store)_(\w+)$/.exec(name) ?? [];
  if (!way) return `${name} ${operands}`;
  const [first, second] = operands.split(", ");
  const [data, address] = way === "load" ? [first, second] : [second, first];
  return `buffer_${way}_${width} ${data}, ${address.replace(/\[(\d+):\d+\]/, "$1")}, s[0:3], 0 offen`;
}

/**
 * The llvm-mca that is asked, and the names that it has for targets whose MFMA it knows: LLVM 19's breaks off at loads through a
 * buffer, and 22's does not end where shared memory is read between few products.
 */
export const mca = { command: "llvm-mca-16", targets: { gfx90a: "gfx90a", gfx942: "gfx940" } };

/**
 * Of rounds of loops, by name: the part of its time that a wave alone on its SIMD keeps the matrix unit busy by llvm-mca, whose
 * name for it is HWXDL. Waits for memory are in it, as long as llvm-mca takes them to be. Nothing where it is not there or cannot
 * say.
 */
export async function sharesByMca(arch, rounds) {
  const target = mca.targets[arch];
  if (rounds.size === 0 || !target) return new Map();
  const regions = [...rounds].flatMap(([name, round]) => [
    `# LLVM-MCA-BEGIN ${name}`,
    ...round.map(forMca),
    `# LLVM-MCA-END ${name}`,
  ]);
  const options = ["-mtriple=amdgcn", `-mcpu=${target}`, "-iterations=20", "--instruction-info=false", "-json"];
  const running = run(mca.command, options, { maxBuffer: 2 ** 30, timeout: 60_000 });
  running.child.stdin?.on("error", () => {});
  running.child.stdin?.end(`${regions.join("\n")}\n`);
  const said = await running.catch(() => undefined);
  if (!said) return new Map();
  const { CodeRegions, TargetInfo } = JSON.parse(said.stdout);
  const unit = TargetInfo.Resources.indexOf("HWXDL");
  return new Map(
    CodeRegions.map(({ Name, Instructions, SummaryView, ResourcePressureView }) => {
      // The last line is the sum of all, for one round.
      const { ResourceUsage } = ResourcePressureView.ResourcePressureInfo.find(
        ({ InstructionIndex, ResourceIndex }) => InstructionIndex === Instructions.length && ResourceIndex === unit,
      );
      return [Name, (ResourceUsage * SummaryView.Iterations) / SummaryView.TotalCycles];
    }),
  );
}

/** The path of the cubin of kernels/<file>.hip for one NVIDIA target, with further options of the compiler's. */
export async function compileNvidia(nvcc, file, arch, options) {
  const args = ["-std=c++17", `-arch=${arch}`, "-cubin", "-x", "cu", "-Werror", "all-warnings", ...options];
  const path = await placeOf(file, sourceOf(file), `${arch}.cubin`, nvcc, args);
  return appearing(path, (fresh) => compile(nvcc, args, file, fresh));
}

/** Runs the jobs, at most `width` at a time. */
export async function inParallel(jobs, width) {
  const waiting = [...jobs];
  await Promise.all(
    Array.from({ length: width }, async () => {
      for (let job = waiting.shift(); job; job = waiting.shift()) await job();
    }),
  );
}
