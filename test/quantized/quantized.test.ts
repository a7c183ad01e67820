import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { f16ToF32 } from "../../src/core/halves.ts";
import { Device, type DType, scope, Tensor, WickError } from "../../src/index.ts";
import {
  asQuantType,
  QMatMul,
  QTensor,
  type QuantType,
  qmatmul,
  quantTypeNames,
  quantTypes,
} from "../../src/quantized/index.ts";
import { deviceNames, inTurns } from "../helpers/devices.ts";
import { expectClose } from "../helpers/reference.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];
const writable = quantTypeNames.filter((t) => quantTypes[t].writable);

/** A small generator, so that blocks are the same on every run. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
function normals(n: number, seed: number): Float32Array {
  const next = random(seed);
  return Float32Array.from({ length: n }, () => {
    const radius = Math.sqrt(-2 * Math.log(next() + 2 ** -33));
    return radius * Math.cos(2 * Math.PI * next());
  });
}

// ---- a plain decoder: one block to numbers, straight from the layouts ----

const curve = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const fp4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];
const signed = (byte: number): number => (byte << 24) >> 24;

function sixBits(b: Uint8Array, at: number, j: number): [scale: number, min: number] {
  const byte = (i: number) => b[at + i]!;
  if (j < 4) return [byte(j) & 63, byte(j + 4) & 63];
  return [(byte(j + 4) & 15) | ((byte(j - 4) >> 6) << 4), (byte(j + 4) >> 4) | ((byte(j) >> 6) << 4)];
}

/** Weight i of a block. */
const decoders: Record<QuantType, (b: Uint8Array, i: number) => number> = {
  Q4_0: (b, i) => half(b, 0) * (nibble(b, 2, i) - 8),
  Q4_1: (b, i) => half(b, 0) * nibble(b, 4, i) + half(b, 2),
  Q5_0: (b, i) => half(b, 0) * ((nibble(b, 6, i) | (bit(b, 2, i) << 4)) - 16),
  Q5_1: (b, i) => half(b, 0) * (nibble(b, 8, i) | (bit(b, 4, i) << 4)) + half(b, 2),
  Q8_0: (b, i) => half(b, 0) * signed(b[2 + i]!),
  Q8_1: (b, i) => half(b, 0) * signed(b[4 + i]!),
  Q2_K: (b, i) => {
    const s = b[i >> 4]!;
    const q = (b[16 + (i >> 7) * 32 + (i & 31)]! >> (((i >> 5) & 3) * 2)) & 3;
    return half(b, 80) * (s & 15) * q - half(b, 82) * (s >> 4);
  },
  Q3_K: (b, i) => {
    const g = i >> 4;
    const low = g < 8 ? b[96 + g]! & 15 : b[96 + g - 8]! >> 4;
    const high = (b[104 + (g & 3)]! >> ((g >> 2) * 2)) & 3;
    const q = (b[32 + (i >> 7) * 32 + (i & 31)]! >> (((i >> 5) & 3) * 2)) & 3;
    const keep = (b[i & 31]! >> (i >> 5)) & 1;
    return half(b, 108) * ((low | (high << 4)) - 32) * (q - (keep ? 0 : 4));
  },
  Q4_K: (b, i) => {
    const [s, m] = sixBits(b, 4, i >> 5);
    const q = (b[16 + (i >> 6) * 32 + (i & 31)]! >> (i & 32 ? 4 : 0)) & 15;
    return half(b, 0) * s * q - half(b, 2) * m;
  },
  Q5_K: (b, i) => {
    const [s, m] = sixBits(b, 4, i >> 5);
    const q = (b[48 + (i >> 6) * 32 + (i & 31)]! >> (i & 32 ? 4 : 0)) & 15;
    const high = (b[16 + (i & 31)]! >> (i >> 5)) & 1;
    return half(b, 0) * s * (q + 16 * high) - half(b, 2) * m;
  },
  Q6_K: (b, i) => {
    const half128 = i >> 7;
    const quarter = (i >> 5) & 3;
    const low = (b[half128 * 64 + (quarter & 1) * 32 + (i & 31)]! >> (quarter & 2 ? 4 : 0)) & 15;
    const high = (b[128 + half128 * 32 + (i & 31)]! >> (quarter * 2)) & 3;
    return half(b, 208) * signed(b[192 + (i >> 4)]!) * ((low | (high << 4)) - 32);
  },
  Q8_K: (b, i) => new DataView(b.buffer, b.byteOffset).getFloat32(0, true) * signed(b[4 + i]!),
  IQ4_NL: (b, i) => half(b, 0) * curve[nibble(b, 2, i)]!,
  IQ4_XS: (b, i) => {
    const g = i >> 5;
    const low = (b[4 + (g >> 1)]! >> ((g & 1) * 4)) & 15;
    const high = ((b[2]! | (b[3]! << 8)) >> (2 * g)) & 3;
    return half(b, 0) * ((low | (high << 4)) - 32) * curve[nibble(b, 8 + g * 16, i & 31)]!;
  },
  MXFP4: (b, i) => 2 ** (b[0]! - 127) * fp4[nibble(b, 1, i)]!,
};
const half = (b: Uint8Array, at: number): number => f16ToF32(b[at]! | (b[at + 1]! << 8));
const nibble = (b: Uint8Array, at: number, i: number): number => (b[at + (i & 15)]! >> (i & 16 ? 4 : 0)) & 15;
const bit = (b: Uint8Array, at: number, i: number): number => (b[at + (i >> 3)]! >> (i & 7)) & 1;

