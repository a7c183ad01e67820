/** Where a GPU is asked for it, a row's products are the same bit by bit, whatever other rows are in the call. */
import { expect, it } from "vitest";
import { Tensor } from "../../../src/index.ts";
import { QTensor, qmatmul } from "../../../src/quantized/index.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

const rows = [1, 5, 70] as const;

describeDevices(
  "invariant products",
  (device) => {
    const invariantly = <T>(run: () => T): T => device.backend.invariantly!(run);
    const x = (dtype: "f32" | "bf16"): Tensor => Tensor.randn([90, 256], { device, seed: 1 }).toDType(dtype);
    const w = Tensor.randn([72, 256], { device, seed: 2 });

    function expectSame(input: Tensor, product: (x: Tensor) => Tensor): void {
      const whole = invariantly(() => product(input));
      for (const count of rows) {
        const part = invariantly(() => product(input.narrow(0, 3, count)));
        expect(part.dataSync(), `${count} rows`).toEqual(whole.narrow(0, 3, count).contiguous().dataSync());
      }
    }

    it.each(["f32", "bf16"] as const)("of %s", (dtype) => {
      expectSame(x(dtype), (input) => input.matmul(w.toDType(dtype).t()));
    });

    it("with quantized weights", () => {
      const blocks = QTensor.quantize(w, "Q8_0");
      expectSame(x("bf16"), (input) => qmatmul(input, blocks));
    });
  },
  gpuNames,
);
