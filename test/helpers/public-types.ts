/** Which types the package's public signatures mention that users cannot name, because no entry exports them. */
import {
  isExpressionWithTypeArguments,
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
} from "typescript/unstable/ast";
import { type Symbol as CheckedSymbol, SymbolFlags } from "typescript/unstable/sync";
import { openDeclarations } from "../../scripts/declarations.mjs";

/** `Type (file), mentioned by Owner.member`, for the package in `folder`. */
export function unexportedTypes(folder: string): string[] {
  const { checker, entries, original, close } = openDeclarations(folder);
  const exported = new Set(entries.flatMap((entry) => entry.exports.map(({ symbol }) => symbol.id)));
  const found = new Set<string>();

  const isNameless = (symbol: CheckedSymbol): boolean =>
    !exported.has(symbol.id) &&
    (symbol.flags & SymbolFlags.TypeParameter) === 0 &&
    // What is global has its name everywhere.
    symbol.declarations.some(({ path }) => path.startsWith(`${folder}/dist/`) && !path.endsWith("/globals.d.ts"));

  const mentioned = (node: Node): CheckedSymbol | undefined => {
    const name = isTypeReferenceNode(node)
      ? node.typeName
      : isTypeQueryNode(node)
        ? node.exprName
        : isExpressionWithTypeArguments(node)
          ? node.expression
          : undefined;
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
    if (isExpressionWithTypeArguments(node) || isTypeQueryNode(node)) visitParts(node, owner);
    const symbol = isTypeReferenceNode(node) ? mentioned(node) : undefined;
    if (symbol && isNameless(symbol)) {
      const file = symbol.declarations[0]!.path.slice(folder.length + 1);
      found.add(`${symbol.name} (${file}), mentioned by ${owner}`);
    }
    const member = memberName(node);
    visitChildren(node, member ? `${owner}.${member}` : owner);
  }

  /** What a declaration takes over whole, by `extends` or `typeof`, counts as its own and needs no name. */
  function visitParts(node: Node, owner: string): void {
    if (isIntersectionTypeNode(node)) for (const part of node.types) visitParts(part, owner);
    else if (isExpressionWithTypeArguments(node) || isTypeQueryNode(node) || isTypeReferenceNode(node)) {
      const symbol = mentioned(node);
      for (const declaration of symbol && isNameless(symbol) ? symbol.declarations : []) {
        const whole = declaration.resolve()!;
        if ((isTypeAliasDeclaration(whole) || isVariableDeclaration(whole)) && whole.type)
          visitParts(whole.type, owner);
        else visitChildren(whole, owner);
      }
      if (!isTypeQueryNode(node))
        for (const argument of node.typeArguments ?? []) if (!isNames(argument)) visit(argument, owner);
    } else visitChildren(node, owner);
  }

  for (const { exports } of entries)
    for (const { name, symbol } of exports)
      for (const declaration of symbol.declarations) visitChildren(declaration.resolve()!, name);
  close();
  return [...found].sort();
}

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
