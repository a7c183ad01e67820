/** The examples and the programs in the documentation run, and the API reference is that of the sources. */
import { execFile } from "node:child_process";
import { cpSync, existsSync, readdirSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { beforeAll, describe, expect, it } from "vitest";
import { apiMarkdown } from "../scripts/api-docs.mjs";
import { withOps } from "../scripts/features.mjs";
import { Tensor } from "../src/index.ts";
import { ops } from "../src/ops/index.ts";
import "../src/nn/index.ts";
import "../src/quantized/index.ts";
import { buildCli } from "./helpers/built-cli.ts";
import { temporaryFolder } from "./helpers/temporary-folder.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const folder = temporaryFolder();

beforeAll(async () => {
  await buildCli(folder());
  cpSync(join(root, "examples"), folder("examples"), { recursive: true });
}, 120_000);

async function run(path: string): Promise<string> {
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [path], { cwd: folder() });
  expect(stderr).toBe("");
  return stdout;
}

describe("an example", () => {
  it.each(readdirSync(join(root, "examples")))("%s runs", async (name) => {
    expect(await run(folder("examples", name))).not.toBe("");
  });

  it("generate.mjs tells a story", async () => {
    expect(await run(folder("examples", "generate.mjs"))).toMatch(/^Once upon a time .{80,}\(8 layers, llama, on /s);
  });

  it("quantize.mjs shows that fewer bits lose more", async () => {
    const errors = (await run(folder("examples", "quantize.mjs"))).match(/[\d.]+(?= % error)/g)!.map(Number);
    expect(errors).toHaveLength(6);
    expect(errors).toEqual(errors.toSorted((x, y) => x - y));
    expect(errors[0]).toBeLessThan(2);
  });
});

const pages = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md") && name !== "api.md");
const concepts = [
  "getting-started",
  "devices",
  "memory",
  "dtypes",
  "quantization",
  "attention",
  "models",
  "chat",
  "embeddings",
  "engine",
  "grammars",
];

describe("a page of the documentation", () => {
  it.each(concepts.map((name) => `${name}.md`))("%s holds programs that run", async (page) => {
    const text = readFileSync(join(root, "docs", page), "utf8");
    const programs = Array.from(text.matchAll(/^```js\n(.*?)^```$/gms), ([, program]) => program!);
    expect(programs.length).toBeGreaterThan(0);
    for (const [i, program] of programs.entries()) {
      const path = folder(`${page}.${i}.mjs`);
      writeFileSync(path, program);
      // A comment behind console.log says what it prints.
      const printed = (await run(path)).replaceAll(/\s/g, "");
      for (const [, claim] of program.matchAll(/console\.log\(.*\); \/\/ ([\d[][^:\n]*)/g)) {
        expect(printed).toContain(claim!.replaceAll(/\s/g, ""));
      }
    }
  });

  it.each(pages)("%s links to files that exist", (page) => {
    const text = readFileSync(join(root, "docs", page), "utf8");
    for (const [, target] of text.matchAll(/\]\((?!https:)([^)#]+)\)/g)) {
      expect(existsSync(join(root, "docs", target!)), target).toBe(true);
    }
  });
});

describe("the API reference", () => {
  const reference = readFileSync(join(root, "docs/api.md"), "utf8");

  it.each([
    ["method", Object.getOwnPropertyNames(Tensor.prototype), "^ *(?:get )?"],
    ["static method", Object.getOwnPropertyNames(Tensor), "^ *static "],
  ])("lists every %s of Tensor", (_, names, before) => {
    const functions = new Set(Object.getOwnPropertyNames(class {}).concat("prototype"));
    const wanted = names.filter((name) => !functions.has(name));
    expect(wanted.length).toBeGreaterThan(15);
    expect(wanted.filter((name) => !new RegExp(`${before}${name}[<(]`, "m").test(reference))).toEqual([]);
  });

  it("is up to date: `npm run docs` makes it", () => {
    expect(reference).toBe(apiMarkdown(realpathSync(folder())));
  });
});

describe("the table of features", () => {
  it("lists the ops that there are: `npm run docs` writes them", () => {
    expect(ops.size).toBeGreaterThan(130);
    const text = readFileSync(join(root, "FEATURES.md"), "utf8");
    expect(text).toBe(withOps(text, ops.values()));
  });
});
