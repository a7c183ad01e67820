/** What the page reads from a stream and what it asks, without a browser. */
import { describe, expect, it } from "vitest";
import {
  addMessage,
  newConversation,
  pathOf,
  readConversation,
  showBranch,
  siblingsOf,
} from "../../../src/serving/page/conversation.ts";
import type { Model } from "../../../src/serving/page/model.ts";
import { questionFor } from "../../../src/serving/page/question.ts";
import { eventData } from "../../../src/serving/page/sse.ts";

const model: Model = {
  id: "sage",
  state: "ready",
  progress: 1,
  phase: "load",
  error: null,
  contextLength: 100,
  kind: "chat",
  isDefault: true,
};

async function eventsOf(chunks: readonly Uint8Array[]): Promise<string[]> {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
  const events: string[] = [];
  for await (const data of eventData(body)) events.push(data);
  return events;
}

describe("a stream of events", () => {
  it.each([
    ["\n", 'data: {"é":1}\n\n: a comment\n\nevent: x\ndata: two\ndata:  lines\nid: 4\n\ndata:[DONE]\n\n'],
    [
      "\r\n",
      'data: {"é":1}\r\n\r\n: a comment\r\n\r\nevent: x\r\ndata: two\r\ndata:  lines\r\nid: 4\r\n\r\ndata:[DONE]\r\n\r\n',
    ],
    ["\r", 'data: {"é":1}\r\r: a comment\r\revent: x\rdata: two\rdata:  lines\rid: 4\r\rdata:[DONE]\r\r'],
  ])("with lines that end in %j is read however it is cut", async (_, text) => {
    const bytes = new TextEncoder().encode(text);
    for (let size = 1; size <= bytes.length; size++) {
      const chunks = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) =>
        bytes.slice(i * size, (i + 1) * size),
      );
      expect(await eventsOf(chunks)).toEqual(['{"é":1}', "two\n lines", "[DONE]"]);
    }
  });
});

describe("a conversation", () => {
  it("keeps what was said before in branches beside what is shown", () => {
    const conversation = newConversation("sage");
    const first = addMessage(conversation, "user", "one", null);
    addMessage(conversation, "assistant", "1", first.id);
    const second = addMessage(conversation, "user", "two", null);
    addMessage(conversation, "assistant", "2", second.id);
    expect(pathOf(conversation).map(({ content }) => content)).toEqual(["two", "2"]);
    expect(siblingsOf(conversation, second)).toEqual([first, second]);
    showBranch(conversation, first.id);
    expect(pathOf(conversation).map(({ content }) => content)).toEqual(["one", "1"]);
    expect(readConversation(JSON.parse(JSON.stringify(conversation)))).toEqual({ ...conversation, form: "chat" });
  });

  it("of which a part is missing or turns in a circle ends all the same", () => {
    const conversation = newConversation(null);
    conversation.messages = [
      { id: "a", parent: "b", role: "user", content: "x" },
      { id: "b", parent: "a", role: "assistant", content: "y" },
    ];
    conversation.leaf = "a";
    expect(pathOf(conversation).length).toBeLessThan(5);
    showBranch(conversation, "a");
    conversation.leaf = "gone";
    expect(pathOf(conversation)).toEqual([]);
    for (const broken of [null, 4, {}, { id: "x", messages: [{}] }, { id: 3, messages: [] }]) {
      expect(readConversation(broken)).toBe(null);
    }
  });
});

describe("a question", () => {
  it("has the system prompt first and leaves out what failed and what is too old", () => {
    const conversation = newConversation("sage");
    conversation.system = "Be brief.";
    for (const text of ["a".repeat(300), "b".repeat(300), "c", "d", "e"]) {
      addMessage(conversation, conversation.messages.length % 2 === 0 ? "user" : "assistant", text, conversation.leaf);
    }
    addMessage(conversation, "assistant", "", conversation.leaf);
    const asked = () => questionFor(conversation, pathOf(conversation), model, 1);
    const contents = () =>
      (asked().body as { messages: { content: string }[] }).messages.map(({ content }) => content[0]);
    expect(asked().path).toBe("v1/chat/completions");
    expect(contents()).toEqual(["B", "a", "b", "c", "d", "e"]);
    conversation.trims = true;
    expect(contents()).toEqual(["B", "c", "d", "e"]);
  });

  it("of a story is the end of it, from the start of a word, with room for what follows", () => {
    const conversation = newConversation("sage");
    conversation.form = "story";
    addMessage(conversation, "user", "The fox went home. ".repeat(100).trimEnd(), null);
    const { path, body } = questionFor(conversation, pathOf(conversation), model, 1);
    const { prompt, max_tokens: most } = body as { prompt: string; max_tokens: number };
    expect(path).toBe("v1/completions");
    expect(most).toBeLessThan(100);
    expect(prompt.length).toBeLessThan((100 - most) * 3);
    expect(prompt).toMatch(/^(The|fox|went|home\.) .*home\.$/);
  });
});
