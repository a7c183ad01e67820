/**
 * The files by which sentence-transformers describes an embedding model: modules.json lists what runs after the
 * transformer (1_Pooling, 2_Normalize), sentence_bert_config.json has the longest text, and
 * config_sentence_transformers.json the prompts.
 */
import { join } from "node:path";
import { fail } from "../../core/errors.ts";
import { JsonFields, readJsonIfPresent } from "../json-fields.ts";
import { type EmbeddingSettings, type Pooling, usualSettings } from "./settings.ts";

/** Null where the folder has no modules.json: then it is no such model. `usual` is for models without a pooling. */
export async function readSentenceTransformers(folder: string, usual: Pooling): Promise<EmbeddingSettings | null> {
  const fieldsOf = async (name: string): Promise<JsonFields | undefined> => {
    const path = join(folder, name);
    const json = await readJsonIfPresent(path);
    return json === undefined ? undefined : new JsonFields(json, path);
  };
  const source = join(folder, "modules.json");
  const list = await readJsonIfPresent(source);
  if (list === undefined) return null;
  if (!Array.isArray(list)) return fail("InvalidFile", `${source} must be a list of modules`);
  const modules = list.map((entry: unknown) => new JsonFields(entry, source));
  const kinds = modules.map((module) => ({ kind: kindOf(module), path: module.textOr("path", "") }));
  for (const { kind } of kinds) if (!KNOWN.includes(kind)) unknown(source, kind);
  const pooling = kinds.find(({ kind }) => kind === "Pooling");
  const poolingConfig = pooling && (await fieldsOf(join(pooling.path, "config.json")));
  const own = await fieldsOf("sentence_bert_config.json");
  const prompts = await fieldsOf("config_sentence_transformers.json");
  return {
    ...usualSettings(poolingConfig ? poolingOf(poolingConfig) : usual),
    normalize: kinds.some(({ kind }) => kind === "Normalize"),
    maxTokens: own?.countOr("max_seq_length", null) ?? null,
    prompts: promptsOf(prompts?.object("prompts")),
    defaultPrompt: prompts?.textOr("default_prompt_name", null) ?? null,
  };
}

const KNOWN = ["Transformer", "Pooling", "Normalize"];

/** The class, whatever module of the package it is in. */
const kindOf = (module: JsonFields): string => module.text("type").split(".").at(-1)!;

const unknown = (source: string, kind: string): never =>
  fail("InvalidFile", `${source}: a ${JSON.stringify(kind)} module is not run; ${KNOWN.join(", ")} are`);

/** Older files have a flag for each mode, newer ones the mode's name. */
const modes: Readonly<Record<string, Pooling>> = {
  pooling_mode_mean_tokens: "mean",
  pooling_mode_cls_token: "cls",
  pooling_mode_lasttoken: "last",
  mean: "mean",
  cls: "cls",
  lasttoken: "last",
};

function poolingOf(config: JsonFields): Pooling {
  const flags = Object.keys(config.values).filter(
    (key) => key.startsWith("pooling_mode_") && config.values[key] === true,
  );
  const asked = config.has("pooling_mode") ? [config.values.pooling_mode].flat().map(String) : flags;
  const found = asked.length === 1 && Object.hasOwn(modes, asked[0]!) ? modes[asked[0]!] : undefined;
  const known = "mean, cls and lasttoken, one at a time";
  return (
    found ??
    fail("InvalidFile", `${config.source}: the pooling ${asked.join(" + ") || "none"} is not run; ${known}, are`)
  );
}

const promptsOf = (prompts: JsonFields | undefined): Record<string, string> =>
  Object.fromEntries(Object.keys(prompts?.values ?? {}).map((name) => [name, prompts!.text(name)]));
