/** The golden cases that come with the package, on one device. */
import { fileURLToPath } from "node:url";
import { binaryOps, compareOps, unaryOps } from "../backend/backend.ts";
import { Device } from "../backend/device.ts";
import { type CaseResult, verify } from "../verify/runner.ts";
import type { Check, Say } from "./check.ts";
import { checkSubtraction } from "./subtraction.ts";

export const goldenFolder = fileURLToPath(new URL("../../golden", import.meta.url));
const SHOWN_FAILURES = 5;

const families: Readonly<Record<string, readonly string[]>> = {
  unary: unaryOps,
  "binary and compare": [...binaryOps, ...compareOps],
  "affine, where, cast": ["affine", "where", "cast"],
  reduce: ["sum", "mean", "max", "min", "argmax", "argmin", "var", "cumsum", "log_sum_exp"],
  sort: ["sort"],
  indexing: ["index_select", "gather", "scatter", "scatter_add", "index_add", "embedding"],
  matmul: ["matmul"],
  convolution: ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"],
  "pool and upsample": ["avg_pool2d", "max_pool2d", "upsample_nearest2d", "upsample_bilinear2d"],
  "softmax and norms": [
    "softmax",
    "log_softmax",
    "rms_norm",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "cross_entropy",
  ],
  rope: ["rope", "rope_i", "rope_thd"],
  attention: ["sdpa"],
};
const familyOf = (op: string): string =>
  Object.entries(families).find(([, ops]) => ops.includes(op))?.[0] ?? "other ops";

export async function checkGolden(name: string, say: Say, only?: readonly string[]): Promise<Check[]> {
  const first = !only || only.includes("sub") ? [await checkSubtraction(name, say)] : [];
  const { cases } = await verify(goldenFolder, Device.from(name), {
    ...(only && { only }),
    onCase: (id, number, total) => say(`running golden case ${id}`, number, total),
  });
  const groups = new Map<string, CaseResult[]>();
  for (const c of cases) {
    const family = familyOf(c.op);
    groups.set(family, [...(groups.get(family) ?? []), c]);
  }
  return [...first, ...[...groups].map(([family, results]) => describeFamily(family, results))];
}

export function describeFamily(family: string, results: readonly CaseResult[]): Check {
  const failed = results.filter((c) => !c.ok);
  if (failed.length === 0) return { name: family, verdict: "ok", detail: `${results.length} cases pass` };
  const shown = failed.slice(0, SHOWN_FAILURES).map((c) => `${c.id}: ${c.error}`);
  if (failed.length > shown.length) shown.push(`and ${failed.length - shown.length} more`);
  return {
    name: family,
    verdict: "problem",
    detail: [`${failed.length} of ${results.length} cases fail`, ...shown].join("\n"),
  };
}
