/** The seam between TypeScript and the WebAssembly kernels; `tsc` checks the statements about types. */
import { describe, expect, it } from "vitest";
import { codes, shiftOf, type WordsOf } from "../../../src/backend/cpu/abi.ts";
import { CpuBackend } from "../../../src/backend/cpu/backend.ts";
import type {
  Address,
  Cols,
  Count,
  Flag,
  Kernels,
  Layouts,
  OutAddress,
  Rows,
} from "../../../src/backend/cpu/kernels.ts";
import { Device, Tensor } from "../../../src/index.ts";

describe("The kernels of the CPU", () => {
  it("have a type for what each argument is, so that two of them cannot change places", () => {
    const compiles = (kernels: Kernels, x: Address, out: OutAddress, n: Count, rows: Rows, cols: Cols) => {
      const info = 0 as Layouts;
      const [exp, f32, f16] = [codes.unary.exp, codes.dtype.f32, codes.dtype.f16];
      kernels.unary(exp, f32, n, info, x, out, 0);
      // @ts-expect-error the dtype and the op
      kernels.unary(f32, exp, n, info, x, out, 0);
      // @ts-expect-error the result and the operand
      kernels.unary(exp, f32, n, info, out, x, 0);
      // @ts-expect-error the layouts and the number of elements
      kernels.unary(exp, f32, info, n, x, out, 0);
      // @ts-expect-error an op of another kernel
      kernels.binary(exp, f32, n, info, x, x, out);
      // @ts-expect-error a number that could be anything
      kernels.unary(exp, f32, 4, info, x, out, 0);
      // @ts-expect-error columns and rows
      kernels.softmax(f32, 0 as Flag, cols, rows, info, x, out);
      // @ts-expect-error a dtype in place of its size
      kernels.copy(f16, n, info, x, out);
      kernels.copy(shiftOf("f16"), n, info, x, out);
      // @ts-expect-error one argument too few
      kernels.cumsum(f32, rows, cols, info, x);
    };
    expect(compiles).toBeTypeOf("function");
  });

  it("find the words of their parameters by name, all of them", () => {
    const size = { batch: 1, channels: 2, input: [3, 4], output: [6, 8] };
    const whole: WordsOf<"upsampling"> = { ...size, xStrides: [24, 12, 4, 1] };
    // @ts-expect-error without the strides
    const part: WordsOf<"upsampling"> = size;
    expect(Object.keys(whole)).not.toEqual(Object.keys(part));
  });

  it("take as many arguments as their signatures name", () => {
    const { kernels } = new CpuBackend().engine;
    const counts = { unary: 7, matmul: 14, gather: 9, quantizedRows: 12, heapBase: 0 } satisfies {
      [K in keyof Kernels]?: Parameters<Kernels[K]>["length"];
    };
    for (const [name, count] of Object.entries(counts)) expect(kernels[name as keyof Kernels]).toHaveLength(count);
  });
});

describe("A bad id on the CPU", () => {
  const device = Device.cpu();
  const x = Tensor.zeros([3], { device });
  const src = Tensor.zeros([2], { device });
  const ids = Tensor.from(new Uint32Array([0, 7]), { device });

  const calls = {
    indexSelect: () => x.indexSelect(ids, 0),
    gather: () => x.gather(ids, 0),
    scatter: () => x.scatter(ids, src, 0),
    scatterAdd: () => x.scatterAdd(ids, src, 0),
    indexAdd: () => x.indexAdd(ids, src, 0),
  };
  it.each(Object.entries(calls))("is reported by %s in its own name", (name, call) => {
    expect(call).toThrow(`${name}: id 7 at position 1 is out of range for dim 0 of size 3`);
  });
});
