/** The tokenizer of a model alone, whatever its architecture: also from files that hold nothing else. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { fail } from "../core/errors.ts";
import { openIfGguf } from "../formats/weights-file.ts";
import { readGgufTokenizer } from "./gguf/tokenizer.ts";
import { locateModel, type PullOptions } from "./hub/pull.ts";
import { JsonFields, readJsonIfPresent } from "./json-fields.ts";
import { onlyGguf } from "./load.ts";
import { Tokenizer } from "./text/tokenizer.ts";

/** Of a folder, a GGUF file or a model's name, as `loadModel` takes them. */
export async function loadTokenizer(name: string, options: PullOptions = {}): Promise<Tokenizer> {
  const { path } = await locateModel(name, { ...options, tokenizerOnly: true });
  const found = await stat(path).catch((cause: Error) =>
    fail("InvalidFile", `${path} cannot be opened: ${cause.message}; name a model's folder or GGUF file`, { cause }),
  );
  const file = found.isDirectory() ? await onlyGguf(path) : path;
  const tokenizer = file === undefined ? await ofFolder(path) : await ofGguf(file);
  return (
    tokenizer ?? fail("InvalidFile", `${path} has no tokenizer; name a folder with tokenizer.json, or a GGUF file`)
  );
}

async function ofGguf(path: string): Promise<Tokenizer | null> {
  await using file = await openIfGguf(path);
  return file && readGgufTokenizer(new JsonFields(Object.fromEntries(file.metadata), path));
}

async function ofFolder(folder: string): Promise<Tokenizer | null> {
  const source = join(folder, "tokenizer.json");
  const json = await readJsonIfPresent(source);
  if (json === undefined) return null;
  const fieldsOf = async (name: string): Promise<JsonFields | undefined> => {
    const values = await readJsonIfPresent(join(folder, name));
    return values === undefined ? undefined : new JsonFields(values, join(folder, name));
  };
  const bosToken = (await fieldsOf("config.json"))?.tokens("bos_token_id")[0] ?? null;
  return new Tokenizer(json, { source, config: await fieldsOf("tokenizer_config.json"), bosToken });
}
