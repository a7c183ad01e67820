/** Loading a model from where it lies, with progress and abort. */
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Device } from "../backend/device.ts";
import type { TransformerNeeds } from "../backend/transformers.ts";
import type { DType } from "../core/dtype.ts";
import { FormatError, fail } from "../core/errors.ts";
import type { Group } from "../distributed/group.ts";
import type { LoadProgress } from "../formats/index.ts";
import { openIfGguf } from "../formats/weights-file.ts";
import { architectureOf } from "./architectures/index.ts";
import type { CacheType } from "./byte-cache.ts";
import type { ModelConfig } from "./config.ts";
import type { EmbeddingSettings } from "./embeddings/settings.ts";
import { Encoder } from "./encoder/encoder.ts";
import { openGgufModel } from "./gguf/model.ts";
import { ggufModels } from "./hub/gguf-names.ts";
import { type DownloadProgress, locateModel, type PullOptions, refuseDamaged } from "./hub/pull.ts";
import { openHuggingFaceFolder } from "./hugging-face/folder.ts";
import { Model } from "./model.ts";
import { choosePlaces, type DeviceChoice, demandOn } from "./placement/choose.ts";
import type { Room, Share } from "./placement/place.ts";
import { devicesOf, type Sites } from "./placement/sites.ts";
import { requireStages, stageShares } from "./placement/stages.ts";
import { Pipeline } from "./sharding/pipeline.ts";
import { Shard } from "./sharding/shard.ts";
import type { DivisibleSource, WeightsSource } from "./sharding/weights-source.ts";
import { ChatTemplate } from "./text/chat-template.ts";
import type { Tokenizer } from "./text/tokenizer.ts";
import { Transformer } from "./transformer.ts";
import type { DeviceWeights } from "./weights/weights.ts";

export const computeTypes = ["f32", "f16", "bf16"] as const;
export type ComputeType = (typeof computeTypes)[number];

