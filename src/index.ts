import "./core/globals.ts";

export type * from "./backend/backend.ts";
export { Device, type GpuOptions, type RocmOptions } from "./backend/device.ts";
export type { HostMemoryChoice } from "./backend/gpu/memory-policy.ts";
export { Storage } from "./backend/storage.ts";
export { type DType, dtypeNames, isFloat, isInt, sizeOf, type TypedArray } from "./core/dtype.ts";
export {
  DeviceError,
  DTypeError,
  type ErrorCode,
  FormatError,
  IndexError,
  MemoryError,
  ShapeError,
  ValueError,
  WickError,
} from "./core/errors.ts";
export { Layout, type Shape } from "./core/layout.ts";
export * from "./tensor/index.ts";
