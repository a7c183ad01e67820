/** Which types the package's public signatures mention that users cannot name, because no entry exports them. */
import {
  type ImportTypeNode,
  isExpressionWithTypeArguments,
  isImportTypeNode,
  isIntersectionTypeNode,
  isMappedTypeNode,
  isTypeAliasDeclaration,
  isTypeOperatorNode,
  isTypeParameterDeclaration,
  isTypeQueryNode,
  isTypeReferenceNode,
  isVariableDeclaration,
  type Node,
  SyntaxKind,
  type TypeNode,
  type TypeReferenceNode,
} from "typescript/unstable/ast";
import { type Symbol as CheckedSymbol, SymbolFlags } from "typescript/unstable/sync";
import { openDeclarations } from "../../scripts/declarations.mjs";

/** `Type (file), mentioned by Owner.member`, for the package in `folder`. */
export function unexportedTypes(folder: string): string[] {
  const { checker, entries, original, close } = openDeclarations(folder);
  const exported = new Set(entries.flatMap((entry) => entry.exports.map(({ symbol }) => symbol.id)));
  const found = new Set<string>();
  const inlined = new Set<number>();

  const isNameless = (symbol: CheckedSymbol): boolean =>
    !exported.has(symbol.id) &&
    (symbol.flags & SymbolFlags.TypeParameter) === 0 &&
    // What is global has its name everywhere.
    symbol.declarations.some(({ path }) => path.startsWith(`${folder}/dist/`) && !path.endsWith("/globals.d.ts"));

  const mentioned = (node: Node): CheckedSymbol | undefined => {
    let name: Node | undefined;
    if (isTypeReferenceNode(node)) name = node.typeName;
    else if (isImportTypeNode(node)) name = node.qualifier;
    else if (isTypeQueryNode(node)) name = node.exprName;
    else if (isExpressionWithTypeArguments(node)) name = node.expression;
    const symbol = name && checker.getSymbolAtLocation(name);
    return symbol && original(symbol);
  };

  /** Strings, such as the names of a table's members. */
  const isNames = (node: TypeNode): boolean => {
    const type = checker.getTypeFromTypeNode(node);
    const parts = type?.isUnionType() ? type.getTypes() : [type];
    return parts.every((part) => part?.isStringLiteralType());
  };

  const visitChildren = (node: Node, owner: string): void => {
    node.forEachChild((child) => visit(child, owner));
  };

  function visit(node: Node, owner: string): void {
    if (isPrivate(node)) return;
    // `keyof typeof table` and `[Name in Names]` show names, not what they stand for.
    if (isTypeOperatorNode(node) && node.operator === SyntaxKind.KeyOfKeyword) return;
    if (isTypeParameterDeclaration(node) && isMappedTypeNode(node.parent)) return;
    if (isWhole(node)) visitParts(node, owner);
    else if (isTypeReferenceNode(node) || isImportTypeNode(node)) visitMention(node, owner);
    else {
      const member = memberName(node);
      visitChildren(node, member ? `${owner}.${member}` : owner);
    }
  }

  function visitMention(node: TypeReferenceNode | ImportTypeNode, owner: string): void {
    const symbol = mentioned(node);
    // What computes a type from others is no type that anything has.
    if (symbol && isNameless(symbol) && isComputed(symbol)) visitParts(node, owner);
    else if (symbol && isNameless(symbol)) {
      const file = symbol.declarations[0]!.path.slice(folder.length + 1);
      found.add(`${symbol.name} (${file}), mentioned by ${owner}`);
    }
    visitArguments(node, owner);
  }

  /** What a declaration takes over whole, by `extends` or `typeof`, counts as its own and needs no name. */
  function visitParts(node: Node, owner: string): void {
    if (isIntersectionTypeNode(node)) for (const part of node.types) visitParts(part, owner);
    else if (isWhole(node) || isTypeReferenceNode(node)) {
      const symbol = mentioned(node);
      if (symbol && isNameless(symbol) && !inlined.has(symbol.id)) {
        inlined.add(symbol.id);
        for (const declaration of symbol.declarations) visitWhole(declaration.resolve()!, owner);
      }
      visitArguments(node, owner);
    } else visit(node, owner);
  }

  function visitWhole(node: Node, owner: string): void {
    if ((isTypeAliasDeclaration(node) || isVariableDeclaration(node)) && node.type) visitParts(node.type, owner);
    else visitChildren(node, owner);
  }

  function visitArguments(node: Node, owner: string): void {
    const given = "typeArguments" in node ? (node.typeArguments as readonly TypeNode[] | undefined) : undefined;
    for (const argument of given ?? []) if (!isNames(argument)) visit(argument, owner);
  }

  for (const { exports } of entries)
    for (const { name, symbol } of exports)
      for (const declaration of symbol.declarations) visitChildren(declaration.resolve()!, name);
  close();
  return [...found].sort();
}

/** `extends Base`, `typeof value` and `typeof import("…").value`. */
const isWhole = (node: Node): boolean =>
  isExpressionWithTypeArguments(node) || isTypeQueryNode(node) || (isImportTypeNode(node) && node.isTypeOf);

const isComputed = (symbol: CheckedSymbol): boolean =>
  symbol.declarations.some((declaration) => {
    const node = declaration.resolve()!;
    return isTypeAliasDeclaration(node) && (node.typeParameters?.length ?? 0) > 0;
  });

const isPrivate = (node: Node): boolean =>
  memberName(node)?.startsWith("#") === true ||
  ("modifiers" in node &&
    (node.modifiers as readonly Node[] | undefined)?.some(({ kind }) => kind === SyntaxKind.PrivateKeyword) === true);

const memberName = (node: Node): string | undefined => {
  const name = "name" in node ? (node.name as { readonly text?: string } | undefined) : undefined;
  return members.has(node.kind) ? name?.text : undefined;
};

const members: ReadonlySet<SyntaxKind> = new Set([
  SyntaxKind.MethodDeclaration,
  SyntaxKind.MethodSignature,
  SyntaxKind.PropertyDeclaration,
  SyntaxKind.PropertySignature,
  SyntaxKind.GetAccessor,
]);
