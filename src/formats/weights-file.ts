/** One view of the files that hold weights, GGUF and safetensors, for tools that take either. */
import { stat } from "node:fs/promises";
import type { DType } from "../core/dtype.ts";
import type { Shape } from "../core/layout.ts";
import type { QuantType } from "../quantized/types.ts";
import { BinaryFile } from "./binary-file.ts";
import { GgufFile } from "./gguf/file.ts";
import { MAGIC } from "./gguf/header.ts";
import { tensorType } from "./gguf/types.ts";
import type { GgufTyped } from "./gguf/values.ts";
import type { ByteRange, FilePlace } from "./read-options.ts";
import { SafetensorsFile, type SafetensorsReader } from "./safetensors/file.ts";
import { isForeign } from "./safetensors/header.ts";
import { openSafetensors } from "./safetensors/sharded.ts";

export interface WeightsTensor {
  readonly name: string;
  /** As the format names it. */
  readonly type: string;
  readonly shape: Shape;
  readonly byteLength: number;
  readonly dtype?: DType | undefined;
  readonly quant?: QuantType | undefined;
  /** Where its bytes lie as they are. */
  readonly place?: FilePlace | undefined;
}

export interface WeightsFile extends AsyncDisposable {
  readonly path: string;
  readonly format: "gguf" | "safetensors";
  /** What only a GGUF file has. */
  readonly gguf?: { readonly version: number; readonly alignment: number };
  readonly metadata: ReadonlyMap<string, GgufTyped>;
  readonly tensors: readonly WeightsTensor[];
  readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array>;
}

/** Weights that lie in a file as they are. */
export interface StoredWeights extends WeightsFile {
  /** Fills `out` with a tensor's bytes from `start` on. */
  readInto(out: Uint8Array, name: string, start: number, signal?: AbortSignal): Promise<void>;
}

/** Opens a GGUF file, a safetensors file or index, or a folder with safetensors. */
export async function openWeights(path: string): Promise<StoredWeights> {
  if (path.endsWith(".json") || !(await isFile(path))) return safetensorsWeights(path, await openSafetensors(path));
  const opened = await openEither(path);
  return opened instanceof GgufFile
    ? ggufWeights(opened)
    : safetensorsWeights(path, await SafetensorsFile.over(opened));
}

/** The file if it is GGUF, null if it is not. */
export async function openIfGguf(path: string): Promise<GgufFile | null> {
  const opened = await openEither(path);
  if (opened instanceof GgufFile) return opened;
  await opened.close();
  return null;
}

/** Whether it is a file that is named or starts like one. */
export async function isGguf(path: string): Promise<boolean> {
  if (isNamedGguf(path)) return true;
  if (!(await isFile(path))) return false;
  await using file = await BinaryFile.open(path);
  return startsLikeGguf(file);
}

/** A file that is not GGUF is left open for whoever knows what else it is. */
async function openEither(path: string): Promise<GgufFile | BinaryFile> {
  const file = await BinaryFile.open(path);
  try {
    return isNamedGguf(path) || (await startsLikeGguf(file)) ? await GgufFile.over(file) : file;
  } catch (error) {
    await file.close();
    throw error;
  }
}

const isNamedGguf = (path: string): boolean => path.toLowerCase().endsWith(".gguf");

const startsLikeGguf = async (file: BinaryFile): Promise<boolean> =>
  Buffer.from(await file.read(0, Math.min(MAGIC.length, file.size))).toString("latin1") === MAGIC;

const isFile = (path: string): Promise<boolean> =>
  stat(path).then(
    (found) => found.isFile(),
    () => false, // opening it gives the better message
  );

export function ggufWeights(file: GgufFile): StoredWeights {
  const tensors = [...file.tensors].map(([name, info]) => {
    const { dtype, quant } = tensorType(info.type) ?? {};
    const { typeName: type, shape, byteLength } = info;
    return { name, type, shape, byteLength, dtype, quant, place: file.place(name) };
  });
  return {
    path: file.path,
    format: "gguf",
    gguf: { version: file.version, alignment: file.alignment },
    metadata: file.typedMetadata,
    tensors,
    readBytes: (name, signal, range) => file.readBytes(name, signal, range),
    readInto: (out, name, start, signal) => file.readInto(out, name, start, signal),
    [Symbol.asyncDispose]: () => file.close(),
  };
}

async function safetensorsWeights(path: string, file: SafetensorsReader): Promise<StoredWeights> {
  try {
    const tensors: WeightsTensor[] = [];
    for (const name of file.names) {
      const { dtype, shape, byteLength } = await file.info(name);
      const known = isForeign(dtype) ? undefined : dtype;
      tensors.push({ name, type: dtype, shape, byteLength, dtype: known, place: await file.place(name) });
    }
    return {
      path,
      format: "safetensors",
      metadata: new Map([...file.metadata].map(([key, value]) => [key, { type: "string", value }])),
      tensors,
      readBytes: (name, signal, range) => file.readBytes(name, signal, range),
      readInto: (out, name, start, signal) => file.readInto(out, name, start, signal),
      [Symbol.asyncDispose]: () => file.close(),
    };
  } catch (error) {
    await file.close();
    throw error;
  }
}
