/**
 * Grammars for the answers of one model: JSON, JSON schemas, regular expressions, GBNF and tool calls, compiled by xgrammar on
 * a thread of its own, which starts when the first is asked for.
 */
import { fail } from "../../core/errors.ts";
import type { AnswerForm } from "../../models/chat/answer-form.ts";
import type { Tokenizer } from "../../models/text/tokenizer.ts";
import type { TokenConstraint } from "../request.ts";
import { toEbnf } from "./ebnf.ts";
import { type Expression, Grammar, leastBytes, longestDetour, sequence, shortest } from "./expression.ts";
import { parseGbnf } from "./gbnf.ts";
import { GrammarThread, type GrammarThreadOptions } from "./grammar-thread.ts";
import { anyObject, SPACE } from "./json-text.ts";
import { parsePattern } from "./regex.ts";
import { schemaGrammar } from "./schema-grammar.ts";
import { type ToolGrammarOptions, toolGrammar } from "./tool-grammar.ts";
import { vocabularyOf } from "./vocabulary.ts";

export interface GrammarLimits {
  /** Characters of a schema, pattern or grammar. Default 256 Ki. */
  readonly characters?: number | undefined;
  /** Milliseconds until a grammar has to be compiled. Default 10,000. */
  readonly milliseconds?: number | undefined;
  /** Bytes that compiling may take. Default 1 GiB. */
  readonly memory?: number | undefined;
}

export interface GrammarsOptions extends GrammarLimits {
  readonly tokenizer: Tokenizer;
  /** How many logits there are. */
  readonly vocabSize: number;
  /** Tokens that end an answer: they may come where the grammar may end. */
  readonly eosTokens: readonly number[];
}

export interface ConstraintOptions {
  /**
   * The most tokens of the answer. As they run out only what brings it to its end may come, so that the text is whole. Default:
   * as many as the model likes.
   */
  readonly maxTokens?: number | undefined;
}

export interface CompiledGrammar {
  /** For one answer. */
  constraint(options?: ConstraintOptions): TokenConstraint;
  /** Of a grammar for tool calls: the form that the answer is to be read by. */
  readonly form: AnswerForm | null;
  /** Special tokens that are text of this grammar, as the markers of tool calls are. */
  readonly showTokens: readonly string[];
}

interface Rules {
  readonly root: Expression;
  readonly grammar: Grammar;
  readonly form?: AnswerForm;
  readonly markers?: readonly string[];
}

const CHARACTERS = 2 ** 18;
const MOST_DEPTH = 500;

export class Grammars implements Disposable {
  readonly #options: GrammarsOptions;
  #thread: GrammarThread | null = null;
  #disposed = false;

  constructor(options: GrammarsOptions) {
    if (options.eosTokens.length === 0) {
      fail("InvalidArgument", "a grammar needs a token that ends the answer, and the model names none");
    }
    this.#options = options;
  }

  /** Any JSON object. */
  json(): Promise<CompiledGrammar> {
    return this.#compile(
      () => "",
      () => {
        const grammar = new Grammar();
        return { root: sequence(SPACE, anyObject(grammar)), grammar };
      },
    );
  }

  /** Values that fit a JSON schema. */
  schema(schema: unknown): Promise<CompiledGrammar> {
    return this.#compile(
      () => written(schema),
      () => schemaGrammar(schema),
    );
  }

  /** Texts that a regular expression, of JavaScript's with the flag u, matches as a whole. */
  regex(pattern: string): Promise<CompiledGrammar> {
    return this.#compile(
      () => pattern,
      () => ({ root: parsePattern(pattern).expression, grammar: new Grammar() }),
    );
  }

  /** llama.cpp's GBNF; the answer is what its rule "root" has. */
  gbnf(source: string): Promise<CompiledGrammar> {
    return this.#compile(
      () => source,
      () => parseGbnf(source),
    );
  }

  /** Tool calls in the model's own form, and nothing else. */
  tools(options: ToolGrammarOptions): Promise<CompiledGrammar> {
    const hasToken = (token: string): boolean => this.#options.tokenizer.tokenId(token) !== undefined;
    return this.#compile(
      () => written(options.tools),
      () => toolGrammar({ hasToken, ...options }),
    );
  }

  [Symbol.dispose](): void {
    this.#disposed = true;
    this.#thread?.[Symbol.dispose]();
    this.#thread = null;
  }

  async #compile(textOf: () => string, make: () => Rules): Promise<CompiledGrammar> {
    if (this.#disposed) fail("Disposed", "the grammars were disposed with their model");
    const { characters = CHARACTERS, tokenizer } = this.#options;
    const { length } = textOf();
    if (length > characters) {
      fail("InvalidArgument", `a grammar of ${length} characters is too long; at most ${characters} are taken`);
    }
    const { root, grammar, form = null, markers = [] } = make();
    const ids = markers.flatMap((marker) => {
      const id = tokenizer.tokenId(marker);
      return id === undefined || tokenizer.bytes(id) !== null ? [] : [[id, marker] as const];
    });
    const source = { ebnf: toEbnf(root, grammar.rules), shown: ids };
    this.#thread ??= new GrammarThread(this.#threadOptions());
    const thread = this.#thread;
    await thread.compile(source);
    const ways = { least: leastBytes(root, shortest(grammar.rules)), margin: longestDetour(root, grammar.rules) };
    return {
      form,
      showTokens: ids.map(([, marker]) => marker),
      constraint: ({ maxTokens }: ConstraintOptions = {}) => thread.open({ source, left: maxTokens ?? null, ...ways }),
    };
  }

  #threadOptions(): GrammarThreadOptions {
    const { tokenizer, vocabSize, eosTokens, milliseconds = 10_000, memory = 2 ** 30 } = this.#options;
    return {
      ...{ vocabulary: vocabularyOf(tokenizer, vocabSize), vocabSize, memory, milliseconds },
      stopTokens: eosTokens.filter((id) => id < vocabSize),
    };
  }
}

/** A schema as text; one that is too deep for that is too deep for all else. */
function written(schema: unknown): string {
  let depth = 0;
  for (let level: unknown[] = [schema]; level.length > 0; depth++) {
    if (depth > MOST_DEPTH) fail("InvalidArgument", `the JSON schema has more than ${MOST_DEPTH} levels`);
    level = level.flatMap((value) => (typeof value === "object" && value !== null ? Object.values(value) : []));
  }
  return JSON.stringify(schema) ?? "";
}
