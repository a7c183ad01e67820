/** That GPUs take the fused kernels where there are some, and compose the op elsewhere. */
import { afterEach, describe, expect, it, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { type DType, Tensor } from "../../../src/index.ts";
import * as nn from "../../../src/nn/index.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

describeDevices(
  "fused kernels",
  (device) => {
    const gpu = device.backend as GpuBackend;
    afterEach(() => vi.restoreAllMocks());
    const ones = (dtype: DType, ...shape: number[]) => Tensor.ones(shape, { dtype, device });

    /** The kernels that `run` launches. */
    function launched(run: () => unknown): string[] {
      const launch = vi.spyOn(gpu, "launch");
      run();
      const names = launch.mock.calls.map(([name]) => name);
      launch.mockRestore();
      return names;
    }

    describe.each(["bf16", "f16", "f32", "f64"] as const)("%s", (T) => {
      it("softmax and norms are one kernel each", () => {
        const [x, w] = [ones(T, 3, 40), ones(T, 40)];
        expect(launched(() => nn.softmax(x, -1))).toEqual([`softmax_${T}`]);
        expect(launched(() => nn.logSoftmax(x, -1))).toEqual([`log_softmax_${T}`]);
        expect(launched(() => nn.rmsNorm(x, w))).toEqual([`rmsnorm_${T}`]);
        expect(launched(() => nn.layerNorm(x, w, w))).toEqual([`layernorm_${T}`]);
        expect(launched(() => nn.addRmsNorm(x, x, w))).toEqual([`add_rmsnorm_${T}`]);
      });

      it("long rows take the wide kernels", () => {
        const x = ones(T, 2, 65_536);
        expect(launched(() => nn.softmax(x, -1))).toEqual([`softmax_wide_${T}`]);
        expect(launched(() => nn.rmsNorm(x, null))).toEqual([`rmsnorm_wide_${T}`]);
        expect(launched(() => nn.layerNorm(x, null, null))).toEqual([`layernorm_wide_${T}`]);
        expect(launched(() => nn.addRmsNorm(x, x, null))).toEqual([`add_rmsnorm_wide_${T}`]);
      });

      it("each rope is one kernel", () => {
        const [x, table] = [ones(T, 2, 3, 3, 8), ones(T, 3, 4)];
        expect(launched(() => nn.rope(x, table, table))).toEqual([`rope_${T}`]);
        expect(launched(() => nn.ropeI(x, table, table))).toEqual([`rope_i_${T}`]);
        expect(launched(() => nn.ropeThd(x, table, table))).toEqual([`rope_thd_${T}`]);
      });

      it("gated activations are one kernel, also of two halves of one tensor", () => {
        const x = ones(T, 3, 16);
        expect(launched(() => nn.siluMul(x, x))).toEqual([`swiglu_${T}`]);
        expect(launched(() => nn.geluMul(x, x))).toEqual([`geglu_${T}`]);
        expect(launched(() => nn.swiglu(x))).toEqual([`swiglu_${T}`]);
        expect(launched(() => nn.geglu(x))).toEqual([`geglu_${T}`]);
      });
    });

    describe.each(["bf16", "f16", "f32"] as const)("attention in %s", (T) => {
      it.each([8, 64, 72, 96, 128, 200, 256])("heads of %i: prefill and decode are one kernel each", (d) => {
        const dim = [32, 64, 96, 128, 256].find((n) => n >= d);
        const [k, mask] = [ones(T, 1, 1, 20, d), ones(T, 20)];
        const [many, one] = [ones(T, 1, 2, 20, d), ones(T, 1, 2, 1, d)];
        expect(launched(() => nn.sdpa(many, k, k, { causal: true }))).toEqual([`attention_${dim}_${T}`]);
        expect(launched(() => nn.sdpa(many, k, k, { mask }))).toEqual([`attention_masked_${dim}_${T}`]);
        expect(launched(() => nn.sdpa(one, k, k))).toEqual([`attention_decode_${dim}_${T}`]);
        expect(launched(() => nn.sdpa(one, k, k, { softcap: 3 }))).toEqual([`attention_decode_masked_${dim}_${T}`]);
      });

      it("the parts that a long cache is cut into are joined by the same kernel", () => {
        const k = ones(T, 1, 1, 600, 64);
        const q = ones(T, 1, 1, 1, 64);
        expect(launched(() => nn.sdpa(q, k, k))).toEqual([`attention_decode_64_${T}`]);
      });
    });

    it("attention is composed of other kernels for f64, head sizes past 256, not of 8, and values wider than keys", () => {
      const heads = (T: DType, d: number, dv = d) =>
        [ones(T, 1, 1, 3, d), ones(T, 1, 1, 3, d), ones(T, 1, 1, 3, dv)] as const;
      for (const [q, k, v] of [heads("f64", 64), heads("f32", 264), heads("f32", 12), heads("f16", 32, 64)]) {
        const names = launched(() => nn.sdpa(q, k, v));
        expect(names.filter((name) => name.startsWith("attention"))).toEqual([]);
        expect(names.some((name) => name.startsWith("softmax"))).toBe(true);
      }
    });
  },
  gpuNames,
);
