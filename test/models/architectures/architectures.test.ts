/** An architecture is its row: nothing else in the sources asks which one it has before it. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { ggufArchitecture } from "../../../src/models/architectures/index.ts";
import { architectures } from "../../../src/models/index.ts";
import { JsonFields } from "../../../src/models/json-fields.ts";

const src = fileURLToPath(new URL("../../../src", import.meta.url));
const rows = join(src, "models", "architectures");

describe("architectures", () => {
  it("are compared by name nowhere but in their own files", () => {
    const names = Object.entries(architectures).flatMap(([name, { gguf }]) => [name, gguf.name]);
    const asked = new RegExp(`[!=]==?\\s*"(${names.join("|")})"|case "(${names.join("|")})"|architecture [!=]==`);
    const sources = readdirSync(src, { recursive: true, encoding: "utf8" })
      .map((path) => join(src, path))
      .filter((path) => path.endsWith(".ts") && !path.startsWith(rows));
    expect(sources.length).toBeGreaterThan(100);
    expect(sources.filter((path) => asked.test(readFileSync(path, "utf8")))).toEqual([]);
    expect(asked.test('if (config.architecture === "phi3")')).toBe(true);
  });

  it("are found by their names in GGUF files, those that share one by what the file holds", () => {
    const found = (name: string, own = {}) => ggufArchitecture(name, new JsonFields(own, "m.gguf"));
    for (const { gguf } of Object.values(architectures))
      expect(architectures[found(gguf.name)].gguf.name).toBe(gguf.name);
    expect([found("llama"), found("llama", { expert_count: 8 })]).toEqual(["llama", "mixtral"]);
    expect([found("deepseek2"), found("deepseek2", { expert_gating_func: 2 })]).toEqual(["deepseek_v2", "deepseek_v3"]);
    expect(() => found("mamba")).toThrow(/"mamba"; known are llama, .*\(mistral as llama, mixtral as llama, .*\)/);
  });
});
