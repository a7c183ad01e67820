/**
 * Every failure a user can meet is a `WickError` with a stable `code`. The classes group codes by what the user
 * would do about them; messages say what was asked, what was found and the way out.
 */
export type ErrorCode = keyof typeof classOf;

export class WickError extends Error {
  readonly code: ErrorCode;
  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** Shapes, dims and sizes that do not fit the operation. */
export class ShapeError extends WickError {}
/** A dtype the operation does not take, or two that differ. */
export class DTypeError extends WickError {}
/** A device that does not exist, cannot be used, or differs between operands. */
export class DeviceError extends WickError {}
/** An index outside its dimension. */
export class IndexError extends WickError {}
/** Out of memory, or a tensor used after it was disposed. */
export class MemoryError extends WickError {}
/** A file that is not what it claims to be. */
export class FormatError extends WickError {}
/** A model that cannot be had by its name: not there, not allowed, not reached, or not what was promised. */
export class HubError extends WickError {}
/** An engine that takes no more requests: for now, or any more. */
export class ServingError extends WickError {}
/** Processes that run a model together and cannot: they do not find each other, differ, or one of them is gone. */
export class DistributedError extends WickError {}
/** Any other argument outside its domain. */
export class ValueError extends WickError {}

const classOf = {
  ShapeMismatch: ShapeError,
  BroadcastIncompatible: ShapeError,
  DimOutOfRange: ShapeError,
  DuplicateDim: ShapeError,
  UnexpectedNumberOfDims: ShapeError,
  NarrowInvalidArgs: ShapeError,
  ConvInvalidArgs: ShapeError,
  EmptyTensor: ShapeError,
  RaggedArray: ShapeError,
  InvalidShape: ShapeError,
  RequiresContiguous: ShapeError,
  UnexpectedDType: DTypeError,
  DTypeMismatch: DTypeError,
  UnsupportedDTypeForOp: DTypeError,
  DeviceMismatch: DeviceError,
  UnknownDevice: DeviceError,
  DeviceUnavailable: DeviceError,
  UnsupportedOp: DeviceError,
  LibraryNotFound: DeviceError,
  DriverError: DeviceError,
  DeviceLost: DeviceError,
  CompileFailed: DeviceError,
  InvalidIndex: IndexError,
  OutOfMemory: MemoryError,
  Disposed: MemoryError,
  InvalidFile: FormatError,
  MissingTensor: FormatError,
  ModelNotFound: HubError,
  QuantizationNotFound: HubError,
  NoUsableWeights: HubError,
  AccessDenied: HubError,
  NetworkError: HubError,
  DownloadDamaged: HubError,
  DiskFull: HubError,
  QueueFull: ServingError,
  EngineClosed: ServingError,
  RendezvousFailed: DistributedError,
  RanksDiffer: DistributedError,
  RankLost: DistributedError,
  CollectiveFailed: DistributedError,
  CannotShard: DistributedError,
  InvalidArgument: ValueError,
  ValueOutOfRange: ValueError,
} as const;

/** Throws the error class that belongs to `code`. */
export function fail(code: ErrorCode, message: string, options?: ErrorOptions): never {
  throw new classOf[code](code, message, options);
}

/** A value as it stands in an error message. */
export function shown(value: unknown): string {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    const name = value.constructor?.name ?? "Object";
    return name === "Object" ? "an object" : `a ${name}`;
  }
  return typeof value === "string" || Array.isArray(value) ? JSON.stringify(value) : String(value);
}
