// Writes the ops of each group in FEATURES.md from the op table; what follows a dash in a cell is written by hand.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** Forms of one reduction stand once: sum for sum, sumKeepdim and sumAll. */
const isForm = (name, names) => /(Keepdim|All)$/.test(name) && names.includes(name.replace(/(Keepdim|All)$/, ""));

/** The text with each group's row as the table has it. */
export function withOps(text, ops) {
  const all = [...ops];
  let rest = text;
  for (const group of new Set(all.map((op) => op.group))) {
    const names = all.filter((op) => op.group === group).map(({ name }) => name);
    const listed = names.filter((name) => !isForm(name, names)).join(" ");
    const row = new RegExp(`^\\| ${group} \\| [^|—]*?( — [^|]*)? \\|`, "m");
    if (!row.test(rest)) throw new Error(`FEATURES.md has no row for the ops of "${group}": ${listed}`);
    rest = rest.replace(row, (_, note = "") => `| ${group} | ${listed}${note} |`);
  }
  return rest;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { ops } = await import("../dist/ops/index.js");
  await Promise.all([import("../dist/nn/index.js"), import("../dist/quantized/index.js")]);
  const path = fileURLToPath(new URL("../FEATURES.md", import.meta.url));
  writeFileSync(path, withOps(readFileSync(path, "utf8"), ops.values()));
}
