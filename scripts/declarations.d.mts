import type { Symbol as CheckedSymbol, Checker } from "typescript/unstable/sync";

export interface Exported {
  readonly name: string;
  readonly symbol: CheckedSymbol;
}

export interface Declarations {
  readonly folder: string;
  readonly checker: Checker;
  readonly emitter: Emitter;
  original(symbol: CheckedSymbol): CheckedSymbol;
  readonly entries: readonly { readonly name: string; readonly file: string; readonly exports: readonly Exported[] }[];
  close(): void;
}

export function openDeclarations(folder: string): Declarations;
