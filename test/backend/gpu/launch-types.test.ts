// What the types of a launch refuse; the checks are tsc's.
import { describe, expectTypeOf, it } from "vitest";
import type { KernelName, ValuesFor } from "../../../src/backend/gpu/catalogue.ts";
import type { Gpu } from "../../../src/backend/gpu/gpu.ts";
import type { DType } from "../../../src/core/dtype.ts";

declare const gpu: Gpu;
declare const dtype: DType;
const layout = { numel: 4, num_dims: 0, info: 0 };

describe("A launch is checked by type", () => {
  it("for its kernel's name", () => {
    expectTypeOf<"exp_f32">().toExtend<KernelName>();
    expectTypeOf<`gemm_small_${DType}`>().toExtend<KernelName>();
    expectTypeOf<"exq_f32">().not.toExtend<KernelName>();
    expectTypeOf<"f32">().not.toExtend<KernelName>();
    expectTypeOf<string>().not.toExtend<KernelName>();
    // @ts-expect-error: no such kernel
    () => gpu.launch(`exq_${dtype}`, { x: 0, out: 0, ...layout });
  });

  it("for the names of its arguments, none missing and none too many", () => {
    expectTypeOf<ValuesFor<"cumsum_f32">>().toEqualTypeOf<{
      readonly x: number;
      readonly out: number;
      readonly rows: number;
      readonly cols: number;
    }>();
    () => gpu.launch(`add_${dtype}`, { lhs: 0, rhs: 0, out: 0, ...layout });
    // @ts-expect-error: `rhs` is missing
    () => gpu.launch(`add_${dtype}`, { lhs: 0, out: 0, ...layout });
    // @ts-expect-error: `inp` is no argument
    () => gpu.launch(`exp_${dtype}`, { x: 0, out: 0, ...layout, inp: 0 });
  });

  it("for what it is planned by, which is no argument of the kernel", () => {
    expectTypeOf<ValuesFor<"sample_draw">>().toHaveProperty("rows");
    expectTypeOf<ValuesFor<"attention_64_bf16">>().toHaveProperty("shared_bytes");
  });

  it("for numbers, which may be 64 bits wide where the kernel's are", () => {
    expectTypeOf<ValuesFor<"rand_normal_f32">["seed"]>().toEqualTypeOf<number | bigint>();
    expectTypeOf<ValuesFor<"fill_i64">["value"]>().toEqualTypeOf<number | bigint>();
    expectTypeOf<ValuesFor<"fill_i64">["numel"]>().toEqualTypeOf<number>();
  });
});
