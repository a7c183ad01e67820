// Declares for TypeScript what src/backend/cpu/wasm/index.ts exports, with a type for each alias of types.ts.
import { readFileSync, writeFileSync } from "node:fs";
import { CommonFlags, NodeKind, newOptions, newProgram, parse } from "assemblyscript";

const FOLDER = "src/backend/cpu/wasm";

/** The statements of a file, with the comments above them. */
function statements(file) {
  const text = readFileSync(`${FOLDER}/${file}.ts`, "utf8");
  const program = newProgram(newOptions());
  parse(program, text, `${file}.ts`, true);
  const { statements } = program.sources.find((source) => source.normalizedPath === `${file}.ts`);
  return statements.map((node) => ({
    node,
    doc: /\/\*\*(?:(?!\*\/).)*\*\/\n$/s.exec(text.slice(0, node.range.start))?.[0],
  }));
}

const aliases = statements("types").filter(({ node }) => node.kind === NodeKind.TypeDeclaration);
const aliasNames = new Set(aliases.map(({ node }) => node.name.text));
const plain = new Map([
  ["void", "void"],
  ["f64", "number"],
  ["i64", "bigint"],
  ["u64", "bigint"],
]);

function typed(kernel, type) {
  const name = type.name.identifier.text;
  if (aliasNames.has(name)) return name;
  const found = plain.get(name);
  if (!found) throw new Error(`${kernel}: ${name} says too little of an argument; types.ts has names for them`);
  return found;
}

function signature({ node, doc = "" }) {
  const name = node.name.text;
  const { parameters, returnType } = node.signature;
  const list = parameters.map((parameter) => `${parameter.name.text}: ${typed(name, parameter.type)}`);
  return `${doc}${name}(${list.join(", ")}): ${typed(name, returnType)};`;
}

const kernels = statements("index").flatMap(({ node }) => {
  const functions = statements(node.path.value.slice(2)).filter(
    (statement) => statement.node.kind === NodeKind.FunctionDeclaration && statement.node.is(CommonFlags.Export),
  );
  return node.members.map(({ localName }) => {
    const found = functions.find((f) => f.node.name.text === localName.text);
    if (!found) throw new Error(`index.ts exports ${localName.text}, which ${node.path.value}.ts does not have`);
    return found;
  });
});

const text = [
  "// Written by scripts/wasm/signatures.mjs from wasm/; not in git.",
  "declare const kind: unique symbol;",
  "/** A number that only a cast makes: what it counts or means is in its type. */",
  "type Kind<Name> = number & { readonly [kind]: Name };",
  ...aliases.map(({ node, doc = "" }) => `${doc}export type ${node.name.text} = Kind<"${node.name.text}">;`),
  "export interface Kernels {",
  ...kernels.map(signature),
  "}",
];
writeFileSync("src/backend/cpu/kernels.ts", `${text.join("\n")}\n`);
