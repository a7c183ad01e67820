/**
 * As much of the zip format as npz files need: entries that are stored or deflated, below 4 GiB. The directory at the
 * end of the file is what counts; entries may not share bytes, so what a file can expand to is bounded by its size.
 */
import type { FileHandle } from "node:fs/promises";
import { promisify } from "node:util";
import { crc32, deflateRaw, inflateRaw } from "node:zlib";
import { fail } from "../../core/errors.ts";
import type { BinaryFile } from "../binary-file.ts";
import { quoted } from "../named-tensors.ts";

const LOCAL = { signature: 0x04034b50, size: 30 };
const CENTRAL = { signature: 0x02014b50, size: 46 };
const END = { signature: 0x06054b50, size: 22 };
const STORED = 0;
const DEFLATED = 8;
const ENCRYPTED = 1;
const UTF8 = 0x800;
const MAX_16 = 0xffff;
const MAX_32 = 0xffffffff;
/** Deflate spends at least two bits on 258 bytes. */
const MAX_RATIO = 1032;
const JANUARY_1980 = 0x21;

const inflate = promisify(inflateRaw) as (data: Uint8Array, options: { maxOutputLength: number }) => Promise<Buffer>;
const deflate = promisify(deflateRaw) as (data: Uint8Array) => Promise<Buffer>;

export interface ZipEntry {
  readonly name: string;
  readonly size: number;
  readonly compressedSize: number;
  readonly method: number;
  readonly crc: number;
  /** Where its local header starts. */
  readonly offset: number;
  /** Where the next entry, or the directory, starts. */
  readonly limit: number;
}

const invalid = (file: BinaryFile, problem: string, cause?: unknown): never =>
  fail("InvalidFile", `${file.path}: ${problem}`, { cause });

const readBuffer = async (file: BinaryFile, offset: number, length: number, signal?: AbortSignal): Promise<Buffer> =>
  Buffer.from((await file.read(offset, length, signal)).buffer);

/** The directory; names are unique. */
export async function readZipDirectory(file: BinaryFile): Promise<ZipEntry[]> {
  const end = await findEnd(file);
  const directory = await readBuffer(file, end.offset, end.size);
  const entries: Omit<ZipEntry, "limit">[] = [];
  const names = new Set<string>();
  let at = 0;
  for (let i = 0; i < end.count; i++) {
    if (at + CENTRAL.size > directory.length || directory.readUInt32LE(at) !== CENTRAL.signature) {
      invalid(file, `the zip directory claims ${end.count} entries, but ends or breaks after ${i}`);
    }
    const [nameLength, extraLength, commentLength] = [28, 30, 32].map((o) => directory.readUInt16LE(at + o)) as [
      number,
      number,
      number,
    ];
    const next = at + CENTRAL.size + nameLength + extraLength + commentLength;
    if (next > directory.length) invalid(file, `entry ${i} of the zip directory ends outside of it`);
    const flags = directory.readUInt16LE(at + 8);
    const rawName = directory.subarray(at + CENTRAL.size, at + CENTRAL.size + nameLength);
    const entry = {
      name: rawName.toString(flags & UTF8 ? "utf8" : "latin1"),
      method: directory.readUInt16LE(at + 10),
      crc: directory.readUInt32LE(at + 16),
      compressedSize: directory.readUInt32LE(at + 20),
      size: directory.readUInt32LE(at + 24),
      offset: directory.readUInt32LE(at + 42),
    };
    if ([entry.compressedSize, entry.size, entry.offset].includes(MAX_32)) noZip64(file.path);
    if (flags & ENCRYPTED) invalid(file, `zip entry ${quoted(entry.name)} is encrypted`);
    if (names.has(entry.name)) invalid(file, `zip entry ${quoted(entry.name)} appears twice`);
    names.add(entry.name);
    entries.push(entry);
    at = next;
  }
  if (at !== directory.length)
    invalid(file, `the zip directory has ${directory.length - at} bytes after its last entry`);
  return withLimits(file, entries, end.offset);
}

function withLimits(file: BinaryFile, entries: readonly Omit<ZipEntry, "limit">[], directoryStart: number): ZipEntry[] {
  const starts = [...entries.map((entry) => entry.offset), directoryStart].sort((a, b) => a - b);
  const limitOf = new Map(starts.map((start, i) => [start, starts[i + 1] ?? start]));
  if (limitOf.size !== starts.length) invalid(file, "two zip entries start at the same byte");
  return entries.map((entry) => ({ ...entry, limit: limitOf.get(entry.offset)! }));
}

async function findEnd(file: BinaryFile): Promise<{ count: number; size: number; offset: number }> {
  // The end record is followed by a comment of up to 64 KiB.
  const tailLength = Math.min(file.size, END.size + MAX_16);
  const tail = await readBuffer(file, file.size - tailLength, tailLength);
  for (let at = tail.length - END.size; at >= 0; at--) {
    if (tail.readUInt32LE(at) !== END.signature || at + END.size + tail.readUInt16LE(at + 20) !== tail.length) continue;
    const [disk, directoryDisk, countHere, count] = [4, 6, 8, 10].map((o) => tail.readUInt16LE(at + o)) as [
      number,
      number,
      number,
      number,
    ];
    const size = tail.readUInt32LE(at + 12);
    const offset = tail.readUInt32LE(at + 16);
    if (count === MAX_16 || size === MAX_32 || offset === MAX_32) noZip64(file.path);
    if (disk !== 0 || directoryDisk !== 0 || countHere !== count)
      invalid(file, "is one part of a zip split over several files");
    if (offset + size !== file.size - tailLength + at) {
      invalid(file, `the zip directory (${size} bytes from ${offset}) does not lie right before the end record`);
    }
    return { count, size, offset };
  }
  return invalid(file, "has no zip directory: not an npz file, or a truncated one");
}

