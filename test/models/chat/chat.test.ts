/** A turn of a chat: special tokens that mean something are seen, the answer's parts come one by one, and `wick chat` shows them. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { beforeAll, describe, expect, it } from "vitest";
import { Conversation, readTools } from "../../../src/cli/conversation.ts";
import { type ChatModel, chat } from "../../../src/models/chat/chat.ts";
import type { GenerateOptions, Piece } from "../../../src/models/generation/generate.ts";
import {
  type ChatEvent,
  type ChatOptions,
  ChatTemplate,
  loadModel,
  type Model,
  Tokenizer,
  type ToolDefinition,
} from "../../../src/models/index.ts";
import { TextStream } from "../../../src/models/text/text-stream.ts";
import { fable } from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const specials = ["[TOOL_CALLS]", "[ARGS]", "[INST]", "<|call|>", "<|channel|>", "<|message|>"];
const weather: ToolDefinition = { type: "function", function: { name: "weather" } };

let tokenizer: Tokenizer;
beforeAll(async () => {
  const json = JSON.parse(await readFile(join(fable, "tokenizer.json"), "utf8")) as { added_tokens: object[] };
  const added = specials.map((content, i) => ({ ...json.added_tokens[0], content, id: 5000 + i }));
  tokenizer = new Tokenizer({ ...json, added_tokens: [...json.added_tokens, ...added] }, { source: "tokenizer.json" });
});

/** A model that says what it is told to, and ends at a token that ends it. */
function saying(text: string, template: string): ChatModel & { prompts: string[] } {
  const prompts: string[] = [];
  async function* generate(prompt: readonly number[], options: GenerateOptions): AsyncGenerator<Piece> {
    prompts.push(tokenizer.decode(prompt));
    const stream = new TextStream(tokenizer, prompt, [], options.showTokens);
    for (const token of tokenizer.encode(text, { special: false })) {
      if (options.stopTokens?.includes(token)) break;
      yield { text: stream.push(token), token, sequence: 0, finish: null };
    }
    yield { text: stream.end(), token: 1, sequence: 0, finish: "token" };
  }
  return { tokenizer, chatTemplate: new ChatTemplate(template), generate, prompts };
}

async function events(model: ChatModel, options: ChatOptions = {}): Promise<ChatEvent[]> {
  const all: ChatEvent[] = [];
  for await (const event of chat(model, [{ role: "user", content: "Weather?" }], options)) all.push(event);
  return all;
}
const joined = (all: readonly ChatEvent[], type: "text" | "reasoning"): string =>
  all.map((event) => (event.type === type ? event.text : "")).join("");

describe("a chat", () => {
  it("sees special tokens that mean something, and no others", async () => {
    const model = saying('Sure.[INST][TOOL_CALLS]weather[ARGS]{"city": "Zürich"}', "{{ tools }}[TOOL_CALLS]");
    const all = await events(model, { tools: [weather] });
    expect(joined(all, "text")).toBe("Sure.");
    const end = all.at(-1)!;
    expect(end).toMatchObject({ type: "end", finish: "token", answer: { content: "Sure.", reasoning: "" } });
    if (end.type !== "end") throw new Error("no end");
    expect(end.answer.toolCalls.map((call) => call.function)).toEqual([
      { name: "weather", arguments: '{"city": "Zürich"}' },
    ]);
    expect([end.promptTokens, end.tokens].every((n) => n > 3)).toBe(true);
  });

  it("knows that the prompt opened the reasoning", async () => {
    const model = saying(
      "Hm.</think>\n\nHello.",
      "{% if tools %}[TOOL_CALLS]{% endif %}{{ messages[0].content }}<think>\n",
    );
    const all = await events(model);
    expect([joined(all, "reasoning"), joined(all, "text")]).toEqual(["Hm.", "Hello."]);
    expect(model.prompts).toEqual(["Weather?<think>"]);
    expect(joined(await events(model, { answerForm: { reasoning: null } }), "text")).toBe("Hm.</think>\n\nHello.");
  });

  it("ends where a call does", async () => {
    const answer = "<|channel|>commentary to=functions.weather<|message|>{}<|call|>and on";
    const all = await events(saying(answer, "<|channel|>{{ tools }}"), { tools: [weather] });
    expect(all.map((event) => event.type)).toEqual(["tool_call", "end"]);
  });

  it("is a method of models", async () => {
    using model = await loadModel(fable, { chatTemplate: "<|bos|>{{ messages[0].content }}" });
    expect(model.answerForm).toEqual({ toolCalls: "none", reasoning: null });
    const options = { maxTokens: 6, temperature: 0 };
    let text = "";
    for await (const piece of model.generate("Once upon a time", options)) text += piece.text;
    const all: ChatEvent[] = [];
    for await (const event of model.chat([{ role: "user", content: "Once upon a time" }], options)) all.push(event);
    expect(joined(all, "text")).toBe(text);
    using plain = await loadModel(fable);
    await expect(plain.chat([{ role: "user", content: "a" }]).next()).rejects.toThrow(/no chat template/);
  });
});

