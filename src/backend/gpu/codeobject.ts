/**
 * What a compiled AMD kernel says about itself: the msgpack note inside the code object lists every kernel's arguments,
 * registers and memory. Enough to check that the launcher packs arguments as the compiler lays them out.
 */
import { fail } from "../../core/errors.ts";
import { argBytes, type Kernel, type Sizes } from "./catalogue.ts";

export interface KernelMetadata {
  readonly name: string;
  /** Explicit arguments in order; the compiler's hidden ones are left out. */
  readonly args: readonly { readonly offset: number; readonly size: number; readonly pointer: boolean }[];
  readonly vgprs: number;
  readonly agprs: number;
  readonly sgprs: number;
  readonly vgprSpills: number;
  readonly sgprSpills: number;
  /** Bytes of static shared memory per block, and of private memory per thread. */
  readonly lds: number;
  readonly scratch: number;
  readonly wave: number;
  readonly maxThreads: number;
}

const EM_AMDGPU = 224;
const NT_AMDGPU_METADATA = 32;
const SHT_NOTE = 7;
const text = new TextDecoder();

/** The kernels of an AMD code object (an ELF file), sorted by name. */
export function readCodeObject(bytes: Uint8Array): KernelMetadata[] {
  const note = metadataNote(bytes);
  if (!note) return fail("InvalidFile", "the code object has no AMDGPU metadata note");
  const root = asMap(new MsgPack(note).read());
  return asList(root.get("amdhsa.kernels")).map((value) => {
    const kernel = asMap(value);
    const number = (key: string): number => (kernel.has(key) ? asNumber(kernel.get(key)) : 0);
    return {
      name: String(kernel.get(".name")),
      args: asList(kernel.get(".args") ?? [])
        .map(asMap)
        .filter((arg) => !String(arg.get(".value_kind")).startsWith("hidden_"))
        .map((arg) => ({
          offset: asNumber(arg.get(".offset")),
          size: asNumber(arg.get(".size")),
          pointer: arg.get(".value_kind") === "global_buffer",
        })),
      vgprs: number(".vgpr_count"),
      agprs: number(".agpr_count"),
      sgprs: number(".sgpr_count"),
      vgprSpills: number(".vgpr_spill_count"),
      sgprSpills: number(".sgpr_spill_count"),
      lds: number(".group_segment_fixed_size"),
      scratch: number(".private_segment_fixed_size"),
      wave: number(".wavefront_size"),
      maxThreads: number(".max_flat_workgroup_size"),
    };
  });
}

/** Whether a 64-bit ELF file is for an AMD GPU; the simulator's are for the host. */
export function isForAmdGpu(bytes: Uint8Array): boolean {
  return elfView(bytes).getUint16(18, true) === EM_AMDGPU;
}

function elfView(bytes: Uint8Array): DataView {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 64 || view.getUint32(0) !== 0x7f454c46 || bytes[4] !== 2 || bytes[5] !== 1) {
    fail("InvalidFile", "not a 64-bit little-endian ELF file");
  }
  return view;
}

/** The note's contents: an ELF note is name length, content length, type, name, content, each padded to 4 bytes. */
function metadataNote(bytes: Uint8Array): Uint8Array | undefined {
  const view = elfView(bytes);
  const sections = Number(view.getBigUint64(40, true));
  const entry = view.getUint16(58, true);
  const count = view.getUint16(60, true);
  for (let i = 0; i < count; i++) {
    const header = sections + i * entry;
    if (view.getUint32(header + 4, true) !== SHT_NOTE) continue;
    const end = Number(view.getBigUint64(header + 24, true)) + Number(view.getBigUint64(header + 32, true));
    for (let at = Number(view.getBigUint64(header + 24, true)); at + 12 <= end; ) {
      const nameLength = view.getUint32(at, true);
      const length = view.getUint32(at + 4, true);
      const content = at + 12 + padded(nameLength);
      const name = text.decode(bytes.subarray(at + 12, at + 12 + Math.max(0, nameLength - 1)));
      if (name === "AMDGPU" && view.getUint32(at + 8, true) === NT_AMDGPU_METADATA) {
        return bytes.subarray(content, content + length);
      }
      at = content + padded(length);
    }
  }
  return undefined;
}

const padded = (n: number): number => (n + 3) & ~3;

type Value = null | boolean | number | string | Value[] | Map<string, Value>;

