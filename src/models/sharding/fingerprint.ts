/** What tells the weights of one model from those of another of the same sizes, without reading all of them. */
import { createHash } from "node:crypto";
import type { StoredWeights } from "../../formats/weights-file.ts";

/** Tensors that are looked into, and how many of their bytes. */
const SAMPLES = 8;
const SAMPLE_BYTES = 256;

export async function fingerprintOf(file: StoredWeights): Promise<string> {
  const hash = createHash("sha256");
  const tensors = file.tensors.toSorted((a, b) => (a.name < b.name ? -1 : 1));
  for (const { name, type, shape } of tensors) hash.update(`${name} ${type} ${shape.join()}\n`);
  const step = Math.max(1, Math.floor(tensors.length / SAMPLES));
  for (let i = 0; i < tensors.length; i += step) {
    const { name, byteLength } = tensors[i]!;
    hash.update(await file.readBytes(name, undefined, { start: 0, end: Math.min(SAMPLE_BYTES, byteLength) }));
  }
  return hash.digest("hex").slice(0, 32);
}
