/** The weights of a file, all of them or a rank's part. */
import type { StoredWeights } from "../../formats/weights-file.ts";
import type { ModelConfig } from "../config.ts";
import type { WeightsOptions } from "../load.ts";
import { FileWeights } from "../weights/file-weights.ts";
import type { WeightsForm } from "../weights/naming.ts";
import type { DeviceWeights } from "../weights/weights.ts";
import { ShardedWeights } from "./sharded-weights.ts";

/** The file is closed with the weights. */
export const fileWeights = (
  file: StoredWeights,
  config: ModelConfig,
  form: WeightsForm,
  options: WeightsOptions,
): DeviceWeights =>
  options.shard
    ? new ShardedWeights(file, config, form, options, options.shard)
    : new FileWeights(file, config, form, options);
