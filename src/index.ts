import "./core/globals.ts";

export type { MemoryStats } from "./backend/backend.ts";
export { Device, type GpuOptions, type RocmOptions } from "./backend/device.ts";
export type { HostMemoryChoice } from "./backend/gpu/memory-policy.ts";
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
export type { Shape } from "./core/layout.ts";
export * from "./tensor/index.ts";
