/** What tells one build of a shared library from another, for what is kept on disk and must not outlive an upgrade. */
import { closeSync, openSync, readSync, realpathSync, statSync } from "node:fs";

/** The build id that linkers write; without one, the file's size and time. The path is no part of it. */
export function libraryIdentity(path: string): string {
  try {
    const id = buildId(headOf(path));
    if (id !== undefined) return id;
  } catch {
    // No file, or none that can be read.
  }
  return fileIdentity(path);
}

/** Changes when a file is replaced, or a folder's files are. */
export function fileIdentity(path: string): string {
  const facts = statSync(path, { throwIfNoEntry: false });
  return facts ? `${facts.size}-${Math.round(facts.mtimeMs)}` : "unknown";
}

/** With links followed; what is not there stays as it is. */
export function realFile(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

/** Program headers and notes are at the beginning. */
const HEAD_BYTES = 65536;

function headOf(path: string): Buffer {
  const file = openSync(path, "r");
  try {
    const bytes = Buffer.alloc(HEAD_BYTES);
    return bytes.subarray(0, readSync(file, bytes, 0, HEAD_BYTES, 0));
  } finally {
    closeSync(file);
  }
}

const NOTE_SEGMENT = 4;
const BUILD_ID = 3;

/** The note of type NT_GNU_BUILD_ID of a 64-bit ELF file. */
export function buildId(head: Buffer): string | undefined {
  if (head.length < 64 || head.readUInt32BE(0) !== 0x7f454c46 || head[4] !== 2) return undefined;
  const table = Number(head.readBigUInt64LE(32));
  const entryBytes = head.readUInt16LE(54);
  for (let i = 0, at = table; i < head.readUInt16LE(56) && at + 56 <= head.length; i++, at += entryBytes) {
    if (head.readUInt32LE(at) !== NOTE_SEGMENT) continue;
    const start = Number(head.readBigUInt64LE(at + 8));
    const id = buildIdIn(head.subarray(start, start + Number(head.readBigUInt64LE(at + 32))));
    if (id !== undefined) return id;
  }
  return undefined;
}

function buildIdIn(notes: Buffer): string | undefined {
  const align = (n: number): number => (n + 3) & ~3;
  for (let at = 0; at + 12 <= notes.length; ) {
    const nameBytes = notes.readUInt32LE(at);
    const bytes = notes.readUInt32LE(at + 4);
    const contents = at + 12 + align(nameBytes);
    if (notes.readUInt32LE(at + 8) === BUILD_ID && notes.toString("latin1", at + 12, at + 15) === "GNU") {
      return notes.subarray(contents, contents + bytes).toString("hex");
    }
    at = contents + align(bytes);
  }
  return undefined;
}