/** The part of msgpack that metadata uses: nil, booleans, integers, strings, arrays, maps with string keys. */
class MsgPack {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  read(): Value {
    const tag = this.#uint(1);
    if (tag <= 0x7f) return tag;
    if (tag >= 0xe0) return tag - 0x100;
    if (tag <= 0x8f) return this.#map(tag & 15);
    if (tag <= 0x9f) return this.#array(tag & 15);
    if (tag <= 0xbf) return this.#string(tag & 31);
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return tag === 0xc3;
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return this.#uint(1 << (tag - 0xcc));
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3: {
        const size = 1 << (tag - 0xd0);
        return Number(BigInt.asIntN(8 * size, BigInt(this.#uint(size))));
      }
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#string(this.#uint(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#array(this.#uint(tag === 0xdc ? 2 : 4));
      case 0xde:
      case 0xdf:
        return this.#map(this.#uint(tag === 0xde ? 2 : 4));
      default:
        return fail("InvalidFile", `msgpack type 0x${tag.toString(16)} is not one that kernel metadata uses`);
    }
  }

  #uint(size: number): number {
    const at = this.#at;
    if (at + size > this.#bytes.length) fail("InvalidFile", "kernel metadata ends in the middle of a value");
    this.#at += size;
    if (size === 1) return this.#view.getUint8(at);
    if (size === 2) return this.#view.getUint16(at);
    if (size === 4) return this.#view.getUint32(at);
    return Number(this.#view.getBigUint64(at));
  }

  #string(length: number): string {
    const at = this.#at;
    this.#at += length;
    return text.decode(this.#bytes.subarray(at, at + length));
  }

  #array(length: number): Value[] {
    return Array.from({ length }, () => this.read());
  }

  #map(length: number): Map<string, Value> {
    return new Map(Array.from({ length }, () => [String(this.read()), this.read()]));
  }
}

function asMap(value: Value | undefined): Map<string, Value> {
  return value instanceof Map ? value : fail("InvalidFile", "kernel metadata: a map was expected");
}
function asList(value: Value | undefined): Value[] {
  return Array.isArray(value) ? value : fail("InvalidFile", "kernel metadata: a list was expected");
}
function asNumber(value: Value | undefined): number {
  return typeof value === "number" ? value : fail("InvalidFile", "kernel metadata: a number was expected");
}

/** What disagrees between compiled kernels and the launcher's table of them. */
export function compareWithCatalogue(found: readonly KernelMetadata[], expected: readonly Kernel[]): string[] {
  const problems: string[] = [];
  const compiled = new Map(found.map((kernel) => [kernel.name, kernel]));
  const named = new Set(expected.map((kernel) => kernel.name));
  for (const { name } of found) if (!named.has(name)) problems.push(`${name} is compiled but not in the catalogue`);
  for (const kernel of expected) {
    const actual = compiled.get(kernel.name);
    if (!actual) {
      problems.push(`${kernel.name} is in the catalogue but not compiled`);
      continue;
    }
    if (actual.args.length !== kernel.args.length) {
      problems.push(`${kernel.name} takes ${actual.args.length} arguments, the catalogue has ${kernel.args.length}`);
      continue;
    }
    let end = 0;
    for (const [i, arg] of kernel.args.entries()) {
      const size = argBytes(kernel, arg);
      const offset = Math.ceil(end / size) * size;
      const { offset: at, size: bytes, pointer } = actual.args[i]!;
      if (at !== offset || bytes !== size || pointer !== (arg.kind === "ptr")) {
        const say = (o: number, s: number, p: boolean) => `${p ? "a pointer" : "a value"} of ${s} bytes at ${o}`;
        problems.push(
          `${kernel.name}: ${arg.name} is ${say(at, bytes, pointer)}, the catalogue has ${say(offset, size, arg.kind === "ptr")}`,
        );
      }
      end = offset + size;
    }
    const { block } = kernel.launch(LARGEST);
    if (block > actual.maxThreads)
      problems.push(`${kernel.name} runs ${block} threads, ${actual.maxThreads} are allowed`);
  }
  return problems;
}

/** Sizes that make kernels choose their largest block, where they choose it by themselves. */
const LARGEST: Sizes = new Proxy({}, { get: (_, name) => (name === "row_threads" || name === "threads" ? 32 : 2048) });

/**
 * Registers per lane of a SIMD, the step in which they are given out, and how many waves it holds at most; then how many SIMDs
 * share how much memory: those of a compute unit, on RDNA of two. Of RDNA 3 and 4 the larger parts have half as many registers
 * again (LLVM AMDGPU.td, Feature1_5xVGPRs).
 */
function simdOf(arch: string): { registers: number; step: number; waves: number; shared: number } {
  if (/^gfx90[68]/.test(arch)) return { registers: 256, step: 4, waves: 10, shared: 64 };
  if (arch.startsWith("gfx9")) return { registers: 512, step: 8, waves: 8, shared: arch === "gfx950" ? 160 : 64 };
  if (/^gfx(110[01]|1151|12)/.test(arch)) return { registers: 1536, step: 24, waves: 16, shared: 128 };
  return { registers: 1024, step: 16, waves: 16, shared: 128 };
}
const SIMDS = 4;

/**
 * Waves that a SIMD holds of a kernel, as far as its vector registers decide and, where its launch is known, the shared memory
 * of whole blocks.
 */
export function occupancy(
  arch: string,
  kernel: Pick<KernelMetadata, "vgprs" | "wave">,
  launch?: { readonly threads: number; readonly shared: number },
): number {
  const { registers, step, waves, shared } = simdOf(arch);
  const used = Math.max(1, Math.ceil(kernel.vgprs / step)) * step;
  const fit = Math.min(waves, Math.floor(registers / used));
  if (!launch) return fit;
  const perBlock = Math.ceil(launch.threads / kernel.wave);
  const blocks = Math.min(Math.floor((fit * SIMDS) / perBlock), Math.floor((shared * 1024) / launch.shared));
  return (blocks * perBlock) / SIMDS;
}
