/** The fused NN ops against their formulas op by op, over random shapes, dtypes, layouts and options. */
import fc from "fast-check";
import { it } from "vitest";
import { checkCase, drawCase, sizes } from "../../bench/gpu/nn-cases.mjs";
import { scope, Tensor } from "../../src/index.ts";
import * as nn from "../../src/nn/index.ts";
import { composed } from "../../src/ops/composed/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

const library = { Tensor, scope, nn, sdpaReference: composed.sdpa };

describeInTurns("random NN problems", (device) => {
  it("every fused op equals its formula", () => {
    fc.assert(
      fc.property(fc.gen(), (gen) => {
        const int = (min: number, max: number) => gen(fc.integer, { min, max });
        const c = drawCase({ int, pick: (list) => list[int(0, list.length - 1)]! }, sizes.small);
        const problem = checkCase(library, device, c);
        if (problem) throw new Error(`${problem}: ${JSON.stringify(c)}`);
      }),
      { numRuns: device.name === "cpu" ? 500 : 120, endOnFailure: true },
    );
  });
});
