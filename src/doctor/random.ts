/** A seed gives the same numbers on every device. */
import { Device } from "../backend/device.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, expectThat, type Say } from "./check.ts";

const COUNT = 1003;
const SEED = 20_240_229n;
/** The normal ones go through a logarithm and a cosine, which devices may round differently in the last place. */
const lastPlaces = { f32: 2 ** -21, f64: 2 ** -48, f16: 2 ** -9, bf16: 2 ** -6 } as const;

export async function checkRandom(name: string, say: Say): Promise<Check[]> {
  const device = Device.from(name);
  const checks: Check[] = [];
  for (const dtype of ["f32", "f64", "f16", "bf16"] as const) {
    checks.push(
      await check(say, `random ${dtype}`, async () => {
        const draw = async (kind: "rand" | "randn", on: Device): Promise<number[]> => {
          using numbers = Tensor[kind]([COUNT], { dtype, device: on, seed: SEED });
          using wide = numbers.toDType("f64");
          return [...(await wide.data())].map(Number);
        };
        const worst = async (kind: "rand" | "randn"): Promise<number> => {
          const [got, want] = [await draw(kind, device), await draw(kind, Device.cpu())];
          return got.reduce(
            (most, x, i) => Math.max(most, Math.abs(x - want[i]!) / Math.max(1, Math.abs(want[i]!))),
            0,
          );
        };
        const uniform = await worst("rand");
        expectThat(uniform === 0, () => `uniform numbers differ from the CPU's by up to ${uniform}`);
        const normal = await worst("randn");
        expectThat(normal <= lastPlaces[dtype], () => `normal numbers differ from the CPU's by up to ${normal}`);
        return normal === 0 ? "equal to the CPU's" : `uniform equal to the CPU's, normal to ${normal.toExponential(0)}`;
      }),
    );
  }
  return checks;
}
