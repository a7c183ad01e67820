/** A model in a GGUF file: config, tokenizer and chat template are in its metadata. */
import { fail } from "../../core/errors.ts";
import { tensorType } from "../../formats/gguf/types.ts";
import { GgufFile, openWeights } from "../../formats/index.ts";
import { architectureOf, ggufArchitecture } from "../architectures/index.ts";
import { JsonFields } from "../json-fields.ts";
import type { ModelSource } from "../load.ts";
import { ChatTemplate } from "../text/chat-template.ts";
import { FileWeights } from "../weights/file-weights.ts";
import type { Names } from "../weights/naming.ts";
import { parseGgufConfig, type TensorFacts } from "./config.ts";
import { readRopeFactors } from "./rope-factors.ts";
import { readGgufTokenizer, specialTokens } from "./tokenizer.ts";

export async function openGgufModel(path: string): Promise<ModelSource> {
  await using file = await GgufFile.open(path);
  const fields = new JsonFields(Object.fromEntries(file.metadata), path);
  const name = fields.text("general.architecture");
  const own = fields.under(`${name}.`);
  const architecture = ggufArchitecture(name, own);
  const form = architectureOf({ architecture }).gguf;
  const config = parseGgufConfig(architecture, fields, own, await tensorFacts(file, form.names));
  return {
    config,
    tokenizer: readGgufTokenizer(fields),
    chatTemplate: fields.has("tokenizer.chat_template")
      ? new ChatTemplate(fields.text("tokenizer.chat_template"), specialTokens(fields))
      : null,
    openWeights: async (options) => new FileWeights(await openWeights(path), config, form, options),
  };
}

async function tensorFacts(file: GgufFile, names: Names): Promise<TensorFacts> {
  const embedding = `${names.embedding}.weight`;
  const { shape, type } = file.info(embedding);
  if (shape.length !== 2) {
    fail("ShapeMismatch", `${file.path}: tensor "${embedding}" has ${shape.length} dims; an embedding table has 2`);
  }
  const { dtype, quant } = tensorType(type) ?? {};
  return {
    vocabSize: shape[0]!,
    hasHead: file.tensors.has(`${names.linear.head}.weight`),
    dtype: quant ? "quantized" : (dtype ?? null),
    ...(await readRopeFactors(file)),
  };
}
