// The kernels over quantized blocks, launched as the backend does, against plain readings of the formats and the golden cases.
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { sharedBudget } from "../../../src/backend/gpu/attention-plan.ts";
import type { KernelName, ValuesFor } from "../../../src/backend/gpu/catalogue.ts";
import { planRouted } from "../../../src/backend/gpu/families/experts.ts";
import { quantName } from "../../../src/backend/gpu/families/family.ts";
import { type LinearShape, planOnce, planQuantizedLinear } from "../../../src/backend/gpu/families/linear.ts";
import { quantOutput } from "../../../src/backend/gpu/families/quantized.ts";
import { KernelCache } from "../../../src/backend/gpu/kernel-cache.ts";
import { Launcher } from "../../../src/backend/gpu/launcher.ts";
import { type PlatformName, platform, simulatorOrdinals } from "../../../src/backend/gpu/platforms.ts";
import { type DType, decode, encode, sizeOf } from "../../../src/core/dtype.ts";
import { type QuantType, quantTypeNames, quantTypes } from "../../../src/core/quant-types.ts";
import { SafetensorsFile } from "../../../src/formats/safetensors/file.ts";
import { readCases } from "../../../src/verify/cases.ts";
import { gpuNames } from "../../helpers/devices.ts";
import { openAs } from "../../helpers/matrix-units.ts";

/** A device with nothing between the test and its memory: allocations are as long as they are asked to be. */
class Bare {
  readonly #context;
  readonly #launcher;
  readonly #nvidia;
  readonly #tiles;
  readonly #taken: bigint[] = [];

