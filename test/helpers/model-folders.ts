/** The models the tests run, and folders made from them with something changed. */
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { loadSafetensors, saveSafetensors } from "../../src/formats/index.ts";
import { scope, type Tensor } from "../../src/index.ts";

const root = fileURLToPath(new URL("../data/models", import.meta.url));
export const fable = join(root, "fable-7m");
export const tinyNames = [
  "llama",
  "llama3",
  "mistral",
  "qwen2",
  "qwen3",
  "gemma2",
  "phi3",
  "mixtral",
  "olmo2",
  "granite",
] as const;
export const encoderNames = ["bert", "xlm_roberta", "modernbert"] as const;
export const tiny = (name: (typeof tinyNames)[number] | (typeof encoderNames)[number]): string =>
  join(root, "tiny", name);

/** A copy of a model's folder with other fields in config.json (undefined removes one) and other tensors. */
export async function variant(
  from: string,
  to: string,
  config: Record<string, unknown> = {},
  change: (tensors: Map<string, Tensor>) => void = () => {},
): Promise<string> {
  await mkdir(to, { recursive: true });
  await cp(from, to, { recursive: true });
  const own = JSON.parse(await readFile(join(from, "config.json"), "utf8")) as Record<string, unknown>;
  await writeFile(join(to, "config.json"), JSON.stringify({ ...own, ...config }));
  await scope(async () => {
    const tensors = await loadSafetensors(from);
    change(tensors);
    await saveSafetensors(join(to, "model.safetensors"), tensors);
  });
  return to;
}
