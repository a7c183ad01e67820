/** Llama and its family: loading, logits, generation, chat. */
import "../core/globals.ts";

export type {
  Architecture,
  ConfigKey,
  EncoderForm,
  GgufForm,
  HuggingFaceForm,
  LayerNormRole,
} from "./architectures/architecture.ts";
export { type ArchitectureName, architectures } from "./architectures/index.ts";
export type { CacheType } from "./byte-cache.ts";
export { ModelCache, type ModelCacheOptions } from "./cache.ts";
export { type Answer, type AnswerEvent, type AnswerOptions, AnswerParser, parseAnswer } from "./chat/answer.ts";
export { type AnswerForm, detectAnswerForm, type ToolCallForm } from "./chat/answer-form.ts";
export type { ChatEvent, ChatOptions } from "./chat/chat.ts";
export type { ChatMessage, GivenToolCall, MessageForm, TextPart, ToolCall, ToolDefinition } from "./chat/messages.ts";
export type { TaggedFormName } from "./chat/tool-forms.ts";
export type {
  Activation,
  EncoderConfig,
  Experts,
  Latent,
  ModelConfig,
  PlainActivation,
  RopeConfig,
  RopeScaling,
  StageLayers,
} from "./config.ts";
export type { Run } from "./embeddings/batches.ts";
export type { BatchOptions, EmbedOptions, EmbedProgress, ScoreOptions, Sequence } from "./embeddings/embed.ts";
export type { EmbedInput, TextPair } from "./embeddings/sequences.ts";
export { type EmbeddingSettings, type Pooling, poolings } from "./embeddings/settings.ts";
export type { Encoder } from "./encoder/encoder.ts";
export type { ClassificationHead } from "./encoder/head.ts";
export type { Routing, RoutingGroups } from "./experts/routing.ts";
export { BatchSampler, type Choice } from "./generation/batch-sampler.ts";
export { type DraftSpeculation, draftModel } from "./generation/draft-model.ts";
export type { Finish, GenerateOptions, Piece } from "./generation/generate.ts";
export { PromptCache } from "./generation/prompt-cache.ts";
export { Sampler, type SamplerExtras, type SamplingOptions } from "./generation/sampling.ts";
export {
  type Drafter,
  type PromptLookupOptions,
  promptLookup,
  Speculation,
  type SpeculationOptions,
} from "./generation/speculation.ts";
export { writeModelGguf } from "./gguf/export.ts";
export { type CachedModel, cachedModels, type RemovedModel, removeModel } from "./hub/cached-models.ts";
export { type DownloadProgress, type PulledModel, type PullOptions, pullModel } from "./hub/pull.ts";
export type { HubSettings, Token as HubToken } from "./hub/settings.ts";
export type { JsonFields } from "./json-fields.ts";
export { type ComputeType, type LoadModelOptions, loadModel, type ModelSource, type WeightsOptions } from "./load.ts";
export { loadTokenizer } from "./load-tokenizer.ts";
export { type ForwardOptions, Model, type Prompt, type TokenIds } from "./model.ts";
export type { Packed } from "./packed.ts";
export type { PagedSequence } from "./paged/batch.ts";
export { PagedCache, type PagedLayer } from "./paged/cache.ts";
export { PagedStepper, type PagedStepperOptions, type StepOutcome, type StepRow } from "./paged/stepper.ts";
export type { DevicePlaces, PagedTable } from "./paged/steps.ts";
export type { DeviceChoice, DeviceShare } from "./placement/choose.ts";
export type { Share } from "./placement/place.ts";
export type { Sites } from "./placement/sites.ts";
export type { Positions } from "./positions.ts";
export type { SharedTable, Table as RotaryTable } from "./rotary.ts";
export type { Sharding, Stretch } from "./sharding/cuts.ts";
export type { Pipeline } from "./sharding/pipeline.ts";
export type { Shard } from "./sharding/shard.ts";
export type { DivisibleSource, WeightsSource } from "./sharding/weights-source.ts";
export { ChatTemplate, PLAIN_TEMPLATE, type RenderOptions } from "./text/chat-template.ts";
export type { Segments } from "./text/frames.ts";
export { type DecodeOptions, type EncodeOptions, Tokenizer, type TokenizerOptions } from "./text/tokenizer.ts";
export type { PassOptions, Transformer, TransformerOptions } from "./transformer.ts";
export type { FusedRoles, Names, WeightsForm } from "./weights/naming.ts";
export type { WeightSizes } from "./weights/weight-sizes.ts";
export type {
  DeviceWeights,
  EmbeddingRole,
  EmbeddingTable,
  Fusion,
  HeadRole,
  LinearRole,
  Norm,
  NormRole,
  NormWeights,
  Part,
  Place,
  Projection,
  ProjectionStack,
  RoutedFusion,
  StackFusion,
  StackPart,
  VectorRole,
  Weights,
} from "./weights/weights.ts";
