/** The weights of a file, all of them or a rank's part. */
import type { DType } from "../../core/dtype.ts";
import type { StoredWeights } from "../../formats/weights-file.ts";
import { type ModelConfig, stageOf } from "../config.ts";
import type { WeightsOptions } from "../load.ts";
import { FileWeights } from "../weights/file-weights.ts";
import { ModelTensors } from "../weights/model-tensors.ts";
import type { WeightsForm } from "../weights/naming.ts";
import { fileSizes, type WeightSizes } from "../weights/weight-sizes.ts";
import type { DeviceWeights } from "../weights/weights.ts";
import { fingerprintOf } from "./fingerprint.ts";
import { RankFile } from "./rank-file.ts";
import type { Shard } from "./shard.ts";
import { ShardedWeights } from "./sharded-weights.ts";

export interface WeightsSource {
  readonly config: ModelConfig;
  openWeights(options: WeightsOptions): Promise<DeviceWeights>;
  /** What the weights take where the model computes in a dtype. */
  sizesIn(dtype: DType): WeightSizes;
}

/** Weights of which processes may have parts. */
export interface DivisibleSource extends WeightsSource {
  /** What tells the model from others. */
  fingerprint(): Promise<string>;
  /** `count` of its layers, from `first` on. */
  staged(first: number, count: number): DivisibleSource;
  /** A rank's part of every layer. The config is that of the part, but for the vocabulary, which is whole. */
  sharded(shard: Shard): WeightsSource;
}

export const weightsSource = (file: StoredWeights, config: ModelConfig, form: WeightsForm): DivisibleSource => ({
  config,
  fingerprint: () => fingerprintOf(file),
  staged: (first, count) => {
    const names = { ...form.names, firstLayer: first };
    return weightsSource(file, stageOf(config, first, count), { ...form, names });
  },
  sizesIn: (dtype) => fileSizes(new ModelTensors(file, config, form), dtype),
  openWeights: async (options) => new FileWeights(file, config, form, options),
  sharded: (shard) => {
    const own = new RankFile(file, config, form, shard);
    return {
      config: own.config,
      sizesIn: (dtype) => own.sizes(fileSizes(new ModelTensors(own.file, own.config, form), dtype)),
      openWeights: async (options) => new ShardedWeights(own, shard, form, options),
    };
  },
});
