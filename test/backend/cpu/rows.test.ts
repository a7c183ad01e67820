/** A row's results are the same, bit by bit, whatever other rows are in the call and however many threads share it. */
import { describe, expect, it } from "vitest";
import { call } from "../../../src/backend/call.ts";
import type { CpuBackend } from "../../../src/backend/cpu/backend.ts";
import { type QuantType, quantTypes } from "../../../src/core/quant-types.ts";
import { Device, Tensor } from "../../../src/index.ts";
import { layerNorm, rmsNorm, sdpa, silu, softmax } from "../../../src/nn/index.ts";
import { QTensor, qmatmul } from "../../../src/quantized/index.ts";
import { result } from "../../../src/tensor/tensor.ts";

const device = Device.cpu();
const dtypes = ["f32", "f16", "bf16", "f64"] as const;
const normal = (shape: number[], dtype: "f32" | "f16" | "bf16" | "f64" = "f32", seed = 1): Tensor =>
  Tensor.randn(shape, { device, seed }).toDType(dtype);
/** The bits, apart from those of NaN. */
const valuesOf = (x: Tensor): Float64Array => x.toDType("f64").dataSync() as Float64Array;

/** [first, count]: alone, few, on both sides of every bound between kernels, and many. */
const cuts = [
  [0, 1],
  [6, 1],
  [3, 2],
  [5, 5],
  [1, 8],
  [2, 9],
  [7, 17],
  [4, 97],
] as const;

function expectSameRows(
  what: string,
  whole: Tensor,
  dim: number,
  part: (first: number, count: number) => Tensor,
): void {
  for (const [first, count] of cuts) {
    using got = part(first, count);
    const want = valuesOf(whole.narrow(dim, first, count).contiguous());
    expect(valuesOf(got), `${what}: rows ${first} … ${first + count - 1}`).toEqual(want);
  }
}

