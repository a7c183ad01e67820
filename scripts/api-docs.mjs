// Writes docs/api.md: what each entry of the package exports, from the declarations that the compiler makes.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const entries = [
  ["wick", "index.d.ts"],
  ["wick/nn", "nn/index.d.ts"],
  ["wick/models", "models/index.d.ts"],
  ["wick/quantized", "quantized/index.d.ts"],
  ["wick/formats", "formats/index.d.ts"],
];
/** The groups of methods that are put on `Tensor`, each a file of its own. */
const tensorGroups = [
  ["Creation, as static methods", "create"],
  ["Element by element", "elementwise"],
  ["Reductions", "reduce"],
  ["Linear algebra", "linear"],
  ["Shapes and views", "shape"],
  ["Indexing", "indexing"],
  ["Convolution and pooling", "conv"],
];

const withoutComments = (text) => text.replaceAll(/\/\*.*?\*\/|\/\/[^\n]*/gs, "");
const count = (text, letters) => [...withoutComments(text)].filter((c) => letters.includes(c)).length;

/** The top-level statements of a file of declarations, each with the comment before it. */
function statements(path) {
  const found = [];
  let doc = [];
  let text = [];
  for (const line of readFileSync(path, "utf8").split("\n")) {
    if (text.length === 0 && (/^(\/\*\*| \*)/.test(line) || line === "")) {
      if (line.startsWith("/**")) doc = [];
      if (line !== "") doc.push(line);
      continue;
    }
    text.push(line);
    const all = text.join("\n");
    if (count(all, "({[") > count(all, ")}]") || !/[;}]$/.test(withoutComments(line).trimEnd())) continue;
    found.push({ doc: doc.join("\n"), text: all });
    doc = [];
    text = [];
  }
  return found;
}

const nameOf = (text) =>
  /^(?:export )?(?:declare )?(?:abstract )?(?:class|interface|type|const|function) (\w+)/.exec(text)?.[1];
const fileOf = (from, specifier) => join(dirname(from), specifier.replace(/\.ts$/, ".d.ts"));

/** Every declaration that an entry exports, by name, in the order of the entry. */
function exportsOf(path, only) {
  const own = new Map();
  const add = (name, statement) => own.set(name, [...(own.get(name) ?? []), statement]);
  const imported = new Map();
  for (const statement of statements(path)) {
    const { text } = statement;
    const imports = /^import (?:type )?\{([^}]*)\} from "(.*)";/s.exec(text);
    if (imports) for (const name of listed(imports[1])) imported.set(name.own, [fileOf(path, imports[2]), name.from]);
    const from = /^export (?:type )?(\*|\{[^}]*\}) from "(.*)";/s.exec(text);
    if (from) {
      const file = fileOf(path, from[2]);
      if (from[1] === "*") for (const [name, found] of exportsOf(file)) for (const s of found) add(name, s);
      else
        for (const { own: name, from: there } of listed(from[1].slice(1, -1)))
          for (const s of exportsOf(file, there).get(there) ?? []) add(name, s);
      continue;
    }
    const local = /^export \{([^}]+)\};/s.exec(text);
    if (local) {
      for (const { own: name } of listed(local[1])) {
        const [file, there] = imported.get(name) ?? [];
        for (const s of (file && exportsOf(file, there).get(there)) ?? []) add(name, s);
      }
      continue;
    }
    const name = text.startsWith("export") ? nameOf(text) : undefined;
    if (name && (!only || name === only)) add(name, statement);
  }
  return own;
}

/** `a, type B as C` as pairs of what it is called here and there. */
function listed(names) {
  return names
    .split(",")
    .map((name) => name.trim().replace(/^type /, ""))
    .filter(Boolean)
    .map((name) => name.split(" as "))
    .map(([from, own = from]) => ({ from, own }));
}

const words = (doc) =>
  doc
    .replace(/^\/\*\* ?/, "")
    .replace(/ ?\*\/$/, "")
    .split("\n")
    .map((line) => line.replace(/^ \* ?/, ""))
    .join("\n")
    .trim();

/** A declaration as it is worth reading: nothing private, the tools' words left out. */
function shown(text) {
  return text
    .replace(/^export /, "")
    .replace(/^declare /, "")
    .replaceAll(/^ {4}#private;\n/gm, "")
    .replaceAll(/^ {4}private .*\n/gm, "")
    .replaceAll("this: Tensor, ", "")
    .replaceAll("this: Tensor", "")
    .replaceAll(/^( +)/gm, (indent) => " ".repeat(indent.length / 2));
}

const block = (text) => ["```ts", text, "```", ""];

function section(name, declarations) {
  const docs = declarations.map(({ doc }) => words(doc)).filter(Boolean);
  const texts = declarations.map(({ text }) => shown(text)).filter((text) => !/^interface Tensor extends/.test(text));
  return [`### ${name}`, "", ...docs.flatMap((doc) => [doc, ""]), ...block(texts.join("\n"))];
}

function tensorMethods(folder) {
  const lines = ["## Methods of Tensor", ""];
  const ops = statements(join(folder, "backend/backend.d.ts")).filter(({ text }) =>
    /^export type (UnaryOp|BinaryOp|CompareOp) /.test(text),
  );
  for (const [title, file] of tensorGroups) {
    const all = statements(join(folder, "tensor", `${file}.d.ts`)).filter(
      ({ text }) => nameOf(text) && !/^export (declare const \w+: \w+;|type \w+Methods = typeof \w+;)/.test(text),
    );
    const texts = [...(file === "elementwise" ? ops : []), ...all].map(
      ({ doc, text }) => (doc ? `${doc}\n` : "") + shown(text),
    );
    lines.push(`### ${title}`, "", ...block(texts.join("\n")));
  }
  return lines;
}

/** `folder` holds the compiled package. */
export function apiMarkdown(folder) {
  const lines = ["# API", "", "Made from the sources by `npm run docs`; the pages beside this one explain.", ""];
  for (const [name, path] of entries) {
    lines.push(`## ${name}`, "");
    for (const [exported, declarations] of exportsOf(join(folder, path)))
      lines.push(...section(exported, declarations));
    if (name === "wick") lines.push(...tensorMethods(folder));
  }
  return `${lines.join("\n").trimEnd()}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  writeFileSync(join(root, "docs/api.md"), apiMarkdown(join(root, "dist")));
}