  constructor(device: string) {
    const [name, ordinal] = device.split(":") as [PlatformName, string];
    const { driver, compiler } = platform(name);
    this.#context = driver.open(name === "sim" ? simulatorOrdinals[ordinal]! : Number(ordinal));
    this.#launcher = new Launcher(this.#context, compiler, new KernelCache());
    // The simulator also as a card with NVIDIA's matrix unit.
    this.#nvidia = name === "sim" ? openAs(0, { arch: "sm_90a" }) : null;
    this.#tiles = this.#nvidia && new Launcher(this.#nvidia, compiler, new KernelCache());
  }
  get properties() {
    return this.#context.properties;
  }
  /** Blocks as kernels take them: whole 16 bytes may be read. */
  blocks(bytes: Uint8Array): number {
    const padded = new Uint8Array(Math.ceil(bytes.length / 16) * 16).fill(0xee);
    padded.set(bytes);
    return this.upload(padded);
  }
  /** An address `skew` bytes off any alignment; the data ends where the allocation does. */
  upload(bytes: Uint8Array, skew = 0): number {
    const at = this.#context.malloc(bytes.length + skew);
    this.#taken.push(at);
    const host = this.#context.pinned(bytes.length);
    host.bytes.set(bytes);
    this.#context.copyToDevice(at + BigInt(skew), host.address, bytes.length);
    this.#context.synchronizeSync();
    this.#context.freePinned(host);
    return Number(at) + skew;
  }
  /** Memory full of 0xee. */
  space(bytes: number): number {
    return this.upload(new Uint8Array(bytes).fill(0xee));
  }
  download(at: number, bytes: number): Uint8Array {
    const host = this.#context.pinned(bytes);
    this.#context.copyToHost(host.address, BigInt(at), bytes);
    this.#context.synchronizeSync();
    const copy = host.bytes.slice();
    this.#context.freePinned(host);
    return copy;
  }
  launch<Name extends KernelName>(name: Name, values: ValuesFor<Name>, tiles = false): void {
    ((tiles && this.#tiles) || this.#launcher).launch(name, values);
    ((tiles && this.#nvidia) || this.#context).synchronizeSync();
  }
  release(): void {
    for (const at of this.#taken.splice(0)) this.#context.free(at);
  }
  close(): void {
    this.release();
    for (const context of [this.#context, this.#nvidia]) context?.close();
  }
}

/** Every half by its bits: there are millions to read. */
const halfOfBits = decode(
  new Uint8Array(Uint16Array.from({ length: 65536 }, (_, i) => i).buffer),
  "f16",
) as Float32Array;
const f16 = (bytes: Uint8Array, at: number): number => halfOfBits[bytes[at]! | (bytes[at + 1]! << 8)]!;
const bit = (value: number, i: number): number => (value >> i) & 1;
const signed = (byte: number): number => (byte << 24) >> 24;
const curve = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const fp4 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

interface Weight {
  readonly scale: number;
  readonly q: number;
  readonly min: number;
}
// Adding −0 changes nothing, not even −0.
const weight = (scale: number, q: number, min = -0): Weight => ({ scale, q, min });
const nibble = (b: Uint8Array, at: number, i: number): number => (b[at + (i % 16)]! >> (i < 16 ? 0 : 4)) & 15;

/** Scale and minimum of group g, six bits each, of Q4_K and Q5_K. */
function sixBits(b: Uint8Array, g: number): [number, number] {
  const s = b.subarray(4, 16);
  if (g < 4) return [s[g]! & 63, s[g + 4]! & 63];
  return [(s[g + 4]! & 15) | ((s[g - 4]! >> 6) << 4), (s[g + 4]! >> 4) | ((s[g]! >> 6) << 4)];
}
function fourOrFive(b: Uint8Array, i: number, qsAt: number, high: number): Weight {
  const g = i >> 5;
  const [scale, min] = sixBits(b, g);
  const low = (b[qsAt + (i >> 6) * 32 + (i & 31)]! >> (g & 1 ? 4 : 0)) & 15;
  return weight(f16(b, 0) * scale, low | (high << 4), -f16(b, 2) * min);
}

/** Weight i of a block. */
const read: Record<QuantType, (b: Uint8Array, i: number) => Weight> = {
  Q4_0: (b, i) => weight(f16(b, 0), nibble(b, 2, i) - 8),
  Q4_1: (b, i) => weight(f16(b, 0), nibble(b, 4, i), f16(b, 2)),
  Q5_0: (b, i) => weight(f16(b, 0), (nibble(b, 6, i) | (bit(b[2 + (i >> 3)]!, i & 7) << 4)) - 16),
  Q5_1: (b, i) => weight(f16(b, 0), nibble(b, 8, i) | (bit(b[4 + (i >> 3)]!, i & 7) << 4), f16(b, 2)),
  Q8_0: (b, i) => weight(f16(b, 0), signed(b[2 + i]!)),
  Q8_1: (b, i) => weight(f16(b, 0), signed(b[4 + i]!)),
  Q2_K: (b, i) => {
    const s = b[i >> 4]!;
    const q = (b[16 + (i >> 7) * 32 + (i & 31)]! >> (((i >> 5) & 3) * 2)) & 3;
    return weight(f16(b, 80) * (s & 15), q, -f16(b, 82) * (s >> 4));
  },
  Q3_K: (b, i) => {
    const g = i >> 4;
    const low = g < 8 ? b[96 + g]! & 15 : b[96 + g - 8]! >> 4;
    const high = (b[104 + (g & 3)]! >> (2 * (g >> 2))) & 3;
    const q = (b[32 + (i >> 7) * 32 + (i & 31)]! >> (((i >> 5) & 3) * 2)) & 3;
    return weight(f16(b, 108) * ((low | (high << 4)) - 32), q - (bit(b[i & 31]!, i >> 5) ? 0 : 4));
  },
  Q4_K: (b, i) => fourOrFive(b, i, 16, 0),
  Q5_K: (b, i) => fourOrFive(b, i, 48, bit(b[16 + (i & 31)]!, i >> 5)),
  Q6_K: (b, i) => {
    const [half, group, l] = [i >> 7, (i >> 5) & 3, i & 31];
    const low = (b[64 * half + 32 * (group & 1) + l]! >> (group < 2 ? 0 : 4)) & 15;
    const high = (b[128 + 32 * half + l]! >> (2 * group)) & 3;
    return weight(f16(b, 208) * signed(b[192 + (i >> 4)]!), (low | (high << 4)) - 32);
  },
  Q8_K: (b, i) => weight(decode(b.subarray(0, 4), "f32")[0] as number, signed(b[4 + i]!)),
  IQ4_NL: (b, i) => weight(f16(b, 0), curve[nibble(b, 2, i)]!),
  IQ4_XS: (b, i) => {
    const g = i >> 5;
    const scale = ((b[4 + (g >> 1)]! >> (4 * (g & 1))) & 15) | ((((b[2]! | (b[3]! << 8)) >> (2 * g)) & 3) << 4);
    return weight(f16(b, 0) * (scale - 32), curve[nibble(b, 8 + 16 * g, i & 31)]!);
  },
  MXFP4: (b, i) => weight(2 ** (b[0]! - 128), fp4[nibble(b, 1, i)]!),
};

/** Where a type has its f16 scales. */
const halves: Record<QuantType, readonly number[]> = {
  ...{ Q4_0: [0], Q4_1: [0, 2], Q5_0: [0], Q5_1: [0, 2], Q8_0: [0], Q8_1: [0, 2], Q2_K: [80, 82], Q3_K: [108] },
  ...{ Q4_K: [0, 2], Q5_K: [0, 2], Q6_K: [208], Q8_K: [], IQ4_NL: [0], IQ4_XS: [0], MXFP4: [] },
};

let state = 1;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const normal = (): number => (random() + random() + random() + random() - 2) * 1.7;

/** Blocks of random bytes under scales of either sign between 0.01 and 1; with `tiny`, the first two of MXFP4 are subnormal. */
function randomBlocks(type: QuantType, elements: number, tiny = false): Uint8Array {
  const { size, bytes } = quantTypes[type];
  const out = Uint8Array.from({ length: (elements / size) * bytes }, () => Math.floor(random() * 256));
  for (let at = 0; at < out.length; at += bytes) {
    const scale = (): number => (random() < 0.5 ? -1 : 1) * (0.01 + random());
    for (const offset of halves[type]) out.set(encode([scale()], "f16"), at + offset);
    if (type === "Q8_K") out.set(encode([scale()], "f32"), at);
    if (type === "MXFP4") out[at] = tiny && at <= bytes ? at / bytes : 120 + Math.floor(random() * 8);
  }
  return out;
}
function weights(type: QuantType, blocks: Uint8Array): Weight[] {
  const { size, bytes } = quantTypes[type];
  return Array.from({ length: blocks.length / bytes }, (_, b) => {
    const block = blocks.subarray(b * bytes, (b + 1) * bytes);
    return Array.from({ length: size }, (_, i) => read[type](block, i));
  }).flat();
}
/** As a device computes it: each product and sum rounded to f32. */
const value = ({ scale, q, min }: Weight): number =>
  Math.fround(Math.fround(Math.fround(scale) * q) + Math.fround(min));
const values = (type: QuantType, blocks: Uint8Array): number[] => weights(type, blocks).map(value);

const rounded = (x: readonly number[], dtype: DType): number[] => [
  ...(decode(encode(x, dtype), dtype) as Float32Array),
];

interface Expected {
  readonly y: number;
  readonly off: number;
}

const types: readonly DType[] = ["f32", "f16", "bf16"];
const folder = fileURLToPath(new URL("../../data/golden", import.meta.url));
const golden = await readCases(folder);
const tensors = await SafetensorsFile.open(`${folder}/tensors.safetensors`);
afterAll(() => tensors.close());

describe("plans of products on a matrix unit", () => {
  const shape = { m: 8, n: 14336, k: 4096, norm: false };
  test("all multiprocessors get the same, as much as fits", () => {
    const h200 = { arch: "sm_90", multiprocessors: 132 };
    // 896 groups of 16 rows: seven for each of 128 blocks.
    for (const type of ["Q8_0", "Q6_K", "Q4_0", "Q4_K"] as const)
      for (const m of [1, 2, 4, 8]) {
        const { kernel, launch } = planQuantizedLinear({ ...shape, m }, type, h200)!;
        expect(kernel).toMatch(new RegExp(`_b${m}$`));
        expect(launch).toMatchObject({ segment: 4096 });
        // None of them gets more than a fifth above its share.
        const rounds = Math.ceil(896 / ((launch.threads / 32 / launch.splits) * launch.blocks));
        expect(rounds * (launch.threads / 32 / launch.splits) * 132).toBeLessThan(896 * 1.2);
        // One block to each.
        expect(2 * launch.shared_bytes).toBeGreaterThanOrEqual(sharedBudget("sm_90"));
      }
    const small = { arch: "sm_86", multiprocessors: 84 };
    for (const type of quantTypeNames)
      for (const n of [1, 17, 4096, 128256]) {
        const { threads, splits, blocks, shared_bytes } = planQuantizedLinear({ ...shape, n }, type, small)!.launch;
        expect(shared_bytes).toBeLessThan(sharedBudget("sm_86"));
        expect((threads / 32) % splits).toBe(0);
        expect(blocks).toBeLessThanOrEqual(84);
      }
  });
  test("long rows come in pieces, but not where a norm needs all of them", () => {
    for (const arch of ["sm_86", "sm_90", "gfx1100"]) {
      const device = { arch, multiprocessors: 84 };
      const long = { ...shape, k: 28672 };
      const { segment, splits, shared_bytes } = planQuantizedLinear(long, "Q4_K", device)!.launch;
      expect(segment).toBeLessThan(long.k);
      expect(segment % (splits * 256)).toBe(0);
      expect(shared_bytes).toBeLessThan(sharedBudget(arch));
      expect(planQuantizedLinear({ ...long, norm: true }, "Q4_K", device)).toBeNull();
    }
  });
});

describe.each(gpuNames.map((name) => [name]))("quantized blocks on %s", { timeout: 300_000 }, (device) => {
  const gpu = new Bare(device);
  afterAll(() => gpu.close());
  /** The unit that multiplies bytes is NVIDIA's, whose waves have 32 lanes. */
  const tileTest = (name: string, run: () => void) => device === "sim:32" && test(name, run);
  const floats = (at: number, count: number, dtype: DType): number[] => [
    ...(decode(gpu.download(at, count * sizeOf(dtype)), dtype) as Float32Array),
  ];

  /** As for a machine with so many multiprocessors and NVIDIA's matrix unit, in the simulator's memory. */
  const tilePlan = (shape: LinearShape, type: QuantType, multiprocessors: number) =>
    planQuantizedLinear(shape, type, { arch: "sm_80", multiprocessors }, 64 * 1024)!;

  /** y (batch, n) by the kernel for few rows, on a matrix unit or without. */
  function multiply(
    type: QuantType,
    blocks: Uint8Array,
    x: number[],
    n: number,
    dtype: DType,
    kind: "few" | "tiles" = "few",
    fine = false,
  ): number[] {
    const k = (blocks.length / quantTypes[type].bytes / n) * quantTypes[type].size;
    const batch = x.length / k;
    const src = gpu.upload(encode(x, dtype));
    const y = gpu.space(batch * n * sizeOf(dtype));
    const common = { n, k, w: gpu.blocks(blocks), out: y, batch, dtype: quantOutput[dtype]! };
    const tiles = kind === "tiles";
    const shape = { m: batch, n, k, norm: false, fine };
    const { kernel, launch } = tiles ? tilePlan(shape, type, 2) : planQuantizedLinear(shape, type, gpu.properties)!;
    const none = { alpha: 0, eps: 0, bias: 0, residual: 0, glu: 0 };
    gpu.launch(kernel, { ...common, ...launch, ...none, x: src }, tiles);
    const out = floats(y, batch * n, dtype);
    gpu.release();
    return out;
  }
  /** Exact products of weights and activations, and how far off they may be by half a unit of 16 bits of an activation, or of 24. */
  function expected(type: QuantType, blocks: Uint8Array, x: number[], n: number, fine = false): Expected[] {
    const w = weights(type, blocks);
    const k = w.length / n;
    const units = Array.from({ length: x.length / 32 }, (_, group) => {
      const largest = Math.max(...x.slice(group * 32, group * 32 + 32).map(Math.abs));
      return largest / 127 / 512 / (fine ? 256 : 1);
    });
    return Array.from({ length: (x.length / k) * n }, (_, at) => {
      const [b, r] = [Math.floor(at / n), at % n];
      let [y, off] = [0, 0];
      for (let i = 0; i < k; i++) {
        const { scale, q, min } = w[r * k + i]!;
        const xi = x[b * k + i]!;
        y += xi * (scale * q + min);
        off += 1e-6 * Math.abs(xi) * (Math.abs(scale * q) + Math.abs(min) + 16 * Math.abs(scale));
        off += units[(b * k + i) >> 5]! * Math.abs(scale * q + min);
      }
      return { y, off };
    });
  }
  function expectProducts(got: number[], want: Expected[], dtype: DType, what: string): void {
    expect(got.length).toBe(want.length);
    const unit = { f32: 0, f16: 2 ** -10, bf16: 2 ** -7 }[dtype as string]!;
    const wrong = want.flatMap(({ y, off }, i) =>
      Math.abs(got[i]! - y) <= off + unit * Math.abs(y) ? [] : [`${what}: y[${i}] is ${got[i]}, expected ${y}`],
    );
    expect(wrong.slice(0, 5)).toEqual([]);
  }

  describe.each(quantTypeNames.map((type) => [type]))("%s", (type) => {
    const { size } = quantTypes[type];
    const lower = quantName(type);

    test.each(types)("dequantizes to %s", (dtype) => {
      for (const [count, skew] of [
        [size, 0],
        [3 * size, sizeOf(dtype)],
        [8192, 0],
        [8192 + 5 * size, sizeOf(dtype)],
      ] as const) {
        const blocks = randomBlocks(type, count, true);
        const out = gpu.upload(new Uint8Array(count * sizeOf(dtype)).fill(0xee), skew);
        gpu.launch(`dequantize_block_${lower}_${dtype}`, { numel: count, w: gpu.blocks(blocks), out });
        const want = rounded(values(type, blocks), dtype);
        expect(floats(out, count, dtype), `${count} weights to base + ${skew}`).toEqual(want);
        gpu.release();
      }
    });

    test("rows by ids of every width; nothing and bad ids give zeros", () => {
      const [rows, k] = [7, size * 3];
      const blocks = randomBlocks(type, rows * k);
      const table = values(type, blocks);
      const rowOf = (id: number): number[] => (id < 0 ? new Array<number>(k).fill(0) : table.slice(id * k, id * k + k));
      const nothing = { u8: 255, u32: 2 ** 32 - 1, i64: 2n ** 63n - 1n };
      for (const [dtype, last] of Object.entries(nothing) as [keyof typeof nothing, number | bigint][]) {
        const error = gpu.upload(new Uint8Array(24));
        const fetch = (ids: (number | bigint)[]): number[] => {
          const out = gpu.space(ids.length * k * 4);
          const at = gpu.upload(encode(ids, dtype));
          const sizes = { count: ids.length, rows, k, id_bytes: sizeOf(dtype) };
          gpu.launch(`get_rows_${lower}_f32`, { ...sizes, w: gpu.blocks(blocks), ids: at, out, error });
          return floats(out, ids.length * k, "f32");
        };
        expect(fetch([6, 0, last, 3, 3])).toEqual([6, 0, -1, 3, 3].flatMap(rowOf));
        expect(new BigUint64Array(gpu.download(error, 24).buffer)).toEqual(BigUint64Array.of(0n, 0n, 0n));
        expect(fetch([1, 7])).toEqual([1, -1].flatMap(rowOf));
        expect(new BigUint64Array(gpu.download(error, 24).buffer)).toEqual(BigUint64Array.of(1n, 7n, 1n));
        gpu.release();
      }
    });

    test("mat-vec of 1 to 8 rows, at odd sizes", () => {
      const shapes = [
        [1, 1, size],
        [3, 1, size * 5],
        [13, 2, size * 2],
        [5, 3, size],
        [9, 4, size * 3],
        [17, 5, size * 2],
        [35, 8, size],
      ] as const;
      for (const [n, batch, k] of shapes) {
        const blocks = randomBlocks(type, n * k);
        const x = Array.from({ length: batch * k }, () => Math.fround(normal()));
        const got = multiply(type, blocks, x, n, "f32");
        expectProducts(got, expected(type, blocks, x, n), "f32", `(${batch}, ${k}) × (${n}, ${k})`);
      }
    });
    test("mat-vec of rows longer than one round, in every dtype", () => {
      for (const [dtype, batch] of [
        ["f32", 1],
        ["f16", 2],
        ["bf16", 4],
        ["f32", 8],
        ["bf16", 1],
      ] as const) {
        const [n, k] = [5, 4096 + 256];
        const blocks = randomBlocks(type, n * k);
        const x = rounded(
          Array.from({ length: batch * k }, () => normal() / 64),
          dtype,
        );
        expectProducts(
          multiply(type, blocks, x, n, dtype),
          expected(type, blocks, x, n),
          dtype,
          `${dtype}, batch ${batch}`,
        );
      }
    });
    tileTest("mat-vec on a matrix unit", () => {
      for (const [batch, n, k, dtype] of [
        [1, 37, 1024 + size, "f32"],
        [2, 16, size, "f16"],
        [3, 17, 256 + size, "f32"],
        [4, 81, 512 + size, "bf16"],
        [5, 1, size, "f32"],
        [6, 37, size, "f16"],
        [7, 16, 256 + size, "bf16"],
        [8, 81, 1024 + size, "f32"],
        [8, 5, 4096 + 256, "f32"],
      ] as const) {
        const blocks = randomBlocks(type, n * k);
        const x = rounded(
          Array.from({ length: batch * k }, () => normal() / 64),
          dtype,
        );
        const got = multiply(type, blocks, x, n, dtype, "tiles");
        expectProducts(got, expected(type, blocks, x, n), dtype, `(${batch}, ${k}) × (${n}, ${k}) ${dtype}`);
      }
    });
    tileTest("what is fused is the same on a matrix unit", () => {
      for (const [m, n, blocksPerRow, glu, norm, bias, residual, skew] of [
        [8, 37, 3, 0, true, true, true, 0],
        [5, 34, 1, 1, true, false, false, 4],
        [6, 18, 2, 2, false, true, true, 0],
        [2, 34, 3, 1, true, true, true, 0],
        [3, 21, 1, 0, true, false, true, 4],
        [1, 37, 3, 0, true, true, true, 4],
        [1, 34, 2, 1, false, true, true, 0],
      ] as const) {
        const k = blocksPerRow * size;
        const columns = glu ? n / 2 : n;
        const floatsAt = (count: number, at = 0) =>
          gpu.upload(encode(Array.from({ length: count }, normal), "f32"), at);
        const row = Array.from({ length: m * k }, normal);
        // A row whose squares overflow, the second; the only one for some types.
        if (norm && (m > 1 || type.endsWith("_K"))) row.fill(1e25, m > 1 ? k : 0, m > 1 ? 2 * k : k);
        const shared = {
          ...{ n, k, batch: m, dtype: 0, glu, eps: 1e-5, w: gpu.blocks(randomBlocks(type, n * k)) },
          ...{ x: gpu.upload(encode(row, "f32"), skew), alpha: norm ? floatsAt(k, skew) : 0 },
          ...{ bias: bias ? floatsAt(n) : 0, residual: residual ? floatsAt(m * columns) : 0 },
        };
        const plain = planQuantizedLinear({ m, n, k, norm }, type, gpu.properties)!;
        const [want, got] = [plain, tilePlan({ m, n, k, norm }, type, 1)].map(({ kernel, launch }, tiles) => {
          const y = gpu.space(m * columns * 4);
          gpu.launch(kernel, { ...shared, ...launch, out: y }, tiles === 1);
          return floats(y, m * columns, "f32");
        });
        const size2 = Math.sqrt(want!.reduce((sum, y) => sum + y * y, 0) / want!.length);
        const wrong = want!.flatMap((y, i) =>
          Math.abs(got![i]! - y) <= 2e-5 * (Math.abs(y) + size2) ? [] : [`y[${i}] is ${got![i]}, without ${y}`],
        );
        expect(wrong.slice(0, 3), `${m} rows of ${k} by ${n}, glu ${glu}`).toEqual([]);
        gpu.release();
      }
    });
  });

  test("a block of activations with NaN or infinity makes NaN of its row alone", () => {
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      const blocks = randomBlocks("Q8_0", 64 * 3);
      const x = Array.from({ length: 128 }, () => normal());
      x[70] = bad;
      const y = multiply("Q8_0", blocks, x, 3, "f32");
      expect(y.map(Number.isNaN)).toEqual([false, false, false, true, true, true]);
    }
  });
  tileTest("the same on a matrix unit", () => {
    for (const type of ["Q8_0", "Q6_K", "Q4_K"] as const)
      for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
        const [n, k] = [3, 256];
        const x = Array.from({ length: 5 * k }, () => normal());
        x[k + 70] = bad;
        const blocks = randomBlocks(type, n * k);
        const y = multiply(type, blocks, x, n, "f32", "tiles");
        expect(y.map(Number.isNaN)).toEqual(Array.from({ length: 15 }, (_, i) => i >= 3 && i < 6));
        expect(multiply(type, blocks, x.slice(k, 2 * k), n, "f32", "tiles").every(Number.isNaN)).toBe(true);
      }
  });

  test("f32 keeps 24 bits of activations", () => {
    for (const [type, batch] of [
      ["Q4_K", 1],
      ["Q2_K", 6],
    ] as const) {
      const [n, k] = [19, 768];
      const blocks = randomBlocks(type, n * k);
      const x = Array.from({ length: batch * k }, () => Math.fround(normal()));
      const want = expected(type, blocks, x, n, true);
      for (const kind of device === "sim:32" ? (["few", "tiles"] as const) : (["few"] as const))
        expectProducts(multiply(type, blocks, x, n, "f32", kind, true), want, "f32", `${type} ${kind}`);
    }
  });

  tileTest("sums of experts on a matrix unit", () => {
    const [experts, n] = [4, 35];
    for (const [type, k, rows, ids] of [
      ["Q4_K", 768, 1, [3, 0, 0xffffffff, 1, 2]],
      ["Q8_0", 1440, 2, [1, 3, 0, 0]],
    ] as const) {
      const slots = ids.length / rows;
      const blocks = randomBlocks(type, experts * n * k);
      const x = Array.from({ length: ids.length * k }, () => normal() / 64);
      const mix = ids.map(normal);
      const residual = Array.from({ length: rows * n }, normal);
      const floatsAt = (all: readonly number[]) => gpu.upload(encode(all, "f32"));
      const shared = {
        ...{
          n,
          k,
          slots,
          rows,
          experts,
          early: 0,
          error: 0,
          dtype: 0,
          mix_dtype: 0,
          w: gpu.blocks(blocks),
          x: floatsAt(x),
        },
        ...{
          ids: gpu.upload(encode(ids, "u32")),
          mix: floatsAt(mix),
          residual: floatsAt(residual),
        },
      };
      const shape = { m: 1, n, k, norm: false, slots };
      const plain = planQuantizedLinear(shape, type, gpu.properties)!;
      const [want, got] = [plain, tilePlan(shape, type, 1)].map(({ launch }, tiles) => {
        const y = gpu.space(rows * n * 4);
        const values = { ...shared, ...launch, per_row: launch.blocks, out: y };
        gpu.launch(`expert_sum_${quantName(type)}`, values, tiles === 1);
        return floats(y, rows * n, "f32");
      });
      for (const [i, v] of want!.entries()) expect(Math.abs(got![i]! - v)).toBeLessThan(1e-4 * (1 + Math.abs(v)));
      gpu.release();
    }
  });

  tileTest("a row times weights that are all on their way at once", () => {
    const k = 2048;
    // Blocks of two groups of rows, or of three behind a norm, of which the last has one less; squares that overflow.
    for (const [type, dtype, n, norm, around, size] of [
      ["Q4_K", "bf16", 48, false, true, 1],
      ["Q5_K", "f16", 48, false, true, 1],
      ["Q4_K", "f16", 48, false, false, 1],
      ["Q4_K", "bf16", 80, true, true, 1],
      ["Q4_K", "f16", 80, true, false, 1],
      ["Q4_K", "bf16", 80, true, true, 2 ** 80],
    ] as const) {
      const blocks = randomBlocks(type, n * k);
      const some = (count: number, size = 1): number[] =>
        rounded(
          Array.from({ length: count }, () => size * normal()),
          dtype,
        );
      const [x, alpha, bias, residual] = [some(k, size), some(k), some(n), some(n)];
      const device = { arch: "sm_90a", multiprocessors: 2 };
      const { kernel, launch } = planOnce({ m: 1, n, k, norm }, type, device)!;
      expect(launch).toMatchObject({ blocks: 2, splits: norm ? 4 : 8, threads: norm ? 384 : 512 });
      const halvesAt = (all: readonly number[]) => gpu.upload(encode(all, dtype));
      const y = gpu.space(2 * n);
      const added = around ? { bias: halvesAt(bias), residual: halvesAt(residual) } : { bias: 0, residual: 0 };
      const values = { n, k, dtype: quantOutput[dtype]!, x: halvesAt(x), w: gpu.blocks(blocks), out: y };
      gpu.launch(kernel, { ...launch, ...values, ...added, alpha: halvesAt(alpha), eps: 1e-5 }, true);
      const mean = x.reduce((sum, v) => sum + v * v, 0) / k;
      const taken = norm ? x.map((v, i) => (v * alpha[i]!) / Math.sqrt(mean + 1e-5)) : x;
      const want = expected(type, blocks, taken, n).map(({ y, off }, i) =>
        around ? { y: y + bias[i]! + residual[i]!, off: off + 1e-5 } : { y, off },
      );
      expectProducts(floats(y, n, dtype), want, dtype, `${type} ${dtype}`);
      gpu.release();
    }
  });

  tileTest("a row through the experts that its scores choose", () => {
    const [experts, width, slots] = [40, 256, 3];
    const scores = Array.from({ length: experts }, (_, e) => (e % 7 === 0 ? Number.NaN : normal()));
    // The second of equal ones is not chosen, nor is zero below zero less than zero.
    for (const e of [5, 33, 38]) scores[e] = 9;
    [scores[2], scores[4]] = [-0, 0];
    const only = Array.from({ length: experts }, (_, e) => (e === 4 ? 0 : e === 2 ? -0 : Number.NaN));
    const first = (all: readonly number[], after: (a: number, b: number) => boolean) =>
      all
        .map((score, e) => ({ score, e }))
        .sort((a, b) => (after(a.score, b.score) ? 1 : after(b.score, a.score) ? -1 : a.e - b.e))
        .slice(0, slots);
    const isAfter = (a: number, b: number) => (Number.isNaN(a) ? !Number.isNaN(b) : a < b);
    for (const [type, dtype, hidden, own, norm, early] of [
      ["Q4_K", "bf16", 1280, rounded(scores, "bf16"), true, 1],
      ["Q5_K", "f16", 256, rounded(scores, "f16"), false, 0],
      ["Q4_K", "bf16", 256, only, true, 0],
    ] as const) {
      const [open, down] = [
        randomBlocks(type, experts * 2 * width * hidden),
        randomBlocks(type, experts * hidden * width),
      ];
      for (const blocks of [open, down])
        for (let i = 0; i < blocks.length; i += quantTypes[type].bytes)
          for (const at of [0, 2]) blocks.set(encode([(at ? 7 : 1) * 2 ** -9 * (0.5 + random())], "f16"), i + at);
      const x = rounded(
        Array.from({ length: hidden }, () => normal() * 0.3),
        dtype,
      );
      const alpha = rounded(
        Array.from({ length: hidden }, () => 1 + normal() * 0.1),
        dtype,
      );
      const residual = rounded(Array.from({ length: hidden }, normal), dtype);
      const plan = planRouted({ hidden, width, experts, slots }, type, { arch: "sm_90a", multiprocessors: 24 })!;
      const halvesAt = (all: readonly number[]) => gpu.upload(encode(all, dtype));
      const common = { scores: halvesAt(own), slots, experts, dtype: quantOutput[dtype]! };
      const [between, y] = [gpu.space(plan.between), gpu.space(2 * hidden)];
      gpu.launch(
        `routed_open_${plan.quant}`,
        {
          ...{ ...common, ...plan.open, x: halvesAt(x), alpha: norm ? halvesAt(alpha) : 0, eps: 1e-6, glu: 1, early },
          ...{ w: gpu.blocks(open), out: between, width, k: hidden },
        },
        true,
      );
      gpu.launch(
        `routed_down_${plan.quant}`,
        {
          ...{ ...common, ...plan.down, x: between, w: gpu.blocks(down), residual: halvesAt(residual) },
          ...{ out: y, n: hidden, k: width },
        },
        true,
      );
      const chosen = first(own, isAfter);
      const powers = chosen.map(({ score }) => Math.exp(score - chosen[0]!.score));
      const total = powers.reduce((a, b) => a + b);
      const factor = norm ? 1 / Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / hidden + 1e-6) : 1;
      const normed = x.map((v, i) => v * factor * (norm ? alpha[i]! : 1));
      const rows = (blocks: Uint8Array, row: number, count: number, k: number): number[] => {
        const bytes = (k / quantTypes[type].size) * quantTypes[type].bytes;
        return values(type, blocks.subarray(row * bytes, (row + count) * bytes));
      };
      const dot = (w: readonly number[], at: number, v: readonly number[]): number =>
        v.reduce((sum, a, i) => sum + a * w[at + i]!, 0);
      const want = [...residual];
      for (const [j, { e }] of chosen.entries()) {
        const gates = rows(open, e * 2 * width, 2 * width, hidden);
        const opened = Array.from({ length: width }, (_, c) => {
          const gate = dot(gates, c * hidden, normed);
          return (gate / (1 + Math.exp(-gate))) * dot(gates, (width + c) * hidden, normed) * (powers[j]! / total);
        });
        const back = rows(down, e * hidden, hidden, width);
        for (let r = 0; r < hidden; r++) want[r]! += dot(back, r * width, opened);
      }
      const got = floats(y, hidden, dtype);
      // Where all scores are NaN but for two, the third counts for NaN, and so does the sum.
      if (own === only) for (const v of got) expect(v).toBeNaN();
      else {
        const size = Math.sqrt(want.reduce((sum, v) => sum + v * v, 0) / hidden);
        for (const [i, v] of want.entries())
          if (!(Math.abs(got[i]! - v) <= 2 ** (dtype === "bf16" ? -8 : -10) * Math.abs(v) + 1e-3 * size))
            expect.fail(`${type} ${dtype}: y[${i}] is ${got[i]}, not ${v}`);
      }
      gpu.release();
    }
  });

  test("weights become the reference's bytes", async () => {
    const cases = golden.filter((c) => c.op === "quantize");
    expect(cases.length).toBe(5);
    for (const { id, inputs, params, outputs } of cases) {
      const x = await tensors.readBytes(inputs.x!.tensor);
      const want = await tensors.readBytes(outputs[0]!);
      const dst = gpu.space(want.length);
      const type = String(params.type).toLowerCase() as "q8_0";
      gpu.launch(`quantize_${type}`, { x: gpu.upload(x), out: dst, numel: x.length / 4 });
      expect(Buffer.compare(gpu.download(dst, want.length), want), id).toBe(0);
      gpu.release();
    }
  });
  test.each(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"] as const)("%s of zeros and of a constant", (type) => {
    for (const constant of [0, 3]) {
      const dst = gpu.space(quantTypes[type].bytes);
      const src = gpu.upload(encode(new Array<number>(32).fill(constant), "f32"));
      gpu.launch(`quantize_${type.toLowerCase() as Lowercase<typeof type>}`, { x: src, out: dst, numel: 32 });
      for (const x of values(type, gpu.download(dst, quantTypes[type].bytes)))
        expect(Math.abs(x - constant)).toBeLessThan(2e-3);
      gpu.release();
    }
  });
});
