/** Chat messages as the text a model was trained on, by its Jinja template. */
import { Template } from "@huggingface/jinja";
import { fail } from "../../core/errors.ts";

export interface ChatMessage {
  readonly role: "system" | "user" | "assistant" | "tool" | (string & {});
  readonly content: string;
}

export interface RenderOptions {
  /** Ends with the opening of the assistant's turn. Default true. */
  readonly addGenerationPrompt?: boolean;
  /** Further variables of the template, such as `tools` or `enable_thinking`. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** For models without a template: the messages as paragraphs, which the model goes on with. */
export const PLAIN_TEMPLATE =
  "{{ bos_token }}{% for message in messages %}{{ message.content }}{% if not loop.last %}\n\n{% endif %}{% endfor %}";

export class ChatTemplate {
  /** The template's text. */
  readonly source: string;
  readonly #template: Template;
  readonly #tokens: Readonly<Record<string, string>>;

  /** `tokens` are special tokens by name (bos_token, eos_token), which templates write themselves. */
  constructor(source: string, tokens: Readonly<Record<string, string>> = {}) {
    this.source = source;
    this.#tokens = tokens;
    try {
      this.#template = new Template(source);
    } catch (cause) {
      this.#template = fail("InvalidFile", `the chat template cannot be parsed: ${(cause as Error).message}`, {
        cause,
      });
    }
  }

  render(messages: readonly ChatMessage[], options: RenderOptions = {}): string {
    if (messages.length === 0) fail("InvalidArgument", "a chat needs at least one message");
    for (const message of messages) {
      if (typeof message.role !== "string" || typeof message.content !== "string") {
        fail("InvalidArgument", `a chat message needs a role and a content, both text; got ${JSON.stringify(message)}`);
      }
    }
    try {
      return this.#template.render({
        ...this.#tokens,
        ...options.variables,
        messages,
        add_generation_prompt: options.addGenerationPrompt ?? true,
      });
    } catch (cause) {
      // Templates refuse what they were not made for, such as a system message or two user messages in a row.
      return fail("InvalidArgument", `the chat template refuses these messages: ${(cause as Error).message}`, {
        cause,
      });
    }
  }
}
