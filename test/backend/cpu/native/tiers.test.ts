/**
 * Every tier of the CPU device that this machine has, beside WebAssembly: on memory whose every block lies against a page
 * that faults, so that an access outside of an operand or a result would end the process.
 */
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it, vi } from "vitest";
import { CpuBackend } from "../../../../src/backend/cpu/backend.ts";
import { type CpuBlock, isNativeBlock, type NativeBlock } from "../../../../src/backend/cpu/blocks.ts";
import { everyKernel } from "../../../../src/backend/cpu/native/catalogue.ts";
import { guarded } from "../../../../src/backend/cpu/native/memory.ts";
import { Native } from "../../../../src/backend/cpu/native/native.ts";
import { forgetCopies } from "../../../../src/backend/cpu/native/ops/copies.ts";
import { type Tier, tiers } from "../../../../src/backend/cpu/native/tier.ts";
import { registerDevice } from "../../../../src/backend/registry.ts";
import { Device, Tensor } from "../../../../src/index.ts";
import * as nn from "../../../../src/nn/index.ts";
import { verify } from "../../../../src/verify/runner.ts";

/** Blocks end where a page that faults begins, or begin where one ends. */
class GuardedBackend extends CpuBackend {
  static readonly #free = new Map<string, NativeBlock[]>();
  atStart = false;

  override alloc(bytes: number): CpuBlock {
    const length = Math.max(bytes, 1);
    const key = `${length} ${this.atStart}`;
    const used = GuardedBackend.#free.get(key)?.pop();
    if (used) return used;
    const pages = Math.ceil(length / 4096) * 4096;
    const { address: start } = guarded(pages);
    const address = this.atStart ? start : start + pages - length;
    const block: NativeBlock = { bytes, length: bytes, address, release: () => this.#keep(key, block) };
    return block;
  }

  override free(block: CpuBlock): void {
    // What is staged for WebAssembly's kernels is in the heap.
    if (isNativeBlock(block)) {
      forgetCopies(block);
      block.release();
    } else super.free(block);
  }

  #keep(key: string, block: NativeBlock): void {
    const list = GuardedBackend.#free.get(key) ?? [];
    GuardedBackend.#free.set(key, [...list, block]);
  }
}

/** A backend of one tier, whatever the environment asks for. */
function open<B extends CpuBackend>(backend: B, tier: Tier): B {
  const asked = process.env.WICK_CPU;
  process.env.WICK_CPU = tier;
  expect(backend.native?.isa.name ?? "wasm").toBe(tier);
  if (asked === undefined) delete process.env.WICK_CPU;
  else process.env.WICK_CPU = asked;
  return backend;
}

const native = tiers().filter((tier) => tier !== "wasm");
/** With all that a processor has, and as one without products of pairs of bf16 and without caches. */
const variants = native.flatMap((tier) =>
  [tier, ...(tier === "avx512" ? ["plain512"] : [])].map((name) => ({ tier, name })),
);
const wasm = new CpuBackend();
registerDevice("plain", () => open(wasm, "wasm"));
const plain = Device.from("plain");

const dtypes = ["f32", "f16", "bf16"] as const;
type DType = (typeof dtypes)[number];
const tolerance = { f32: 4e-6, f16: 4e-3, bf16: 3e-2 };
const special = [0, -0, Number.NaN, Infinity, -Infinity, 1e-40, -1e-40, 88.8, -87.5, -104, 1e30, -1e30, 0.55, 0.9];

/** Numbers of every size, and those that are special. */
const values = (n: number, seed: number): Float32Array =>
  Float32Array.from({ length: n }, (_, i) =>
    i % 97 < special.length && seed > 0 ? special[i % 97]! : Math.sin(i * 12.9898 + seed) * 10 ** ((i % 4) - 2),
  );
const numbers = (t: Tensor): Float64Array => t.toDType("f64").dataSync() as Float64Array;

