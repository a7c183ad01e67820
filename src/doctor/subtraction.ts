/**
 * Some builds of LLVM compile `a - (float)b` with b in f16 to b − a (llvm-project #160151, mended by #180169). Whether
 * this GPU's compiler is one of them shows in a single subtraction.
 */
import { Device } from "../backend/device.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, expectThat, type Say } from "./check.ts";

const left = [3, 0.5, -2, 7, 100];
const right = [1, 2, 4, -8, 0.25];

export const checkSubtraction = (name: string, say: Say): Promise<Check> =>
  check(say, "subtraction in f16", async () => {
    const device = Device.from(name);
    using a = Tensor.from(left, { dtype: "f16", device });
    using b = Tensor.from(right, { dtype: "f16", device });
    using difference = a.sub(b);
    return judgeDifference([...(await difference.data())].map(Number));
  });

export function judgeDifference(got: readonly number[]): string {
  const want = left.map((x, i) => x - right[i]!);
  expectThat(
    !got.every((x, i) => x === -want[i]!),
    () => "a − b comes out as b − a: the compiler has the fault of llvm-project #160151",
  );
  expectThat(
    got.every((x, i) => x === want[i]),
    () => `${left} − ${right} gives ${got}, not ${want}`,
  );
  return "as it should be";
}
