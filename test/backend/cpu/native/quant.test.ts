/** Products with quantized weights by machine code, in every form that this machine has, beside exact ones. */
import { describe, expect, it } from "vitest";
import { addressOf } from "../../../../src/backend/cpu/blocks.ts";
import { addressOfBuffer, libc } from "../../../../src/backend/cpu/libc.ts";
import { blockCodes, type NativeQuantType } from "../../../../src/backend/cpu/native/kernels/quant-blocks.ts";
import { guarded } from "../../../../src/backend/cpu/native/memory.ts";
import { Native } from "../../../../src/backend/cpu/native/native.ts";
import { type QuantRunner, qmatmul, quantProduct } from "../../../../src/backend/cpu/native/ops/qmatmul.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";
import { quantTypes } from "../../../../src/core/quant-types.ts";
import { Device, Tensor } from "../../../../src/index.ts";
import { QTensor } from "../../../../src/quantized/index.ts";
import { NativeWithTiles } from "../../../helpers/tiles.ts";

const types = Object.keys(blockCodes) as NativeQuantType[];
const forms = tiers()
  .filter((tier) => tier !== "wasm")
  .flatMap((tier) => {
    const isa = chooseIsa(tier)!;
    const plain = { name: `${tier}`, native: new Native({ ...isa, vnni: false, amx: false }) };
    if (!isa.vnni) return [plain];
    const tiles = isa.amx ? new Native(isa) : new NativeWithTiles(isa);
    const vnni = { name: `${tier} with VNNI`, native: new Native({ ...isa, amx: false }) };
    return [{ name: `${tier} with AMX`, native: tiles }, vnni, plain];
  });
const { backend } = Device.cpu();
const view = ({ storage, layout }: Tensor) => ({ storage, layout });

const runner = (native: Native, threads = 1, planes: QuantRunner["planes"] = 2): QuantRunner => ({
  native,
  threads,
  planes,
});

function multiply(native: Native, x: Tensor, w: QTensor, threads = 1, planes: QuantRunner["planes"] = 2): Float32Array {
  const storage = qmatmul(backend, runner(native, threads, planes), w.type, view(x), view(w.blocks))!;
  const { length } = storage;
  const bytes = backend.readSync(storage, 0, storage.byteLength);
  const { dtype } = storage;
  storage.discard();
  return Tensor.fromBytes(bytes, [length], dtype).toDType("f32").dataSync() as Float32Array;
}

/** ‖got − want‖ / ‖want‖. */
function distance(got: Float32Array, want: Float32Array | Float64Array): number {
  const length = (of: (i: number) => number) => Math.sqrt(got.reduce((sum, _, i) => sum + of(i) ** 2, 0));
  return length((i) => got[i]! - want[i]!) / length((i) => want[i]!);
}

const weights = (type: NativeQuantType, n: number, k: number): QTensor =>
  QTensor.quantize(Tensor.randn([n, k], { seed: 1 }).affine(0.02, 0.001), type);

