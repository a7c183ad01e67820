export type { NamedTensors } from "./named-tensors.ts";
export { loadNpy, type ParseNpyOptions, parseNpy, saveNpy } from "./npy.ts";
export { loadNpz, type SaveNpzOptions, saveNpz } from "./npz.ts";
export type { ReadOptions } from "./read-options.ts";
export {
  type ByteRange,
  SafetensorsFile,
  type SafetensorsReader,
  type SaveSafetensorsOptions,
  saveSafetensors,
} from "./safetensors.ts";
export type { ForeignDType, SafetensorsInfo } from "./safetensors-header.ts";
export { type LoadOptions, type LoadProgress, loadSafetensors, openSafetensors } from "./safetensors-sharded.ts";
