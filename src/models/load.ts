/** Loading a model from where it lies, with progress and abort. */
import { stat } from "node:fs/promises";
import { Device } from "../backend/device.ts";
import type { TransformerNeeds } from "../backend/transformers.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { LoadProgress } from "../formats/index.ts";
import { openIfGguf } from "../formats/weights-file.ts";
import type { ModelConfig } from "./config.ts";
import { openGgufModel } from "./gguf/model.ts";
import { openHuggingFaceFolder } from "./hugging-face/folder.ts";
import { Model } from "./model.ts";
import { requireRoom } from "./room.ts";
import { ChatTemplate } from "./text/chat-template.ts";
import type { Tokenizer } from "./text/tokenizer.ts";
import { Transformer } from "./transformer.ts";
import type { DeviceWeights } from "./weights/weights.ts";

export const computeTypes = ["f32", "f16", "bf16"] as const;
export type ComputeType = (typeof computeTypes)[number];

export interface LoadModelOptions {
  /** Default "cpu". */
  readonly device?: Device | string | undefined;
  /** What to compute in. Default: f32 on the CPU, elsewhere what the weights were saved in. */
  readonly dtype?: ComputeType | undefined;
  /** How many tokens must fit beside the weights, or the load is refused. Default 2048, or what the model can hold. */
  readonly context?: number | undefined;
  /** A Jinja template in place of the model's own. */
  readonly chatTemplate?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called as bytes arrive. */
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** A model whose files are open: everything but the weights has been read, and of those where they are. */
export interface ModelSource extends AsyncDisposable {
  readonly config: ModelConfig;
  readonly tokenizer: Tokenizer | null;
  readonly chatTemplate: ChatTemplate | null;
  openWeights(options: WeightsOptions): Promise<DeviceWeights>;
}

export interface WeightsOptions {
  readonly device: Device;
  readonly dtype: DType;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/**
 * Loads a GGUF file, or a Hugging Face folder: config.json, one or more safetensors, and tokenizer.json where there is
 * one.
 */
export async function loadModel(path: string, options: LoadModelOptions = {}): Promise<Model> {
  const { signal, onProgress, chatTemplate } = options;
  signal?.throwIfAborted();
  const device = Device.from(options.device ?? "cpu");
  if (options.dtype !== undefined && !computeTypes.includes(options.dtype)) {
    fail("InvalidArgument", `loadModel: models compute in ${computeTypes.join(", ")}, not ${String(options.dtype)}`);
  }
  await using source = await openModel(path);
  const dtype = options.dtype ?? (device.name === "cpu" ? "f32" : (source.config.dtype ?? "f32"));
  await using weights = await source.openWeights({ device, dtype, signal, onProgress });
  requireRoom({ config: source.config, weights, device, dtype, context: options.context });
  // The device compiles while the weights are read; what converts them must be there before, or it would be waited for.
  const prepared = device.backend.transformers?.prepare(needsOf(source.config, weights, dtype));
  await prepared?.toLoad;
  const transformer = await Transformer.load(source.config, weights, device, dtype);
  try {
    await weights.arrival();
    await prepared?.toRun;
  } catch (error) {
    transformer[Symbol.dispose]();
    throw error;
  }
  const template = chatTemplate === undefined ? source.chatTemplate : new ChatTemplate(chatTemplate);
  return new Model(transformer, source.tokenizer, template);
}

/** What a device can ready for a model before its weights are there. */
export const needsOf = (
  config: ModelConfig,
  weights: Pick<DeviceWeights, "quantTypes" | "storedTypes" | "normsAreShifted" | "hasPlainMatrices">,
  dtype: DType,
): TransformerNeeds => ({
  dtype,
  quantTypes: weights.quantTypes,
  storedTypes: weights.storedTypes,
  normsAreShifted: weights.normsAreShifted,
  hasPlainWeights: weights.hasPlainMatrices,
  headDim: config.headDim,
  hiddenSize: config.hiddenSize,
  activation: config.activation,
  interleaved: config.rope.interleaved,
  scoresAreShaped: config.attentionSoftcap > 0 || config.attentionScale <= 0,
  // What scales embeddings scales the rest, too.
  embeddingsAreScaled: config.embeddingScale !== 1 || config.residualScale !== 1,
  logitsAreCapped: config.logitSoftcap > 0 || config.logitScale !== 1,
});

/** Reads everything but the weights. */
export async function openModel(path: string): Promise<ModelSource> {
  const found = await stat(path).catch((cause: Error) =>
    fail("InvalidFile", `${path} cannot be opened: ${cause.message}; name a model's folder or GGUF file`, { cause }),
  );
  if (found.isDirectory()) return openHuggingFaceFolder(path);
  const file = found.isFile() ? await openIfGguf(path) : null;
  if (file) return openGgufModel(file);
  return fail("InvalidFile", `${path} is no model; name a GGUF file, or a folder with config.json and safetensors`);
}
