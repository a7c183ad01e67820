/** One table of environment variables: everything is read by it, and the documentation is made from it. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, it, vi } from "vitest";
import { environmentMarkdown, ofDevelopment } from "../../scripts/environment-docs.mjs";
import { chosen, environmentTable, positive, variable } from "../../src/core/environment.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const documented = new Set(Object.values(environmentTable).flatMap((group) => Object.keys(group)));

/** The sources in a folder, by their paths. */
function sources(folder: string): Map<string, string> {
  const files = readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((path) => /\.(ts|js|mjs)$/.test(path) && !/(^|\/)(node_modules|build|data)\//.test(path))
    .map((path) => join(folder, path));
  return new Map(files.map((path) => [path, readFileSync(join(root, path), "utf8")]));
}

afterEach(() => {
  vi.unstubAllEnvs();
});

describe("the table of environment variables", () => {
  it("is the only way by which the library reads the environment", () => {
    const readers = [...sources("src")].filter(([, text]) => /process\.env|\benv\b.*from "node:process"/.test(text));
    expect(readers.map(([path]) => path)).toEqual(["src/core/environment.ts"]);
  });

  it("holds every variable that the library names", () => {
    const named = [...sources("src").values()].flatMap((text) => text.match(/\bWICK_(?!SIM_)[A-Z_]+\b/g) ?? []);
    expect(new Set(named).size).toBeGreaterThan(10);
    expect(named.filter((name) => !documented.has(name))).toEqual([]);
  });

  it.each(["scripts", "bench", "sim", "test"])("and the documentation those that %s/ reads", (folder) => {
    const read = [...sources(folder).values()].flatMap((text) =>
      Array.from(text.matchAll(/process\.env\.([A-Z_]+)/g), ([, name]) => name!),
    );
    // npm sets the one; those of the simulator are in its readme.
    const others = read.filter((name) => name !== "INIT_CWD" && !name.startsWith("WICK_SIM_"));
    expect(others.filter((name) => !documented.has(name) && !(name in ofDevelopment))).toEqual([]);
  });

  it("is docs/environment.md: `npm run docs` makes it", () => {
    expect(readFileSync(join(root, "docs/environment.md"), "utf8")).toBe(environmentMarkdown(environmentTable));
  });
});

describe("an environment variable", () => {
  it("counts as not set when it is empty", () => {
    vi.stubEnv("WICK_CACHE", "");
    expect(variable("WICK_CACHE")).toBeUndefined();
    vi.stubEnv("WICK_CACHE", "/somewhere");
    expect(variable("WICK_CACHE")).toBe("/somewhere");
  });

  it("that is a choice takes nothing else", () => {
    vi.stubEnv("WICK_GRAPHS", "");
    expect(chosen("WICK_GRAPHS")).toBeUndefined();
    vi.stubEnv("WICK_GRAPHS", "none");
    expect(chosen("WICK_GRAPHS")).toBe("none");
    vi.stubEnv("WICK_GRAPHS", "off");
    expect(() => chosen("WICK_GRAPHS")).toThrow('WICK_GRAPHS must be one of none, not "off"');
  });

  it.each(["0", "-1", "much"])("that is a number above 0 is not %s", (value) => {
    vi.stubEnv("WICK_CACHE_MB", "");
    expect(positive("WICK_CACHE_MB", "MiB", 7)).toBe(7);
    vi.stubEnv("WICK_CACHE_MB", "1.5");
    expect(positive("WICK_CACHE_MB", "MiB", 7)).toBe(1.5);
    vi.stubEnv("WICK_CACHE_MB", value);
    expect(() => positive("WICK_CACHE_MB", "MiB", 7)).toThrow(`WICK_CACHE_MB=${value} must be a number of MiB above 0`);
  });
});
