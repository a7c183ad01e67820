/** Llama and its family: loading, logits, generation, chat. */
import "../core/globals.ts";

export { type Architecture, type ArchitectureName, architectures } from "./architectures.ts";
export { ModelCache, type ModelCacheOptions } from "./cache.ts";
export { type ChatMessage, ChatTemplate, PLAIN_TEMPLATE, type RenderOptions } from "./chat-template.ts";
export type { Activation, ModelConfig, RopeConfig, RopeScaling } from "./config.ts";
export type { Finish, GenerateOptions, Piece } from "./generation.ts";
export { writeModelGguf } from "./gguf-export.ts";
export type { JsonFields } from "./json-fields.ts";
export { type ComputeType, type LoadModelOptions, loadModel, type ModelSource, type WeightsOptions } from "./load.ts";
export { type ForwardOptions, Model, type Prompt, type TokenIds } from "./model.ts";
export { PromptCache } from "./prompt-cache.ts";
export type { Positions } from "./rotary.ts";
export { Sampler, type SamplingOptions } from "./sampling.ts";
export { type DecodeOptions, type EncodeOptions, Tokenizer, type TokenizerOptions } from "./tokenizer.ts";
export type { Transformer, TransformerOptions } from "./transformer.ts";
export type {
  DeviceWeights,
  EmbeddingTable,
  Fusion,
  LinearRole,
  Norm,
  NormRole,
  Part,
  Place,
  Projection,
  Weights,
} from "./weights.ts";
