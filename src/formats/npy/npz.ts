/** NumPy's npz files: zip archives of npy files. */
import { fail } from "../../core/errors.ts";
import type { Tensor } from "../../ops/index.ts";
import { writeAtomically } from "../atomic-file.ts";
import { BinaryFile } from "../binary-file.ts";
import { type NamedTensors, namedEntries, quoted } from "../named-tensors.ts";
import type { ReadOptions } from "../read-options.ts";
import { descrOf } from "./header.ts";
import { formatNpy, parseNpy } from "./npy.ts";
import { readZipDirectory, readZipEntry, ZipWriter } from "./zip.ts";

const NPY = ".npy";

/** Every array by its name. Where one fails, those read before it are freed. */
export async function loadNpz(path: string, { device, signal }: ReadOptions = {}): Promise<Map<string, Tensor>> {
  await using file = await BinaryFile.open(path);
  const tensors = new Map<string, Tensor>();
  try {
    for (const entry of await readZipDirectory(file)) {
      const source = `${path}: entry ${quoted(entry.name)}`;
      if (!entry.name.endsWith(NPY))
        fail("InvalidFile", `${source} is not an array: arrays in npz files end in ${NPY}`);
      const tensor = parseNpy(await readZipEntry(file, entry, signal), { device, source });
      tensors.set(entry.name.slice(0, -NPY.length), tensor);
    }
  } catch (error) {
    for (const tensor of tensors.values()) tensor.dispose();
    throw error;
  }
  return tensors;
}

export interface SaveNpzOptions {
  /** Deflate the arrays; off unless told, as in NumPy's `savez`. */
  readonly compress?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Replaces `path` in one step, or, where anything fails, leaves it as it was. One tensor at a time is in memory. */
export async function saveNpz(
  path: string,
  tensors: NamedTensors,
  { compress = false, signal }: SaveNpzOptions = {},
): Promise<void> {
  const entries = namedEntries(tensors);
  for (const [name, tensor] of entries) {
    // Readers of zip files end a name at the first NUL.
    if (name.includes("\0"))
      fail("InvalidArgument", `the name ${quoted(name)} contains a NUL, which npz names cannot; rename it`);
    descrOf(tensor.dtype);
  }
  await writeAtomically(
    path,
    async (handle) => {
      const zip = new ZipWriter(handle, path);
      for (const [name, tensor] of entries) {
        signal?.throwIfAborted();
        await zip.add(name + NPY, await formatNpy(tensor), compress);
      }
      await zip.finish();
    },
    signal,
  );
}
