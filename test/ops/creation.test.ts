import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { Device, type DType, dtypeNames, isFloat, sizeOf, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { expectTensor, floats, ints, nearest } from "../helpers/reference.ts";

describeInTurns("Creation", (device) => {
  describe("from", () => {
    it.each(dtypeNames)("takes nested arrays as %s", (dtype) => {
      const t = Tensor.from(
        [
          [1, 2, 3],
          [4, 5, 6],
        ],
        { dtype, device },
      );
      expectTensor(t, { shape: [2, 3], dtype, values: [1, 2, 3, 4, 5, 6] });
      expect(t.device).toBe(device);
      expect(t.rank).toBe(2);
      expect(t.numel).toBe(6);
      expect(t.isContiguous()).toBe(true);
    });

    it("makes a scalar of a number and a vector of a list", () => {
      expectTensor(Tensor.from(2.5, { device }), { shape: [], dtype: "f32", values: [2.5] });
      expectTensor(Tensor.from([1.5], { device }), { shape: [1], dtype: "f32", values: [1.5] });
    });

    it("takes arrays of rank 8", () => {
      const t = Tensor.from([[[[[[[[1, 2]]]]]]]], { device });
      expect(t.shape).toEqual([1, 1, 1, 1, 1, 1, 1, 2]);
      expect(t.toArraySync()).toEqual([[[[[[[[1, 2]]]]]]]]);
    });

    it("keeps the shape of empty arrays", () => {
      expect(Tensor.from([], { device }).shape).toEqual([0]);
      expect(Tensor.from([[], []], { device }).shape).toEqual([2, 0]);
      expect(Tensor.from([[], []], { device }).toArraySync()).toEqual([[], []]);
    });

    it.each([
      [new Float32Array([1.5, -2]), "f32"],
      [new Float64Array([1e300, -2]), "f64"],
      [new Uint8Array([0, 255]), "u8"],
      [new Uint8ClampedArray([0, 255]), "u8"],
      [new Uint32Array([0, 2 ** 32 - 1]), "u32"],
      [new Int32Array([-(2 ** 31), 2 ** 31 - 1]), "i32"],
      [new Int16Array([-32768, 32767]), "i16"],
    ] as [Float32Array, DType][])("takes the dtype of a typed array: %o is %s", (data, dtype) => {
      expectTensor(Tensor.from(data, { device }), { shape: [2], dtype, values: [...data] });
    });

    it("keeps every bit of 64-bit integers", () => {
      const values = [2n ** 63n - 1n, -(2n ** 63n), 2n ** 53n + 1n];
      expect(Tensor.from(BigInt64Array.from(values), { device }).dataSync()).toEqual(BigInt64Array.from(values));
      const nested = Tensor.from([values], { device });
      expect(nested.dtype).toBe("i64");
      expect(nested.toArraySync()).toEqual([values]);
    });

    it("converts a typed array when told another dtype", () => {
      const t = Tensor.from(new Float32Array([1, 2]), { dtype: "i64", device });
      expect(t.toArraySync()).toEqual([1n, 2n]);
    });

    it("copies typed arrays, also those that start within their buffer", () => {
      const data = new Float32Array([9, 1, 2, 3]);
      const t = Tensor.from(data.subarray(1), { device });
      data.fill(0);
      expect([...t.dataSync()]).toEqual([1, 2, 3]);
    });

    it("gives a flat list the shape asked for", () => {
      const t = Tensor.from([1, 2, 3, 4, 5, 6], { shape: [3, 2], device });
      expect(t.toArraySync()).toEqual([
        [1, 2],
        [3, 4],
        [5, 6],
      ]);
    });

    it.each(floats)("rounds numbers to the nearest %s, ties to even", (dtype) => {
      const values = [
        0.1,
        -1 / 3,
        1 + 2 ** -11,
        1 + 3 * 2 ** -11,
        1.0625,
        1.1875,
        2 ** -9,
        2 ** -10,
        3 * 2 ** -11,
        300,
      ];
      expectTensor(Tensor.from(values, { dtype, device }), {
        shape: [values.length],
        dtype,
        values: values.map((v) => nearest(v, dtype)),
      });
    });

    it.each(floats)("keeps NaN and the sign of zero in %s", (dtype) => {
      const [nan, minus, plus] = Tensor.from([Number.NaN, -0, 0], { dtype, device }).dataSync();
      expect(nan).toBeNaN();
      expect(Object.is(minus, -0)).toBe(true);
      expect(Object.is(plus, 0)).toBe(true);
    });

    it.each(["bf16", "f16", "f32", "f64"] as const)("keeps infinities in %s", (dtype) => {
      const values = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
      expect([...Tensor.from(values, { dtype, device }).dataSync()]).toEqual(values);
    });

    it("overflows to infinity in f16 from 65520 up, and to NaN in f8e4m3 above 464", () => {
      expect([...Tensor.from([65519, 65520, -1e9], { dtype: "f16", device }).dataSync()]).toEqual([
        65504,
        Number.POSITIVE_INFINITY,
        Number.NEGATIVE_INFINITY,
      ]);
      const f8 = [...Tensor.from([448, 464, 465, 1e9], { dtype: "f8e4m3", device }).dataSync()];
      expect(f8).toEqual([448, 448, Number.NaN, Number.NaN]);
    });
  });

  describe("fromBytes and bytes", () => {
    it.each(dtypeNames)("round-trips the bytes of %s", async (dtype) => {
      const bytes = Uint8Array.from({ length: 6 * sizeOf(dtype) }, (_, i) => (i * 29 + 3) & 63);
      const t = Tensor.fromBytes(bytes, [2, 3], dtype, device);
      expect(await t.bytes()).toEqual(bytes);
      expect(t.bytesSync()).toEqual(bytes);
    });

    it("gives the bytes of a view in its own order", async () => {
      const t = Tensor.fromBytes(Uint8Array.from([1, 2, 3, 4, 5, 6]), [2, 3], "u8", device).t();
      expect(await t.bytes()).toEqual(Uint8Array.from([1, 4, 2, 5, 3, 6]));
      expect(t.narrow(0, 1, 1).bytesSync()).toEqual(Uint8Array.from([2, 5]));
    });

    it("takes no bytes for an empty shape", () => {
      expect(Tensor.fromBytes(new Uint8Array(0), [3, 0], "f64", device).bytesSync()).toEqual(new Uint8Array(0));
    });
  });

  describe("reading", () => {
    it("gives typed arrays, nested arrays and scalars, with and without waiting", async () => {
      const t = Tensor.from([[1, 2]], { dtype: "f16", device });
      expect(await t.data()).toEqual(Float32Array.of(1, 2));
      expect(await t.toArray()).toEqual([[1, 2]]);
      expect(await t.narrow(1, 1, 1).toScalar()).toBe(2);
      expect(t.narrow(1, 0, 1).toScalarSync()).toBe(1);
      expect(Tensor.from(7n, { device }).toScalarSync()).toBe(7n);
    });

    it("a pending read survives the end of its tensor", async () => {
      const t = Tensor.full([1000], 3, { device });
      const pending = t.data();
      t.dispose();
      Tensor.full([1000], 4, { device });
      expect((await pending).every((v) => v === 3)).toBe(true);
    });

    it("what was read is a copy", () => {
      const t = Tensor.zeros([2], { device });
      t.dataSync()[0] = 5;
      expect([...t.dataSync()]).toEqual([0, 0]);
    });
  });

  describe("filled", () => {
    const shapes = [[], [1], [0], [7], [2, 0, 3], [3, 5], [1, 2, 1, 3, 1, 2, 1, 2]];
    it.each(dtypeNames)("zeros, ones and full in %s, ranks 0 to 8", (dtype) => {
      for (const shape of shapes) {
        const n = shape.reduce((a, b) => a * b, 1);
        const filled = (value: number) => new Array<number>(n).fill(value);
        expectTensor(Tensor.zeros(shape, { dtype, device }), { shape, dtype, values: filled(0) });
        expectTensor(Tensor.ones(shape, { dtype, device }), { shape, dtype, values: filled(1) });
        expectTensor(Tensor.full(shape, 13, { dtype, device }), { shape, dtype, values: filled(13) });
      }
    });

    it("fills with negative, fractional, infinite and 64-bit values", () => {
      expectTensor(Tensor.full([3], -1.1, { dtype: "bf16", device }), {
        shape: [3],
        values: new Array(3).fill(nearest(-1.1, "bf16")),
      });
      expect([...Tensor.full([2], -2, { dtype: "i16", device }).dataSync()]).toEqual([-2, -2]);
      expect([...Tensor.full([2], Number.NEGATIVE_INFINITY, { device }).dataSync()]).toEqual([
        Number.NEGATIVE_INFINITY,
        Number.NEGATIVE_INFINITY,
      ]);
      expect(Tensor.full([1], -(2n ** 63n), { dtype: "i64", device }).toScalarSync()).toBe(-(2n ** 63n));
    });

    it("the Like forms take shape, dtype and device from a tensor, not its strides", () => {
      const x = Tensor.from([[1, 2, 3]], { dtype: "i16", device }).t();
      for (const [t, value] of [
        [Tensor.zerosLike(x), 0],
        [Tensor.onesLike(x), 1],
        [Tensor.fullLike(x, -4), -4],
      ] as const) {
        expectTensor(t, { shape: [3, 1], dtype: "i16", values: [value, value, value] });
        expect(t.isContiguous()).toBe(true);
      }
      const f = Tensor.zeros([2, 3], { dtype: "f16", device });
      expect(Tensor.randLike(f, { seed: 1 }).dtype).toBe("f16");
      expect(Tensor.randnLike(f, { seed: 1 }).shape).toEqual([2, 3]);
    });

    it("empty has the shape and dtype asked for", () => {
      const t = Tensor.empty([2, 3], { dtype: "u32", device });
      expect(t.shape).toEqual([2, 3]);
      expect(t.dtype).toBe("u32");
      expect(Tensor.empty([0], { device }).dataSync()).toHaveLength(0);
    });
  });

  describe("arange", () => {
    it.each(dtypeNames)("counts in %s", (dtype) => {
      expectTensor(Tensor.arange(5, undefined, { dtype, device }), { shape: [5], dtype, values: [0, 1, 2, 3, 4] });
      expectTensor(Tensor.arange(2, 9, { dtype, device, step: 3 }), { shape: [3], dtype, values: [2, 5, 8] });
    });

    it("counts backwards, in fractions and not at all", () => {
      expect([...Tensor.arange(3, -3, { device, step: -2 }).dataSync()]).toEqual([3, 1, -1]);
      expect([...Tensor.arange(0, 1, { device, step: 0.25 }).dataSync()]).toEqual([0, 0.25, 0.5, 0.75]);
      expect(Tensor.arange(3, 3, { device }).shape).toEqual([0]);
      expect(Tensor.arange(3, 0, { device }).shape).toEqual([0]);
    });

    it("does not let rounding accumulate", () => {
      const values = Tensor.arange(0, 100, { device, step: 0.1, dtype: "f64" }).dataSync();
      expect(values[999]).toBe(999 * 0.1);
    });
  });

  describe("patterns", () => {
    it.each(dtypeNames)("eye, tril and triu in %s", (dtype) => {
      expectTensor(Tensor.eye(3, { dtype, device }), { shape: [3, 3], dtype, values: [1, 0, 0, 0, 1, 0, 0, 0, 1] });
      expectTensor(Tensor.tril(3, { dtype, device }), { shape: [3, 3], dtype, values: [1, 0, 0, 1, 1, 0, 1, 1, 1] });
      expectTensor(Tensor.triu(3, { dtype, device }), { shape: [3, 3], dtype, values: [1, 1, 1, 0, 1, 1, 0, 0, 1] });
    });

    it("may be of size 0", () => {
      for (const make of [Tensor.eye, Tensor.tril, Tensor.triu]) expect(make(0, { device }).shape).toEqual([0, 0]);
    });

    it("meshgrid spans one grid per axis", () => {
      const x = Tensor.from([1, 2, 3], { device });
      const y = Tensor.from([4, 5], { device });
      const [a, b] = Tensor.meshgrid([x, y]);
      expect(a!.toArraySync()).toEqual([
        [1, 1],
        [2, 2],
        [3, 3],
      ]);
      expect(b!.toArraySync()).toEqual([
        [4, 5],
        [4, 5],
        [4, 5],
      ]);
    });

    it("meshgrid in xy order swaps the first two axes only", () => {
      const axes = [[1, 2, 3], [4, 5], [6]].map((v) => Tensor.from(v, { device }));
      const grids = Tensor.meshgrid(axes, "xy");
      expect(grids.map((g) => g.shape)).toEqual([
        [2, 3, 1],
        [2, 3, 1],
        [2, 3, 1],
      ]);
      expect(grids[0]!.toArraySync()).toEqual([
        [[1], [2], [3]],
        [[1], [2], [3]],
      ]);
      expect(grids[1]!.toArraySync()).toEqual([
        [[4], [4], [4]],
        [[5], [5], [5]],
      ]);
      expect(grids[2]!.flattenAll().toArraySync()).toEqual([6, 6, 6, 6, 6, 6]);
    });
  });

  describe("random", () => {
    const moments = (t: Tensor): { mean: number; deviation: number; low: number; high: number } => {
      const values = Array.from(t.dataSync() as Float32Array);
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      const deviation = Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / values.length);
      return { mean, deviation, low: Math.min(...values), high: Math.max(...values) };
    };

    it.each(floats.filter((d) => d !== "f8e4m3"))("rand in %s is uniform on [low, high)", (dtype) => {
      const { mean, deviation, low, high } = moments(
        Tensor.rand([20000], { dtype, device, seed: 7, low: -2, high: 4 }),
      );
      expect(mean).toBeCloseTo(1, 1);
      expect(deviation).toBeCloseTo(6 / Math.sqrt(12), 1);
      expect(low).toBeGreaterThanOrEqual(-2);
      expect(low).toBeLessThan(-1.95);
      expect(high).toBeLessThan(4);
      expect(high).toBeGreaterThan(3.95);
    });

    it("rand never reaches its upper bound, however coarse the dtype", () => {
      for (const dtype of floats) {
        expect(moments(Tensor.rand([5000], { dtype, device, seed: 3 })).high).toBeLessThan(1);
      }
    });

    it.each(floats.filter((d) => d !== "f8e4m3"))("randn in %s has the mean and deviation asked for", (dtype) => {
      const { mean, deviation, low, high } = moments(
        Tensor.randn([20000], { dtype, device, seed: 9, mean: 3, std: 2 }),
      );
      expect(Math.abs(mean - 3)).toBeLessThan(0.06);
      expect(Math.abs(deviation - 2)).toBeLessThan(0.06);
      expect(low).toBeLessThan(-2);
      expect(high).toBeGreaterThan(8);
    });

    it("the same seed gives the same numbers, another seed others", () => {
      const draw = (seed: number | bigint) => [...Tensor.randn([33], { device, seed }).dataSync()];
      expect(draw(5)).toEqual(draw(5n));
      expect(draw(5)).not.toEqual(draw(6));
      expect(draw(-1)).toEqual(draw(2n ** 64n - 1n));
    });

    it("a longer draw begins with the shorter one", () => {
      const long = Tensor.rand([1003], { device, seed: 11 }).dataSync();
      const short = Tensor.rand([7], { device, seed: 11 }).dataSync();
      expect([...long.subarray(0, 7)]).toEqual([...short]);
    });

    it("without a seed the device's sequence goes on, and setSeed restarts it", () => {
      device.setSeed(42);
      const first = [...Tensor.rand([4], { device }).dataSync()];
      const second = [...Tensor.rand([4], { device }).dataSync()];
      expect(second).not.toEqual(first);
      device.setSeed(42n);
      expect([...Tensor.rand([4], { device }).dataSync()]).toEqual(first);
    });

    it("an interval of no width and a deviation of 0 give constants", () => {
      expect([...Tensor.rand([3], { device, low: 2, high: 2 }).dataSync()]).toEqual([2, 2, 2]);
      expect([...Tensor.randn([3], { device, mean: 2, std: 0 }).dataSync()]).toEqual([2, 2, 2]);
    });

    it("may draw nothing", () => {
      expect(Tensor.rand([0, 3], { device }).shape).toEqual([0, 3]);
      expect(Tensor.randn([2, 0], { device }).dataSync()).toHaveLength(0);
    });
  });

  describe("devices", () => {
    it("a tensor says where it lives and stays there", async () => {
      const t = Tensor.from([1, 2, 3], { device: device.name }).narrow(0, 1, 2);
      expect(t.device.name).toBe(device.name);
      expect(`${t.device}`).toBe(device.name);
      for (const there of [await t.toDevice(device), t.toDeviceSync(device.name)]) {
        expect(there.storage).toBe(t.storage);
        expect([...there.dataSync()]).toEqual([2, 3]);
      }
    });

    it("synchronize waits and memory counts", async () => {
      await device.synchronize();
      collect();
      const before = device.memory();
      const t = Tensor.zeros([1000], { device });
      const during = device.memory();
      expect(during.live - before.live).toBeGreaterThanOrEqual(4000);
      expect(during.storages).toBe(before.storages + 1);
      expect(during.peak).toBeGreaterThanOrEqual(during.live);
      t.dispose();
      expect(device.memory().live).toBe(before.live);
    });
  });

  it("integers and floats together are all dtypes", () => {
    expect([...ints, ...floats].sort()).toEqual([...dtypeNames].sort());
    expect(dtypeNames.filter(isFloat)).toHaveLength(5);
  });
});

describe("Device", () => {
  it("is one object per name", () => {
    expect(Device.from("cpu")).toBe(Device.cpu());
    expect(Device.from(Device.cpu())).toBe(Device.cpu());
    expect(Device.best().name).toMatch(/^(cpu|(rocm|cuda):\d+)$/);
  });
});
