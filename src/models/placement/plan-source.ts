/** What a plan is made from: a model's config, and the sizes in its file where that is here; no weight is read. */
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { DType } from "../../core/dtype.ts";
import { safetensorsAmong } from "../../formats/safetensors/sharded.ts";
import type { ModelConfig } from "../config.ts";
import { locateModel, type PullOptions } from "../hub/pull.ts";
import { parseHuggingFaceConfig } from "../hugging-face/config.ts";
import { readJsonIfPresent } from "../json-fields.ts";
import { openModel } from "../load.ts";
import type { WeightSizes } from "../weights/weight-sizes.ts";

export interface PlanSource {
  readonly config: ModelConfig;
  /** Absent where the file is not here. */
  readonly sizesIn?: (dtype: DType) => WeightSizes;
}

/** A hub's name, of which config.json alone is fetched; a folder with or without weights; config.json; a GGUF file. */
export async function planSource(name: string, options: PullOptions = {}): Promise<PlanSource> {
  const { path } = await locateModel(name, { ...options, configOnly: true });
  const config = await configAlone(path);
  if (config !== null) return { config: parseHuggingFaceConfig(await readJsonIfPresent(config), config) };
  await using source = await openModel(path);
  const sizes = new Map<DType, WeightSizes>();
  // The header is read before the file is closed.
  for (const dtype of ["f32", "f16", "bf16"] as const) sizes.set(dtype, source.sizesIn(dtype));
  return { config: source.config, sizesIn: (dtype) => sizes.get(dtype)! };
}

/** The config.json that is all there is. */
async function configAlone(path: string): Promise<string | null> {
  const found = await stat(path).catch(() => null);
  if (found?.isFile()) return path.endsWith(".json") ? path : null;
  const names = found?.isDirectory() ? await readdir(path) : [];
  if (!names.includes("config.json")) return null;
  return safetensorsAmong(names, path) === undefined ? join(path, "config.json") : null;
}
