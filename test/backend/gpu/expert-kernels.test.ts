// Products by expert on every matrix unit's layout of registers and without one, and as a recorded step.
import { describe, expect, it } from "vitest";
import { call } from "../../../src/backend/call.ts";
import { sharedBudget } from "../../../src/backend/gpu/attention-plan.ts";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planExpertDense, planExpertQuant } from "../../../src/backend/gpu/families/experts.ts";
import { quantTypeNames } from "../../../src/core/quant-types.ts";
import { Device, scope, Tensor } from "../../../src/index.ts";
import { expertLinear, mixExperts, routeExperts } from "../../../src/nn/index.ts";
import { composed } from "../../../src/ops/composed/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { gpuNames } from "../../helpers/devices.ts";
import { checkExperts, many, uniform, values } from "../../helpers/experts.ts";
import { deviceWith, units } from "../../helpers/matrix-units.ts";
import { tensor } from "../../helpers/reference.ts";

describe.skipIf(gpuNames.length === 0)("products by expert", () => {
  it.each(units)("on %s of %s", (unit, arch, ordinal) => {
    const device = deviceWith(arch, ordinal, 3);
    const dense = { experts: 5, outputs: 72, inputs: 72, ids: many(50, 2, 4), bias: true };
    checkExperts(device, dense, "bf16", null);
    // Pieces of one and a half chunks of the matrix unit, or of less than one.
    const summed = { experts: 5, outputs: 35, inputs: 768, ids: [[4, 0, 2]], bySlot: true, mixed: true };
    if (unit !== "mma") checkExperts(device, summed, "f16", "Q5_0");
    // Without warpgroups the simulated device has no room for the blocks of mma.sync.
    if (arch === "sm_90") return;
    const quantized = { experts: 4, outputs: 68, inputs: 160, ids: many(70, 3, 3), bias: true };
    checkExperts(device, quantized, "f16", "Q5_0");
    // Few rows to an expert.
    if (unit === "mma") checkExperts(device, { ...quantized, outputs: 140, ids: many(20, 2, 3) }, "f16", "Q5_0");
    // Tiles of more rows, by warpgroups and without; f32 in halves.
    if (arch !== "sm_90a" && arch !== "gfx1100") return;
    checkExperts(device, { ...dense, experts: 2, ids: many(140, 2, 2), outputs: 130 }, "f16", null);
    checkExperts(device, { ...quantized, inputs: 256 }, "f32", "Q4_K");
  });

  it("in blocks of which every device has room for one", () => {
    for (const arch of ["sm_80", "sm_86", "sm_90a", "gfx1100", "gfx90a", "gfx1030"]) {
      for (const mean of [1, 1000]) {
        for (const unit of ["fma", "mma", "wmma11", "mfma"] as const) {
          if (arch.startsWith("sm") !== (unit === "mma")) continue;
          expect(planExpertDense(mean, "f16", { unit, arch }).shared_bytes).toBeLessThanOrEqual(sharedBudget(arch));
          for (const type of quantTypeNames) {
            for (const dtype of ["f16", "f32"] as const) {
              const plan = planExpertQuant(mean, type, dtype, { unit, arch });
              expect(plan.shared_bytes, `${arch} ${type} ${dtype}`).toBeLessThanOrEqual(sharedBudget(arch));
            }
          }
        }
      }
    }
  });

  it.each(gpuNames)("of one row that its scores choose, in two launches or in three, on %s", (name) => {
    const device = Device.from(name);
    const [experts, hidden, width, count] = [16, 512, 256, 4];
    const floats = (shape: readonly number[], size = 1) =>
      tensor(
        uniform(
          shape.reduce((a, b) => a * b),
          size,
        ),
        [...shape],
        { device, dtype: "bf16" },
      );
    const stack = (shape: readonly number[]) =>
      QTensor.quantize(floats(shape, 0.1).toDType("f32").toDeviceSync(Device.from("cpu")), "Q4_K").toDeviceSync(device);
    const [x, scores, residual] = [floats([1, hidden]), floats([1, experts]), floats([1, hidden])];
    const [open, down] = [stack([experts, 2 * width, hidden]), stack([experts, hidden, width])];
    const params = {
      count,
      type: "Q4_K",
      norm: { weight: floats([hidden]), eps: 1e-6 },
      glu: "silu",
      residual,
    } as const;
    const { ids, mix } = routeExperts(scores, count);
    const opened = expertLinear(x, open, ids, { norm: params.norm, glu: "silu" });
    const want = values(expertLinear(opened, down, ids, { mix, residual }));
    const made = call(device.backend, "routedExperts", x, scores, open.blocks, down.blocks, params);
    const composition = composed.routedExperts(x, scores, open.blocks, down.blocks, params);
    const size = Math.max(...want.map(Math.abs));
    for (const y of [composition, ...(made ? [result(made, [1, hidden])] : [])])
      for (const [i, v] of values(y).entries()) expect(Math.abs(v - want[i]!)).toBeLessThan(0.01 * size);
    expect(made !== null).toBe((device.backend as GpuBackend).context.properties.arch === "sm_90a");
  });

  it("are recorded, and follow the router when they are run again", () => {
    const device = Device.from(gpuNames[0]!);
    const [experts, hidden, inter] = [4, 16, 8];
    const scores = Tensor.zeros([1, experts], { device });
    const x = Tensor.ones([1, hidden], { device });
    const up = Tensor.ones([experts, 2 * inter, hidden], { device });
    // Expert e multiplies with e.
    const numbers = Float32Array.from({ length: experts * hidden * inter }, (_, i) => Math.floor(i / (hidden * inter)));
    const down = Tensor.from(numbers, { device }).reshape([experts, hidden, inter]);
    const out = Tensor.zeros([1, hidden], { device });
    using graph = device.backend.recorder!.capture(() =>
      scope(() => {
        const { ids, mix } = routeExperts(scores, 1);
        const open = expertLinear(x, up, ids, { glu: "clampedSwiglu" });
        out.sliceSet(mixExperts(expertLinear(open, down, ids), mix, x), 0, 0);
      }),
    );
    for (const best of [2, 0, 3]) {
      const one = Float32Array.from({ length: experts }, (_, e) => Number(e === best));
      scores.sliceSet(Tensor.from(one, { device }).reshape([1, experts]), 0, 0);
      graph.replay();
      // Both sides of the gate are cut off at 7.
      for (const y of out.dataSync()) expect(y).toBeCloseTo(1 + best * inter * 56, 1);
    }
  });
});
