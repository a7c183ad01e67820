// Products of many rows with quantized weights, on every matrix unit's layout of registers and without one, against sums in double
// precision of the weights as "cpu" decodes them.
import { describe, expect, it } from "vitest";
import { hasWarpgroups, type MatrixUnit, sharedBudget } from "../../../src/backend/gpu/attention-plan.ts";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import {
  planQuantBlock,
  planQuantProduct,
  type QuantProductSize,
} from "../../../src/backend/gpu/families/quantized.ts";
import { at } from "../../../src/backend/gpu/gpu.ts";
import { multiplyTiles } from "../../../src/backend/gpu/ops/quantized.ts";
import { encode } from "../../../src/core/dtype.ts";
import { type QuantType, quantTypeNames, quantTypes } from "../../../src/core/quant-types.ts";
import { type Device, type DType, Tensor } from "../../../src/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { deviceWith } from "../../helpers/matrix-units.ts";

/** A simulated device whose compiler takes a unit: lanes are the wave's of that ordinal. */
const units: readonly (readonly [MatrixUnit, arch: string, ordinal: number])[] = [
  ["fma", "gfx1030", 0],
  ["mma", "sm_90a", 0],
  ["wmma11", "gfx1100", 0],
  ["wmma12", "gfx1200", 0],
  ["mfma", "gfx90a", 1],
];

let state = 1;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};

/** Where a type has its f16 scales. */
const halves: Record<QuantType, readonly number[]> = {
  ...{ Q4_0: [0], Q4_1: [0, 2], Q5_0: [0], Q5_1: [0, 2], Q8_0: [0], Q8_1: [0, 2], Q2_K: [80, 82], Q3_K: [108] },
  ...{ Q4_K: [0, 2], Q5_K: [0, 2], Q6_K: [208], Q8_K: [], IQ4_NL: [0], IQ4_XS: [0], MXFP4: [] },
};
/** Random bytes under scales of either sign. */
function randomBlocks(type: QuantType, elements: number): Uint8Array {
  const { size, bytes } = quantTypes[type];
  const out = Uint8Array.from({ length: (elements / size) * bytes }, () => Math.floor(random() * 256));
  const scale = (): number => (random() < 0.5 ? -1 : 1) * (0.01 + random());
  for (let at = 0; at < out.length; at += bytes) {
    for (const offset of halves[type]) out.set(encode([scale()], "f16"), at + offset);
    if (type === "Q8_K") out.set(encode([scale()], "f32"), at);
    if (type === "MXFP4") out[at] = 120 + Math.floor(random() * 8);
  }
  return out;
}

/** What one rounding of each weight and of the result may cost, of the size of the sum's terms: f32 is two halves where it is split. */
const units16 = { bf16: 2 ** -8, f16: 2 ** -11, f32: 2 ** -16 } as const;

function check(
  device: Device,
  type: QuantType,
  dtype: "bf16" | "f16" | "f32",
  rows: number,
  n: number,
  k: number,
): void {
  const bytes = randomBlocks(type, n * k);
  const x = Tensor.from(
    Float32Array.from({ length: rows * k }, () => random() - 0.5),
    { device },
  ).reshape([rows, k]);
  const xs = x.toDType(dtype);
  const padded = new Uint8Array(Math.ceil(bytes.length / 16) * 16);
  padded.set(bytes);
  const blocks = Tensor.from(padded, { device, dtype: "u8" });
  const y = Tensor.full([rows, n], Number.NaN, { device, dtype });
  multiplyTiles(device.backend as GpuBackend, type, dtype, at(xs), at(blocks), { rows, n, k }, at(y));
  const w = QTensor.fromBytes(bytes, [n, k], type, "cpu").dequantize().dataSync() as Float32Array;
  const [a, got] = [xs.toDType("f32").dataSync() as Float32Array, y.toDType("f32").dataSync() as Float32Array];
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < n; j++) {
      let [sum, size] = [0, 0];
      for (let l = 0; l < k; l++) {
        const term = a[i * k + l]! * w[j * k + l]!;
        sum += term;
        size += term * term;
      }
      const found = got[i * n + j]!;
      if (!(Math.abs(found - sum) <= units16[dtype] * (4 * Math.sqrt(size) + Math.abs(sum))))
        expect.fail(`${type} ${dtype} (${rows}, ${k}) × (${n}, ${k}): [${i}, ${j}] is ${found}, wanted ${sum}`);
    }
}

/** One type of each order of words, and of a table; mma.sync has a way of its own, and more of them. The golden cases have all. */
const typesFor = (unit: MatrixUnit): readonly QuantType[] =>
  unit === "mma" ? ["Q8_0", "Q5_0", "Q4_K", "Q6_K", "Q2_K", "MXFP4"] : ["Q8_0", "Q4_K", "Q3_K", "IQ4_NL"];
const cases = units.flatMap(([unit, arch, ordinal]) =>
  typesFor(unit).map((type) => [unit, type, arch, ordinal] as const),
);

describe("A product with quantized weights", { timeout: 600_000 }, () => {
  it.each(cases)("by %s of %s on %s", (_unit, type, arch, ordinal) => {
    const { size } = quantTypes[type];
    const device = deviceWith(arch, ordinal, 3);
    // Tiles cut by rows, by columns, by shares of k; of k that is no whole chunk, nor a whole slice.
    check(device, type, "bf16", 9, 70, size);
    check(device, type, "bf16", 11, 65, 512 + 5 * size);
    check(device, type, "f32", 12, 66, 512 + 5 * size);
  });
  it.each(units)("of more rows by %s on %s", (unit, arch, ordinal) => {
    const device = deviceWith(arch, ordinal, 2);
    for (const dtype of ["bf16", "f32"] as const) {
      if (fits("_some", "Q4_K", dtype, unit, arch)) check(device, "Q4_K", dtype, 70, 67, 512);
      if (fits("", "Q4_K", dtype, unit, arch)) check(device, "Q4_K", dtype, 150, 67, 256);
    }
  });
});

/** The simulator's shared memory is that of AMD's cards, or Hopper's. */
const fits = (size: QuantProductSize, type: QuantType, dtype: DType, unit: MatrixUnit, arch: string): boolean =>
  planQuantBlock(size, type, dtype, { unit, arch }).shared <= (hasWarpgroups(arch) ? 227 : 64) * 1024;

it("a block's shared memory fits every card of a unit", () => {
  const archs = { fma: "gfx1030", wmma11: "gfx1100", wmma12: "gfx1200", mfma: "gfx90a" } as const;
  const targets = [
    ...["sm_80", "sm_86", "sm_90", "sm_90a"].map((arch) => ({ unit: "mma" as const, arch, multiprocessors: 132 })),
    ...(["fma", "wmma11", "wmma12", "mfma"] as const).map((unit) => ({ unit, arch: archs[unit], multiprocessors: 96 })),
  ];
  for (const type of quantTypeNames)
    for (const dtype of ["bf16", "f32"] as const)
      for (const target of targets)
        for (const rows of [9, 17, 64, 65, 512]) {
          const { launch } = planQuantProduct({ rows, n: 14336, k: 4096 }, type, dtype, target);
          expect(launch.shared_bytes).toBeLessThanOrEqual(sharedBudget(target.arch));
        }
});
