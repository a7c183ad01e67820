/** What console.log shows of objects that hold much: one line that says what they are. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { GgufFile, openSafetensors, saveSafetensors } from "../src/formats/index.ts";
import { Tensor } from "../src/index.ts";
import { loadModel, PromptCache } from "../src/models/index.ts";
import { KvCache, RotatingKvCache } from "../src/nn/index.ts";
import { temporaryFolder } from "./helpers/temporary-folder.ts";

const folder = temporaryFolder();
const path = join(fileURLToPath(new URL("..", import.meta.url)), "models/fable-7m.Q8_0.gguf");

describe("console.log shows", () => {
  it("a model, its tokenizer and its caches", async () => {
    using model = await loadModel(path);
    using cache = model.newCache({ batch: 2 });
    expect(inspect(model)).toBe("Model(llama, 8 layers of 256, 4096 tokens, context 512, f32, cpu)");
    expect(inspect(model.tokenizer)).toBe("Tokenizer(4096 tokens)");
    expect(inspect(cache)).toBe("ModelCache(8 layers, batch 2, 0 positions, f32, cpu)");
    using prompt = new PromptCache();
    prompt.fed([1, 2, 3]);
    expect(inspect(prompt)).toBe("PromptCache(3 tokens)");
  });

  it("a cache of keys and values, without making tensors that stay", () => {
    using cache = new KvCache();
    expect(inspect(cache)).toBe("KvCache(0 positions)");
    using keys = Tensor.zeros([1, 4, 3, 8]);
    const pair = cache.append(keys, keys);
    expect(inspect(cache)).toBe("KvCache(3 positions, keys [1, 4, 3, 8], f32, cpu)");
    expect(pair.k.disposed).toBe(false);
    using rotating = new RotatingKvCache(2);
    rotating.append(keys, keys);
    expect(inspect(rotating)).toBe("RotatingKvCache(3 positions seen, the last 2 kept)");
  });

  it("files of tensors", async () => {
    await using gguf = await GgufFile.open(path);
    expect(inspect(gguf)).toBe(`GgufFile(${path}, version 3, 22 values, 74 tensors)`);
    using ones = Tensor.ones([2]);
    await saveSafetensors(folder("one.safetensors"), { ones, again: ones });
    await using file = await openSafetensors(folder("one.safetensors"));
    expect(inspect(file)).toBe(`SafetensorsFile(${folder("one.safetensors")}, 2 tensors)`);
    const index = folder("m.safetensors.index.json");
    await writeFile(index, JSON.stringify({ weight_map: { ones: "one.safetensors", again: "one.safetensors" } }));
    await using sharded = await openSafetensors(index);
    expect(inspect(sharded)).toBe(`ShardedSafetensors(${index}, 2 tensors in 1 files)`);
  });
});
