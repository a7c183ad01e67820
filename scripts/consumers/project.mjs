// A project as a user of the package has it: strict, every declaration checked, no types but the language's own.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = new URL("../../", import.meta.url);
const { name, exports } = JSON.parse(readFileSync(new URL("package.json", root), "utf8"));

/** What users import: `wick`, `wick/nn` … */
export const entries = Object.keys(exports).map((path) => join(name, path));

const compilerOptions = {
  target: "es2022",
  lib: ["es2022"],
  types: [],
  module: "nodenext",
  moduleResolution: "nodenext",
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  noPropertyAccessFromIndexSignature: true,
  skipLibCheck: false,
};

/** The programs of README.md, one after another: the later ones use what the earlier ones made. */
const readme = () =>
  Array.from(readFileSync(new URL("README.md", root), "utf8").matchAll(/^```ts\n(.*?)^```$/gms), ([, code]) => code);

/** What the programs use of Node, for whom has no types of it; in a module they hide those of others. */
const ofNode = `declare const console: { log(...values: unknown[]): void };
declare const process: { readonly stdout: { write(text: string): boolean } };
`;

/** Writes the project; `options` are compiler options of its own. Gives the path of its configuration. */
export function writeProject(folder, options = {}) {
  mkdirSync(folder, { recursive: true });
  const write = (file, text) => writeFileSync(join(folder, file), text);
  write("package.json", JSON.stringify({ name: "consumer", private: true, type: "module" }));
  write("entries.ts", entries.map((entry, i) => `export * as entry${i} from "${entry}";\n`).join(""));
  write("readme.ts", [...readme(), ofNode].join("\n"));
  const files = ["entries.ts", "readme.ts"];
  write("tsconfig.json", JSON.stringify({ compilerOptions: { ...compilerOptions, ...options }, files }));
  return join(folder, "tsconfig.json");
}
