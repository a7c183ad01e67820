/** Every op on tensors that are outside WebAssembly's memory: whole, and in pieces so small that hardly anything fits into one. */
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../../src/backend/cpu/backend.ts";
import { isNative } from "../../../src/backend/cpu/blocks.ts";
import type { CpuBackendOptions } from "../../../src/backend/cpu/staged-backend.ts";
import { eachRun, packing } from "../../../src/backend/cpu/staging/packing.ts";
import { Layout } from "../../../src/core/layout.ts";
import { quantTypeNames, quantTypes } from "../../../src/core/quant-types.ts";
import { Device, Tensor } from "../../../src/index.ts";
import { loadModel } from "../../../src/models/index.ts";
import * as nn from "../../../src/nn/index.ts";
import { advance } from "../../../src/ops/counting.ts";
import { QTensor, qmatmul } from "../../../src/quantized/index.ts";
import { createEngine } from "../../../src/serving/index.ts";
import { verify } from "../../../src/verify/runner.ts";
import { tiny } from "../../helpers/model-folders.ts";

const golden = fileURLToPath(new URL("../../data/golden", import.meta.url));
/** Without machine code every op is staged; with it only those that have none. */
const device = (name: string, options: CpuBackendOptions, hasMachineCode = false) =>
  Device.open(name, () => {
    const backend = new CpuBackend(options);
    if (!hasMachineCode) Object.defineProperty(backend, "native", { value: null });
    return Object.defineProperty(backend, "name", { value: name });
  });
const heap = device("heap", {});
const native = device("native", { allNative: true }, true);
const pieces = device("pieces", { allNative: true, pieceBytes: 2048 });

describe.each([
  ["in native memory", native],
  ["in pieces", pieces],
])("tensors %s", (_, device) => {
  it("pass the golden cases", { timeout: 60_000 }, async () => {
    const report = await verify(golden, device);
    expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
    expect(report.passed).toBe(863);
  });

  it("are outside the heap, as their results are", () => {
    const x = Tensor.ones([3, 5], { device });
    expect([x, x.t().contiguous(), x.add(x)].map(isNative)).toEqual([true, true, true]);
  });

  it("are filled and drawn as others are", () => {
    for (const make of [
      (on: Device) => Tensor.full([12345], 7, { dtype: "i16", device: on }),
      (on: Device) => Tensor.randn([12345], { seed: 5, device: on }),
      (on: Device) => Tensor.rand([3, 4001], { seed: 6, dtype: "bf16", device: on }),
    ])
      expect(Buffer.compare(make(device).bytesSync(), make(heap).bytesSync())).toBe(0);
  });

  it("count on", () => {
    const counts = Tensor.from(BigInt64Array.of(-1n, 7n, 2n ** 40n), { device });
    advance(counts, 3);
    expect(counts.toArraySync()).toEqual([2n, 10n, 2n ** 40n + 3n]);
  });

  it("have long rows reduced part by part", () => {
    const values = Float32Array.from({ length: 2 * 40_000 }, (_, i) => Math.sin(i) + (i === 70_123 ? 5 : 0));
    const on = (where: Device) => Tensor.from(values, { shape: [2, 200, 200], device: where });
    const [x, reference] = [on(device), on(heap)];
    for (const op of ["max", "min", "argmax", "argmin"] as const) {
      const of = (t: Tensor) => t.reshape([2, 40_000])[op](1).toArraySync();
      expect(of(x)).toEqual(of(reference));
    }
    expect(x.argmaxAll().toScalarSync()).toBe(70_123);
    const sums = x.sum([1, 2]).toArraySync() as number[];
    for (const row of [0, 1]) {
      const sum = values.subarray(row * 40_000, (row + 1) * 40_000).reduce((a, b) => a + b, 0);
      expect(sums[row]).toBeCloseTo(sum, 3);
    }
    expect(x.transpose(1, 2).flatten(1, 2).argmax(1).toArraySync()).toEqual(
      reference.transpose(1, 2).flatten(1, 2).argmax(1).toArraySync(),
    );
  });

  it("say which id is out of range among all of them", () => {
    const x = Tensor.ones([4, 300], { device });
    const ids = Tensor.from(
      Uint32Array.from({ length: 900 }, (_, i) => (i === 777 ? 4 : i % 4)),
      { device },
    );
    expect(() => x.indexSelect(ids, 0)).toThrow(/id 4 at position 777 is out of range for dim 0 of size 4/);
    expect(() => x.t().gather(ids.reshape([300, 3]), 1)).toThrow(/id 4 at position 777/);
    const table = QTensor.quantize(Tensor.ones([4, 32], { device }), "Q8_0");
    expect(() => table.rows(ids)).toThrow(/id 4 at position 777/);
  });
});