describe("rows on the CPU do not depend on each other", () => {
  it.each(dtypes)("in products of %s", (dtype) => {
    for (const [k, n] of [
      [3, 20],
      [67, 33],
      [515, 12],
      [1030, 7],
      [300, 1],
    ] as const) {
      const x = normal([101, k], dtype);
      const across = normal([k, n], dtype, 2);
      for (const [name, w] of [
        ["along k", across.t().contiguous().t()],
        ["across", across],
      ] as const) {
        using whole = x.matmul(w);
        expectSameRows(`(…, ${k}) · ${n} ${name}`, whole, 0, (first, count) => x.narrow(0, first, count).matmul(w));
      }
    }
  });

  /** Blocks of the type whose scales are small numbers. */
  function blocksOf(type: QuantType, rows: number, k: number): QTensor {
    const { size, bytes } = quantTypes[type];
    if (!["IQ4_NL", "IQ4_XS", "MXFP4"].includes(type)) return QTensor.quantize(normal([rows, k], "f32", 3), type);
    const data = Uint8Array.from({ length: ((rows * k) / size) * bytes }, (_, i) => (i * 73 + (i >> 3)) & 255);
    for (let at = 0; at < data.length; at += bytes) {
      if (type === "MXFP4") data[at] = 120 + (at % 11);
      else data.set([at & 255, 0x2c], at);
    }
    return QTensor.fromBytes(data, [rows, k], type, device);
  }

  it.each(Object.keys(quantTypes) as QuantType[])("in products with weights of %s", (type) => {
    // Short and long rows, whole stretches and what is left of them.
    for (const [k, n] of quantTypes[type].size === 256
      ? [[768, 13] as const, [5120, 3] as const]
      : [[96, 13] as const, [4192, 5] as const]) {
      const x = normal([101, k]);
      const w = blocksOf(type, n, k);
      using whole = qmatmul(x, w);
      expectSameRows(`(…, ${k}) · ${n}`, whole, 0, (first, count) => qmatmul(x.narrow(0, first, count), w));
    }
  });

  it.each(dtypes)("in attention of %s", (dtype) => {
    for (const [heads, kvHeads, t, d, options] of [
      [4, 2, 150, 32, {}],
      [3, 1, 1100, 20, { window: 600 }],
      [2, 2, 530, 7, { softcap: 20 }],
    ] as const) {
      const [q, k, v] = [heads, kvHeads, kvHeads].map((h, i) => normal([1, h, t, d], dtype, i + 5)) as [
        Tensor,
        Tensor,
        Tensor,
      ];
      const past = t - 101;
      const attend = (first: number, count: number): Tensor => {
        const keys = past + first + count;
        const rows = q.narrow(2, past + first, count);
        return sdpa(rows, k.narrow(2, 0, keys), v.narrow(2, 0, keys), { scale: 0.3, causal: true, ...options });
      };
      using whole = sdpa(q, k, v, { scale: 0.3, causal: true, ...options });
      expectSameRows(`${heads} heads of ${d}`, whole.narrow(2, past, 101), 2, attend);
    }
  });

  it.each(["f32", "f16", "bf16"] as const)("in attention of %s over pages and without them", (dtype) => {
    const [heads, kvHeads, d, pages] = [4, 2, 20, 9];
    // New rows and all positions of each sequence, and where its pages are.
    const sequences = [
      { rows: 1, keys: 150, table: [7, 2, 5] },
      { rows: 1, keys: 64, table: [0, 0, 0] },
      { rows: 37, keys: 101, table: [8, 1, 0] },
    ];
    const ints = (values: number[], shape: number[]): Tensor =>
      Tensor.from(BigInt64Array.from(values, BigInt), { device }).reshape(shape);
    for (const options of [{}, { softcap: 15 }, { window: 40 }]) {
      const pool = [0, 1].map((i) => normal([pages, kvHeads, 64, d], dtype, 20 + i)) as [Tensor, Tensor];
      const total = sequences.reduce((sum, { rows }) => sum + rows, 0);
      const [q, k, v] = [heads, kvHeads, kvHeads].map((h, i) => normal([total, h * d], dtype, 30 + i)) as Tensor[];
      const offsets = [0, 1, 2, total];
      const params = {
        ...{ scale: 0.3, softcap: 0, window: 0, sinks: null, interleaved: false, starts: null, singles: 2, ...options },
        tables: ints(
          sequences.flatMap(({ table }) => table),
          [3, 3],
        ),
        lengths: ints(
          sequences.map(({ keys }) => keys),
          [3],
        ),
        offsets: ints(offsets, [4]),
        cos: Tensor.ones([200, d / 2], { device, dtype }),
        sin: Tensor.zeros([200, d / 2], { device, dtype }),
        ...{ k: pool[0], v: pool[1] },
      };
      using got = result(call(device.backend.pagedAttention!, "attend", q!, k!, v!, params), [total, heads, d]);
      for (const [i, { rows, keys, table }] of sequences.entries()) {
        const cached = (x: Tensor): Tensor =>
          Tensor.cat(
            table.map((page) => x.narrow(0, page, 1)),
            2,
          ).narrow(2, 0, keys);
        const own = q!.narrow(0, offsets[i]!, rows).reshape([1, rows, heads, d]).transpose(1, 2);
        using want = sdpa(own, cached(pool[0]), cached(pool[1]), { scale: 0.3, causal: true, ...options });
        expect(valuesOf(got.narrow(0, offsets[i]!, rows).contiguous()), `${keys} keys`).toEqual(
          valuesOf(want.squeeze(0).transpose(0, 1).contiguous()),
        );
      }
    }
  });

  it.each(["f32", "f16", "bf16"] as const)("in attention of %s over a cache and over pages", (dtype) => {
    const [heads, kvHeads, d, rows] = [4, 2, 32, 70];
    if (!device.backend.cachedAttention?.supports(dtype, d, dtype, { rotary: [d], windowed: false })) return;
    const [q, k, v] = [heads, kvHeads, kvHeads].map((h, i) => normal([rows, h * d], dtype, 40 + i)) as Tensor[];
    const [cos, sin] = [0, 1].map((i) => normal([128, d / 2], dtype, 50 + i)) as [Tensor, Tensor];
    const caches = () => [0, 1].map(() => Tensor.zeros([2, kvHeads, 64, d], { device, dtype })) as [Tensor, Tensor];
    for (const interleaved of [false, true]) {
      const shared = { scale: 0.3, softcap: 0, window: 0, sinks: null, interleaved, starts: null, cos, sin };
      const [kPages, vPages] = caches();
      const ints = (values: bigint[]): Tensor => Tensor.from(BigInt64Array.from(values), { device });
      const places = { tables: ints([1n, 0n]).reshape([1, 2]), lengths: ints([70n]), offsets: ints([0n, 70n]) };
      const paged = { ...shared, ...places, singles: 0, k: kPages, v: vPages };
      using got = result(call(device.backend.pagedAttention!, "attend", q!, k!, v!, paged), [rows, heads, d]);
      const [kCache, vCache] = caches().map((x) => x.reshape([1, kvHeads, 128, d])) as [Tensor, Tensor];
      const cached = { ...shared, k: kCache, v: vCache, past: 0, lengths: null, padding: null, mask: null };
      using want = result(call(device.backend.cachedAttention!, "attend", q!, k!, v!, cached), [rows, heads, d]);
      expect(valuesOf(got)).toEqual(valuesOf(want));
    }
  });

  // 101 rows are many enough for machine code, single ones are not: of either kind of row, short and long.
  it.each(["f32", "f16", "bf16"] as const)("in norms, softmax and functions of %s", (dtype) => {
    for (const cols of [256, 511, 512, 700]) {
      const x = normal([101, cols], dtype);
      const [weight, bias] = [normal([cols], dtype, 2), normal([cols], dtype, 3)];
      for (const [name, of] of [
        ["rmsNorm", (rows: Tensor) => rmsNorm(rows, weight, 1e-5)],
        ["layerNorm", (rows: Tensor) => layerNorm(rows, weight, bias, 1e-5)],
        ["softmax", (rows: Tensor) => softmax(rows, -1)],
        ["sum", (rows: Tensor) => rows.sumKeepdim(-1)],
        ["silu", (rows: Tensor) => silu(rows)],
        ["gelu", (rows: Tensor) => rows.gelu()],
        ["mul", (rows: Tensor) => rows.mul(rows)],
      ] as const) {
        using whole = of(x);
        expectSameRows(`${name} of ${cols}`, whole, 0, (first, count) => of(x.narrow(0, first, count)));
      }
    }
  });

  it("with any number of threads", () => {
    const backend = device.backend as CpuBackend;
    const { threads } = backend;
    const [x, w, y] = [normal([40, 1500]), normal([300, 1500], "f32", 2), normal([1, 2, 2000, 16])];
    const q = QTensor.quantize(w.narrow(1, 0, 1280).contiguous(), "Q4_K");
    const run = (): Float64Array[] => {
      using products = x.matmul(w.t());
      using quantized = qmatmul(x.narrow(1, 0, 1280).contiguous(), q);
      using attended = sdpa(y.narrow(2, 1999, 1), y, y, { scale: 0.25, causal: true });
      return [products, quantized, attended].map(valuesOf);
    };
    try {
      const [one, three] = [1, 3].map((n) => {
        backend.threads = n;
        return run();
      });
      expect(three).toEqual(one);
    } finally {
      backend.threads = threads;
    }
  });
});