describe.each(variants)("$name beside WebAssembly", ({ tier, name }) => {
  const backend = open(new GuardedBackend(), tier);
  const isPlain = tier !== name;
  if (isPlain) {
    const { isa } = backend.native!;
    const plainer = new Native({ ...isa, pairs: false, inOrder: !isa.inOrder });
    vi.spyOn(backend, "native", "get").mockReturnValue(plainer);
  }
  registerDevice(name, () => backend);
  const device = Device.from(name);
  const kernels = vi.spyOn(backend.native!, "kernel");
  afterAll(() => {
    backend.atStart = false;
    // All that ops ask for is in the catalogue, of which the build emits everything.
    const known = new Set([...everyKernel(backend.native!.isa)].map(({ name }) => name));
    const asked = new Set(kernels.mock.calls.map(([{ name }]) => name));
    expect([...asked].filter((name) => !known.has(name))).toEqual([]);
    expect(asked.size).toBeGreaterThan(50);
  });

  /** The same op on both; every element as close as its dtype allows, relative to the size of the sums behind it. */
  function compare(what: string, dtype: DType, size: number, op: (on: Device) => Tensor): void {
    const [got, want] = [numbers(op(device)), numbers(op(plain))];
    expect(got.length, what).toBe(want.length);
    for (const [i, x] of want.entries()) {
      const y = got[i]!;
      if (Object.is(x, y) || x === y || (Number.isNaN(x) && Number.isNaN(y))) continue;
      const bound = tolerance[dtype] * (Math.abs(x) + size);
      if (!(Math.abs(x - y) <= bound)) expect.fail(`${what}: element ${i} is ${y}, not ${x}`);
    }
  }
  const normal = (shape: number[], dtype: DType, seed: number) => (on: Device) =>
    Tensor.randn(shape, { seed, device: plain }).toDType(dtype).toDeviceSync(on);

  it.each(dtypes)("products of %s, of every tail, from any place, in any layout", (dtype) => {
    for (const [i, [m, k, n]] of [
      [1, 1, 1],
      [1, 37, 17],
      [1, 300, 1041],
      [1, 1041, 37],
      [1, 1300, 320],
      [3, 33, 16],
      [8, 70, 50],
      [9, 257, 49],
      [50, 64, 97],
      [193, 19, 65],
      [7, 300, 1],
    ].entries() as ArrayIterator<[number, [number, number, number]]>) {
      for (const turned of [0, 1, 2, 3]) {
        backend.atStart = (i + turned) % 2 === 0;
        const a = normal(turned & 1 ? [k, m + 1] : [m + 1, k], dtype, 1);
        const b = normal(turned & 2 ? [n + 1, k] : [k, n + 1], dtype, 2);
        compare(`(${m}, ${k}) · (${k}, ${n}) ${turned}`, dtype, 4 * Math.sqrt(k), (on) => {
          const x = turned & 1 ? a(on).t() : a(on);
          const y = turned & 2 ? b(on).t() : b(on);
          return x.narrow(0, 1, m).matmul(y.narrow(1, 1, n));
        });
      }
    }
    compare("batches", dtype, 24, (on) =>
      normal([2, 3, 5, 33], dtype, 1)(on).matmul(normal([2, 3, 33, 20], dtype, 2)(on)),
    );
  });

  it.each(dtypes)(
    "products of %s are chains of fused multiply-adds, also of what is hardly anything or none",
    (dtype) => {
      const sizes = [1, 2 ** -30, 2 ** -56, 2 ** -70, 1e-39, 2 ** 60];
      for (const [m, k, n] of [
        [1, 300, 33],
        [19, 301, 50],
        [64, 75, 97],
        [64, 2101, 800],
      ] as const) {
        for (const [i, size] of sizes.entries()) {
          // A column of B of another size than the rest, and some of A's rows with what is special.
          const odd = Tensor.from(values(k, i), { device: plain }).reshape([k, 1]);
          const few = Tensor.from(Float32Array.from({ length: k }, (_, j) => special[(i + j * j) % 14]!)).toDeviceSync(
            plain,
          );
          const a = normal([m, k], "f32", 1)(plain).mul(Tensor.from([size], { device: plain }));
          const b = Tensor.cat([normal([k, n - 1], "f32", 2)(plain), odd], 1);
          const rows = m > 1 && i % 2 === 1 ? Tensor.cat([a.narrow(0, 1, m - 1), few.reshape([1, k])], 0) : a;
          for (const isTurned of [false, true]) {
            const [x, y] = [rows, isTurned ? b.t().contiguous() : b].map((t) =>
              t.toDType(dtype).toDeviceSync(device),
            ) as [Tensor, Tensor];
            const of = (t: Tensor) => (isTurned ? t.t() : t);
            const exact = x
              .toDType("f32")
              .matmul(of(y.toDType("f32")))
              .toDType(dtype);
            expect(numbers(x.matmul(of(y))), `(${m}, ${k}) · (${k}, ${n}) ${size} ${isTurned}`).toEqual(numbers(exact));
          }
        }
      }
    },
  );

  it("a row times columns along k has the bits that it has among others", () => {
    for (const [i, [k, n]] of [
      [1024, 16],
      [1041, 37],
      [2100, 320],
      [4099, 700],
    ].entries() as ArrayIterator<[number, [number, number]]>) {
      backend.atStart = i % 2 === 0;
      const [x, w] = [normal([9, k], "f32", 1)(device), normal([n, k], "f32", 2)(device)];
      const all = numbers(x.matmul(w.t()));
      for (const row of [0, 4]) {
        const alone = numbers(x.narrow(0, row, 1).matmul(w.t()));
        expect(alone, `(1, ${k}) · (${k}, ${n})`).toEqual(all.subarray(row * n, (row + 1) * n));
      }
    }
  });

  it.each(dtypes)("elementwise ops of %s, numbers that are none or hardly any among them", (dtype) => {
    for (const [i, tail] of [0, 1, 3, 8, 15].entries()) {
      backend.atStart = i % 2 === 0;
      const n = 16384 + tail;
      const x = (on: Device) => Tensor.from(values(n, 1), { device: plain }).toDType(dtype).toDeviceSync(on);
      const y = (on: Device) => Tensor.from(values(n, 0), { device: plain }).toDType(dtype).toDeviceSync(on);
      compare("add", dtype, 0, (on) => x(on).add(y(on)));
      compare("exp", dtype, 1e-38, (on) => x(on).exp());
      if (tail !== 3) continue;
      for (const op of ["neg", "abs", "sqr", "sqrt", "recip", "relu", "tanh", "erf", "normcdf"] as const) {
        compare(op, dtype, 1e-38, (on) => x(on)[op]());
      }
      for (const op of ["gelu", "geluErf", "sigmoid", "silu"] as const) compare(op, dtype, 1e-38, (on) => x(on)[op]());
      for (const op of ["sub", "mul", "div"] as const) compare(op, dtype, 1e-38, (on) => x(on)[op](y(on)));
      compare("affine", dtype, 1, (on) => x(on).affine(1.7, 0.3));
    }
    // Halves of rows, and a row for all of them.
    const rows = normal([130, 301], dtype, 11);
    compare("silu", dtype, 1e-38, (on) => rows(on).narrow(1, 150, 151).silu());
    compare("exp", dtype, 1e-38, (on) => rows(on).narrow(1, 150, 151).exp());
    compare("mul", dtype, 1e-38, (on) =>
      rows(on)
        .narrow(1, 0, 151)
        .mul(rows(on).narrow(1, 150, 151)),
    );
    compare("add", dtype, 1e-38, (on) => rows(on).add(rows(on).narrow(0, 129, 1)));
  });

  it.each(dtypes)("softmax, norms and sums of %s", (dtype) => {
    for (const [i, [rows, cols]] of [
      [1024, 16],
      [529, 31],
      [64, 257],
      [1, 70001],
    ].entries() as ArrayIterator<[number, [number, number]]>) {
      backend.atStart = i % 2 === 0;
      const x = normal([rows, cols], dtype, 3);
      const [w, b] = [normal([cols], dtype, 4), normal([cols], dtype, 5)];
      compare("softmax", dtype, 1e-3, (on) => nn.softmax(x(on), -1));
      compare("layerNorm", dtype, 4, (on) => nn.layerNorm(x(on), w(on), b(on), 1e-5));
      compare("rmsNorm", dtype, 4, (on) => nn.rmsNorm(x(on), w(on), 1e-5));
      compare("sum", dtype, Math.sqrt(cols), (on) => x(on).sum([1]));
    }
  });

  it.each(dtypes)("attention of %s", (dtype) => {
    for (const [i, [hq, hk, tq, tk, d, causal, window]] of [
      [2, 2, 1, 1, 1, 0, 0],
      [4, 2, 1, 77, 24, 1, 0],
      [2, 1, 35, 50, 40, 1, 0],
      [1, 1, 13, 130, 64, 1, 20],
      [2, 2, 110, 49, 80, 0, 0],
      [4, 2, 1, 77, 32, 1, 0],
      [3, 1, 1, 16, 64, 1, 0],
      [8, 2, 1, 9, 32, 1, 0],
      [2, 2, 1, 35, 96, 1, 20],
    ].entries() as ArrayIterator<[number, [number, number, number, number, number, number, number]]>) {
      backend.atStart = i % 2 === 0;
      const [q, k, v] = [
        normal([1, hq, tq, d], dtype, 6),
        normal([1, hk, tk, d], dtype, 7),
        normal([1, hk, tk, d], dtype, 8),
      ];
      const options = { scale: 0.3, causal: causal === 1, ...(window && { window }) };
      compare(`${tq} rows, ${tk} keys`, dtype, 1, (on) => nn.sdpa(q(on), k(on), v(on), options));
      const [mask, sinks] = [normal([1, 1, tq, tk], dtype, 9), normal([hq], dtype, 10)];
      compare("a mask", dtype, 1, (on) => nn.sdpa(q(on), k(on), v(on), { ...options, mask: mask(on) }));
      compare("sinks and a cap", dtype, 1, (on) =>
        nn.sdpa(q(on), k(on), v(on), { ...options, sinks: sinks(on), softcap: 5 }),
      );
      if (tq > tk) continue;
      compare("a window on both sides", dtype, 1, (on) =>
        nn.sdpa(q(on), k(on), v(on), { ...options, causal: false, window: 7 }),
      );
    }
  });

  it.each(dtypes)("rows of attention of %s have the same bits alone and in company", (dtype) => {
    for (const [group, tk, d] of [
      [1, 45, 32],
      [2, 64, 64],
      [3, 33, 96],
      [4, 19, 32],
    ] as const) {
      const [q, k, v] = [[2 * group, 19, d], ...[2, 2].map((heads) => [heads, tk, d])].map((shape, seed) =>
        normal([1, ...shape], dtype, seed)(device),
      ) as [Tensor, Tensor, Tensor];
      const all = nn.sdpa(q, k, v, { scale: 0.3, causal: true });
      for (const row of [0, 7, 18]) {
        const seen = tk - 18 + row;
        const [one, keys, values] = [q.narrow(2, row, 1), k.narrow(2, 0, seen), v.narrow(2, 0, seen)];
        const alone = nn.sdpa(one, keys, values, { scale: 0.3, causal: true });
        expect(numbers(alone)).toEqual(numbers(all.narrow(2, row, 1)));
      }
    }
  });

  it("rows of what goes past the caches have the bits of a few", () => {
    const [x, w] = [normal([2049, 1024], "f32", 3)(device), normal([1024], "f32", 4)(device)];
    for (const op of [(t: Tensor) => nn.softmax(t, -1), (t: Tensor) => nn.layerNorm(t, w, w, 1e-5)]) {
      const all = op(x);
      for (const row of [0, 1023, 2048]) {
        expect(numbers(all.narrow(0, row, 1))).toEqual(numbers(op(x.narrow(0, row, 1))));
      }
    }
    const [image, taps] = [normal([1, 3, 256, 256], "f32", 5)(device), normal([33, 3, 3, 3], "f32", 6)(device)];
    const all = image.conv2d(taps, { padding: 1 });
    const few = image.conv2d(taps.narrow(0, 24, 9), { padding: 1 });
    expect(numbers(all.narrow(1, 24, 9))).toEqual(numbers(few));
  });

  it("convolutions", () => {
    for (const [i, [x, w, options]] of (
      [
        [[1, 3, 40, 33], [5, 3, 3, 3], { padding: 1 }],
        [[2, 4, 37, 30], [12, 2, 3, 2], { padding: [0, 1], stride: [1, 3], groups: 2 }],
        [[1, 16, 20, 29], [33, 16, 1, 1], {}],
        [[1, 4, 41, 43], [8, 4, 5, 5], { padding: 2, dilation: 2, stride: 2 }],
        [[2, 3, 15, 50], [9, 3, 3, 3], {}],
        [[1, 4, 19, 131], [18, 2, 3, 3], { padding: 1, stride: [1, 2], groups: 2 }],
        [[1, 9, 13, 51], [34, 9, 1, 2], { dilation: [1, 2] }],
        [[1, 3, 9, 6], [197, 3, 3, 3], { padding: 1 }],
        // Of so many taps that vectors are channels: those that fill no vector, rows that end anywhere, several stretches.
        [[1, 32, 24, 21], [62, 32, 2, 5], { padding: 1 }],
        [[2, 60, 17, 23], [48, 30, 3, 3], { padding: [2, 1], stride: [1, 2], dilation: [2, 1], groups: 2 }],
        [[1, 261, 7, 7], [79, 261, 2, 2], {}],
        [[1, 30, 50, 19], [111, 30, 3, 3], { padding: [0, 17], stride: [3, 1] }],
        // By Winograd's products: last rows and columns of tiles that are halves or wholes, rows of all kinds of lengths.
        [[1, 32, 14, 11], [62, 32, 3, 3], { padding: 1 }],
        [[2, 16, 9, 7], [19, 16, 3, 3], { padding: [2, 1] }],
        [[1, 17, 8, 34], [16, 17, 3, 3], {}],
        [[3, 20, 10, 16], [24, 20, 3, 3], { padding: 1 }],
        [[1, 18, 11, 33], [33, 18, 3, 3], { padding: [0, 3] }],
        [[1, 40, 6, 65], [16, 40, 3, 3], { padding: [5, 2] }],
        [[1, 21, 31, 15], [17, 21, 3, 3], { padding: [1, 0] }],
        [[2, 65, 8, 8], [70, 65, 3, 3], { padding: 1 }],
      ] as const
    ).entries()) {
      backend.atStart = i % 2 === 0;
      const dtype = dtypes[Math.max(0, i - 4) % 3]!;
      const [image, weights] = [normal([...x], dtype, 9), normal([...w], dtype, 10)];
      compare(`${x}`, dtype, 4 * Math.sqrt(w[1] * w[2] * w[3]), (on) =>
        image(on).conv2d(weights(on), options as never),
      );
    }
  });

  it("images of 3 × 3 taps have the same bits alone, and an infinity is where it is in the plain sum", () => {
    const [x, w] = [normal([3, 24, 13, 19], "f32", 5)(device), normal([21, 24, 3, 3], "f32", 6)(device)];
    const all = x.conv2d(w, { padding: 1 });
    for (const image of [0, 2]) {
      expect(numbers(x.narrow(0, image, 1).conv2d(w, { padding: 1 }))).toEqual(numbers(all.narrow(0, image, 1)));
    }
    for (const special of [Number.POSITIVE_INFINITY, Number.NaN, 3e38]) {
      const values = numbers(x);
      // In the second image, at row 6 and column 9 of a channel.
      values[(24 + 7) * 13 * 19 + 6 * 19 + 9] = special;
      const put = (on: Device) => Tensor.from(Float32Array.from(values)).reshape([3, 24, 13, 19]).toDeviceSync(on);
      compare(`${special}`, "f32", 4 * Math.sqrt(9 * 24), (on) => put(on).conv2d(w.toDeviceSync(on), { padding: 1 }));
      const result = put(device).conv2d(w, { padding: 1 });
      for (const image of [0, 2]) {
        expect(numbers(result.narrow(0, image, 1))).toEqual(numbers(all.narrow(0, image, 1)));
      }
    }
  });

  // The default device, which is the best tier, runs all of them elsewhere.
  it.skipIf(name === native[0])("golden cases of the ops that have machine code", async () => {
    const folder = fileURLToPath(new URL("../../../data/golden", import.meta.url));
    const only = ["matmul", "softmax", "layer_norm", "rms_norm", "sdpa", "conv2d", "gelu", "exp", "sum"];
    const report = await verify(folder, device, { only });
    expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
    expect(report.passed).toBeGreaterThan(100);
  });
});
