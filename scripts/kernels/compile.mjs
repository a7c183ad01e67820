// Compiles kernels/*.hip without a GPU: for AMD with clang and the ROCm device libraries, for NVIDIA with nvcc. Results are
// cached under node_modules/.cache by the hash of source, flags and compiler.
import { execFile, spawnSync } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
const kernels = join(root, "kernels");
const cache = join(root, "node_modules", ".cache", "wick-kernels");
const run = promisify(execFile);

/** The AMD targets that must build, and the number by which the device libraries know each. */
export const amdTargets = {
  gfx906: 9006,
  gfx90a: 9010,
  gfx942: 9402,
  gfx1030: 10300,
  gfx1100: 11000,
  gfx1101: 11001,
  gfx1200: 12000,
  gfx1201: 12001,
};
export const nvidiaTargets = ["sm_80", "sm_90"];

const works = (command) => spawnSync(command, ["--version"], { stdio: "ignore" }).status === 0;

function findClang() {
  return ["clang++-19", "clang++-20", "clang++-21", "/opt/rocm/llvm/bin/clang++"].find(works);
}
function findBitcode() {
  const places = [
    process.env.ROCM_DEVICE_LIB_PATH,
    "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode",
    "/usr/lib/amdgcn/bitcode",
    "/opt/rocm/amdgcn/bitcode",
  ];
  return places.find((folder) => folder && existsSync(join(folder, "ocml.bc")));
}

/** What there is to compile with. */
export function findToolchain() {
  const clang = findClang();
  const bitcode = findBitcode();
  return { amd: clang && bitcode ? { clang, bitcode } : undefined, nvcc: works("nvcc") ? "nvcc" : undefined };
}

/** The file with its headers: what the result depends on. */
function sourceOf(file) {
  const seen = new Set();
  const read = (name) => {
    if (seen.has(name) || !existsSync(join(kernels, name))) return "";
    seen.add(name);
    const text = readFileSync(join(kernels, name), "utf8");
    return text + [...text.matchAll(/^#include "([^"]+)"$/gm)].map((match) => read(match[1])).join("");
  };
  return read(`${file}.hip`);
}

/** The hash of what a kernel file is made of, its headers included. */
export function sourceHash(file) {
  return createHash("sha256").update(sourceOf(file)).digest("hex").slice(0, 16);
}

async function cached(file, extension, command, args) {
  const { stdout: version } = await run(command, ["--version"]);
  const hash = createHash("sha256")
    .update(JSON.stringify([sourceOf(file), command, version, args]))
    .digest("hex");
  const result = join(cache, `${file}-${hash.slice(0, 32)}.${extension}`);
  if (existsSync(result)) return result;
  mkdirSync(cache, { recursive: true });
  const fresh = `${result}.${randomUUID()}`;
  await run(command, [...args, "-I", kernels, "-o", fresh, join(kernels, `${file}.hip`)], { maxBuffer: 2 ** 26 });
  renameSync(fresh, result);
  return result;
}

/** The driver knows no device libraries for new targets, so each is linked by name, with a constant for the ISA version. */
async function isaConstant(clang, arch) {
  const result = join(cache, `isa-${amdTargets[arch]}.bc`);
  if (existsSync(result)) return result;
  mkdirSync(cache, { recursive: true });
  const source = join(cache, `isa-${amdTargets[arch]}.${randomUUID()}.ll`);
  writeFileSync(
    source,
    `target triple = "amdgcn-amd-amdhsa"
@__oclc_ISA_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 ${amdTargets[arch]}
`,
  );
  const flags = ["--target=amdgcn-amd-amdhsa", "-nogpulib", "-Wno-override-module", "-x", "ir", "-emit-llvm", "-c"];
  await run(clang, [...flags, source, "-o", `${source}.bc`]);
  renameSync(`${source}.bc`, result);
  return result;
}

/** The path of the code object of kernels/<file>.hip for one AMD target, with further options of the compiler's. */
export async function compileAmd({ clang, bitcode }, file, arch, options = []) {
  const wave = arch.startsWith("gfx9") ? "on" : "off";
  const libraries = [
    ...["ocml", "ockl", "oclc_abi_version_500", "oclc_correctly_rounded_sqrt_on", "oclc_daz_opt_off"],
    ...["oclc_finite_only_off", "oclc_unsafe_math_off", `oclc_wavefrontsize64_${wave}`],
  ].map((name) => join(bitcode, `${name}.bc`));
  return cached(file, `${arch}.co`, clang, [
    ...["-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", `--offload-arch=${arch}`],
    ...["-nogpuinc", "-nogpulib", "-nostdinc", "-std=c++17", "-O3", "-mcode-object-version=5"],
    ...["-Wall", "-Werror", "-Wno-linker-warnings", "-Wno-error=pass-failed"],
    ...[...libraries, await isaConstant(clang, arch)].flatMap((path) => [
      "-Xclang",
      "-mlink-builtin-bitcode",
      "-Xclang",
      path,
    ]),
    ...options,
  ]);
}

/** Which of these instructions, given by how their names begin, a code object has. */
export async function instructionsOf(path, prefixes) {
  const objdump = ["llvm-objdump-19", "llvm-objdump-20", "llvm-objdump-21", "/opt/rocm/llvm/bin/llvm-objdump"].find(
    works,
  );
  if (!objdump) throw new Error("no llvm-objdump: install llvm-19");
  const { stdout } = await run(objdump, ["-d", "--no-leading-addr", "--no-show-raw-insn", path], {
    maxBuffer: 2 ** 30,
  });
  return prefixes.filter((prefix) => stdout.includes(`\t${prefix}`));
}

/** The path of the cubin of kernels/<file>.hip for one NVIDIA target. */
export async function compileNvidia(nvcc, file, arch) {
  return cached(file, `${arch}.cubin`, nvcc, [
    "-std=c++17",
    `-arch=${arch}`,
    "-cubin",
    "-x",
    "cu",
    "-Werror",
    "all-warnings",
  ]);
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
