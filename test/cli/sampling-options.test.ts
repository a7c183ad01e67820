import { Command } from "commander";
import { expect, test } from "vitest";
import { addSamplingOptions, generateOptions, type SamplingFlags } from "../../src/cli/model-options.ts";

const parsed = (...args: string[]): ReturnType<typeof generateOptions> => {
  const command = addSamplingOptions(new Command().exitOverride().configureOutput({ writeErr: () => {} }), 10);
  return generateOptions(command.parse(args, { from: "user" }).opts<SamplingFlags>());
};

test("penalties and biases reach the sampler", () => {
  expect(parsed()).toMatchObject({ presencePenalty: 0, frequencyPenalty: 0, logitBias: undefined });
  const options = parsed(
    "--presence-penalty",
    "0.5",
    "--frequency-penalty",
    "-1",
    "--logit-bias",
    "7=-Infinity",
    "--logit-bias",
    "9=2.5",
  );
  expect(options).toMatchObject({ presencePenalty: 0.5, frequencyPenalty: -1 });
  expect([...options.logitBias!]).toEqual([
    [7, Number.NEGATIVE_INFINITY],
    [9, 2.5],
  ]);
  for (const bad of ["7", "x=1", "7=", "7=1.2.3"]) expect(() => parsed("--logit-bias", bad)).toThrow("a token's id");
});
