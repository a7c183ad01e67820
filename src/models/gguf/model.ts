/** A model in a GGUF file: config, tokenizer and chat template are in its metadata. */
import { fail } from "../../core/errors.ts";
import { tensorType } from "../../formats/gguf/types.ts";
import { GgufFile, openWeights } from "../../formats/index.ts";
import { Tensor } from "../../tensor/index.ts";
import { JsonFields } from "../json-fields.ts";
import type { ModelSource } from "../load.ts";
import { ChatTemplate } from "../text/chat-template.ts";
import { FileWeights } from "../weights/file-weights.ts";
import { parseGgufConfig, type TensorFacts } from "./config.ts";
import { EMBEDDING, ggufNames, HEAD, ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT } from "./names.ts";
import { readGgufTokenizer, specialTokens } from "./tokenizer.ts";

export async function openGgufModel(path: string): Promise<ModelSource> {
  await using file = await GgufFile.open(path);
  const fields = new JsonFields(Object.fromEntries(file.metadata), path);
  const config = parseGgufConfig(fields, await tensorFacts(file));
  return {
    config,
    tokenizer: readGgufTokenizer(fields),
    chatTemplate: fields.has("tokenizer.chat_template")
      ? new ChatTemplate(fields.text("tokenizer.chat_template"), specialTokens(fields))
      : null,
    openWeights: async (options) => new FileWeights(await openWeights(path), config, ggufNames, options),
  };
}

async function tensorFacts(file: GgufFile): Promise<TensorFacts> {
  const { shape, type } = file.info(EMBEDDING);
  if (shape.length !== 2) {
    fail("ShapeMismatch", `${file.path}: tensor "${EMBEDDING}" has ${shape.length} dims; an embedding table has 2`);
  }
  const { dtype, quant } = tensorType(type) ?? {};
  const [short, long] = [await factors(file, ROPE_FACTORS_SHORT), await factors(file, ROPE_FACTORS_LONG)];
  return {
    vocabSize: shape[0]!,
    hasHead: file.tensors.has(HEAD),
    dtype: quant ? "quantized" : (dtype ?? null),
    ropeFactors: await factors(file, ROPE_FACTORS),
    longRopeFactors: short && long ? { short, long } : undefined,
  };
}

async function factors(file: GgufFile, name: string): Promise<number[] | undefined> {
  if (!file.tensors.has(name)) return undefined;
  using tensor = await file.readTensor(name);
  const values = tensor instanceof Tensor && tensor.dtype === "f32" ? Array.from(await tensor.data(), Number) : [];
  if (values.length > 0 && values.every((value) => Number.isFinite(value) && value > 0)) return values;
  return fail("InvalidFile", `${file.path}: tensor "${name}" must hold positive numbers of type F32`);
}
