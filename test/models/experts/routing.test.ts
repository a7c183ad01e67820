/** Which experts rows go through: each way of choosing beside a plain computation of it. */
import { expect, it } from "vitest";
import { scope, Tensor } from "../../../src/index.ts";
import { type Routing, route } from "../../../src/models/experts/routing.ts";
import { describeDevices, deviceNames } from "../../helpers/devices.ts";

const ROWS = 3;
const EXPERTS = 12;

const plain: Routing = { scoring: "softmax", normalize: false, scale: 1, groups: null, biased: false };
const cases: Record<string, Routing> = {
  "a softmax": plain,
  "the softmax of the chosen": { ...plain, normalize: true },
  "a scaled softmax of the chosen": { ...plain, normalize: true, scale: 2.5 },
  "groups by their best": { ...plain, scale: 16, groups: { count: 4, perToken: 2, scoredBy: 1 } },
  sigmoids: { ...plain, scoring: "sigmoid" },
  "biased sigmoids": { ...plain, scoring: "sigmoid", biased: true, normalize: true },
  "groups by their two best": {
    ...{ scoring: "sigmoid", normalize: true, scale: 2.5, biased: true },
    groups: { count: 4, perToken: 2, scoredBy: 2 },
  },
};

const scores = Array.from({ length: ROWS }, (_, r) =>
  Array.from({ length: EXPERTS }, (_, e) => Math.fround(2 * Math.sin(1 + 7.3 * r + 3.1 * e * e))),
);
const bias = Array.from({ length: EXPERTS }, (_, e) => Math.fround(0.4 * Math.cos(2.7 * e)));

const best = (values: readonly number[], k: number): number[] =>
  values
    .map((value, i) => [value, i] as const)
    .sort(([a, i], [b, j]) => b - a || i - j)
    .slice(0, k)
    .map(([, i]) => i);
const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

function expected(row: readonly number[], k: number, routing: Routing): { ids: number[]; mix: number[] } {
  const total = sum(row.map(Math.exp));
  const p = row.map((s) => (routing.scoring === "softmax" ? Math.exp(s) / total : 1 / (1 + Math.exp(-s))));
  let rated = p.map((value, e) => value + (routing.biased ? bias[e]! : 0));
  const { groups } = routing;
  if (groups) {
    const size = EXPERTS / groups.count;
    const members = Array.from({ length: groups.count }, (_, g) => rated.slice(g * size, (g + 1) * size));
    const open = best(
      members.map((own) => sum(best(own, groups.scoredBy).map((i) => own[i]!))),
      groups.perToken,
    );
    rated = rated.map((value, e) => (open.includes(Math.floor(e / size)) ? value : Number.NEGATIVE_INFINITY));
  }
  const ids = best(rated, k);
  const chosen = ids.map((e) => p[e]!);
  const divisor = routing.normalize ? sum(chosen) : 1;
  return { ids, mix: chosen.map((value) => (value / divisor) * routing.scale) };
}

describeDevices(
  "routing",
  (device) => {
    it.each(Object.keys(cases))("by %s chooses and weighs as it says", async (name) => {
      const routing = cases[name]!;
      await scope(async () => {
        const own = Tensor.from(scores, { device });
        const { ids, mix } = route(own, 3, routing, routing.biased ? Tensor.from(bias, { device }) : null);
        const want = scores.map((row) => expected(row, 3, routing));
        expect(await ids.toArray()).toEqual(want.map((row) => row.ids));
        for (const [r, row] of ((await mix.toArray()) as number[][]).entries())
          for (const [i, value] of row.entries()) expect(value).toBeCloseTo(want[r]!.mix[i]!, 5);
      });
    });

    it("takes the first of equal experts", async () => {
      await scope(async () => {
        const equal = Tensor.zeros([2, EXPERTS], { device });
        for (const routing of [plain, cases["groups by their best"]!])
          expect(await route(equal, 3, routing, null).ids.toArray()).toEqual([
            [0, 1, 2],
            [0, 1, 2],
          ]);
      });
    });
  },
  deviceNames.filter((name) => name !== "sim:64"),
);
