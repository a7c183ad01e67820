// The package as users have it: packed, installed by npm in an empty folder, checked by the field's own tools, compiled
// by the compilers that are supported with and without other types, and run. Takes two minutes and needs the network;
// test/package.test.ts does the same with the compiler at hand.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { writeProject } from "./project.mjs";

const compilers = ["5.5", "5.9", "6.0", "7"];
const surroundings = {
  "es2022 alone": {},
  "the browser's types": { lib: ["es2022", "dom"] },
  "the newest language": { lib: ["esnext"], target: "esnext" },
  "a bundler": { module: "esnext", moduleResolution: "bundler" },
  "Node 20's types": { types: ["node"] },
};
const tools = [["publint@0.3"], ["@arethetypeswrong/cli@0.18", "--profile", "esm-only"]];

const root = fileURLToPath(new URL("../..", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "wick-consumers-"));
const failed = [];

function attempt(title, command, args, cwd = folder) {
  try {
    execFileSync(command, args, { cwd, encoding: "utf8", stdio: "pipe" });
    console.log(`✓ ${title}`);
  } catch ({ stdout, stderr }) {
    failed.push(title);
    console.log(`✗ ${title}\n${stdout}${stderr}`);
  }
}

try {
  const packed = execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], { cwd: root });
  const tarball = join(folder, packed.toString().trim().split("\n").at(-1));
  for (const [tool, ...options] of tools) attempt(tool, "npx", ["--yes", tool, tarball, ...options]);

  writeProject(folder);
  const others = compilers.map((version) => `typescript${version}@npm:typescript@${version}`);
  attempt("npm install", "npm", ["install", "--no-audit", "--no-fund", tarball, "@types/node@20", ...others]);
  for (const version of compilers) {
    const tsc = join(folder, `node_modules/typescript${version}/bin/tsc`);
    for (const [title, options] of Object.entries(surroundings))
      attempt(`TypeScript ${version}, ${title}`, process.execPath, [tsc, "-p", writeProject(folder, options)]);
  }
  attempt("README's programs run", process.execPath, [join(folder, "readme.js")], join(folder, "node_modules/wick"));
} finally {
  rmSync(folder, { recursive: true });
}
process.exitCode = failed.length > 0 ? 1 : 0;
