/** A layer imports only from those above it in CONTRIBUTING's list. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));
const layers = Array.from(
  readFileSync(join(root, "CONTRIBUTING.md"), "utf8").matchAll(/^\| `(src\/[^`]*)`/gm),
  ([, name]) => name!,
);
const files = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" })
  .map((name) => join("src", name))
  .filter((name) => /\.(ts|js)$/.test(name) && !name.startsWith("src/backend/cpu/wasm/"));

/** The place of a file's layer in the list: the longest entry that it lies in. */
function layerOf(file: string): number {
  const fitting = layers.filter((layer) => file === layer || (layer.endsWith("/") && file.startsWith(layer)));
  return layers.indexOf(fitting.reduce((best, layer) => (layer.length > best.length ? layer : best), ""));
}

const importsOf = (file: string): string[] =>
  Array.from(readFileSync(join(root, file), "utf8").matchAll(/(?:from|import) ?\(?"(\.[^"]*)"/g), ([, path]) =>
    normalize(join(dirname(file), path!)),
  );

describe("Layers", () => {
  it("have a place for every file", () => {
    expect(layers.length).toBeGreaterThan(10);
    const homeless = files.filter((file) => layerOf(file) < 0 && dirname(file) !== "src");
    expect(homeless).toEqual([]);
  });

  it("import only what stands above them", () => {
    const upward = files.flatMap((file) =>
      importsOf(file)
        .filter((target) => layerOf(file) >= 0 && layerOf(target) > layerOf(file))
        .map((target) => `${file} imports ${target}`),
    );
    expect(upward).toEqual([]);
  });
});
