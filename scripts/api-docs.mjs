// Writes docs/api.md: what each entry of the package exports, and every member of its classes, however the types make
// them: written out, merged from an interface, or mapped from a table of functions.
import { writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { SyntaxKind } from "typescript/unstable/ast";
import { NodeBuilderFlags, SignatureKind, SymbolFlags } from "typescript/unstable/sync";
import { openDeclarations } from "./declarations.mjs";

/** What methods do that a class has from elsewhere, by the file that declares them. */
const groups = {
  elementwise: "Element by element",
  reduce: "Reductions",
  linear: "Linear algebra",
  shape: "Shapes and views",
  indexing: "Indexing",
  conv: "Convolution and pooling",
  rnn: "Sequences",
};

const isHidden = (node) =>
  node?.name?.kind === SyntaxKind.PrivateIdentifier ||
  node?.modifiers?.some(({ kind }) => kind === SyntaxKind.PrivateKeyword || kind === SyntaxKind.ProtectedKeyword);

/** The comment above a declaration, or above what it is the value of. */
function commentAbove(node) {
  for (let at = node; at.kind !== SyntaxKind.SourceFile; at = at.parent) {
    // What is said of a table or of a helper type is not said of each that it makes.
    if (at.kind === SyntaxKind.TypeLiteral) return "";
    if (at !== node && at.kind === SyntaxKind.TypeAliasDeclaration) return "";
    if (at.jsDoc?.length > 0) return at.jsDoc.at(-1).getText();
  }
  return "";
}

/** A comment as it is read: its words alone. */
const words = (comment) =>
  comment
    .replace(/^\/\*\* ?/, "")
    .replace(/ ?\*\/$/, "")
    .split("\n")
    .map((line) => line.replace(/^ *\* ?/, ""))
    .join("\n")
    .trim();

const asComment = (text) =>
  text.includes("\n") ? `/**\n${text.replaceAll(/^/gm, " * ")}\n */\n` : text && `/** ${text} */\n`;
const indented = (text) => text.replaceAll(/^(?=.)/gm, "  ");
/** Declarations are indented by four. */
const halfIndented = (text) =>
  text.replaceAll(/^( {4})+/gm, (indent) => " ".repeat(indent.length / 2)).replaceAll(/^( *) \*/gm, "$1 *");
const block = (text) => ["```ts", text, "```", ""];
const without = (text) => text.replaceAll(/^(export |declare )+/gm, "");

const writtenOut = NodeBuilderFlags.NoTruncation | NodeBuilderFlags.InTypeAlias;

const kinds = [SymbolFlags.Class, SymbolFlags.Function | SymbolFlags.Variable];
const kindOf = ({ flags }) => kinds.findIndex((kind) => flags & kind) + 1 || kinds.length + 1;
/** Classes, then functions and constants, then types. */
const byKindAndName = (a, b) => kindOf(a.symbol) - kindOf(b.symbol) || a.name.localeCompare(b.name);

class Reference {
  #declarations;
  #checker;
  /** What the compiler writes for a name that it does not keep. */
  #spelled;
  #names;

  constructor(declarations) {
    this.#declarations = declarations;
    this.#checker = declarations.checker;
    this.#names = new Set(declarations.entries.flatMap(({ exports }) => exports.map(({ symbol }) => symbol.id)));
    const dtype = this.#exported("DType");
    this.#spelled =
      dtype && this.#checker.typeToString(this.#checker.getDeclaredTypeOfSymbol(dtype), undefined, writtenOut);
  }

  markdown() {
    const lines = ["# API", "", "Made from the sources by `npm run docs`; the pages beside this one explain.", ""];
    for (const { name, exports } of this.#declarations.entries) {
      lines.push(`## ${name}`, "");
      for (const exported of [...exports].sort(byKindAndName)) lines.push(...this.#section(exported));
    }
    return `${lines.join("\n").trimEnd()}\n`;
  }

  #exported(name) {
    for (const { exports } of this.#declarations.entries)
      for (const exported of exports) if (exported.name === name) return exported.symbol;
    return undefined;
  }

  #section({ name, symbol }) {
    const nodes = symbol.declarations.map((declaration) => declaration.resolve());
    const own = nodes.find(({ kind }) => kind === SyntaxKind.ClassDeclaration);
    const shown = own ? [own] : nodes;
    const docs = [...new Set(shown.map((node) => words(commentAbove(node))).filter(Boolean))];
    const texts = own ? [this.#classText(symbol, own)] : shown.map((node) => this.#text(node));
    const lines = [`### ${name}`, "", ...docs.flatMap((doc) => [doc, ""]), ...block(texts.join("\n"))];
    for (const [title, methods] of own ? this.#groups(symbol, own, nodes) : [])
      lines.push(`#### ${title}`, "", ...block(methods.join("\n")));
    return lines;
  }

  #text(node) {
    if (node.kind === SyntaxKind.TypeAliasDeclaration && node.type.kind === SyntaxKind.TypeOperator)
      return `type ${node.name.text} = ${this.#checker.typeToString(this.#checker.getTypeAtLocation(node.name), undefined, writtenOut)};`;
    const isVariable = node.kind === SyntaxKind.VariableDeclaration;
    return this.#clean(halfIndented(`${isVariable ? "const " : ""}${without(node.getText())}${isVariable ? ";" : ""}`));
  }

  #classText(symbol, node) {
    const members = node.members
      .filter((member) => !isHidden(member))
      .map((member) => this.#memberText(member) ?? halfIndented(dedented(member)));
    const statics = [...symbol.getExports().values()]
      .filter(({ valueDeclaration }) => valueDeclaration?.kind === SyntaxKind.VariableDeclaration)
      .map((member) => this.#methodText(member, "static "));
    const opening = without(node.getText().slice(0, node.members.pos - node.getStart()));
    return this.#clean([opening, ...[...statics, ...members].map(indented), "}"].join("\n"));
  }

  /** A property that is a function declared elsewhere, as the method that it is. */
  #memberText(member) {
    if (member.kind !== SyntaxKind.PropertyDeclaration || member.type?.kind !== SyntaxKind.TypeQuery) return undefined;
    const isStatic = member.modifiers?.some(({ kind }) => kind === SyntaxKind.StaticKeyword);
    return this.#methodText(this.#checker.getSymbolAtLocation(member.name), isStatic ? "static " : "");
  }

  /** The members that are not in the class itself, as pairs of a title and their texts. */
  #groups(symbol, own, nodes) {
    const found = new Map();
    const type = this.#checker.getDeclaredTypeOfSymbol(symbol);
    const inherited = nodes.filter((node) => node !== own).flatMap((node) => node.heritageClauses ?? []);
    const origins = inherited.flatMap(({ types }) => types).map((node) => this.#checker.getTypeAtLocation(node));
    for (const member of this.#checker.getPropertiesOfType(type)) {
      if (member.name.startsWith("__")) continue;
      const place = member.declarations[0]?.resolve();
      const origin = origins.find((one) => this.#checker.getPropertyOfType(one, member.name));
      if (isHidden(place) || place?.parent === own || !(origin || this.#isPart(place?.parent, nodes))) continue;
      const file = place?.getSourceFile().fileName ?? this.#fileOf(origin);
      const key = basename(file, ".d.ts");
      if (!found.has(key)) found.set(key, []);
      found.get(key).push({ name: member.name, at: place?.pos ?? Number.POSITIVE_INFINITY, member });
    }
    const order = Object.keys(groups);
    return [...found]
      .sort(([a], [b]) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99) || a.localeCompare(b))
      .map(([key, members]) => [
        groups[key] ?? "Others",
        members
          .sort((a, b) => (a.at === b.at ? a.name.localeCompare(b.name) : a.at - b.at))
          .map(({ member }) => this.#clean(this.#methodText(member))),
      ]);
  }

  /** Whether the members of a declaration are those of a class: it is merged with it, or a base that has no name. */
  #isPart(node, nodes) {
    if (node?.kind !== SyntaxKind.ClassDeclaration) return nodes.includes(node);
    const symbol = this.#checker.getSymbolAtLocation(node.name);
    const isOurs = node.getSourceFile().fileName.startsWith(this.#declarations.folder);
    return isOurs && !this.#names.has(symbol.id);
  }

  #fileOf(type) {
    const symbol = type?.getAliasSymbol() ?? type?.getSymbol();
    return symbol?.declarations[0]?.resolve()?.getSourceFile().fileName ?? "";
  }

  /** Every signature of a member, with its words: its own, or those of the function that it is. */
  #methodText(member, prefix = "") {
    const type = this.#checker.getTypeOfSymbol(member);
    const signatures = this.#checker.getSignaturesOfType(type, SignatureKind.Call);
    const own = member.getDocumentationComment(this.#checker);
    const declaration = signatures[0]?.declaration?.resolve();
    const comment = asComment(own || (declaration ? words(commentAbove(declaration)) : ""));
    if (signatures.length === 0)
      return `${comment}${prefix}readonly ${member.name}: ${this.#checker.typeToString(type, undefined, writtenOut)};`;
    return signatures
      .map((one, i) => `${i === 0 ? comment : ""}${prefix}${this.#signature(member.name, one)}`)
      .join("\n");
  }

  #signature(name, signature) {
    const { MethodSignature } = SyntaxKind;
    const node = this.#checker.signatureToSignatureDeclaration(
      signature,
      MethodSignature,
      undefined,
      NodeBuilderFlags.NoTruncation | NodeBuilderFlags.UseAliasDefinedOutsideCurrentScope,
    );
    const print = (one) =>
      this.#declarations.emitter
        .printNode(one)
        .replaceAll(/(?<=\[)\s+|\s+(?=\])/g, "")
        .replaceAll(/\s*\n\s*/g, " ");
    const parameters = node.parameters
      .filter((parameter) => parameter.name.text !== "this")
      .map((parameter) => {
        const type = print(parameter.type);
        const dots = parameter.dotDotDotToken ? "..." : "";
        const given = parameter.questionToken ? `?: ${bare(type.replace(/ \| undefined$/, ""))}` : `: ${type}`;
        return `${dots}${print(parameter.name)}${given}`;
      });
    const generics = node.typeParameters?.length ? `<${node.typeParameters.map(print).join(", ")}>` : "";
    return `${name}${generics}(${parameters.join(", ")}): ${print(node.type)};`;
  }

  /** Names instead of what the compiler writes out. */
  #clean(text) {
    return text
      .replaceAll(this.#spelled ?? "\0", "DType")
      .replaceAll("Tensor<DType>", "Tensor")
      .replaceAll("<ArrayBufferLike>", "")
      .replaceAll(/import\("[^"]*"\)\./g, "")
      .replaceAll(/\?: ([^;{}()]*) \| undefined(?=[;,)])/g, "?: $1");
  }
}

/** `(A & B)` without its parentheses, where they are around all of it. */
const bare = (type) => (/^\([^()]*\)$/.test(type) ? type.slice(1, -1) : type);

/** A member with the comment above it, at the left edge. */
function dedented(member) {
  const text = member.getFullText().replace(/^\s*\n/, "");
  const depth = /^ */.exec(text)[0].length;
  return text.replaceAll(new RegExp(`^ {0,${depth}}`, "gm"), "");
}

/** `folder` holds the package's package.json and what is compiled, in `dist`. */
export function apiMarkdown(folder) {
  const declarations = openDeclarations(folder);
  try {
    return new Reference(declarations).markdown();
  } finally {
    declarations.close();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const root = fileURLToPath(new URL("..", import.meta.url));
  writeFileSync(join(root, "docs/api.md"), apiMarkdown(root));
}
