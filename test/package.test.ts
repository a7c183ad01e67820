/** What people get who install the package: it compiles and runs in a project of theirs, and its lock files install. */
import { readFileSync, realpathSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, it } from "vitest";
import { entries, writeProject } from "../scripts/consumers/project.mjs";
import { installPackage, run, tsc } from "./helpers/installed-package.ts";
import { unexportedTypes } from "./helpers/public-types.ts";
import { temporaryFolder } from "./helpers/temporary-folder.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const folder = temporaryFolder();
let packed: readonly string[];
let project: string;

beforeAll(async () => {
  project = writeProject(folder("project"));
  packed = await installPackage(folder("project"), folder());
}, 60_000);

describe("the packed package", () => {
  it("holds what runs, and neither sources nor tests", () => {
    const kinds = new Set(packed.map((path) => path.split("/")[0]));
    expect([...kinds].sort()).toEqual(["LICENSE", "README.md", "dist", "golden", "kernels", "models", "package.json"]);
    expect(packed.filter((path) => path.endsWith(".ts") && !path.endsWith(".d.ts"))).toEqual([]);
  });

  it("compiles in a strict project without other types, and README's programs run", async () => {
    const compiled = await run(tsc, ["-p", project]).catch((error: { stdout: string }) => error);
    expect(compiled.stdout).toBe("");
    const { stdout, stderr } = await run(process.execPath, [folder("project/readme.js")], {
      cwd: folder("project/node_modules/wick"),
    });
    expect(stderr).toBe("");
    expect(stdout).toMatch(/Tensor.*\[4, 4\].*\n.* .{100}/s);
  });

  it.each(entries)("%s declares what its types need on its own", (entry) => {
    const path = join("dist", entry.slice("wick".length), "index.d.ts");
    expect(readFileSync(folder("project/node_modules/wick", path), "utf8")).toMatch(
      /^import ".*\/core\/globals\.ts";$/m,
    );
  });
});

/** Types of ops, devices and of how steps and ranks work inside that users cannot name yet. */
const unnamed = ["MiopenOps", "CachePlaces", "CollectiveLibrary", "Passage", "Rendezvous", "Segment", "WithMemory"];

it("every type that a public signature mentions is exported", () => {
  const missing = unexportedTypes(realpathSync(folder("project/node_modules/wick")));
  expect(missing.filter((line) => !unnamed.includes(line.split(" ")[0]!))).toEqual([]);
  // One that is exported by now leaves the list.
  expect(unnamed.filter((name) => !missing.some((line) => line.startsWith(`${name} `)))).toEqual([]);
});

interface Lock {
  readonly packages: Readonly<Record<string, { optionalDependencies?: object; integrity?: string }>>;
}

// npm ci refuses a lock file that lacks them, also on machines that have no use for them.
describe.each(["", "bench", "bench/llama"])("the lock file in ./%s", (place) => {
  const { packages } = JSON.parse(readFileSync(join(root, place, "package-lock.json"), "utf8")) as Lock;

  it("lists the packages of every platform", () => {
    const optional = Object.values(packages).flatMap((entry) => Object.keys(entry.optionalDependencies ?? {}));
    expect(optional.filter((name) => packages[`node_modules/${name}`] === undefined)).toEqual([]);
  });

  it("tells what every package must hold", () => {
    const unchecked = Object.entries(packages).filter(([path, entry]) => path !== "" && !entry.integrity);
    expect(unchecked).toEqual([]);
  });
});
