/**
 * What a vendor's library of neural operations does for Wick. Addresses are of contiguous device memory in row-major
 * order, results are written to `y`, and work is enqueued on the device's stream. Callers have asked limits.ts before.
 */
import type { DevicePtr } from "../../driver.ts";
import type { activationMode, MiopenType } from "./api.ts";

export type Activation = keyof typeof activationMode;
export type Size = readonly [h: number, w: number];
export type Dims = readonly [n: number, c: number, h: number, w: number];

interface Mapping {
  readonly dtype: MiopenType;
  readonly x: DevicePtr;
  readonly y: DevicePtr;
}
export interface Softmax extends Mapping {
  readonly rows: number;
  readonly cols: number;
  readonly log: boolean;
}
export interface Activate extends Mapping {
  readonly activation: Activation;
  /** The slope of leakyRelu, the ceiling of clippedRelu, the scale of elu; others have none. */
  readonly param: number;
  readonly numel: number;
}
export interface Convolution extends Mapping {
  readonly w: DevicePtr;
  readonly input: Dims;
  readonly kernel: Dims;
  readonly output: Dims;
  readonly stride: Size;
  readonly padding: Size;
  readonly dilation: Size;
  readonly groups: number;
}
export interface Pooling extends Mapping {
  readonly kind: "max" | "avg";
  readonly input: Dims;
  readonly output: Dims;
  readonly kernel: Size;
  readonly stride: Size;
}
export interface BatchNorm extends Mapping {
  readonly input: Dims;
  /** Each (c) in f32. */
  readonly scale: DevicePtr;
  readonly bias: DevicePtr;
  readonly mean: DevicePtr;
  readonly variance: DevicePtr;
  readonly epsilon: number;
}
/** softmax(q·kᵀ·scale)·v with q, k, v and y (n, heads, length, size) in f32. */
export interface Attention {
  readonly q: DevicePtr;
  readonly k: DevicePtr;
  readonly v: DevicePtr;
  readonly y: DevicePtr;
  readonly dims: readonly [n: number, heads: number, length: number, size: number];
  readonly scale: number;
}

export interface Dnn {
  readonly library: string;
  readonly version: string;
  /** Whether this release has attention at all. */
  readonly hasAttention: boolean;
  softmax(p: Softmax): void;
  activation(p: Activate): void;
  /** Chooses an algorithm at the first call of each problem, by trying them: that call takes its time and waits. */
  conv2d(p: Convolution): void;
  pool2d(p: Pooling): void;
  batchNorm(p: BatchNorm): void;
  attention(p: Attention): void;
  close(): void;
}