function decode(type: QuantType, bytes: Uint8Array): number[] {
  const { size, bytes: step } = quantTypes[type];
  const blocks = bytes.length / step;
  return Array.from({ length: blocks * size }, (_, i) => {
    const at = Math.floor(i / size) * step;
    return decoders[type](bytes.subarray(at, at + step), i % size);
  });
}

/** Random bits in every field; only the floating-point fields are given moderate values. */
function randomBlocks(type: QuantType, count: number, seed: number): Uint8Array {
  const next = random(seed);
  const { bytes } = quantTypes[type];
  const out = Uint8Array.from({ length: count * bytes }, () => Math.floor(next() * 256));
  const view = new DataView(out.buffer);
  const halves: Partial<Record<QuantType, number[]>> = {
    Q2_K: [80, 82],
    Q3_K: [108],
    Q6_K: [208],
    Q4_1: [0, 2],
    Q5_1: [0, 2],
    Q8_1: [0, 2],
    Q4_K: [0, 2],
    Q5_K: [0, 2],
    Q8_K: [],
    MXFP4: [],
  };
  for (let at = 0; at < out.length; at += bytes) {
    for (const offset of halves[type] ?? [0]) {
      const sign = next() < 0.5 ? 0x8000 : 0;
      view.setUint16(at + offset, sign | Math.floor(0x1c00 + next() * 0x1000), true); // 2⁻⁸ … 2⁻⁴
    }
    if (type === "Q8_K") view.setFloat32(at, next() - 0.5, true);
    if (type === "MXFP4") out[at] = 118 + Math.floor(next() * 8);
  }
  return out;
}

/** k for a type: some blocks, and not a power of two. */
const width = (type: QuantType): number => quantTypes[type].size * (quantTypes[type].size === 32 ? 7 : 3);
const weights = (type: QuantType, n: number, device: Device, seed = 7): QTensor => {
  const { size } = quantTypes[type];
  return QTensor.fromBytes(randomBlocks(type, (n * width(type)) / size, seed), [n, width(type)], type, device);
};
const code = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof WickError) return error.code;
    throw error;
  }
  return "nothing was thrown";
};
const message = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    return (error as Error).message;
  }
  return "nothing was thrown";
};

