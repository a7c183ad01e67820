/**
 * Loads MLC's xgrammar: CommonJS in a package that calls itself a module, so that neither `import` nor `require` takes it. It
 * is told nothing of Node, of which it needs nothing: it would import modules and listen for errors of the process.
 */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { compileFunction } from "node:vm";

/** @returns {typeof import("@mlc-ai/web-xgrammar")} */
export function loadXgrammar() {
  const require = createRequire(import.meta.url);
  const file = require.resolve("@mlc-ai/web-xgrammar");
  const parameters = ["exports", "require", "module", "__filename", "process"];
  const run = compileFunction(readFileSync(file, "utf8"), parameters, { filename: file });
  const module = { exports: {} };
  run(module.exports, require, module, file, undefined);
  return /** @type {typeof import("@mlc-ai/web-xgrammar")} */ (module.exports);
}
