/** Models in several GGUF files, named `…-00001-of-00003.gguf`. The first part has the metadata, each some of the tensors. */
import { fail } from "../../core/errors.ts";
import { BinaryFile } from "../binary-file.ts";
import { quoted } from "../named-tensors.ts";
import { type GgufHeader, type GgufTensorInfo, parseGguf } from "./header.ts";

const NAME = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/is;
/** What describes the parts and not the model. */
const KEYS = /^split\./;

export interface GgufPart {
  readonly file: BinaryFile;
  readonly header: GgufHeader;
}

/** All parts of the model that `path` is one of, in order. */
export function splitNames(path: string): string[] | undefined {
  const [, stem, , count] = NAME.exec(path) ?? [];
  if (stem === undefined) return undefined;
  return Array.from({ length: Number(count) }, (_, i) => `${stem}-${String(i + 1).padStart(5, "0")}-of-${count}.gguf`);
}

/** The part itself, or all of them, whichever it is. Where that fails, all are closed but the one that was given. */
export async function openParts(given: GgufPart, signal?: AbortSignal): Promise<GgufPart[]> {
  const { path } = given.file;
  const count = countOf(given.header, "split.count");
  if (count <= 1) return [given];
  const names = splitNames(path);
  if (names?.length !== count) {
    const found = `is named neither …-00001-of-${String(count).padStart(5, "0")}.gguf nor like another part`;
    return fail("InvalidFile", `${path} is part of a model in ${count} files, and ${found}; give it its name back`);
  }
  const opened: GgufPart[] = [];
  try {
    for (const name of names) opened.push(name === path ? given : await openPart(name, signal));
    for (const [i, { file, header }] of opened.entries()) {
      if (countOf(header, "split.count") === count && countOf(header, "split.no") === i) continue;
      fail("InvalidFile", `${file.path} is not part ${i + 1} of ${count}, which its name says; download it again`);
    }
    return opened;
  } catch (error) {
    for (const part of opened) if (part !== given) await part.file.close();
    throw error;
  }
}

async function openPart(path: string, signal: AbortSignal | undefined): Promise<GgufPart> {
  const file = await BinaryFile.open(path);
  try {
    return { file, header: await parseGguf(file, signal) };
  } catch (error) {
    await file.close();
    throw error;
  }
}

const countOf = ({ metadata }: GgufHeader, key: string): number => Number(metadata.get(key)?.value ?? 0);

/** The header of a single file with all that the parts have, and the file of each tensor. */
export function joinParts(parts: readonly GgufPart[]): { header: GgufHeader; fileOf: ReadonlyMap<string, BinaryFile> } {
  const [first] = parts;
  const tensors = new Map<string, GgufTensorInfo>();
  const fileOf = new Map<string, BinaryFile>();
  for (const { file, header } of parts) {
    for (const [name, info] of header.tensors) {
      if (fileOf.has(name)) fail("InvalidFile", `${file.path} has tensor ${quoted(name)} as an earlier part has`);
      tensors.set(name, info);
      fileOf.set(name, file);
    }
  }
  const isSplit = parts.length > 1;
  const metadata = [...first!.header.metadata].filter(([key]) => !isSplit || !KEYS.test(key));
  return { header: { ...first!.header, metadata: new Map(metadata), tensors }, fileOf };
}
