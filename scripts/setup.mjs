// Installs what the simulator, the checks of the AMD side and the tests of the page need: a host C++ compiler, three
// releases of clang with lld and llvm, ROCm's device libraries, a real HIP runtime with its compiler, both MPIs, and a browser.
// `npm run setup` asks for it; `npm test` runs it with --auto, which does nothing where it may not install.
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";

const has = (command) => spawnSync(command, ["--version"], { stdio: "ignore" }).status === 0;
const finds = (name) =>
  ["/usr/lib", "/usr/share", "/opt/rocm"].some((root) =>
    spawnSync("find", ["-L", root, "-name", name, "-print", "-quit"], { encoding: "utf8" }).stdout?.trim(),
  );
const clang = (release) => ({
  [`clang-${release}`]: () => has(`clang-${release}`),
  [`lld-${release}`]: () => has(`ld.lld-${release}`),
  [`llvm-${release}`]: () => has(`llvm-objdump-${release}`),
});

/** Debian's packages, and whether what they bring is there. */
const packages = {
  "g++": () => has("g++"),
  ...clang(16),
  ...clang(19),
  ...clang(22),
  "rocm-device-libs": () => finds("ocml.bc"),
  "libamdhip64-5": () => finds("libamdhip64.so*"),
  "libhiprtc-builtins5": () => finds("libhiprtc-builtins.so*"),
  "openmpi-bin": () => has("mpirun.openmpi") || has("mpirun"),
  mpich: () => has("mpirun.mpich"),
  chromium: () => ["chromium", "chromium-browser", "google-chrome"].some(has),
};

const known = (name) => spawnSync("apt-cache", ["show", name], { stdio: "ignore" }).status === 0;
const missing = Object.keys(packages).filter((name) => !packages[name]());
if (missing.length === 0) {
  console.log("setup: everything is installed");
  process.exit(0);
}

const auto = process.argv.includes("--auto");
const family = existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8") : "";
const mayInstall = /\b(debian|ubuntu)\b/.test(family) && process.getuid?.() === 0 && has("apt-get");
if (mayInstall) {
  const run = (...args) =>
    spawnSync("apt-get", args, { stdio: "inherit", env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" } });
  run("update", "-qq");
  // Other releases of Debian and Ubuntu have other versions; the checks say what they went without.
  const there = missing.filter(known);
  console.log(`setup: installing ${there.join(", ")}`);
  const { status } = run("install", "-y", "-qq", "--no-install-recommends", ...there);
  if (status === 0) process.exit(0);
  console.error("setup: apt-get failed");
} else {
  console.error(`setup: missing: ${missing.join(", ")}. On Debian or Ubuntu: sudo npm run setup`);
}
// The suite goes on without them and says what did not run; continuous integration must not.
process.exit(auto && process.env.CI !== "true" ? 0 : 1);
