/** Chat messages as the text a model was trained on, by its Jinja template. */
import { Template } from "@huggingface/jinja";
import { fail, WickError } from "../../core/errors.ts";
import { type ChatMessage, checkTools, type MessageForm, messagesFor, type ToolDefinition } from "../chat/messages.ts";
import { LimitedInterpreter, TemplateStopped } from "./limited-interpreter.ts";

export interface RenderOptions {
  /** Ends with the opening of the assistant's turn. Default true. */
  readonly addGenerationPrompt?: boolean;
  /** Functions that the model may ask for. */
  readonly tools?: readonly ToolDefinition[] | undefined;
  /** Further variables of the template, such as `enable_thinking`. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

/** For models without a template: the messages as paragraphs, which the model goes on with. */
export const PLAIN_TEMPLATE =
  "{{ bos_token }}{% for message in messages %}{{ message.content }}{% if not loop.last %}\n\n{% endif %}{% endfor %}";

const LONGEST_TEMPLATE = 2 ** 20;
/** A word that no template has. */
const NEEDLE = "wick4needle";

export class ChatTemplate {
  /** The template's text. */
  readonly source: string;
  /** Takes its place where there are tools. */
  readonly forTools: ChatTemplate | null;
  readonly #template: Template;
  readonly #tokens: Readonly<Record<string, string>>;
  #form: MessageForm | undefined;

  /**
   * `tokens` are special tokens by name (bos_token, eos_token), which templates write themselves. `toolSource` is the template for
   * chats with tools, where a model has one of its own ("tool_use").
   */
  constructor(source: string, tokens: Readonly<Record<string, string>> = {}, toolSource?: string) {
    this.source = source;
    this.forTools = toolSource === undefined ? null : new ChatTemplate(toolSource, tokens);
    this.#tokens = tokens;
    if (source.length > LONGEST_TEMPLATE)
      fail("InvalidFile", `the chat template has ${source.length} characters, which is more than any model's`);
    try {
      this.#template = new Template(source);
    } catch (cause) {
      this.#template = fail("InvalidFile", `the chat template cannot be parsed: ${(cause as Error).message}`, {
        cause,
      });
    }
  }

  /** Whether it has a place for the definitions of tools. */
  get takesTools(): boolean {
    return this.forTools !== null || /\b(xml_)?tools\b/.test(this.source);
  }

  /**
   * How it takes content and the arguments of tool calls: templates do not say, so it is tried. Text and objects are what most take;
   * one that does not write them, and writes the other, is given parts, or JSON.
   */
  get form(): MessageForm {
    const content = (value: unknown) => this.#writes(NEEDLE, [{ role: "user", content: value }]);
    const args = (value: unknown) => this.#writes(NEEDLE, callingChat(value));
    this.#form ??= {
      content: !content(NEEDLE) && content([{ type: "text", text: NEEDLE }]) ? "parts" : "text",
      arguments: !args({ [NEEDLE]: 1 }) && args(JSON.stringify({ [NEEDLE]: 1 })) ? "text" : "object",
    };
    return this.#form;
  }

  render(messages: readonly ChatMessage[], options: RenderOptions = {}): string {
    const { tools, variables, addGenerationPrompt = true } = options;
    if (tools) checkTools(tools);
    if (tools && tools.length > 0 && this.forTools) return this.forTools.render(messages, options);
    if (tools && tools.length > 0 && !this.takesTools)
      fail("InvalidArgument", "the model's chat template has no place for tools; describe them in the system message");
    try {
      return this.#render({
        ...variables,
        // SmolLM3's has them by the form in which they are to be called.
        ...(tools && tools.length > 0 && { tools, xml_tools: tools }),
        messages: messagesFor(messages, this.form),
        add_generation_prompt: addGenerationPrompt,
      });
    } catch (cause) {
      if (cause instanceof WickError) throw cause;
      const { message } = cause as Error;
      if (isStop(cause))
        return fail("InvalidFile", `the chat template was stopped: it ${message}; load the model with another`, {
          cause,
        });
      // Templates refuse what they were not made for, such as a system message or two user messages in a row.
      return fail("InvalidArgument", `the chat template refuses these messages: ${message}`, { cause });
    }
  }

  #render(variables: Readonly<Record<string, unknown>>): string {
    const all = { ...this.#tokens, ...variables };
    const { value } = new LimitedInterpreter(all, JSON.stringify(all).length).run(this.#template.parsed);
    return value as string;
  }

  #writes(needle: string, messages: readonly unknown[]): boolean {
    try {
      const text = this.#render({ messages, add_generation_prompt: false });
      // Parts that are written out as they are have not been taken.
      return text.includes(needle) && !text.includes(`"text": "${NEEDLE}`);
    } catch (error) {
      if (isStop(error)) throw error;
      return false;
    }
  }
}

function callingChat(args: unknown): readonly unknown[] {
  // Nine letters or digits: Mistral's templates refuse others.
  const id = "wick4call";
  return [
    { role: "user", content: "a" },
    {
      role: "assistant",
      content: "",
      tool_calls: [{ id, type: "function", function: { name: "f", arguments: args } }],
    },
    { role: "tool", name: "f", tool_call_id: id, content: "b" },
  ];
}

/** Also where the engine gives up by itself: at a stack too deep, or a text too long. */
const isStop = (error: unknown): boolean => error instanceof TemplateStopped || error instanceof RangeError;