describe.each(deviceNames.map((d) => [d]))("quantized tensors on %s", (name) => {
  const device = Device.from(name);
  const tensor = (values: Float32Array, shape: number[], dtype: DType = "f32") =>
    Tensor.from(values, { shape, device }).toDType(dtype);

  // The kernels of every type are tested on every GPU by themselves.
  describe.each(inTurns(quantTypeNames, device).map((t) => [t]))("%s", (type) => {
    // On GPUs each type of many rows is a program of its own: one of each order of words here, all of them in the golden cases.
    const many = name === "cpu" || ["Q8_0", "Q4_K", "Q3_K", "IQ4_NL"].includes(type) ? [20] : [];
    const { size } = quantTypes[type];

    it("dequantizes as its layout says", () => {
      const bytes = randomBlocks(type, 2 * 3, 1);
      const q = QTensor.fromBytes(bytes, [2, 3 * size], type, device);
      const want = decode(type, bytes);
      const got = q.dequantize();
      expect(got.shape).toEqual([2, 3 * size]);
      expectClose(Array.from(got.dataSync() as Float32Array), want, 1e-6, type);
      for (const dtype of ["f16", "bf16"] as const) {
        const direct = q.dequantize(dtype);
        expect(direct.dtype).toBe(dtype);
        expect(direct.bytesSync()).toEqual(got.toDType(dtype).bytesSync());
      }
    });

    it("multiplies as the dequantized weights do, within the rounding of activations", () => {
      const k = width(type);
      // On GPUs a number of rows for each kernel; fused-linear.test.ts has all from 1 to 8.
      const isCpu = device.name === "cpu";
      for (const n of isCpu ? [1, 5, 50] : [5, 50]) {
        const w = weights(type, n, device);
        const plain = w.dequantize().dataSync() as Float32Array;
        for (const m of isCpu ? [1, 2, 3, 4, 5, 6, 7, 15, 16, 23] : [1, 2, 4, 7, 23]) {
          const values = normals(m * k, m);
          const y = qmatmul(tensor(values, [m, k]), w);
          expect(y.shape).toEqual([m, n]);
          const got = y.dataSync() as Float32Array;
          for (let i = 0; i < m; i++) {
            for (let j = 0; j < n; j++) {
              let [sum, magnitude, allowed] = [0, 0, 0];
              for (let b = 0; b < k; b += size) {
                let [peak, total] = [0, 0];
                for (let p = b; p < b + size; p++) {
                  const [x, v] = [values[i * k + p]!, plain[j * k + p]!];
                  sum += x * v;
                  magnitude += Math.abs(x * v);
                  peak = Math.max(peak, Math.abs(x));
                  total += Math.abs(v);
                }
                allowed += (total * peak) / 127 / 2; // half a step of eight bits per activation
              }
              const error = Math.abs(got[i * n + j]! - sum);
              expect(error, `${m} × ${n}, element ${i}, ${j}`).toBeLessThanOrEqual(allowed + 1e-5 * magnitude);
            }
          }
        }
      }
    });

    it("takes strided and half activations, and any leading dims", () => {
      const k = width(type);
      const w = weights(type, 6, device);
      for (const rows of [2, 4, ...many]) {
        const x = tensor(normals(rows * k, 3), [rows, k]);
        const want = qmatmul(x, w).bytesSync();
        const turned = x.t().contiguous().t();
        expect(turned.isContiguous()).toBe(false);
        expect(qmatmul(turned, w).bytesSync()).toEqual(want);
        const inside = Tensor.cat([x, x, x], 1).narrow(1, k, k);
        expect(qmatmul(inside, w).bytesSync()).toEqual(want);
        const cube = qmatmul(x.reshape([2, rows / 2, k]), w);
        expect(cube.shape).toEqual([2, rows / 2, 6]);
        expect(cube.bytesSync()).toEqual(want);
        for (const dtype of ["f16", "bf16"] as const) {
          const y = qmatmul(x.toDType(dtype), w);
          expect(y.dtype).toBe(dtype);
          const wide = x.toDType(dtype).toDType("f32");
          if (device.backend.name === "cpu") {
            expect(y.bytesSync()).toEqual(qmatmul(wide, w).toDType(dtype).bytesSync());
            continue;
          }
          const [got, values] = [y.toDType("f32"), wide].map((z) => z.dataSync() as Float32Array) as [
            Float32Array,
            Float32Array,
          ];
          const eps = dtype === "f16" ? 2 ** -11 : 2 ** -8;
          if (rows > 8) {
            // Many rows of halves meet weights that were rounded to halves.
            const halves = wide.matmul(w.dequantize(dtype).toDType("f32").t());
            expectClose([...got], [...(halves.dataSync() as Float32Array)], eps, dtype);
            continue;
          }
          // Few meet the blocks, with sixteen bits of each activation: of those in f32 more are kept.
          const want = qmatmul(wide, w).dataSync() as Float32Array;
          const plain = w.dequantize().dataSync() as Float32Array;
          for (const [at, value] of want.entries()) {
            const [i, j] = [Math.floor(at / 6), at % 6];
            const peak = values.subarray(i * k, (i + 1) * k).reduce((most, v) => Math.max(most, Math.abs(v)), 0);
            const total = plain.subarray(j * k, (j + 1) * k).reduce((sum, v) => sum + Math.abs(v), 0);
            const allowed = total * peak * 2 ** -15 + Math.abs(value) * eps;
            expect(Math.abs(got[at]! - value), `${dtype}, ${rows} rows, element ${at}`).toBeLessThanOrEqual(allowed);
          }
        }
      }
      const vector = tensor(normals(k, 5), [k]);
      expect(qmatmul(vector, w).shape).toEqual([6]);
    });

    it("looks up rows", () => {
      const w = weights(type, 9, device);
      const all = w.dequantize();
      for (const dtype of ["u8", "u32", "i64"] as const) {
        const ids = Tensor.from([8, 0, 3, 3], { shape: [2, 2], dtype, device });
        const got = w.rows(ids);
        expect(got.shape).toEqual([2, 2, width(type)]);
        expect(got.bytesSync()).toEqual(all.embedding(ids).bytesSync());
        const strided = Tensor.from([8, 1, 0, 1, 3, 1], { shape: [3, 2], dtype, device }).narrow(1, 0, 1);
        expect(w.rows(strided.squeeze(1)).bytesSync()).toEqual(all.embedding(strided.squeeze(1)).bytesSync());
      }
      const ids = Tensor.from([4], { dtype: "u32", device });
      expect(w.rows(ids, "f16").bytesSync()).toEqual(w.dequantize("f16").narrow(0, 4, 1).bytesSync());
    });

    it("has no defect at zero sizes", () => {
      const none = QTensor.fromBytes(new Uint8Array(0), [0, size], type, device);
      expect(none.dequantize().shape).toEqual([0, size]);
      expect(qmatmul(Tensor.zeros([3, size], { device }), none).shape).toEqual([3, 0]);
      const empty = QTensor.fromBytes(new Uint8Array(0), [4, 0], type, device);
      expect(qmatmul(Tensor.zeros([2, 0], { device }), empty).toArraySync()).toEqual([
        [0, 0, 0, 0],
        [0, 0, 0, 0],
      ]);
      expect(qmatmul(Tensor.zeros([0, width(type)], { device }), weights(type, 3, device)).shape).toEqual([0, 3]);
      expect(weights(type, 3, device).rows(Tensor.zeros([0], { dtype: "u32", device })).shape).toEqual([
        0,
        width(type),
      ]);
    });

    it("gives zeros for zero activations, and follows NaN and infinity without touching other rows", () => {
      const k = width(type);
      const w = weights(type, 3, device);
      for (const rows of [3, ...many]) {
        expect(
          qmatmul(Tensor.zeros([rows, k], { device }), w)
            .dataSync()
            .every((v) => Number(v) === 0),
        ).toBe(true);
        const clean = normals(rows * k, 11);
        const want = qmatmul(tensor(clean, [rows, k]), w).dataSync() as Float32Array;
        for (const bad of [NAN, INF, -INF]) {
          const values = clean.slice();
          values[k + 1] = bad;
          const got = qmatmul(tensor(values, [rows, k]), w).dataSync() as Float32Array;
          for (let i = 0; i < got.length; i++) {
            if (Math.floor(i / 3) === 1) expect(Number.isFinite(got[i]!)).toBe(false);
            else expect(got[i]).toBe(want[i]);
          }
        }
        const tiny = clean.map((v) => v * 1e-37);
        const huge = clean.map((v) => v * 1e33);
        expect(
          qmatmul(tensor(tiny, [rows, k]), w)
            .dataSync()
            .every((v) => Math.abs(Number(v)) < 1e-30),
        ).toBe(true);
        expect(
          qmatmul(tensor(huge, [rows, k]), w)
            .dataSync()
            .every((v) => Number.isFinite(Number(v))),
        ).toBe(true);
      }
    });
  });

  /** Root mean square errors of llama.cpp's reference quantizers on standard normal data. */
  const reference: Partial<Record<QuantType, number>> = {
    Q4_0: 0.0858,
    Q4_1: 0.07792,
    Q5_0: 0.04257,
    Q5_1: 0.03772,
    Q8_0: 0.005344,
    Q8_1: 0.005344,
    Q2_K: 0.2952,
    Q3_K: 0.15027,
    Q4_K: 0.07104,
    Q5_K: 0.03597,
    Q6_K: 0.01768,
    Q8_K: 0.006928,
  };

  // GPUs write the simple types; the others are searched for on the CPU.
  const simple: readonly string[] = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"];
  const here = writable.filter((t) => device.name === "cpu" || simple.includes(t));

  it.each(writable.filter((t) => !here.includes(t)).map((t) => [t]))("says where %s can be written", (type) => {
    expect(() => QTensor.quantize(tensor(normals(512, 1), [2, 256]), type)).toThrow(/does not quantize to .*"cpu"/);
  });

  describe.each(here.map((t) => [t]))("quantize to %s", (type) => {
    const { size } = quantTypes[type];

    it("loses no more than the reference", () => {
      const values = normals(65536, 42);
      for (const factor of [1, 0.02, 300]) {
        const x = tensor(
          values.map((v) => v * factor),
          [64, 1024],
        );
        const back = QTensor.quantize(x, type).dequantize().dataSync() as Float32Array;
        let sum = 0;
        for (let i = 0; i < values.length; i++) sum += (back[i]! / factor - values[i]!) ** 2;
        // One hundredth for the sample: with this many values the error itself varies by that much.
        expect(Math.sqrt(sum / values.length)).toBeLessThan(reference[type]! * 1.01);
      }
    });

    it("stays close where scales are so small that f16 holds few of their bits", () => {
      const values = normals(65536, 43).map((v) => v * 1e-3);
      const back = QTensor.quantize(tensor(values, [64, 1024]), type)
        .dequantize()
        .dataSync() as Float32Array;
      let sum = 0;
      for (let i = 0; i < values.length; i++) sum += ((back[i]! - values[i]!) * 1e3) ** 2;
      expect(Math.sqrt(sum / values.length)).toBeLessThan(reference[type]! * 1.2);
    });

    it("keeps what it can represent", () => {
      const q = QTensor.quantize(tensor(normals(4 * size, 1), [4, size]), type);
      const values = q.dequantize();
      const again = QTensor.quantize(values, type).dequantize();
      const [a, b] = [values, again].map((t) => t.dataSync() as Float32Array);
      let [error, scale] = [0, 0];
      for (let i = 0; i < a!.length; i++) {
        error = Math.max(error, Math.abs(a![i]! - b![i]!));
        scale = Math.max(scale, Math.abs(a![i]!));
      }
      expect(error).toBeLessThan(scale * 0.08);
    });

    it("handles zeros, constants, one large value, and strided and half inputs", () => {
      const zeros = QTensor.quantize(Tensor.zeros([2, size], { device }), type);
      expect(
        zeros
          .dequantize()
          .dataSync()
          .every((v) => Number(v) === 0),
      ).toBe(true);
      for (const value of [3, -3]) {
        const back = QTensor.quantize(Tensor.full([1, size], value, { device }), type).dequantize();
        expectClose(Array.from(back.dataSync() as Float32Array), new Array(size).fill(value), 0.01, `${value}`);
      }
      const spike = new Float32Array(size);
      spike[5] = -1;
      const got = QTensor.quantize(tensor(spike, [size]), type)
        .dequantize()
        .dataSync();
      expectClose(Array.from(got as Float32Array), Array.from(spike), 0.02, "spike");

      const x = tensor(normals(3 * size * 4, 9), [4, 3 * size]);
      const want = QTensor.quantize(x, type).bytesSync();
      expect(QTensor.quantize(x.t().contiguous().t(), type).bytesSync()).toEqual(want);
      const small = x.toDType("f16");
      expect(QTensor.quantize(small, type).bytesSync()).toEqual(
        QTensor.quantize(small.toDType("f32"), type).bytesSync(),
      );
    });

    it("survives NaN, infinities and values beyond its scales", () => {
      const values = normals(size, 2);
      for (const bad of [NAN, INF, -INF]) {
        const x = values.slice();
        x[3] = bad;
        expect(QTensor.quantize(tensor(x, [size]), type).dequantize().shape).toEqual([size]);
      }
      const huge = QTensor.quantize(
        tensor(
          values.map((v) => v * 1e30),
          [size],
        ),
        type,
      ).dequantize();
      expect(huge.dataSync().every((v) => Number.isFinite(Number(v)))).toBe(true);
    });
  });

  it("states what is wrong with shapes, types, bytes, dtypes and ids", () => {
    expect(message(() => QTensor.quantize(Tensor.zeros([2, 33], { device }), "Q4_0"))).toMatch(
      /\[2, 33\].*33.*32.*Q4_0/,
    );
    expect(code(() => QTensor.quantize(Tensor.zeros([2, 33], { device }), "Q4_0"))).toBe("InvalidShape");
    expect(code(() => QTensor.quantize(Tensor.zeros([2, 128], { device }), "Q4_K"))).toBe("InvalidShape");
    expect(code(() => QTensor.quantize(Tensor.zeros([], { device }), "Q4_0"))).toBe("UnexpectedNumberOfDims");
    expect(message(() => QTensor.quantize(Tensor.zeros([32], { device }), "MXFP4"))).toMatch(/MXFP4.*Q4_0/);
    expect(code(() => QTensor.quantize(Tensor.zeros([32], { dtype: "i32", device }), "Q4_0"))).toBe(
      "UnsupportedDTypeForOp",
    );
    expect(message(() => QTensor.fromBytes(new Uint8Array(17), [32], "Q4_0", device))).toMatch(/18 bytes, not 17/);
    expect(code(() => QTensor.fromBytes(new Uint8Array(18), [31], "Q4_0", device))).toBe("InvalidShape");
    const blocks = Tensor.zeros([18], { dtype: "u8", device });
    expect(QTensor.fromBlocks(blocks, [1, 32], "Q4_0").blocks.shape).toEqual([1, 18]);
    expect(code(() => QTensor.fromBlocks(blocks, [2, 32], "Q4_0"))).toBe("ShapeMismatch");
    expect(code(() => QTensor.fromBlocks(Tensor.zeros([18], { device }), [32], "Q4_0"))).toBe("UnexpectedDType");

    const w = weights("Q8_0", 4, device);
    const k = width("Q8_0");
    expect(code(() => w.dequantize("f64"))).toBe("UnsupportedDTypeForOp");
    expect(message(() => qmatmul(Tensor.zeros([2, k + 1], { device }), w))).toMatch(/\[2, 225\].*Q8_0 \[4, 224\]/);
    expect(code(() => qmatmul(Tensor.zeros([2, k + 1], { device }), w))).toBe("ShapeMismatch");
    expect(code(() => qmatmul(Tensor.zeros([], { device }), w))).toBe("ShapeMismatch");
    expect(code(() => qmatmul(Tensor.zeros([2, k], { dtype: "f64", device }), w))).toBe("UnsupportedDTypeForOp");
    const cube = QTensor.fromBytes(new Uint8Array(34 * 4), [2, 2, 32], "Q8_0", device);
    expect(code(() => qmatmul(Tensor.zeros([2, 32], { device }), cube))).toBe("UnexpectedNumberOfDims");
    expect(code(() => new QMatMul(cube))).toBe("UnexpectedNumberOfDims");
    expect(code(() => cube.rows(Tensor.zeros([1], { dtype: "u32", device })))).toBe("UnexpectedNumberOfDims");
    expect(code(() => w.rows(Tensor.zeros([1], { device })))).toBe("UnsupportedDTypeForOp");
  });

  it("refuses ids outside the table and gives zeros for the sentinel", async () => {
    const w = weights("Q4_K", 4, device);
    const bad = Tensor.from([1, 4], { dtype: "u32", device });
    await expect((async () => w.rows(bad).data())()).rejects.toMatchObject({ code: "InvalidIndex" });
    const negative = Tensor.from([-1n], { dtype: "i64", device });
    await expect((async () => w.rows(negative).data())()).rejects.toMatchObject({ code: "InvalidIndex" });
    for (const [dtype, nothing] of [
      ["u8", 255],
      ["u32", 4294967295],
      ["i64", 9223372036854775807n],
    ] as const) {
      const rows = w.rows(Tensor.from([nothing], { dtype, device }), "f16");
      expect(rows.dataSync().every((v) => Number(v) === 0)).toBe(true);
    }
  });

  it("lives and dies as tensors do", async () => {
    collect();
    const before = device.memory().storages;
    const kept = scope(() => {
      weights("Q4_0", 2, device);
      return weights("Q4_0", 3, device);
    });
    expect(device.memory().storages).toBe(before + 1);
    expect(kept.byteLength).toBe(3 * 7 * 18);
    expect(kept.numel).toBe(3 * 224);
    expect(`${kept}`).toBe(`QTensor([3, 224], Q4_0, ${device.name}, 378 B)`);
    const twin = await kept.toDevice(device);
    const other = kept.toDeviceSync(device.name);
    expect(await twin.bytes()).toEqual(kept.bytesSync());
    twin.dispose();
    other[Symbol.dispose]();
    expect(kept.disposed).toBe(false);
    kept.dispose();
    kept.dispose();
    expect(device.memory().storages).toBe(before);
    expect(code(() => kept.dequantize())).toBe("Disposed");
    expect(`${kept}`).toMatch(/disposed/);
    const free = scope(() => {
      weights("Q4_0", 2, device).keep();
    });
    expect(free).toBeUndefined();
    expect(device.memory().storages).toBe(before + 1);
  });

  it("is a layer", () => {
    const w = weights("Q6_K", 5, device);
    const x = tensor(normals(2 * width("Q6_K"), 1), [2, width("Q6_K")]);
    const bias = Tensor.arange(0, 5, { device });
    expect(new QMatMul(w).forward(x).bytesSync()).toEqual(qmatmul(x, w).bytesSync());
    expect(new QMatMul(w, bias).forward(x).bytesSync()).toEqual(qmatmul(x, w).add(bias).bytesSync());
  });
});

