// The declarations of the compiled package as the compiler understands them: what each entry exports, with every type
// resolved. The compiler's own programming interface is used, whose name still says that it may change.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { API, SymbolFlags } from "typescript/unstable/sync";

const compilerOptions = {
  target: "es2022",
  lib: ["es2022"],
  types: [],
  module: "nodenext",
  noEmit: true,
  strict: true,
};

/** `folder` holds the package's package.json and `dist`. What it gives is to be closed. */
export function openDeclarations(folder) {
  const { name, exports } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const entries = Object.entries(exports).map(([path, { types }]) => [join(name, path), join(folder, types)]);
  // A project that is nowhere on disk.
  const config = join(folder, "tsconfig.declarations.json");
  const text = JSON.stringify({ compilerOptions, files: entries.map(([, file]) => file) });
  const api = new API({
    cwd: folder,
    fs: {
      fileExists: (path) => (path === config ? true : undefined),
      readFile: (path) => (path === config ? text : undefined),
    },
  });
  const { checker, program, emitter } = api.updateSnapshot({ openProjects: [config] }).getProject(config);
  /** What a name stands for in the end, where it is imported or exported again. */
  const original = (symbol) => (symbol.flags & SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol);
  const exportsOf = (file) =>
    checker
      .getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(file)))
      .map((symbol) => ({ name: symbol.name, symbol: original(symbol) }));
  return {
    folder,
    checker,
    emitter,
    original,
    entries: entries.map(([name, file]) => ({ name, file, exports: exportsOf(file) })),
    close: () => api.close(),
  };
}
