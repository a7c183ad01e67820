/** Tool calls in the form that a model was taught: its markers around JSON that fits the parameters of the tool. */
import { fail } from "../../core/errors.ts";
import { type AnswerForm, innerMarkers, markersOf, type ToolCallForm } from "../../models/chat/answer-form.ts";
import type { ToolDefinition } from "../../models/chat/messages.ts";
import { choice, type Expression, Grammar, isNothing, optional, repeat, sequence, text } from "./expression.ts";
import { COMMA, SPACE } from "./json-text.ts";
import { schemaExpression } from "./schema-grammar.ts";

export interface ToolGrammarOptions {
  /** How the model writes calls. */
  readonly form: AnswerForm;
  readonly tools: readonly ToolDefinition[];
  /** Only these. Default: all. */
  readonly names?: readonly string[] | undefined;
  /** Several calls in one answer. Default false. */
  readonly parallel?: boolean | undefined;
  /** Asks the vocabulary, where a form has changed over time. Default: it has none of them. */
  readonly hasToken?: ((token: string) => boolean) | undefined;
}

interface Call {
  readonly name: string;
  readonly json: string;
  readonly arguments: Expression;
}

/** One call, and what stands around all of them and between two. */
interface CallForm {
  readonly call: (call: Call) => Expression;
  readonly before?: Expression;
  readonly between?: Expression;
  readonly after?: Expression;
}

/** `{"name": …, "arguments": …}`, by the names that the model has for these. */
const jsonCall = (nameKey: string, argumentsKey: string, first = "") => {
  return ({ json, arguments: args }: Call): Expression =>
    sequence(text(`{${first}"${nameKey}": ${json}, "${argumentsKey}": `), args, text("}"));
};
const list = (open: string, call: CallForm["call"], close: Expression): CallForm => {
  return { before: sequence(text(`${open}[`), SPACE), call, between: COMMA, after: sequence(SPACE, text("]"), close) };
};

const plain: CallForm = { call: jsonCall("name", "arguments"), between: text("; ") };

const forms: Readonly<Record<ToolCallForm, (hasToken: (token: string) => boolean) => CallForm>> = {
  none: () => plain,
  llama3: () => ({ ...plain, call: jsonCall("name", "parameters") }),
  hermes: () => ({
    call: (call) => sequence(text("<tool_call>\n"), plain.call(call), text("\n</tool_call>")),
    between: text("\n"),
  }),
  nemotron: () => list("<TOOLCALL>", plain.call, text("</TOOLCALL>")),
  granite: (hasToken) =>
    list("<|tool_call|>", plain.call, hasToken("<|/tool_call|>") ? text("<|/tool_call|>") : optional(text("\n"))),
  cohere: () =>
    list("<|START_ACTION|>", jsonCall("tool_name", "parameters", '"tool_call_id": "0", '), text("<|END_ACTION|>")),
  mistral: (hasToken) =>
    hasToken("[ARGS]")
      ? { call: ({ name, arguments: args }) => sequence(text(`[TOOL_CALLS]${name}[ARGS]`), args) }
      : list("[TOOL_CALLS]", plain.call, text("")),
  kimi: () => ({
    before: text("<|tool_calls_section_begin|>"),
    call: ({ name, arguments: args }) =>
      sequence(
        text(`<|tool_call_begin|>functions.${name}:`),
        repeat({ kind: "class", ranges: [[0x30, 0x39]] }, 1, 2),
        text("<|tool_call_argument_begin|>"),
        args,
        text("<|tool_call_end|>"),
      ),
    after: text("<|tool_calls_section_end|>"),
  }),
  deepseek: () => ({
    before: text("<｜tool▁calls▁begin｜>"),
    call: ({ name, arguments: args }) =>
      sequence(text(`<｜tool▁call▁begin｜>${name}<｜tool▁sep｜>`), args, text("<｜tool▁call▁end｜>")),
    after: text("<｜tool▁calls▁end｜>"),
  }),
  harmony: () => ({
    call: ({ name, arguments: args }) =>
      sequence(text(`<|channel|>commentary to=functions.${name} <|constrain|>json<|message|>`), args),
    between: text("<|end|><|start|>assistant"),
  }),
};

export function toolGrammar({ form, tools, names, parallel = false, hasToken = () => false }: ToolGrammarOptions): {
  readonly root: Expression;
  readonly grammar: Grammar;
  readonly form: AnswerForm;
  readonly markers: readonly string[];
} {
  const grammar = new Grammar();
  const chosen = tools.filter(({ function: { name } }) => !names || names.includes(name));
  if (chosen.length === 0) {
    fail(
      "InvalidArgument",
      `none of the tools is ${names ? names.join(" or ") : "there"}; name one of ${namesOf(tools)}`,
    );
  }
  const { call, before, between = text(""), after } = forms[form.toolCalls](hasToken);
  const calls = chosen.map(({ function: { name, parameters } }) => {
    const args = schemaExpression(objectSchema(parameters), grammar);
    if (isNothing(args)) fail("InvalidArgument", `no arguments fit the parameters of the tool ${name}`);
    return call({ name, json: JSON.stringify(name), arguments: args });
  });
  const one = grammar.define("call", () => choice(...calls));
  const all = sequence(one, repeat(sequence(between, one), 0, parallel ? null : 0));
  const read = form.toolCalls === "none" ? { ...form, toolCalls: "llama3" as const } : form;
  const root = sequence(before ?? text(""), all, after ?? text(""));
  return { root, grammar, form: read, markers: [...markersOf(form), ...innerMarkers] };
}

const namesOf = (tools: readonly ToolDefinition[]): string => tools.map((tool) => tool.function.name).join(", ");

/** Arguments are an object, whatever else is said of them. */
function objectSchema(parameters: ToolDefinition["function"]["parameters"]): object {
  if (!parameters) return { type: "object", additionalProperties: false };
  return parameters.type === undefined ? { ...parameters, type: "object" } : parameters;
}
