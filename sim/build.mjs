// Builds the simulator: sim/build/lib{amdhip64,rocblas,hipblaslt,MIOpen}_sim.so, when their sources have changed.
// Usage: node sim/build.mjs, or `import { buildSim } from "./sim/build.mjs"`.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(fileURLToPath(import.meta.url));
const build = join(root, "build");
const flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"];

function findCompiler() {
  const names = process.env.CXX ? [process.env.CXX] : ["g++", "clang++", "clang++-19", "clang++-18", "clang++-17"];
  return names.find((name) => spawnSync(name, ["--version"], { stdio: "ignore" }).status === 0);
}

/** Libraries that stand in for AMD's beside the runtime, each from one source. */
const standIns = { rocblas: "librocblas_sim.so", hipblaslt: "libhipblaslt_sim.so", miopen: "libMIOpen_sim.so" };

function libraries() {
  const sources = readdirSync(join(root, "runtime")).filter((name) => name.endsWith(".cpp"));
  const runtime = sources.filter((name) => !Object.hasOwn(standIns, name.slice(0, -".cpp".length)));
  const source = (name) => join(root, "runtime", name);
  return [
    { key: "hip", name: "libamdhip64_sim.so", sources: runtime.map(source), link: ["-ldl"] },
    ...Object.entries(standIns).map(([key, name]) => ({
      key,
      name,
      sources: [source(`${key}.cpp`)],
      link: [`-L${build}`, "-lamdhip64_sim", "-Wl,-rpath,$ORIGIN"],
    })),
  ];
}

/** Modules are compiled against these, so a library that compiles them differs where they do: caches go by its build id. */
function headersHash() {
  const hash = createHash("sha256");
  for (const file of ["sim.h", "abi.h"]) hash.update(readFileSync(join(root, file)));
  return `0x${hash.digest("hex").slice(0, 8)}`;
}

function fingerprint(compiler) {
  const hash = createHash("sha256").update(JSON.stringify([compiler, flags, process.arch]));
  const files = [...readdirSync(join(root, "runtime")).sort().map((name) => join("runtime", name)), "abi.h", "sim.h", "build.mjs"];
  for (const file of files) hash.update(file).update(readFileSync(join(root, file)));
  return hash.digest("hex");
}

/** Paths of the libraries, built first if need be. Throws with the compiler's messages when that fails. */
export function buildSim() {
  const compiler = findCompiler();
  if (!compiler)
    throw new Error(
      process.env.CXX
        ? `the simulator needs a C++17 compiler, and CXX=${process.env.CXX} cannot be run`
        : "the simulator needs a C++17 compiler: install g++ or clang++, or set CXX",
    );
  const all = libraries();
  const paths = Object.fromEntries(all.map(({ key, name }) => [key, join(build, name)]));
  const stamp = join(build, "stamp");
  const wanted = fingerprint(compiler);
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted && all.every((l) => existsSync(join(build, l.name))))
    return { ...paths, built: false };
  mkdirSync(build, { recursive: true });
  rmSync(stamp, { force: true });
  for (const { name, sources, link } of all) {
    // Built beside its place and renamed: a process that has the old library loaded keeps its own file.
    const fresh = join(build, `${name}.${process.pid}`);
    const args = [...flags, `-DSIM_HEADERS=${headersHash()}`, "-Wl,--build-id=sha1", "-o", fresh, `-Wl,-soname,${name}`, ...sources, ...link];
    const { status, stderr } = spawnSync(compiler, args, { encoding: "utf8" });
    if (status !== 0) {
      rmSync(fresh, { force: true });
      throw new Error(`building ${name} with ${compiler} failed:\n${stderr}`);
    }
    if (stderr) process.stderr.write(stderr);
    renameSync(fresh, join(build, name));
  }
  writeFileSync(stamp, wanted);
  return { ...paths, built: true };
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    const { built, ...paths } = buildSim();
    console.log(`${built ? "built" : "up to date"}: ${Object.values(paths).join(", ")}`);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
