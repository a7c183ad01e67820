// A bad id is found on the device and told later; what is told names the op that was called, whichever kernel it became.
import { expect, it } from "vitest";
import { Tensor } from "../../../src/index.ts";
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
