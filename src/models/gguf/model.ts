/** A model in a GGUF file: config, tokenizer and chat template are in its metadata. */
import { fail } from "../../core/errors.ts";
import { tensorType } from "../../formats/gguf/types.ts";
import type { GgufFile } from "../../formats/index.ts";
import { ggufWeights } from "../../formats/weights-file.ts";
import { architectureOf, ggufArchitecture } from "../architectures/index.ts";
import { usualPooling } from "../embeddings/settings.ts";
import { JsonFields } from "../json-fields.ts";
import type { ModelSource } from "../load.ts";
import { weightsSource } from "../sharding/weights-source.ts";
import { ChatTemplate } from "../text/chat-template.ts";
import type { Names } from "../weights/naming.ts";
import { parseGgufConfig, type TensorFacts } from "./config.ts";
import { ggufEmbedding } from "./encoder.ts";
import { readRopeFactors } from "./rope-factors.ts";
import { readGgufTokenizer, specialTokens } from "./tokenizer.ts";

/** The file is closed with the model's source, or where it holds no model. */
export async function openGgufModel(file: GgufFile): Promise<ModelSource> {
  try {
    return await readModel(file);
  } catch (error) {
    await file.close();
    throw error;
  }
}

async function readModel(file: GgufFile): Promise<ModelSource> {
  const fields = new JsonFields(Object.fromEntries(file.metadata), file.path);
  const name = fields.text("general.architecture");
  const own = fields.under(`${name}.`);
  const architecture = ggufArchitecture(name, own);
  const form = architectureOf({ architecture }).gguf;
  const config = parseGgufConfig(architecture, fields, own, await tensorFacts(file, form.names));
  return {
    embedding: ggufEmbedding(own, usualPooling(config)),
    tokenizer: readGgufTokenizer(fields),
    chatTemplate: chatTemplateIn(fields),
    ...weightsSource(ggufWeights(file), config, form),
    [Symbol.asyncDispose]: () => file.close(),
  };
}

function chatTemplateIn(fields: JsonFields): ChatTemplate | null {
  const text = (key: string): string | undefined => (fields.has(key) ? fields.text(key) : undefined);
  const [plain, withTools] = [text("tokenizer.chat_template"), text("tokenizer.chat_template.tool_use")];
  return plain === undefined ? null : new ChatTemplate(plain, specialTokens(fields), withTools);
}

async function tensorFacts(file: GgufFile, names: Names): Promise<TensorFacts> {
  const embedding = `${names.embedding.token}.weight`;
  const { shape, type } = file.info(embedding);
  if (shape.length !== 2) {
    fail("ShapeMismatch", `${file.path}: tensor "${embedding}" has ${shape.length} dims; an embedding table has 2`);
  }
  const { dtype, quant } = tensorType(type) ?? {};
  const rowsOf = (name: string): number => {
    const own = file.tensors.get(`${name}.weight`)?.shape ?? [0, 0];
    return own.length > 1 ? own[0]! : 1;
  };
  return {
    vocabSize: shape[0]!,
    hasHead: file.tensors.has(`${names.linear.head}.weight`),
    dtype: quant ? "quantized" : (dtype ?? null),
    types: rowsOf(names.embedding.type),
    labels: rowsOf(names.linear.labels),
    classifierDense: rowsOf(names.linear.classifier) > 0,
    ...(await readRopeFactors(file)),
  };
}