describe("a conversation", () => {
  const flags = { maxTokens: 9, temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1 };

  /** What is printed for each line that the user types, and what the model was asked with. */
  async function talk(answers: string[], lines: string[], options: object = {}, isTTY = false) {
    const asked: unknown[] = [];
    const model = {
      chat(messages: unknown, given: ChatOptions) {
        asked.push(messages);
        return chat(
          saying(answers.shift()!, "{{ tools }}<tool_call><think>{{ messages }}|"),
          [{ role: "user", content: "a" }],
          given,
        );
      },
    } as unknown as Model;
    const output = Object.assign(new PassThrough(), { isTTY });
    using conversation = new Conversation(model, { ...flags, ...options } as never, output);
    for (const line of lines) await conversation.answer(line, new AbortController().signal);
    return { asked, printed: (output.setEncoding("utf8").read() as string | null) ?? "" };
  }

  it("shows reasoning apart from the answer, or not at all", async () => {
    const said = "<think>Hm.</think>Hello.";
    expect((await talk([said], ["a"])).printed).toBe("Hm.\n\nHello.\n");
    expect((await talk([said], ["a"], { hideReasoning: true })).printed).toBe("Hello.\n");
    const { printed } = await talk([said], ["a"], {}, true);
    expect(printed.startsWith("\u001b[2mHm.\u001b[22m\n\nHello.\n(")).toBe(true);
  });

  it("prints calls, takes their results, and goes on", async () => {
    const call = (city: string) => `<tool_call>{"name": "weather", "arguments": {"city": "${city}"}}</tool_call>`;
    const lines = ["Weather?", "sun", "rain"];
    const { printed, asked } = await talk([call("Paris") + call("Rome"), "Fine."], lines, { tools: [weather] });
    expect(printed).toBe(
      '\n→ weather({"city":"Paris"})\n→ weather({"city":"Rome"})\n(type what weather gives)\n(type what weather gives)\nFine.\n',
    );
    expect(asked[1]).toMatchObject([
      { role: "user", content: "Weather?" },
      { role: "assistant", content: "", tool_calls: [{ type: "function" }, { type: "function" }] },
      { role: "tool", name: "weather", content: "sun", tool_call_id: expect.any(String) },
      { role: "tool", name: "weather", content: "rain" },
    ]);
  });

  it("reads tools from a file", async () => {
    await writeFile(folder("tools.json"), JSON.stringify([weather]));
    expect(await readTools(folder("tools.json"))).toEqual([weather]);
    await writeFile(folder("none.json"), "{}");
    await expect(readTools(folder("none.json"))).rejects.toThrow(/holds no list of tools/);
    await writeFile(folder("broken.json"), "[");
    await expect(readTools(folder("broken.json"))).rejects.toThrow(/holds no list of tools/);
    await expect(readTools(folder("absent.json"))).rejects.toThrow(/cannot be read/);
  });
});
