/** Which of a repository's files a model needs. */
import { fail, shown } from "../../core/errors.ts";
import { safetensorsAmong } from "../../formats/safetensors/sharded.ts";
import { type GgufModel, ggufModels } from "./gguf-names.ts";

export interface Selection {
  readonly files: readonly string[];
  /** An index among them, whose shards are needed as well. */
  readonly index?: string;
  /** The file to open; the folder itself where there is none. */
  readonly entry?: string;
}

/** What a folder's model is read from beside its weights, here and by other tools that share the cache. */
const BESIDE =
  /^((generation_|tokenizer_|sentence_bert_|preprocessor_)?config|config_sentence_transformers|tokenizer|special_tokens_map|added_tokens|chat_template|vocab|modules|\d+_\w+\/config)\.json$|^chat_template\.jinja$|^vocab\.txt$|^merges\.txt$|^(tokenizer|spiece|sentencepiece\.bpe)\.model$|^\d+_\w+\/model\.safetensors$/;

/** Without a word on the quantization, the first of these that there is: what other tools take, too. */
const USUAL = ["Q4_K_M", "Q8_0"];
const SHOWN_FILES = 12;

/** What a tokenizer is read from, where that is a file of its own; else all of the model. */
export function selectTokenizer(paths: readonly string[], wanted: string | undefined, where: string): Selection {
  if (wanted !== undefined || !paths.includes("tokenizer.json")) return selectFiles(paths, wanted, where);
  return { files: paths.filter((path) => BESIDE.test(path) && !path.endsWith(".safetensors")) };
}

/** What says of which shape a model is, where that is a file of its own. */
export function selectConfig(paths: readonly string[], wanted: string | undefined, where: string): Selection {
  if (wanted === undefined && paths.includes("config.json")) return { files: ["config.json"], entry: "config.json" };
  return fail(
    "NoUsableWeights",
    `${where} has its shape in GGUF files, whose headers are not read from afar; name the repository of the original model (with --quantize ${wanted ?? "Q4_K"}), or a GGUF file that is here`,
  );
}

/** `wanted` is a quantization or a file; `where` stands in messages. */
export function selectFiles(paths: readonly string[], wanted: string | undefined, where: string): Selection {
  const models = ggufModels(paths);
  if (wanted !== undefined) return ofGguf(chosen(models, paths, wanted, where));
  const top = paths.filter((path) => !path.includes("/"));
  const weights = top.includes("config.json") ? safetensorsAmong(top, where) : undefined;
  if (weights !== undefined) {
    const beside = paths.filter((path) => BESIDE.test(path));
    return { files: [...beside, weights], ...(weights.endsWith(".json") && { index: weights }) };
  }
  if (models.length === 0) return fail("NoUsableWeights", `${where} has no weights that Wick reads ${listed(paths)}`);
  const usual = USUAL.map((name) => models.filter(({ quantization }) => quantization === name));
  const best = usual.find((found) => found.length === 1)?.[0] ?? (models.length === 1 ? models[0] : undefined);
  return ofGguf(best ?? ambiguous(models, where));
}

const ofGguf = ({ files }: GgufModel): Selection => ({ files, entry: files[0]! });

function chosen(models: readonly GgufModel[], paths: readonly string[], wanted: string, where: string): GgufModel {
  const named = models.find(({ files }) => files.includes(wanted));
  if (named) return named;
  const quantization = wanted.toUpperCase();
  const exact = models.filter((model) => model.quantization.toUpperCase() === quantization);
  if (exact.length > 1) ambiguous(exact, where);
  if (exact[0]) return exact[0];
  if (paths.includes(wanted))
    return fail("NoUsableWeights", `${where}: ${wanted} is no model in one file; name a GGUF`);
  if (models.length === 0) {
    return fail("NoUsableWeights", `${where} has no GGUF files, so no ${shown(wanted)} of them ${listed(paths)}`);
  }
  const known = [...new Set(models.map((model) => model.quantization))].join(", ");
  return fail("QuantizationNotFound", `${where} has no ${shown(wanted)}; it has ${known}`);
}

function ambiguous(models: readonly GgufModel[], where: string): never {
  const names = models.map(({ files, quantization }) => `${quantization} (${files[0]})`);
  return fail(
    "QuantizationNotFound",
    `${where} has several models: ${names.slice(0, SHOWN_FILES).join(", ")}; name one by its quantization or its file, as in ${where.split(/[@:]/)[0]}:${models[0]!.files[0]}`,
  );
}

function listed(paths: readonly string[]): string {
  const shownPaths = paths.slice(0, SHOWN_FILES).join(", ");
  const more = paths.length > SHOWN_FILES ? ` and ${paths.length - SHOWN_FILES} more` : "";
  return `(config.json with safetensors, or GGUF); it has ${paths.length === 0 ? "nothing" : shownPaths}${more}`;
}
