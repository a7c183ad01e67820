import "../core/globals.ts";

export type { BinaryFile } from "./binary-file.ts";
export { GgufFile } from "./gguf/file.ts";
export type { GgufTensorInfo } from "./gguf/header.ts";
export {
  type QuantizedTensorReport,
  type QuantizeOptions,
  type QuantizeProgress,
  quantizeFile,
  quantizeTargets,
} from "./gguf/quantize.ts";
export type {
  GgufInput,
  GgufScalar,
  GgufScalarType,
  GgufTyped,
  GgufTypedArray,
  GgufValue,
  NumberArray,
} from "./gguf/values.ts";
export { type GgufEntry, type GgufPromisedTensor, type WriteGgufOptions, writeGguf } from "./gguf/writer.ts";
export type { NamedTensors } from "./named-tensors.ts";
export { loadNpy, type ParseNpyOptions, parseNpy, saveNpy } from "./npy/npy.ts";
export { loadNpz, type SaveNpzOptions, saveNpz } from "./npy/npz.ts";
export type { ByteRange, FilePlace, ReadOptions } from "./read-options.ts";
export {
  SafetensorsFile,
  type SafetensorsReader,
  type SaveSafetensorsOptions,
  saveSafetensors,
} from "./safetensors/file.ts";
export type { ForeignDType, SafetensorsInfo } from "./safetensors/header.ts";
export { type LoadOptions, type LoadProgress, loadSafetensors, openSafetensors } from "./safetensors/sharded.ts";
export { isGguf, openWeights, type StoredWeights, type WeightsFile, type WeightsTensor } from "./weights-file.ts";
