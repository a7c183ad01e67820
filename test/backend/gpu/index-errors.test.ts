// A bad id is found on the device and told later; what is told names the op that was called, whichever kernel it became.
import { expect, it } from "vitest";
import { Tensor } from "../../../src/index.ts";
import { crossEntropy, nll } from "../../../src/nn/index.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

describeDevices(
  "A bad id",
  (device) => {
    const x = () => Tensor.zeros([3, 2], { device });
    const ids = () => Tensor.from([7], { dtype: "u32", device });
    const wide = () => Tensor.from([[7, 7]], { dtype: "u32", device });
    const source = () => Tensor.zeros([1, 2], { device });
    const calls: Readonly<Record<string, () => Tensor>> = {
      indexSelect: () => x().indexSelect(ids(), 0),
      "indexSelect of a transposed view": () => x().t().contiguous().t().indexSelect(ids(), 0),
      gather: () => x().gather(wide(), 0),
      scatter: () => x().scatter(wide(), source(), 0),
      scatterAdd: () => x().scatterAdd(wide(), source(), 0),
      indexAdd: () => x().indexAdd(ids(), source(), 0),
      embedding: () => x().embedding(ids()),
    };
    it.each(Object.keys(calls))("in %s is an error that names it", (name) => {
      const op = name.split(" ")[0]!;
      expect(() => calls[name]!().dataSync()).toThrow(
        new RegExp(`id 7 at position \\d+.*the last such op was ${op} on dim 0 of size 3`),
      );
    });
  },
  gpuNames,
);

describeDevices("A bad id in an op that is made of others", (device) => {
  it.each<[string, () => Tensor]>([
    ["embedding", () => Tensor.zeros([3, 2], { device }).embedding(Tensor.from([9], { dtype: "u32", device }))],
    ["nll", () => nll(Tensor.zeros([1, 2], { device }), Tensor.from([9], { dtype: "u32", device }))],
    ["crossEntropy", () => crossEntropy(Tensor.zeros([1, 2], { device }), Tensor.from([9], { dtype: "u32", device }))],
  ])("is told by the name that was called: %s", (name, run) => {
    expect(() => run().dataSync()).toThrow(new RegExp(`\\b${name}\\b`));
    // The next op goes by its own name again.
    const alone = () => Tensor.zeros([1, 2], { device }).gather(Tensor.from([[9]], { dtype: "u32", device }), 1);
    expect(() => alone().dataSync()).toThrow(/\bgather\b/);
  });
});
