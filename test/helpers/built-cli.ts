/** The `wick` command as users run it: compiled from the sources as they are now, into a package of its own. */
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { copyFile, cp, mkdir, mkdtemp, rename, rm, symlink } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = fileURLToPath(new URL("../..", import.meta.url));
const cache = join(root, "node_modules/.cache/wick-tests");

/** What tsc makes of the sources, once for all test files. */
export async function compiled(): Promise<string> {
  const sources = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" }).filter((n) =>
    n.endsWith(".ts"),
  );
  const hash = createHash("sha256");
  for (const name of [...sources.sort().map((n) => join("src", n)), "tsconfig.json", "tsconfig.build.json"])
    hash.update(name).update(readFileSync(join(root, name)));
  const made = join(cache, hash.digest("hex").slice(0, 16));
  if (existsSync(made)) return made;
  await mkdir(cache, { recursive: true });
  const old = readdirSync(cache).filter((name) => !name.startsWith("making-"));
  const out = await mkdtemp(join(cache, "making-"));
  const tsc = join(root, "node_modules/.bin/tsc");
  await promisify(execFile)(tsc, ["-p", join(root, "tsconfig.build.json"), "--outDir", out]);
  // Another process may have been faster: then its result serves.
  await rename(out, made).catch(() => rm(out, { recursive: true }));
  for (const name of old) await rm(join(cache, name), { recursive: true, force: true });
  return made;
}

/** What the build makes besides, and is not made anew. */
export const builtParts = ["dist/wasm", "dist/backend/cpu/native/code"] as const;

/** Lays the package out in `folder` and gives the path of the command. The kernels and the page are those of the last build. */
export async function buildCli(folder: string): Promise<string> {
  const out = join(folder, "dist");
  await mkdir(folder, { recursive: true });
  await cp(await compiled(), out, { recursive: true });
  await copyFile(join(root, "package.json"), join(folder, "package.json"));
  for (const name of ["node_modules", "kernels", "models", ...builtParts, "dist/serving/page"])
    await symlink(join(root, name), join(folder, name));
  return join(out, "cli/main.js");
}
