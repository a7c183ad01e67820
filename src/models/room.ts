/** Whether a model fits, found out before anything is uploaded: a load that runs out half-way may take the machine along. */
import type { Available } from "../backend/backend.ts";
import type { Device } from "../backend/device.ts";
import { collect } from "../backend/storage.ts";
import { formatBytes } from "../backend/usage.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { cacheBytes } from "./cache.ts";
import type { ModelConfig } from "./config.ts";
import type { DeviceWeights } from "./weights/weights.ts";

/** Positions that must fit beside the weights where the caller says nothing: caches grow with the text, not at once. */
const DEFAULT_CONTEXT = 2048;
/** Pieces of weights on their way, and what a step computes; small models need no more than their own size. */
const SCRATCH = 64 * 2 ** 20;

export interface RoomAsked {
  readonly config: ModelConfig;
  readonly weights: DeviceWeights;
  readonly device: Device;
  readonly dtype: DType;
  /** What keys and values are kept as. */
  readonly cacheDType: DType;
  readonly context?: number | undefined;
  /** The most bytes it may take, where the device could give more. */
  readonly memory?: number | undefined;
}

/** Throws `OutOfMemory` with what is needed, what is there and the way out. */
export function requireRoom({ config, weights, device, dtype, cacheDType, context, memory }: RoomAsked): void {
  const positions = checkContext(context, config);
  const { deviceBytes } = weights;
  const cache = config.encoder ? 0 : cacheBytes(config, device, dtype, positions, cacheDType);
  const scratch = Math.min(SCRATCH, deviceBytes);
  const needed = deviceBytes + cache + scratch;
  let available = roomOn(device, memory);
  // Garbage may hold what is missing.
  if (needed > available.bytes && collect() > 0) available = roomOn(device, memory);
  if (needed <= available.bytes) return;
  fail(
    "OutOfMemory",
    `${device.name}: the model needs ${formatBytes(needed)} (weights ${formatBytes(deviceBytes)}, a context of ${positions} tokens ${formatBytes(cache)}, work ${formatBytes(scratch)}), but ${formatBytes(available.bytes)} can be had (${available.where}); nothing was loaded. Take a smaller quantization or dtype${sizeOf(dtype) > 2 ? ' (dtype: "bf16")' : ""}, a shorter context (the option context, or --context), or another device`,
  );
}

function roomOn(device: Device, memory = Number.POSITIVE_INFINITY): Available {
  const available = device.available();
  if (available.bytes <= memory) return available;
  return { bytes: Math.max(0, memory), where: "the limit on memory leaves no more" };
}

function checkContext(context: number | undefined, { contextLength }: ModelConfig): number {
  if (context === undefined) return Math.min(DEFAULT_CONTEXT, contextLength);
  if (Number.isInteger(context) && context > 0 && context <= contextLength) return context;
  return fail(
    "InvalidArgument",
    `loadModel: context must be a whole number from 1 to the model's ${contextLength}, not ${context}`,
  );
}
