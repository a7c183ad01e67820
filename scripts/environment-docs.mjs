// Writes docs/environment.md: every environment variable, from the table that they are read by.
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** What scripts and tests read, which are not in the package. */
export const ofDevelopment = {
  WICK_TEST_ALL: { what: "`1`: tests leave nothing out and take no turns (`npm run test:all`)", otherwise: "not set" },
  WICK_TEST_BROWSER: {
    what: "the browser that the server's page is tried in",
    otherwise: "chromium, where it is installed",
  },
  WICK_TEST_DEVICES: { what: "the devices that tests run on, with commas between", otherwise: "all that are there" },
  WICK_KERNEL_SLICE: { what: "which part of the kernels the tests compile", otherwise: "another one every minute" },
  ROCM_DEVICE_LIB_PATH: { what: "where `npm run kernels` finds AMD's bitcode", otherwise: "looked for" },
  CXX: { what: "the C++ compiler that builds the simulator", otherwise: "`g++`, `clang++`" },
  CI: {
    what: "`true`: what is missing for a test makes it fail",
    otherwise: "such tests are left out, and said to be",
  },
};

const quoted = (values) => values.map((value) => `\`${value}\``).join(", ");

function table(variables) {
  const rows = Object.entries(variables).map(([name, { what, values, otherwise }]) => [
    values ? `\`${name}\`: ${quoted(values)}` : `\`${name}\``,
    what,
    otherwise ?? "",
  ]);
  const width = rows.some(([, , otherwise]) => otherwise) ? 3 : 2;
  const heads = ["Variable", "Meaning", "Without it"];
  return [heads, heads.map(() => "---"), ...rows].map((row) => `| ${row.slice(0, width).join(" | ")} |`).concat("");
}

/** `groups` are tables of variables by their titles. */
export function environmentMarkdown(groups) {
  const lines = [
    "# Environment variables",
    "",
    "All of them are read when they are needed: a program may set one before it first uses a device. One that is empty counts as not set, and one that is wrong is an error that names it. `npm run docs` makes this page from the sources.",
    "",
  ];
  for (const [title, variables] of Object.entries(groups)) lines.push(`## ${title}`, "", ...table(variables));
  lines.push(
    "`wick doctor` also reports those that change what the vendors' libraries do, such as `HSA_OVERRIDE_GFX_VERSION`, and whether it runs in a container.",
    "",
    "## Work on Wick itself",
    "",
    ...table(ofDevelopment),
    "Those of the simulator (`WICK_SIM_…`) are in [its readme](../sim/README.md).",
  );
  return `${lines.join("\n")}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { environmentTable } = await import("../dist/core/environment.js");
  writeFileSync(new URL("../docs/environment.md", import.meta.url), environmentMarkdown(environmentTable));
}
