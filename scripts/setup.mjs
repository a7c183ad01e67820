// Installs what the simulator and the AMD compilation check need: a host C++ compiler, clang 19, lld, llvm and ROCm's device
// libraries. `npm run setup` asks for it; `npm test` runs it with --auto, which does nothing where it may not install.
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";

const packages = ["g++", "clang-19", "lld-19", "llvm-19", "rocm-device-libs"];
const has = (command) => spawnSync(command, ["--version"], { stdio: "ignore" }).status === 0;
const bitcode = () =>
  ["/usr/lib", "/usr/share"].some((root) =>
    spawnSync("find", [root, "-name", "ocml.bc", "-print", "-quit"], { encoding: "utf8" }).stdout?.trim(),
  );

const missing = packages.filter((name) => {
  if (name === "g++") return !has("g++");
  if (name === "lld-19") return !has("ld.lld-19");
  if (name === "llvm-19") return !has("llvm-objdump-19");
  if (name === "rocm-device-libs") return !bitcode();
  return !has(name);
});
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
  console.log(`setup: installing ${missing.join(", ")}`);
  run("update", "-qq");
  const { status } = run("install", "-y", "-qq", "--no-install-recommends", ...missing);
  if (status === 0) process.exit(0);
  console.error("setup: apt-get failed");
} else {
  console.error(`setup: missing: ${missing.join(", ")}. On Debian or Ubuntu: sudo npm run setup`);
}
// The suite goes on without them and says what did not run; continuous integration must not.
process.exit(auto && process.env.CI !== "true" ? 0 : 1);
