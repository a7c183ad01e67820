/**
 * Machine code that the build has emitted before: a file for each instruction set with its kernels, compressed.
 * Reading them takes a tenth of what emitting takes in a young process, where V8 sees most generators for the first time.
 *
 * A file is the length of its index (4 bytes), the index (JSON) and chunks, all compressed. Kernels are many variants of a
 * few: those in a chunk are much alike, so they take a twentieth of their bytes; equal ones exist once.
 */
import { existsSync, readFileSync } from "node:fs";
import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";
import { Assembler } from "./assembler.ts";
import { everyKernel, type Kernel } from "./catalogue.ts";
import { type Isa, isaKey, isaOf } from "./isa.ts";
import { executable } from "./memory.ts";

/** The build says so here when it has written the files: sources that were compiled since then emit their own code. */
const isPacked: boolean = false;

/** What no kernel depends on. */
const unused = { inOrder: false };
/** What the build emits for: whatever else a processor has, it has one of these. */
export const storedIsas: readonly Isa[] = [
  isaOf("avx2", { vnni: false, vbmi2: false, amx: false, pairs: false, ...unused }),
  isaOf("avx512", { vnni: false, vbmi2: false, amx: false, pairs: false, ...unused }),
  isaOf("avx512", { vnni: true, vbmi2: false, amx: false, pairs: false, ...unused }),
  isaOf("avx512", { vnni: true, vbmi2: true, amx: false, pairs: true, ...unused }),
  isaOf("avx512", { vnni: true, vbmi2: true, amx: true, pairs: false, ...unused }),
];

interface Index {
  /** Where chunks are behind the index, and their bytes when they are not compressed. */
  readonly chunks: readonly (readonly [start: number, end: number, bytes: number])[];
  readonly places: Readonly<Record<string, readonly [chunk: number, at: number]>>;
}

/** Bytes from which on a chunk is full, and what kernels are aligned to, as their data is. */
const CHUNK = 2 ** 18;
const ALIGN = 64;
const LENGTH_BYTES = 4;
const TRAP = 0xcc;

export function emit(kernel: Kernel, isa: Isa): Uint8Array {
  const a = new Assembler();
  kernel.emit(a, isa);
  return a.finish();
}

/** The file of an instruction set. */
export function pack(isa: Isa): Uint8Array {
  const compressed: Buffer[] = [];
  const chunks: [number, number, number][] = [];
  const places: Record<string, readonly [number, number]> = {};
  const known = new Map<string, readonly [number, number]>();
  let open: Uint8Array[] = [];
  let at = 0;
  let start = 0;
  const close = () => {
    if (at === 0) return;
    const chunk = compress(Buffer.concat(open));
    compressed.push(chunk);
    chunks.push([start, start + chunk.length, at]);
    start += chunk.length;
    open = [];
    at = 0;
  };
  for (const kernel of everyKernel(isa)) {
    const code = Buffer.from(emit(kernel, isa));
    const key = code.toString("latin1");
    const place = known.get(key) ?? ([chunks.length, at] as const);
    places[kernel.name] = place;
    if (known.has(key)) continue;
    known.set(key, place);
    const room = Math.ceil(code.length / ALIGN) * ALIGN;
    open.push(code, new Uint8Array(room - code.length).fill(TRAP));
    at += room;
    if (at >= CHUNK) close();
  }
  close();
  const index = compress(Buffer.from(JSON.stringify({ chunks, places } satisfies Index)));
  const length = Buffer.alloc(LENGTH_BYTES);
  length.writeUInt32LE(index.length);
  return Buffer.concat([length, index, ...compressed]);
}

const compress = (bytes: Uint8Array): Buffer =>
  brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 5 } });

/** The kernels in a file. */
export class StoredCode {
  readonly #file: Buffer;
  readonly #index: Index;
  readonly #start: number;
  readonly #addresses = new Map<number, number>();

  constructor(file: Buffer) {
    this.#file = file;
    this.#start = LENGTH_BYTES + file.readUInt32LE();
    this.#index = JSON.parse(brotliDecompressSync(file.subarray(LENGTH_BYTES, this.#start)).toString());
    const end = this.#start + (this.#index.chunks.at(-1)?.[1] ?? 0);
    if (file.length !== end) throw new RangeError(`${file.length} bytes of machine code, not ${end}`);
  }

  /** Where the build puts the files, beside this one; null: there is none for these instructions, or a build was cut off. */
  static of(isa: Isa): StoredCode | null {
    const path = new URL(`./code/${isaKey(isa)}.bin`, import.meta.url);
    return isPacked && existsSync(path) ? StoredCode.in(readFileSync(path)) : null;
  }

  static in(file: Buffer): StoredCode | null {
    try {
      return new StoredCode(file);
    } catch {
      return null;
    }
  }

  /** By the name of a kernel its chunk, and where in it the code begins. */
  get places(): Index["places"] {
    return this.#index.places;
  }

  chunk(i: number): Uint8Array {
    const [start, end, chunkSize] = this.#index.chunks[i]!;
    return brotliDecompressSync(this.#file.subarray(this.#start + start, this.#start + end), { chunkSize });
  }

  /** The address of a kernel, ready to be called with all of its chunk; undefined: it is not here. */
  address(name: string): number | undefined {
    const place = this.places[name];
    if (place === undefined) return undefined;
    const [chunk, at] = place;
    let start = this.#addresses.get(chunk);
    if (start === undefined) {
      start = executable(this.chunk(chunk));
      this.#addresses.set(chunk, start);
    }
    return start + at;
  }
}
