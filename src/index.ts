import "./core/globals.ts";

export type * from "./backend/backend.ts";
export { type Call, observe } from "./backend/call.ts";
export { Device } from "./backend/device.ts";
export type * from "./backend/fused-ops.ts";
export type { HostMemoryChoice } from "./backend/gpu/memory-policy.ts";
export type * from "./backend/paged-attention.ts";
export {
  type DeviceAddress,
  type FamilyOptions,
  registerDevice,
  registerSearch,
  type Search,
} from "./backend/registry.ts";
export { Storage } from "./backend/storage.ts";
export type * from "./backend/transformers.ts";
export {
  type ArrayOf,
  type DType,
  dtypeNames,
  isFloat,
  isInt,
  type ScalarOf,
  sizeOf,
  type TypedArray,
} from "./core/dtype.ts";
export {
  DeviceError,
  DistributedError,
  DTypeError,
  type ErrorCode,
  FormatError,
  HubError,
  IndexError,
  MemoryError,
  ServingError,
  ShapeError,
  ValueError,
  WickError,
} from "./core/errors.ts";
export { Layout, type Shape } from "./core/layout.ts";
export type { QuantType } from "./core/quant-types.ts";
export type { CpuOptions, GpuOptions, RocmOptions } from "./devices.ts";
export * from "./ops/index.ts";
