// Builds the simulator: sim/build/lib{amdhip64,rocblas,hipblaslt,MIOpen,rccl}_sim.so and hooks.o, when their sources have changed.
// Usage: node sim/build.mjs, or `import { buildSim } from "./sim/build.mjs"`.
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(fileURLToPath(import.meta.url));
const build = join(root, "build");
const flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"];

function findCompiler() {
  const names = process.env.CXX ? [process.env.CXX] : ["g++", "clang++", "clang++-19", "clang++-18", "clang++-17"];
  return names.find((name) => spawnSync(name, ["--version"], { stdio: "ignore" }).status === 0);
}

/** Libraries that stand in for AMD's beside the runtime, each from one source. */
const standIns = { rocblas: "librocblas_sim.so", hipblaslt: "libhipblaslt_sim.so", miopen: "libMIOpen_sim.so", rccl: "librccl_sim.so" };

function libraries() {
  const sources = readdirSync(join(root, "runtime")).filter((name) => name.endsWith(".cpp"));
  const runtime = sources.filter((name) => !Object.hasOwn(standIns, name.slice(0, -".cpp".length)));
  return [
    { key: "hip", name: "libamdhip64_sim.so", sources: runtime, link: ["-ldl"] },
    ...Object.entries(standIns).map(([key, name]) => ({
      key,
      name,
      sources: [`${key}.cpp`],
      link: [`-L${build}`, "-lamdhip64_sim", "-lrt", "-Wl,-rpath,$ORIGIN"],
    })),
  ];
}

/** Modules are made of these, so a library that compiles them differs where they do: caches go by its build id. */
const moduleSources = ["abi.h", "sim.h", "module/hooks.cpp"];
function modulesHash() {
  const hash = createHash("sha256");
  for (const file of moduleSources) hash.update(readFileSync(join(root, file)));
  return `0x${hash.digest("hex").slice(0, 8)}`;
}

function fingerprint(compiler) {
  const hash = createHash("sha256").update(JSON.stringify([compiler, flags, process.arch]));
  const runtime = readdirSync(join(root, "runtime")).sort().map((name) => join("runtime", name));
  const files = [...runtime, ...moduleSources, "build.mjs"];
  for (const file of files) hash.update(file).update(readFileSync(join(root, file)));
  return hash.digest("hex");
}

/** Runs a compiler; its messages are the error's where it fails. */
function run(compiler, args) {
  const child = spawn(compiler, args, { stdio: ["ignore", "ignore", "pipe"] });
  let messages = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (messages += text));
  return new Promise((done, failed) => {
    child.on("error", failed).on("close", (status) => {
      if (status !== 0) return failed(new Error(`${compiler} ${args.join(" ")} failed:\n${messages}`));
      if (messages) process.stderr.write(messages);
      done();
    });
  });
}

/** Calls `work` for each, as many at a time as there are cores. */
async function sideBySide(items, work) {
  const waiting = [...items];
  const take = async () => {
    for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: availableParallelism() }, take));
}

/** Paths of the libraries, built first if need be. Rejects with the compiler's messages when that fails. */
export async function buildSim() {
  const compiler = findCompiler();
  if (!compiler)
    throw new Error(
      process.env.CXX
        ? `the simulator needs a C++17 compiler, and CXX=${process.env.CXX} cannot be run`
        : "the simulator needs a C++17 compiler: install g++ or clang++, or set CXX",
    );
  const all = libraries();
  const paths = Object.fromEntries(all.map(({ key, name }) => [key, join(build, name)]));
  const hooks = join(build, "hooks.o");
  const stamp = join(build, "stamp");
  const wanted = fingerprint(compiler);
  const isThere = [hooks, ...Object.values(paths)].every((path) => existsSync(path));
  if (isThere && existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return { ...paths, built: false };
  mkdirSync(build, { recursive: true });
  rmSync(stamp, { force: true });
  // Built beside its place and renamed: a process that has the old library loaded keeps its own file.
  const fresh = mkdtempSync(join(build, "fresh-"));
  const object = (source) => join(fresh, `${basename(source)}.o`);
  try {
    const sources = [...all.flatMap(({ sources }) => sources.map((name) => join("runtime", name))), "module/hooks.cpp"];
    await sideBySide(sources, (source) =>
      run(compiler, [...flags, `-DSIM_HEADERS=${modulesHash()}`, "-c", "-o", object(source), join(root, source)]),
    );
    renameSync(object("hooks.cpp"), hooks);
    for (const { name, sources, link } of all) {
      const options = ["-shared", "-pthread", "-Wl,--build-id=sha1", `-Wl,-soname,${name}`];
      await run(compiler, [...options, "-o", join(fresh, name), ...sources.map(object), ...link]);
      renameSync(join(fresh, name), join(build, name));
    }
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
  writeFileSync(stamp, wanted);
  return { ...paths, built: true };
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    const { built, ...paths } = await buildSim();
    console.log(`${built ? "built" : "up to date"}: ${Object.values(paths).join(", ")}`);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
