/** The `wick` command as users run it: compiled from the sources as they are now, into a package of its own. */
import { execFile } from "node:child_process";
import { copyFile, mkdir, symlink } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** Compiles into `folder` and gives the path of the command. The kernels and the page are those of the last build. */
export async function buildCli(folder: string): Promise<string> {
  const tsc = join(root, "node_modules/.bin/tsc");
  const out = join(folder, "dist");
  await mkdir(out, { recursive: true });
  await promisify(execFile)(tsc, ["-p", join(root, "tsconfig.build.json"), "--outDir", out]);
  await copyFile(join(root, "package.json"), join(folder, "package.json"));
  for (const name of ["node_modules", "kernels", "models", "dist/wasm", "dist/serving/page"])
    await symlink(join(root, name), join(folder, name));
  return join(out, "cli/main.js");
}
