/** Grammars asked without a model: a vocabulary of bytes, and one that babbles. */
import { loadXgrammar } from "../../../src/serving/grammar/xgrammar.js";
import type { TokenConstraint } from "../../../src/serving/request.ts";

const END = 256;

/** Which texts a grammar takes as a whole. */
export async function taker(ebnf: string): Promise<(text: string | Uint8Array) => boolean> {
  const xgrammar = await loaded();
  const grammar = await xgrammar.Grammar.fromEBNF(ebnf);
  const compiled = await (await compiler(xgrammar)).compileGrammar(grammar);
  const matcher = await xgrammar.GrammarMatcher.createGrammarMatcher(compiled);
  return (text) => {
    const bytes = typeof text === "string" ? new TextEncoder().encode(text) : text;
    const takes = bytes.every((byte) => matcher.acceptToken(byte)) && matcher.acceptToken(END);
    matcher.reset();
    return takes;
  };
}

type Xgrammar = ReturnType<typeof loadXgrammar>;
let xgrammar: Xgrammar | undefined;
const loaded = async (): Promise<Xgrammar> => {
  xgrammar ??= loadXgrammar();
  return xgrammar;
};
let made: Promise<Awaited<ReturnType<Xgrammar["GrammarCompiler"]["createGrammarCompiler"]>>> | undefined;
const compiler = (from: Xgrammar): NonNullable<typeof made> => {
  const texts = [...Array.from({ length: END }, (_, i) => Uint8Array.of(i)), new Uint8Array()] as unknown as string[];
  made ??= from.TokenizerInfo.createTokenizerInfo(texts, "raw", false, END + 1, [END]).then((info) =>
    from.GrammarCompiler.createGrammarCompiler(info, false),
  );
  return made;
};

/** The tokens of a model that says whatever it may. */
export function babble(
  constraint: TokenConstraint,
  vocabSize: number,
  ends: readonly number[],
  limit: number,
  seed = 1,
): number[] | null {
  const said: number[] = [];
  let state = seed;
  while (!constraint.ended) {
    const mask = constraint.mask()!;
    const allowed: number[] = [];
    for (let id = 0; id < vocabSize; id++) if ((mask[id >> 5]! >> (id & 31)) & 1) allowed.push(id);
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const token = allowed[Math.floor((state / 2 ** 32) * allowed.length)]!;
    if (ends.includes(token)) break;
    said.push(token);
    if (said.length >= limit) return null;
    constraint.accept(token);
  }
  return said;
}
