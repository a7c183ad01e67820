/** What the text of an answer must be, by its format or by the tool it has to call: one grammar, and a constraint for each answer. */
import { WickError } from "../../core/errors.ts";
import type { AnswerForm } from "../../models/chat/answer-form.ts";
import { answerFormOf, type Turn } from "../../models/chat/chat.ts";
import { TextStream } from "../../models/text/text-stream.ts";
import type { Tokenizer } from "../../models/text/tokenizer.ts";
import type { CompiledGrammar, Grammars } from "../grammar/grammars.ts";
import type { TokenConstraint } from "../request.ts";
import type { ToolFields } from "./chat-fields.ts";
import { invalid } from "./errors.ts";
import type { Format } from "./format-fields.ts";
import type { Lease } from "./registry.ts";
import type { EndFields } from "./sampling-fields.ts";

export interface Constrained {
  readonly format: Format | null;
  readonly tools?: ToolFields;
  readonly end: EndFields;
}

export class Constraints implements Disposable {
  readonly #grammar: CompiledGrammar | null;
  readonly #lease: Lease;
  readonly #maxTokens: number;
  readonly #open: TokenConstraint[] = [];

  private constructor(grammar: CompiledGrammar | null, lease: Lease, { maxTokens }: EndFields) {
    this.#grammar = grammar;
    this.#lease = lease;
    this.#maxTokens = maxTokens ?? Number.MAX_SAFE_INTEGER;
  }

  static async open(lease: Lease, request: Constrained): Promise<Constraints> {
    const { format, tools, end } = request;
    const isForced = tools !== undefined && tools.choice !== "none" && tools.choice !== "auto";
    if (isForced && format) invalid("tool_choice", "an answer that must call a tool can have no other format");
    const grammar = isForced
      ? await compiled("tools", () => calls(lease, tools))
      : format && (await compiled(paramOf(format), () => written(lease.grammars, format)));
    return new Constraints(grammar, lease, end);
  }

  /** What the answer is to be read by, where that is otherwise than the model's own form. */
  get answerForm(): Partial<AnswerForm> | undefined {
    if (this.#grammar === null) return undefined;
    return { toolCalls: this.#grammar.form?.toolCalls ?? "none" };
  }

  get showTokens(): readonly string[] {
    return this.#grammar?.showTokens ?? [];
  }

  /** For one more answer to this prompt. */
  next(prompt: readonly number[], turn?: Turn): TokenConstraint | undefined {
    const grammar = this.#grammar;
    if (!grammar) return undefined;
    const { config, tokenizer } = this.#lease.model;
    const maxTokens = Math.min(this.#maxTokens, config.contextLength - prompt.length);
    const close = turn?.startsInReasoning ? turn.form.reasoning?.close : undefined;
    const constraint =
      close === undefined
        ? grammar.constraint({ maxTokens })
        : new AfterReasoning(grammar, maxTokens, close, tokenizer!, prompt);
    this.#open.push(constraint);
    return constraint;
  }

  [Symbol.dispose](): void {
    for (const constraint of this.#open) constraint[Symbol.dispose]();
  }
}

/** Compiling says what is wrong with what the client sent. */
async function compiled(param: string | null, compile: () => Promise<CompiledGrammar>): Promise<CompiledGrammar> {
  try {
    return await compile();
  } catch (error) {
    if (error instanceof WickError && error.code === "InvalidArgument") return invalid(param, error.message);
    throw error;
  }
}

const paramOf = (format: Format): string => (format.kind === "json" ? "response_format" : format.param);

function written(grammars: Grammars, format: Format): Promise<CompiledGrammar> {
  switch (format.kind) {
    case "json":
      return grammars.json();
    case "schema":
      return grammars.schema(format.schema);
    case "regex":
      return grammars.regex(format.pattern);
    case "grammar":
      return grammars.gbnf(format.grammar);
    default:
      return format satisfies never;
  }
}

function calls(
  { model, template, grammars }: Lease,
  { tools, choice, isParallel }: ToolFields,
): Promise<CompiledGrammar> {
  return grammars.tools({
    form: answerFormOf({ tokenizer: model.tokenizer, chatTemplate: template }),
    tools,
    names: typeof choice === "string" ? undefined : [choice.name],
    parallel: isParallel,
  });
}

/** Lets a model think as it likes where the prompt has opened its reasoning, and begins behind the marker that closes it. */
class AfterReasoning implements TokenConstraint {
  readonly #grammar: CompiledGrammar;
  readonly #close: string;
  readonly #stream: TextStream;
  #left: number;
  #said = "";
  #inner: TokenConstraint | null = null;

  constructor(
    grammar: CompiledGrammar,
    maxTokens: number,
    close: string,
    tokenizer: Tokenizer,
    prompt: readonly number[],
  ) {
    this.#grammar = grammar;
    this.#left = maxTokens;
    this.#close = close;
    this.#stream = new TextStream(tokenizer, prompt, [], [close]);
  }

  mask(): Uint32Array | null {
    return this.#inner?.mask() ?? null;
  }

  accept(token: number): void {
    if (this.#inner) {
      this.#inner.accept(token);
      return;
    }
    this.#left--;
    this.#said = (this.#said + this.#stream.push(token)).slice(-2 * this.#close.length);
    if (this.#said.includes(this.#close)) this.#inner = this.#grammar.constraint({ maxTokens: this.#left });
  }

  get ended(): boolean {
    return this.#inner?.ended ?? false;
  }

  [Symbol.dispose](): void {
    this.#inner?.[Symbol.dispose]();
  }
}