const noZip64 = (path: string): never =>
  fail(
    "InvalidFile",
    `${path}: zip64 (4 GiB or 65535 entries and more) is not supported; use safetensors, or several files`,
  );

/** The contents, whose size and checksum are those of the directory. */
export async function readZipEntry(file: BinaryFile, entry: ZipEntry, signal?: AbortSignal): Promise<Uint8Array> {
  const bad = (problem: string, cause?: unknown): never =>
    invalid(file, `zip entry ${quoted(entry.name)} ${problem}`, cause);
  const { offset, compressedSize, size, method } = entry;
  if (offset + LOCAL.size > entry.limit) bad("overlaps another or lies outside of the file");
  const header = await readBuffer(file, offset, LOCAL.size);
  if (header.readUInt32LE(0) !== LOCAL.signature || header.readUInt16LE(8) !== method) {
    bad("does not have the local header that the directory describes");
  }
  // Sizes in the local header may be 0 or 2^32 - 1 where they were not known in time; the directory's count.
  const start = offset + LOCAL.size + header.readUInt16LE(26) + header.readUInt16LE(28);
  if (start + compressedSize > entry.limit) bad("overlaps another or lies outside of the file");
  if (method === STORED ? size !== compressedSize : size > compressedSize * MAX_RATIO) {
    bad(`claims ${size} bytes, which ${compressedSize} bytes in the file cannot hold`);
  }
  const raw = await file.read(start, compressedSize, signal);
  let data: Uint8Array = raw;
  if (method === DEFLATED) {
    data = await inflate(raw, { maxOutputLength: Math.max(size, 1) }).catch((cause: Error) =>
      bad(`does not inflate to the ${size} bytes it claims: ${cause.message}`, cause),
    );
  } else if (method !== STORED) {
    bad(`is compressed by method ${method}; only stored (0) and deflate (8) are supported`);
  }
  if (data.length !== size) bad(`inflates to ${data.length} bytes, but claims ${size}`);
  if (crc32(data) !== entry.crc) bad("is damaged: its CRC-32 does not match");
  return data;
}

/** Writes entries one after the other, then the directory. Equal contents give equal files: no times are stored. */
export class ZipWriter {
  readonly #handle: FileHandle;
  readonly #path: string;
  readonly #directory: Buffer[] = [];
  #at = 0;

  constructor(handle: FileHandle, path: string) {
    this.#handle = handle;
    this.#path = path;
  }

  async add(name: string, data: Uint8Array, compress: boolean): Promise<void> {
    const nameBytes = Buffer.from(name);
    if (nameBytes.length > MAX_16) fail("InvalidArgument", `the name ${quoted(name)} is longer than a zip file allows`);
    const packed = compress ? await deflate(data) : data;
    const offset = this.#at;
    if ([data.length, packed.length, offset].some((n) => n >= MAX_32) || this.#directory.length + 1 >= MAX_16)
      noZip64(this.#path);
    const common = Buffer.alloc(26); // the fields that both headers have, from "version needed" on
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(UTF8, 2);
    common.writeUInt16LE(compress ? DEFLATED : STORED, 4);
    common.writeUInt16LE(JANUARY_1980, 8);
    common.writeUInt32LE(crc32(data), 10);
    common.writeUInt32LE(packed.length, 14);
    common.writeUInt32LE(data.length, 18);
    common.writeUInt16LE(nameBytes.length, 22);
    await this.#write(Buffer.concat([uint32(LOCAL.signature), common, nameBytes]));
    await this.#write(packed);

    const central = Buffer.alloc(CENTRAL.size);
    central.writeUInt32LE(CENTRAL.signature, 0);
    central.writeUInt16LE(20, 4);
    common.copy(central, 6);
    central.writeUInt32LE(offset, 42);
    this.#directory.push(Buffer.concat([central, nameBytes]));
  }

  async finish(): Promise<void> {
    const directory = Buffer.concat(this.#directory);
    if (this.#at + directory.length >= MAX_32) noZip64(this.#path);
    const end = Buffer.alloc(END.size);
    end.writeUInt32LE(END.signature, 0);
    end.writeUInt16LE(this.#directory.length, 8);
    end.writeUInt16LE(this.#directory.length, 10);
    end.writeUInt32LE(directory.length, 12);
    end.writeUInt32LE(this.#at, 16);
    await this.#write(directory);
    await this.#write(end);
  }

  async #write(data: Uint8Array): Promise<void> {
    await this.#handle.writeFile(data);
    this.#at += data.length;
  }
}

function uint32(value: number): Buffer {
  const out = Buffer.alloc(4);
  out.writeUInt32LE(value);
  return out;
}
