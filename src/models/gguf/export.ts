/** Writing a model from a Hugging Face folder as one GGUF file. */
import { basename, join, resolve } from "node:path";
import { Device } from "../../backend/device.ts";
import {
  type QuantizedTensorReport,
  type QuantizeOptions,
  quantizeFile,
  type WeightsFile,
} from "../../formats/index.ts";
import { architectureOf } from "../architectures/index.ts";
import { Encoder } from "../encoder/encoder.ts";
import { type HuggingFaceFolder, openHuggingFaceFolder } from "../hugging-face/folder.ts";
import { Transformer } from "../transformer.ts";
import { ModelTensors } from "../weights/model-tensors.ts";
import { embeddingMetadata } from "./encoder.ts";
import { GgufEntries } from "./entries.ts";
import { ggufMetadata } from "./metadata.ts";
import { ropeFactorTensors } from "./rope-factors.ts";
import { ggufVocabulary } from "./vocabulary.ts";

/**
 * Writes the model in `folder` (config.json, safetensors, tokenizer.json) to the GGUF file `output`, with its tokenizer
 * and chat template, its matrices as `options.type`. Reports as `quantizeFile` does.
 */
export const writeModelGguf = (
  folder: string,
  output: string,
  options: QuantizeOptions,
): Promise<QuantizedTensorReport[]> => quantizeFile(folder, output, options, openAsGguf);

/** The folder's model as if it were a GGUF file. */
export async function openAsGguf(folder: string): Promise<WeightsFile> {
  const source = await openHuggingFaceFolder(folder);
  try {
    return await asGguf(source, folder);
  } catch (error) {
    await source[Symbol.asyncDispose]();
    throw error;
  }
}

async function asGguf(source: HuggingFaceFolder, folder: string): Promise<WeightsFile> {
  const { config, tokenizer, tokenizerJson, chatTemplate, weightsFile, embedding, embeddingIsStated } = source;
  const metadata = ggufMetadata(config, basename(resolve(folder)), join(folder, "config.json"));
  const around = { first: tokenizer?.firstToken ?? null, last: tokenizer?.lastToken ?? null };
  const vocabulary = ggufVocabulary(tokenizerJson, config, around, join(folder, "tokenizer.json"));
  for (const [key, value] of Object.entries(vocabulary)) metadata.set(key, value);
  const { gguf, encoder } = architectureOf(config);
  const meant = embeddingMetadata(config, embeddingIsStated ? embedding : null, encoder?.ggufClassifierPooling);
  for (const [key, value] of Object.entries(meant)) metadata.set(`${gguf.name}.${key}`, value);
  if (config.encoder) {
    metadata.set("tokenizer.ggml.token_type_count", { type: "u32", value: Math.max(config.encoder.types, 1) });
  }
  if (chatTemplate) metadata.set("tokenizer.chat_template", { type: "string", value: chatTemplate.source });
  const entries = new GgufEntries(new ModelTensors(weightsFile, config, architectureOf(config).huggingFace), config);
  using _ = await (config.encoder ? Encoder : Transformer).load(config, entries, Device.cpu(), "f32");
  const computed = ropeFactorTensors(config);
  return {
    path: folder,
    format: "gguf",
    metadata,
    tensors: [...computed.map(({ tensor }) => tensor), ...entries.list],
    readBytes: async (name, signal, range) => {
      const own = computed.find(({ tensor }) => tensor.name === name);
      return own ? own.bytes.subarray(range?.start ?? 0, range?.end) : entries.readBytes(name, signal, range);
    },
    [Symbol.asyncDispose]: () => source[Symbol.asyncDispose](),
  };
}
