import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { dtypeNames, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

describeInTurns("Printing", (device) => {
  const lines = (t: Tensor): string[] => `${t}`.split("\n");
  const label = (rest: string) => `Tensor(${rest}, ${device.name})`;

  it("shows values, shape, dtype and device", () => {
    expect(lines(Tensor.from([1, 2, 3], { device }))).toEqual(["[1, 2, 3]", label("[3], f32")]);
    expect(lines(Tensor.from(2.5, { device }))).toEqual(["2.5000", label("[], f32")]);
  });

  it.each(dtypeNames)("shows whole numbers of %s as such", (dtype) => {
    expect(lines(Tensor.from([0, 12], { dtype, device }))).toEqual(["[ 0, 12]", label(`[2], ${dtype}`)]);
  });

  it("aligns columns and indents rows", () => {
    const t = Tensor.from(
      [
        [1, -20],
        [300, 4],
      ],
      { dtype: "i32", device },
    );
    expect(lines(t)).toEqual(["[[  1, -20],", " [300,   4]]", label("[2, 2], i32")]);
  });

  it("separates matrices by an empty line", () => {
    const t = Tensor.from(
      [
        [[1], [2]],
        [[3], [4]],
      ],
      { device },
    );
    expect(lines(t)).toEqual(["[[[1],", "  [2]],", "", " [[3],", "  [4]]]", label("[2, 2, 1], f32")]);
  });

  it("gives fractions four digits, and exponents where magnitudes are extreme or far apart", () => {
    expect(lines(Tensor.from([0.5, -1.25], { device }))[0]).toBe("[ 0.5000, -1.2500]");
    expect(lines(Tensor.from([1e-6, 1], { dtype: "f64", device }))[0]).toBe(
      "[1.0000e-6,  1.0000e+0]".replace(",  ", ", "),
    );
    expect(lines(Tensor.from([1e10, 0], { dtype: "f64", device }))[0]).toBe("[1.0000e+10,  0.0000e+0]");
    expect(lines(Tensor.from([0.001, 5000.5], { dtype: "f64", device }))[0]).toMatch(/e-3.*e\+3/);
  });

  it("names NaN and the infinities", () => {
    const t = Tensor.from([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 1], { device });
    expect(lines(t)[0]).toBe("[ NaN,  inf, -inf,    1]");
  });

  it("shows all digits of 64-bit integers", () => {
    expect(lines(Tensor.from([2n ** 63n - 1n, -1n], { device }))[0]).toBe("[9223372036854775807,                  -1]");
  });

  it("shows empty tensors as empty brackets", () => {
    expect(lines(Tensor.zeros([0], { device }))).toEqual(["[]", label("[0], f32")]);
    expect(lines(Tensor.zeros([2, 0], { dtype: "u8", device }))).toEqual(["[[],", " []]", label("[2, 0], u8")]);
  });

  it("elides the middle of large dims, and only of those", () => {
    const t = Tensor.arange(2000, undefined, { device }).reshape([2, 1000]);
    expect(lines(t)).toEqual([
      "[[   0,    1,    2, …,  997,  998,  999],",
      " [1000, 1001, 1002, …, 1997, 1998, 1999]]",
      label("[2, 1000], f32"),
    ]);
    const tall = Tensor.arange(2004, undefined, { device }).reshape([334, 6]);
    expect(lines(tall)).toHaveLength(8);
    expect(lines(tall)[3]!.trim()).toBe("…,");
    expect(lines(Tensor.zeros([1000], { device }))[0]).not.toContain("…");
    expect(lines(Tensor.zeros([1001], { device }))[0]).toBe("[0, 0, 0, …, 0, 0, 0]");
  });

  it("prints large tensors at once, whatever their size", () => {
    const t = Tensor.zeros([1, 1], { device }).broadcastAs([100000, 100000]);
    expect(lines(t)).toHaveLength(8);
  });

  it("prints views in their own order", () => {
    const t = Tensor.from([[1, 2, 3]], { device });
    expect(lines(t.t().flip([0]))[0]).toBe("[[3],");
  });

  it("says when a tensor was disposed instead of failing", () => {
    const t = Tensor.zeros([2, 3], { dtype: "f16", device });
    t.dispose();
    expect(`${t}`).toBe(`Tensor(disposed, [2, 3], f16, ${device.name})`);
  });

  describe("console.log", () => {
    it("shows the same", () => {
      const t = Tensor.from([1, 2], { device });
      expect(inspect(t)).toBe(`${t}`);
      expect(inspect({ t })).toContain("[1, 2]");
    });
  });

  it("leaves no memory behind", () => {
    const t = Tensor.arange(3000, undefined, { device }).reshape([3, 1000]).t();
    collect();
    const before = device.memory().storages;
    expect(`${t}`).toContain("…");
    expect(device.memory().storages).toBe(before);
  });
});
