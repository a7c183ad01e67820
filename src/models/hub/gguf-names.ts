/** What the names of GGUF files tell: their quantization, and which of them are parts of one model. */
import { splitNames } from "../../formats/gguf/split.ts";

/** Files that belong to a model and are none. */
const BESIDE = /(^|\/)[^/]*(mmproj|imatrix|mtp-|-vocab\.)[^/]*$/i;
const QUANTIZATION =
  /(?<![A-Z0-9])((?:UD-)?I?Q\d+(?:_[A-Z0-9]+)+|TQ\d_\d|MXFP4(?:_[A-Z0-9]+)*|NVFP4|BF16|FP?16|FP?32)(?![A-Z0-9_])/gi;

export interface GgufModel {
  /** In order; the first is the one to open. */
  readonly files: readonly string[];
  /** Q4_K_M and the like, or the file's name where it tells none. */
  readonly quantization: string;
}

/** The models among a repository's files; one whose parts are not all there is none. */
export function ggufModels(paths: readonly string[]): GgufModel[] {
  const all = new Set(paths);
  const models = new Map<string, GgufModel>();
  for (const path of paths.filter((name) => /\.gguf$/i.test(name) && !BESIDE.test(name)).sort()) {
    const files = splitNames(path) ?? [path];
    if (files.every((file) => all.has(file))) models.set(files[0]!, { files, quantization: quantizationOf(path) });
  }
  return [...models.values()];
}

function quantizationOf(path: string): string {
  const stem = path.replace(/(-\d{5}-of-\d{5})?\.gguf$/i, "");
  const named = Array.from(stem.matchAll(QUANTIZATION), ([, name]) => name!).at(-1);
  return named?.toUpperCase() ?? stem.slice(stem.lastIndexOf("/") + 1);
}
