/** A bad index is reported at the next read, and the device goes on. */
import { Device } from "../backend/device.ts";
import { WickError } from "../core/errors.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, expectThat, type Say } from "./check.ts";

const ROWS = 7;

export async function checkIndexErrors(name: string, say: Say): Promise<Check[]> {
  const device = Device.from(name);
  using x = Tensor.arange(0, ROWS * 3, { device });
  using table = x.reshape([ROWS, 3]);
  const select = async (ids: number[], dtype: "u32" | "i64"): Promise<number[]> => {
    using index = Tensor.from(ids, { dtype, device });
    using rows = table.indexSelect(index, 0);
    return [...(await rows.data())].map(Number);
  };
  const refused = async (ids: number[], dtype: "u32" | "i64"): Promise<string> => {
    try {
      await select(ids, dtype);
    } catch (error) {
      if (!(error instanceof WickError) || error.code !== "InvalidIndex") throw error;
      const rows = await select([ROWS - 1, 0], dtype);
      const want = [3 * ROWS - 3, 3 * ROWS - 2, 3 * ROWS - 1, 0, 1, 2];
      expectThat(rows.join() === want.join(), () => `index_select gives ${rows} afterwards, not ${want}`);
      return "InvalidIndex, and the device goes on";
    }
    throw new Error(`ids ${ids} of ${ROWS} rows were accepted`);
  };
  return [
    await check(say, "an index beyond the end", () => refused([0, ROWS, 1], "u32")),
    await check(say, "a negative index", () => refused([2, -5], "i64")),
  ];
}