describe("products in pieces", () => {
  const bytesOn = (run: (on: Device) => Tensor) => [heap, pieces].map((on) => Buffer.from(run(on).bytesSync()));
  const expectSame = (run: (on: Device) => Tensor) => {
    const [whole, cut] = bytesOn(run);
    expect(cut!.equals(whole!)).toBe(true);
  };

  it.each(quantTypeNames)("have every bit of those that are whole: %s", (type) => {
    const { size, bytes } = quantTypes[type];
    const [n, k] = [67, 2 * Math.max(size, 64)];
    // Bytes of any kind, with scales that are no NaN: the same for both.
    const raw = Uint8Array.from({ length: ((n * k) / size) * bytes }, (_, i) => ((i * 2654435761) >>> 13) & 0x3b);
    for (const m of [1, 3, 21]) {
      for (const dtype of ["f32", "bf16"] as const) {
        expectSame((on) => {
          const x = Tensor.randn([m, k], { seed: m, dtype, device: on });
          return qmatmul(x, QTensor.fromBytes(raw, [n, k], type, on));
        });
      }
    }
    expectSame((on) => QTensor.fromBytes(raw, [n, k], type, on).dequantize());
    expectSame((on) =>
      QTensor.fromBytes(raw, [n, k], type, on).rows(
        Tensor.from(new Uint32Array([66, 2, 0xffffffff, 2]), { device: on }),
      ),
    );
  });

  it.each(["f32", "f16", "bf16"] as const)("the same in %s, of views too", (dtype) => {
    for (const [m, k, n] of [
      [1, 70, 130],
      [5, 33, 64],
      [40, 129, 31],
    ] as const) {
      expectSame((on) => {
        const a = Tensor.randn([2, k, m], { seed: 1, dtype, device: on }).transpose(1, 2);
        return a.matmul(Tensor.randn([k, n], { seed: 2, dtype, device: on }).broadcastAs([2, k, n]));
      });
    }
    expectSame((on) => {
      const [q, kv] = [Tensor.randn([2, 8, 9, 32], { seed: 3, dtype, device: on }), [2, 2, 50, 32]];
      const [k, v] = [4, 5].map((seed) => Tensor.randn(kv, { seed, dtype, device: on })) as [Tensor, Tensor];
      return nn.sdpa(q, k, v, { causal: true });
    });
  });
});

describe("a model outside the heap", () => {
  it("says in pages what it says in the heap, to three at a time", async () => {
    const [expected, ...others] = await Promise.all(
      [heap, native, pieces].map(async (device) => {
        const model = await loadModel(tiny("llama"), { device });
        await using engine = createEngine(model, { batch: 3, stepTokens: 64, pages: 12 });
        const prompts = [100, 7, 130].map((length, i) => Array.from({ length }, (_, at) => (at * 7 + i) % 50));
        const answers = prompts.map(async (prompt) => {
          const said: number[] = [];
          for await (const { token } of engine.submit({ prompt, maxTokens: 6, ignoreEos: true })) said.push(token);
          return said;
        });
        const all = await Promise.all(answers);
        await engine.drain();
        model.dispose();
        return all;
      }),
    );
    for (const other of others) expect(other).toEqual(expected);
  });
});

describe("packing", () => {
  it("copies what a view shows, each run once, wherever its dims lie", () => {
    const memory = Float64Array.from({ length: 5000 }, (_, i) => i);
    const whole = Layout.contiguous([5, 10, 4, 25]);
    const views = [
      whole,
      whole.permute([2, 0, 3, 1]),
      whole.narrow(3, 4, 3).transpose(0, 3),
      whole.narrow(1, 2, 7).step(3, -3),
      whole.step(0, 2).step(2, -1).permute([3, 1, 0, 2]),
      new Layout([6, 3, 7], [0, 40, 2], 9),
      new Layout([30, 8], [3, 5], 100),
      Layout.contiguous([], 17),
      whole.narrow(2, 1, 0),
    ];
    for (const view of views) {
      const plan = packing(view, 8);
      const copy = new Float64Array(plan.elements);
      eachRun(plan, (from, to) => copy.set(memory.subarray(from, from + plan.run), to));
      expect(elements(copy, plan.layout)).toEqual(elements(memory, view));
    }
    expect(packing(whole.permute([3, 1, 0, 2]), 4)).toMatchObject({ run: 5000, loops: [], hasGaps: false });
  });
});

function elements(memory: Float64Array, { shape, strides, offset }: Layout): number[] {
  if (shape.length === 0) return [memory[offset]!];
  return Array.from({ length: shape[0]! }, (_, i) =>
    elements(memory, new Layout(shape.slice(1), strides.slice(1), offset + i * strides[0]!)),
  ).flat();
}
