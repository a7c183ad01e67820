/** What a GGUF file says of an encoder, and of how it is meant to embed. */
import type { GgufTyped } from "../../formats/index.ts";
import type { EncoderForm } from "../architectures/architecture.ts";
import type { EncoderConfig, ModelConfig } from "../config.ts";
import { type EmbeddingSettings, type Pooling, usualSettings } from "../embeddings/settings.ts";
import type { JsonFields } from "../json-fields.ts";
import type { TensorFacts } from "./config.ts";

/** GGUF's numbers of the kinds of pooling; 0 is none. */
const poolingNumbers: Readonly<Record<Pooling, number>> = { mean: 1, cls: 2, last: 3 };
/** A classification head's scores in place of a vector. */
const RANK = 4;

const poolingOf = (own: JsonFields, key: string): Pooling | undefined => {
  const number = own.countOr(key, 0, 0);
  return (Object.keys(poolingNumbers) as Pooling[]).find((pooling) => poolingNumbers[pooling] === number);
};

export function ggufEncoder(form: EncoderForm, fields: JsonFields, own: JsonFields, facts: TensorFacts): EncoderConfig {
  const { types, labels: count, classifierDense } = facts;
  const named = own.has("classifier.output_labels") ? own.textList("classifier.output_labels") : [];
  return {
    types,
    positionOffset: 0,
    paddingToken: fields.tokens("tokenizer.ggml.padding_token_id")[0] ?? null,
    labels: Array.from({ length: count }, (_, i) => named[i] ?? `LABEL_${i}`),
    classifierDense,
    classifierPooling: poolingOf(own, "classifier.pooling_type") ?? form.ggufClassifierPooling,
    classifierActivation: form.classifierActivation,
  };
}

/** A file that names a pooling is meant to give vectors of length 1, as the tools that read it make them. */
export function ggufEmbedding(own: JsonFields, usual: Pooling): EmbeddingSettings {
  const pooling = poolingOf(own, "pooling_type");
  const normalize = own.flagOr("normalize_embeddings", pooling !== undefined);
  return { ...usualSettings(pooling ?? usual), normalize };
}

/** `embedding` is null where the model's files say nothing of it. */
export function embeddingMetadata(
  { encoder }: ModelConfig,
  embedding: EmbeddingSettings | null,
  ggufClassifierPooling: Pooling | undefined,
): Record<string, GgufTyped> {
  const metadata: Record<string, GgufTyped> = {};
  if (encoder) metadata["attention.causal"] = { type: "bool", value: false };
  if (encoder && encoder.labels.length > 0) {
    metadata.pooling_type = { type: "u32", value: RANK };
    metadata["classifier.output_labels"] = { type: "string[]", value: [...encoder.labels] };
    if (encoder.classifierPooling !== ggufClassifierPooling) {
      metadata["classifier.pooling_type"] = { type: "u32", value: poolingNumbers[encoder.classifierPooling] };
    }
  } else if (embedding) {
    metadata.pooling_type = { type: "u32", value: poolingNumbers[embedding.pooling] };
    if (!embedding.normalize) metadata.normalize_embeddings = { type: "bool", value: false };
  }
  return metadata;
}
