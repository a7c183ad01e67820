/** A model as Hugging Face lays it out: config.json, safetensors, tokenizer.json, and what belongs to them. */
import { join } from "node:path";
import { fail } from "../../core/errors.ts";
import { openWeights, type StoredWeights, type WeightsFile } from "../../formats/index.ts";
import type { HuggingFaceForm } from "../architectures/architecture.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import { readSentenceTransformers } from "../embeddings/sentence-transformers.ts";
import { usualPooling, usualSettings } from "../embeddings/settings.ts";
import { JsonFields, readJsonIfPresent, readTextIfPresent } from "../json-fields.ts";
import type { ModelSource } from "../load.ts";
import { weightsSource } from "../sharding/weights-source.ts";
import { ChatTemplate } from "../text/chat-template.ts";
import { specialToken, Tokenizer } from "../text/tokenizer.ts";
import { parseHuggingFaceConfig } from "./config.ts";
import { namedWeights } from "./named-weights.ts";

export interface HuggingFaceFolder extends ModelSource {
  /** The content of tokenizer.json, where there is one. */
  readonly tokenizerJson: unknown;
  readonly weightsFile: WeightsFile;
  /** Whether the folder says how the model embeds. */
  readonly embeddingIsStated: boolean;
}

export async function openHuggingFaceFolder(folder: string): Promise<HuggingFaceFolder> {
  const fieldsOf = async (name: string): Promise<JsonFields | undefined> => {
    const path = join(folder, name);
    const json = await readJsonIfPresent(path);
    return json === undefined ? undefined : new JsonFields(json, path);
  };
  const configFile = await fieldsOf("config.json");
  if (!configFile) {
    return fail("InvalidFile", `${folder} has no config.json; a model's folder holds it beside its safetensors`);
  }
  const generation = await fieldsOf("generation_config.json");
  const config = parseHuggingFaceConfig(configFile.values, configFile.source, generation);
  const tokenizerConfig = await fieldsOf("tokenizer_config.json");
  const source = join(folder, "tokenizer.json");
  const tokenizerJson = await readJsonIfPresent(source);
  const chatTemplate = await readChatTemplate(folder, tokenizerConfig);
  const { bosToken } = config;
  const tokenizer =
    tokenizerJson === undefined ? null : new Tokenizer(tokenizerJson, { source, config: tokenizerConfig, bosToken });
  const form = architectureOf(config).huggingFace;
  const embedding = await readSentenceTransformers(folder, usualPooling(config));
  const weightsFile = await openInOrder(folder, form, config);
  return {
    embedding: embedding ?? usualSettings(usualPooling(config)),
    embeddingIsStated: embedding !== null,
    tokenizer,
    tokenizerJson,
    chatTemplate,
    weightsFile,
    ...weightsSource(weightsFile, config, form),
    [Symbol.asyncDispose]: () => weightsFile[Symbol.asyncDispose](),
  };
}

/** The weights, in the order that the model has them in. */
async function openInOrder(folder: string, form: HuggingFaceForm, config: ModelConfig): Promise<StoredWeights> {
  const file = namedWeights(await openWeights(folder), form);
  try {
    return form.rearrange?.(file, config) ?? file;
  } catch (error) {
    await file[Symbol.asyncDispose]();
    throw error;
  }
}

const SPECIAL_TOKENS = ["bos_token", "eos_token", "unk_token", "pad_token"];

/** A file of its own, or a field of tokenizer_config.json: one template, or several, of which one is the default. */
async function readChatTemplate(folder: string, config: JsonFields | undefined): Promise<ChatTemplate | null> {
  const own = await readTextIfPresent(join(folder, "chat_template.jinja"));
  const { text, toolText } = own === undefined ? templatesIn(config) : { text: own, toolText: undefined };
  if (text === undefined) return null;
  const named = SPECIAL_TOKENS.map((name) => [name, config && specialToken(config, name)] as const);
  const tokens = Object.fromEntries(named.filter((pair): pair is [string, string] => !!pair[1]));
  return new ChatTemplate(text, tokens, toolText);
}

function templatesIn(config: JsonFields | undefined): { text?: string | undefined; toolText?: string | undefined } {
  if (!config?.has("chat_template")) return {};
  const value = config.values.chat_template;
  if (!Array.isArray(value)) return { text: config.text("chat_template") };
  const templates = value.map((entry: unknown) => new JsonFields(entry, `${config.source}: chat_template`));
  const named = (name: string) => templates.find((entry) => entry.text("name") === name);
  return {
    text: (named("default") ?? templates[0])?.text("template"),
    toolText: named("tool_use")?.text("template"),
  };
}
