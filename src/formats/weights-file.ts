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
import type { ByteRange } from "./safetensors/file.ts";
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

/** Opens a GGUF file, a safetensors file or index, or a folder with safetensors. */
export async function openWeights(path: string): Promise<WeightsFile> {
  return (await isGguf(path)) ? openGguf(path) : openSafe(path);
}

/** Whether it is a file that is named or starts like one. */
export async function isGguf(path: string): Promise<boolean> {
  if (path.toLowerCase().endsWith(".gguf")) return true;
  const isFile = await stat(path).then(
    (found) => found.isFile(),
    () => false, // opening it gives the better message
  );
  if (!isFile) return false;
  await using file = await BinaryFile.open(path);
  return Buffer.from(await file.read(0, Math.min(4, file.size))).toString("latin1") === MAGIC;
}

async function openGguf(path: string): Promise<WeightsFile> {
  const file = await GgufFile.open(path);
  const tensors = [...file.tensors].map(([name, info]) => {
    const { dtype, quant } = tensorType(info.type) ?? {};
    return { name, type: info.typeName, shape: info.shape, byteLength: info.byteLength, dtype, quant };
  });
  return {
    path,
    format: "gguf",
    gguf: { version: file.version, alignment: file.alignment },
    metadata: file.typedMetadata,
    tensors,
    readBytes: (name, signal, range) => file.readBytes(name, signal, range),
    [Symbol.asyncDispose]: () => file.close(),
  };
}

async function openSafe(path: string): Promise<WeightsFile> {
  const file = await openSafetensors(path);
  try {
    const tensors: WeightsTensor[] = [];
    for (const name of file.names) {
      const { dtype, shape, byteLength } = await file.info(name);
      tensors.push({ name, type: dtype, shape, byteLength, dtype: isForeign(dtype) ? undefined : dtype });
    }
    return {
      path,
      format: "safetensors",
      metadata: new Map([...file.metadata].map(([key, value]) => [key, { type: "string", value }])),
      tensors,
      readBytes: (name, signal, range) => file.readBytes(name, signal, range),
      [Symbol.asyncDispose]: () => file.close(),
    };
  } catch (error) {
    await file.close();
    throw error;
  }
}