describe("quantized tensors on the CPU", () => {
  it("give the same bits with one thread and with two", () => {
    const run = (threads: number): Uint8Array[] => {
      const device = Device.cpu({ threads });
      return quantTypeNames.flatMap((type) => {
        const k = 1024;
        const w = QTensor.fromBytes(randomBlocks(type, (400 * k) / quantTypes[type].size, 5), [400, k], type, device);
        const results = [1, 4, 40].map((m) => qmatmul(Tensor.from(normals(m * k, 6), { shape: [m, k], device }), w));
        results.push(w.dequantize());
        if (quantTypes[type].writable) results.push(QTensor.quantize(results[3]!.narrow(0, 0, 32), type).blocks);
        return results.map((t) => t.bytesSync());
      });
    };
    const { threads } = Device.cpu().backend as unknown as { threads: number };
    const [one, two] = [run(1), run(2)];
    Device.cpu({ threads });
    expect(two.map((bytes, i) => Buffer.compare(bytes, one[i]!))).toEqual(one.map(() => 0));
  });
});

describe("the table of block types", () => {
  it("knows types by name and by number", () => {
    for (const type of quantTypeNames) {
      expect(asQuantType(type)).toBe(type);
      expect(asQuantType(quantTypes[type].id)).toBe(type);
    }
    expect(writable).toHaveLength(12);
  });

  it("names types it does not know with their number", () => {
    expect(code(() => asQuantType("Q9_9"))).toBe("UnexpectedDType");
    expect(message(() => asQuantType("Q9_9"))).toMatch(/Q9_9.*Q4_0 \(2\)/);
    expect(message(() => asQuantType(99))).toMatch(/99/);
    expect(message(() => asQuantType(16))).toMatch(/IQ2_XXS \(number 16\)/);
    expect(message(() => asQuantType("IQ2_XXS"))).toMatch(/IQ2_XXS \(number 16\)/);
    expect(code(() => QTensor.fromBytes(new Uint8Array(18), [32], 77))).toBe("UnexpectedDType");
  });
});