export interface LoadModelOptions {
  /**
   * One device; several that share the layers, in this order: `["rocm:0", "rocm:1", "cpu"]`; or "auto", the best GPU with
   * as many others as the model needs, and at last the CPU. GPUs share by their free memory, the CPU takes what they have
   * no room for. Default "cpu".
   */
  readonly device?: DeviceChoice | undefined;
  /** How many layers GPUs get; the CPU has the others. Default: as many as they have room for. */
  readonly gpuLayers?: number | undefined;
  /** What to compute in. Default: f32 on the CPU, elsewhere what the weights were saved in. */
  readonly dtype?: ComputeType | undefined;
  /**
   * What keys and values are kept as. "f8e4m3" takes about half the memory of halves, for a little of the speed; it rounds
   * them to 4 bits (docs/models.md says what that does to logits). Default: as what is computed in.
   */
  readonly kvCache?: CacheType | undefined;
  /** How many tokens must fit beside the weights, or the load is refused. Default 2048, or what the model can hold. */
  readonly context?: number | undefined;
  /** The most bytes it may take of the devices' memory, its weights and that context. Default: what they can give. */
  readonly memory?: number | undefined;
  /**
   * What is said of a sequence does not depend, bit by bit, on what else is computed with it: so seeds give the same text
   * whatever else runs. GPUs use slower kernels then; on the CPU it is always so.
   */
  readonly batchInvariant?: boolean | undefined;
  /** The processes that the model is split over; each of them loads it, and makes the same calls. */
  readonly group?: Group | undefined;
  /** A Jinja template in place of the model's own. */
  readonly chatTemplate?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called as bytes of a model that is not on this machine arrive, before any of them is loaded. */
  readonly onDownload?: ((progress: DownloadProgress) => void) | undefined;
  /** Called where the hub is not reached, with why, and the model is taken as the cache has it. */
  readonly onUnreached?: ((why: string) => void) | undefined;
  /** Called as bytes arrive. */
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** A model whose files are open: everything but the weights has been read, and of those where they are. */
export interface ModelSource extends DivisibleSource, AsyncDisposable {
  /** How its authors mean it to embed. */
  readonly embedding: EmbeddingSettings;
  readonly tokenizer: Tokenizer | null;
  readonly chatTemplate: ChatTemplate | null;
}

export interface WeightsOptions {
  /** For all of them, or for each part of the model. */
  readonly device: Device | Sites;
  readonly dtype: DType;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/**
 * Loads a model by its name at the hub (`owner/name`, `hf:owner/name@revision`, `owner/name:Q4_K_M`), which is downloaded
 * first where the cache does not have it; a GGUF file; a Hugging Face folder: config.json, one or more safetensors, and
 * tokenizer.json where there is one; or the URL of a GGUF file.
 */
export async function loadModel(name: string, options: LoadModelOptions = {}): Promise<Model> {
  const { signal, onDownload, onUnreached } = options;
  signal?.throwIfAborted();
  if (options.dtype !== undefined && !computeTypes.includes(options.dtype)) {
    fail("InvalidArgument", `loadModel: models compute in ${computeTypes.join(", ")}, not ${String(options.dtype)}`);
  }
  const located = await locateModel(name, { signal, onDownload, onUnreached });
  try {
    return await loadFrom(located.path, options);
  } catch (error) {
    if (error instanceof FormatError) await refuseDamaged(name, located);
    throw error;
  }
}

async function loadFrom(path: string, options: LoadModelOptions): Promise<Model> {
  const { signal, onProgress, chatTemplate, device = "cpu", group } = options;
  await using source = await openModelAt(path);
  const own = group ? await ownPart(source, options, group) : source;
  const pipeline = group && group.stages > 1 ? new Pipeline(group) : undefined;
  const { config } = own;
  const { sites, dtype, stored, shares } = await choosePlaces({ ...options, device, config, sizesIn: own.sizesIn });
  if (group && devicesOf(sites).some((each) => each !== group.device)) {
    const names = devicesOf(sites).map(({ name }) => name);
    fail(
      "InvalidArgument",
      `loadModel: a rank's part lies on the group's ${group.device.name}, not on ${names.join(", ")}`,
    );
  }
  await using weights = await own.openWeights({ device: sites, dtype, signal, onProgress });
  // Devices compile while the weights are read; what converts them must be there before, or it would be waited for.
  const needs = needsOf(config, weights, dtype, stored);
  const prepared = devicesOf(sites).map(({ backend }) => backend.transformers?.prepare(needs));
  await Promise.all(prepared.map((own) => own?.toLoad));
  const transformer = config.encoder
    ? await Encoder.load(config, weights, sites, dtype)
    : await Transformer.load(config, weights, sites, dtype, options.batchInvariant, stored, pipeline);
  try {
    await weights.arrival();
    await Promise.all(prepared.map((own) => own?.toRun));
  } catch (error) {
    transformer[Symbol.dispose]();
    throw error;
  }
  const template = chatTemplate === undefined ? source.chatTemplate : new ChatTemplate(chatTemplate);
  return new Model(transformer, source.tokenizer, template, source.embedding, shares);
}

/** This rank's part, once all ranks are known to have the same model. */
async function ownPart(source: ModelSource, options: LoadModelOptions, group: Group): Promise<WeightsSource> {
  const { tensor, stages } = group;
  await group.requireSame("the model", { config: source.config, dtype: options.dtype });
  await group.requireSame("the model's weights", await source.fingerprint());
  const partOf = (of: DivisibleSource): WeightsSource => (tensor ? of.sharded(new Shard(tensor)) : of);
  if (stages === 1) return partOf(source);
  requireStages(source.config, stages);
  const { first, layers } = await ownStage(partOf(source), options, group);
  return partOf(source.staged(first, layers));
}

/** Which layers are this rank's, as all ranks have them: by the memory of the device that has least in each stage. */
async function ownStage({ config, sizesIn }: WeightsSource, options: LoadModelOptions, group: Group): Promise<Share> {
  const { device, stages, stage, size } = group;
  const demand = await demandOn([device], { ...options, config, sizesIn });
  const all = await group.exchange(Math.min(device.available().bytes, options.memory ?? Number.POSITIVE_INFINITY));
  const rooms = Array.from({ length: stages }, (_, i): Room => {
    const bytes = Math.min(...all.slice((i * size) / stages, ((i + 1) * size) / stages));
    return { name: `stage ${i}`, bytes, spare: false, maps: false, keepsAll: true };
  });
  // Ranks of a stage have parts that differ in size.
  const [shares] = (await group.exchange(stageShares(demand, rooms))) as [Share[]];
  return shares[stage]!;
}

/** What a device can ready for a model before its weights are there. */
export const needsOf = (
  config: ModelConfig,
  weights: Pick<DeviceWeights, "quantTypes" | "storedTypes" | "normsAreShifted" | "hasPlainMatrices">,
  dtype: DType,
  stored: DType = dtype,
): TransformerNeeds => ({
  dtype,
  cachesBytes: stored !== dtype,
  quantTypes: weights.quantTypes,
  storedTypes: weights.storedTypes,
  normsAreShifted: weights.normsAreShifted,
  hasPlainWeights: weights.hasPlainMatrices,
  hasExperts: config.experts !== null,
  attendsToLatents: config.latent !== null,
  encodes: config.encoder !== null,
  headDim: config.headDim,
  hiddenSize: config.hiddenSize,
  activation: config.activation,
  norm: architectureOf(config).normKind,
  mlpsAreGated: architectureOf(config).mlp === "gated",
  positionsAreLearned: architectureOf(config).positions === "learned",
  interleaved: config.rope.interleaved,
  scoresAreShaped: config.attentionSoftcap > 0 || config.attentionScale <= 0,
  // What scales embeddings scales the rest, too.
  embeddingsAreScaled: config.embeddingScale !== 1 || config.residualScale !== 1,
  logitsAreCapped: config.logitSoftcap > 0 || config.logitScale !== 1,
});

/** Reads everything but the weights. */
export const openModel = async (name: string, options?: PullOptions): Promise<ModelSource> =>
  openModelAt((await locateModel(name, options)).path);

async function openModelAt(path: string): Promise<ModelSource> {
  const found = await stat(path).catch((cause: Error) =>
    fail(
      "InvalidFile",
      `${path} cannot be opened: ${cause.message}; name a model's folder or GGUF file, or owner/name at the hub`,
      { cause },
    ),
  );
  if (found.isDirectory()) {
    const only = await onlyGguf(path);
    return only === undefined ? openHuggingFaceFolder(path) : openModelAt(only);
  }
  const file = found.isFile() ? await openIfGguf(path) : null;
  if (file) return openGgufModel(file);
  return fail("InvalidFile", `${path} is no model; name a GGUF file, or a folder with config.json and safetensors`);
}

/** The model of a folder that holds GGUF files and no config.json. */
export async function onlyGguf(folder: string): Promise<string | undefined> {
  const names = await readdir(folder);
  const models = names.includes("config.json") ? [] : ggufModels(names);
  if (models.length > 1) {
    fail("InvalidFile", `${folder} holds ${models.map(({ files }) => files[0]).join(", ")}: name the one to open`);
  }
  return models[0] && join(folder, models[0].files[0]!);
}