describe.each(forms)("quantized products with $name", ({ native }) => {
  it.each(types)("of %s are exact to 1e-4 for any number of rows, and rows do not depend on each other", (type) => {
    const { size } = quantTypes[type];
    for (const [n, blocks] of [
      [16, 1],
      [33, 2],
      [47, 3],
    ] as const) {
      // Of small blocks also whole strips.
      const k = size === 32 && blocks < 3 ? 32 * (4 * blocks + 1) : size === 32 ? 1024 : size * blocks;
      const w = weights(type, n, k);
      const exact = w.dequantize("f32").toDType("f64").t();
      const x = Tensor.randn([34, k], { seed: 2 });
      const alone = Array.from({ length: 34 }, (_, i) => multiply(native, x.narrow(0, i, 1), w));
      for (const m of [0, 1, 2, 7, 8, 9, 16, 33]) {
        const part = x.narrow(0, 1, m);
        const got = multiply(native, part, w, 1 + (m & 1));
        expect(got.length).toBe(m * n);
        if (m > 0)
          expect(distance(got, part.toDType("f64").matmul(exact).dataSync() as Float64Array)).toBeLessThan(1e-4);
        for (let i = 0; i < m; i++) expect(got.subarray(i * n, (i + 1) * n)).toEqual(alone[i + 1]);
      }
    }
  });

  it.each(types)("of %s lose what 8 bits lose where one plane of activations is asked for", (type) => {
    const w = weights(type, 33, 512);
    const x = Tensor.randn([17, 512], { seed: 5 });
    const exact = x.matmul(w.dequantize("f32").t()).dataSync() as Float32Array;
    const lost = distance(multiply(native, x, w, 1, 1), exact);
    expect(lost).toBeLessThan(native.isa.vnni ? 1e-2 : 1e-4);
    if (native.isa.vnni) expect(lost).toBeGreaterThan(1e-3);
  });

  it.each(types)("of %s take halves and strided rows", (type) => {
    const w = weights(type, 40, 512);
    const exact = w.dequantize("f32").t();
    const x = Tensor.randn([512, 10], { seed: 3 }).t();
    expect(distance(multiply(native, x, w), x.contiguous().matmul(exact).dataSync() as Float32Array)).toBeLessThan(
      1e-4,
    );
    for (const [dtype, tolerance] of [
      ["f16", 5e-4],
      ["bf16", 4e-3],
    ] as const) {
      const half = x.contiguous().toDType(dtype);
      const want = half.toDType("f32").matmul(exact).dataSync() as Float32Array;
      expect(distance(multiply(native, half, w), want)).toBeLessThan(tolerance);
    }
  });

  it.each(types)("of %s give zeros for zeros and tiny numbers, and NaN for rows with NaN or infinity", (type) => {
    const w = weights(type, 20, 256);
    const rows = [[0], [1e-38, -1e-40], [Number.NaN, 1], [2, Number.POSITIVE_INFINITY], [1, 2]];
    for (const dtype of ["f32", "bf16"] as const) {
      const x = Tensor.from(
        rows.map((row) => Array.from({ length: 256 }, (_, i) => row[i] ?? 0)),
        { dtype },
      );
      const got = multiply(native, x, w);
      expect(got.subarray(0, 40).every((y) => y === 0)).toBe(true);
      expect(got.subarray(40, 80).every(Number.isNaN)).toBe(true);
      expect(got.subarray(80).every(Number.isFinite)).toBe(true);
    }
  });

  it.each([32, 64, 96])("of rows of %i have the bits of each row alone", (k) => {
    const [m, n] = [40, 37];
    const w = weights("Q8_0", n, k);
    const x = Tensor.randn([m, k], { seed: 7 });
    const got = multiply(native, x, w, 2);
    for (let i = 0; i < m; i++)
      expect(got.subarray(i * n, (i + 1) * n)).toEqual(multiply(native, x.narrow(0, i, 1), w));
  });

  it.each(["Q4_0", "Q4_K", "Q6_K"] as const)("of %s and long rows go in slices, with the same bits", (type) => {
    const [m, n, k] = [native.isa.masks ? 20 : 9, 37, 2304];
    const w = weights(type, n, k);
    const x = Tensor.randn([m, k], { seed: 6 });
    const got = multiply(native, x, w, 2);
    for (let i = 0; i < m; i++)
      expect(got.subarray(i * n, (i + 1) * n)).toEqual(multiply(native, x.narrow(0, i, 1), w));
  });

  it.each(types.flatMap((type) => [[type, 3] as const, [type, 10] as const, [type, 19] as const]))(
    "of %s and %i rows touch nothing beside their operands",
    (type, m) => {
      const [n, k] = [21, 256];
      const w = weights(type, n, k);
      const x = Tensor.randn([m, k], { seed: 4 });
      const want = multiply(native, x, w);
      const { calls, pageBytes } = libc()!;
      const room = (bytes: number) => ({ bytes, ...guarded(bytes) });
      const xAt = room(4 * m * k);
      const wAt = room(w.blocks.numel);
      const outAt = room(4 * m * n);
      // Against the page before them, then against the one behind.
      for (const end of [false, true]) {
        const [x0, w0, out0] = [xAt, wAt, outAt].map(({ address, bytes }) =>
          end ? address + Math.ceil(bytes / pageBytes) * pageBytes - bytes : address,
        ) as [number, number, number];
        calls.memmove(x0, addressOf(view(x)), xAt.bytes);
        calls.memmove(w0, addressOf(view(w.blocks)), wAt.bytes);
        quantProduct(runner(native), { type, dtype: "f32", m, n, k, x: x0, w: w0, out: out0 });
        const got = new Float32Array(m * n);
        calls.memmove(addressOfBuffer(got.buffer), out0, outAt.bytes);
        expect(got).toEqual(want);
      }
    },
  );
});
