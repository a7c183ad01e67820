/** The package packed and unpacked where a project finds it, with the dependencies that it declares and no others. */
import { execFile } from "node:child_process";
import { cp, mkdir, readFile, rename, symlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { builtParts, compiled } from "./built-cli.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
export const tsc = join(root, "node_modules/.bin/tsc");
export const run = promisify(execFile);

/** `project` is where it is installed, `scratch` a folder for what is made on the way. Gives the files in the tarball. */
export async function installPackage(project: string, scratch: string): Promise<string[]> {
  const source = join(scratch, "source");
  const modules = join(project, "node_modules");
  await mkdir(modules, { recursive: true });
  await mkdir(source, { recursive: true });
  // Compiled from the sources as they are now, and without links, which npm does not pack.
  await cp(await compiled(), join(source, "dist"), { recursive: true });
  const { files } = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as { files: string[] };
  const others = files.filter((name) => name !== "dist");
  for (const name of ["package.json", "README.md", "LICENSE", ...builtParts, ...others])
    await cp(join(root, name), join(source, name), { recursive: true });
  const { stdout } = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", scratch], {
    cwd: source,
  });
  const [packed] = JSON.parse(stdout) as [{ filename: string; files: { path: string }[] }];
  await run("tar", ["-xzf", join(scratch, packed.filename), "-C", modules]);
  await rename(join(modules, "package"), join(modules, "wick"));
  await linkDependencies(join(modules, "wick"), modules);
  return packed.files.map(({ path }) => path);
}

async function linkDependencies(installed: string, modules: string): Promise<void> {
  const { dependencies } = JSON.parse(await readFile(join(installed, "package.json"), "utf8")) as {
    dependencies: Record<string, string>;
  };
  for (const name of Object.keys(dependencies)) {
    await mkdir(dirname(join(modules, name)), { recursive: true });
    await symlink(join(root, "node_modules", name), join(modules, name));
  }
}
