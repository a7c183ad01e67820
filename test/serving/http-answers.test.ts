/** What the endpoints answer: texts, reasoning, tool calls, logprobs and usage, whole and in streams. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Model, Tokenizer } from "../../src/models/index.ts";
import type { EngineRequest } from "../../src/serving/request.ts";
import { eventsOf, json, openTestServer, type TestServer } from "../helpers/api-server.ts";
import { ScriptedEngine } from "../helpers/scripted-engine.ts";

/** In the form of Hermes and Qwen. */
const template =
  "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]" +
  "{% if m.reasoning_content %}{{ m.reasoning_content }}{% endif %}{{ m.content }}" +
  "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endif %}{% endfor %}" +
  "[assistant]{% if thinking %}<think>{% endif %}";
const messages = [{ role: "user", content: "Hello" }];
const tools = [{ type: "function", function: { name: "look", parameters: { type: "object" } } }];

let server: TestServer;
let engine: ScriptedEngine;
let tokenizer: Tokenizer;
/** What the model says next. */
let says = "";

beforeAll(async () => {
  server = await openTestServer({
    template,
    engine: (model: Model) => {
      tokenizer = model.tokenizer!;
      engine = new ScriptedEngine(({ prompt }) => ({
        tokens: tokenizer.encode(says, { special: false }),
        cachedTokens: Math.min(2, prompt.length),
      }));
      return engine;
    },
  });
});
afterAll(() => server.server.close());

const asked = (): EngineRequest => engine.requests.at(-1)!;
const chat = (fields: object) => server.post("/v1/chat/completions", { messages, ...fields });

describe("a chat", () => {
  it("is answered as a whole", async () => {
    says = "Good morning.";
    const answer = await json(await chat({ model: "fable-7m" }));
    expect(answer).toMatchObject({
      object: "chat.completion",
      model: "fable-7m",
      choices: [{ index: 0, message: { role: "assistant", content: says }, finish_reason: "stop", logprobs: null }],
      timings: { prompt_ms: expect.any(Number), predicted_per_second: expect.any(Number) },
    });
    const count = tokenizer.encode(says, { special: false }).length + 1;
    const prompt = asked().prompt.length;
    expect(answer.usage).toMatchObject({
      prompt_tokens: prompt,
      completion_tokens: count,
      total_tokens: prompt + count,
      prompt_tokens_details: { cached_tokens: 2 },
    });
    expect(tokenizer.decode(asked().prompt)).toBe("[user]Hello[assistant]");
  });

  it("streams the same, with usage where it is asked for", async () => {
    says = "Good morning.";
    const response = await chat({ stream: true, stream_options: { include_usage: true } });
    expect(response.headers.get("content-type")).toMatch("text/event-stream");
    const events = eventsOf(await response.text());
    expect(events.at(-1)).toBe("[DONE]");
    const chunks = events.slice(0, -1) as {
      choices: { delta: { content?: string }; finish_reason: string | null }[];
    }[];
    expect(chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta.content ?? "")).join("")).toBe(says);
    expect(chunks[0]).toMatchObject({ choices: [{ delta: { role: "assistant", content: "" } }], usage: null });
    expect(chunks.at(-2)).toMatchObject({ choices: [{ delta: {}, finish_reason: "stop" }], usage: null });
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: expect.any(Number) } });
    expect(new Set(chunks.map((chunk) => (chunk as { id?: string }).id)).size).toBe(1);
  });

  it("ends at stop texts and with enough tokens, and says which", async () => {
    says = "one two three four";
    const ended = async (fields: object) => {
      const { choices } = (await json(await chat(fields))) as unknown as {
        choices: { message: { content: string }; finish_reason: string }[];
      };
      return [choices[0]!.message.content, choices[0]!.finish_reason];
    };
    expect(await ended({ stop: " thr" })).toEqual(["one two", "stop"]);
    expect(await ended({ stop: ["four", "x"] })).toEqual(["one two three ", "stop"]);
    const [text, reason] = await ended({ max_completion_tokens: 2, max_tokens: 50 });
    expect([says.startsWith(text!), reason]).toEqual([true, "length"]);
    expect(asked().maxTokens).toBe(2);
  });

  it("passes on how tokens are chosen", async () => {
    says = "x";
    await chat({
      temperature: 0.5,
      top_p: 0,
      top_k: -1,
      min_p: 0.1,
      repetition_penalty: 1.2,
      presence_penalty: 1,
      frequency_penalty: -1,
      logit_bias: { 5: -100 },
      seed: 7,
      n: 2,
      stop_token_ids: [9],
      ignore_eos: true,
    });
    const [first, second] = engine.requests.slice(-2);
    expect(first!.sampling).toEqual({
      temperature: 0.5,
      topP: Number.EPSILON,
      topK: 0,
      minP: 0.1,
      repetitionPenalty: 1.2,
      presencePenalty: 1,
      frequencyPenalty: -1,
      logitBias: new Map([[5, -100]]),
      seed: 7,
    });
    expect(second!.sampling!.seed).toBe(8);
    expect([first!.stopTokens, first!.ignoreEos]).toEqual([[9], true]);
  });

  it("gives several answers, each with its index", async () => {
    says = "Yes.";
    const { choices } = (await json(await chat({ n: 3 }))) as unknown as { choices: { index: number }[] };
    expect(choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    const events = eventsOf(await (await chat({ n: 2, stream: true })).text()) as { choices: { index: number }[] }[];
    const indices = events.slice(0, -1).map(({ choices: [choice] }) => choice!.index);
    expect([indices.includes(0), indices.includes(1), indices.length]).toEqual([true, true, 2 * (indices.length / 2)]);
  });

  it("tells reasoning apart", async () => {
    says = "<think>Who is it?</think>Hello!";
    const answer = await json(await chat({}));
    expect(answer).toMatchObject({
      choices: [{ message: { content: "Hello!", reasoning_content: "Who is it?" } }],
    });
    says = "Who is it?</think>Hello!";
    const opened = await (await chat({ stream: true, chat_template_kwargs: { thinking: true } })).text();
    const deltas = (eventsOf(opened).slice(0, -1) as { choices: { delta: Record<string, string> }[] }[]).map(
      ({ choices }) => choices[0]!.delta,
    );
    const joined = (name: string) => deltas.map((delta) => delta[name] ?? "").join("");
    expect([joined("reasoning_content"), joined("content")]).toEqual(["Who is it?", "Hello!"]);
  });

  it("gives tool calls, and takes their results back", async () => {
    says = '<tool_call>{"name": "look", "arguments": {"at": "sky"}}</tool_call>';
    const call = { type: "function", function: { name: "look", arguments: '{"at":"sky"}' }, id: expect.any(String) };
    const answer = await json(await chat({ tools }));
    expect(answer).toMatchObject({
      choices: [{ message: { content: null, tool_calls: [call] }, finish_reason: "tool_calls" }],
    });
    expect(tokenizer.decode(asked().prompt)).toContain('"name": "look"');
    const events = eventsOf(await (await chat({ tools, stream: true })).text()) as { choices: object[] }[];
    expect(events[1]!.choices[0]).toMatchObject({ delta: { tool_calls: [{ index: 0, ...call }] } });
    expect(events.at(-2)!.choices[0]).toMatchObject({ finish_reason: "tool_calls" });
    says = "Blue.";
    const id = "abc";
    const more = [
      ...messages,
      { role: "assistant", content: null, tool_calls: [{ ...call, id }] },
      { role: "tool", tool_call_id: id, content: "blue" },
    ];
    await chat({ messages: more, tools, tool_choice: "none" });
    expect(tokenizer.decode(asked().prompt)).toBe("[user]Hello[assistant]look[tool]blue[assistant]");
  });

  it("tells log-probabilities", async () => {
    says = " the";
    const answer = await json(await chat({ logprobs: true, top_logprobs: 2 }));
    const found = { token: " the", logprob: -0.5, bytes: [32, 116, 104, 101] };
    expect(answer).toMatchObject({
      choices: [{ logprobs: { content: [{ ...found, top_logprobs: [found, { token: "!", logprob: -9999 }] }, {}] } }],
    });
    expect(asked().logprobs).toBe(2);
    const events = eventsOf(await (await chat({ logprobs: true, stream: true })).text()) as {
      choices: { logprobs: { content: object[] } | null }[];
    }[];
    const all = events.slice(0, -1).flatMap(({ choices }) => choices[0]!.logprobs?.content ?? []);
    expect(all).toHaveLength(2);
    expect(all[0]).toMatchObject({ ...found, top_logprobs: [] });
  });
});

describe("an answer of a format", () => {
  const allows = (mask: Uint32Array | null, text: string): boolean =>
    mask === null || ((mask[tokenizer.tokenId(text)! >> 5]! >>> (tokenizer.tokenId(text)! & 31)) & 1) === 1;

  it("has a constraint of its own, and begins behind the reasoning", async () => {
    says = "ab";
    await chat({ regex: "ab|ac", n: 2 });
    const [first, second] = engine.requests.slice(-2).map(({ constraint }) => constraint!);
    expect(first).not.toBe(second);
    says = "Hm.</think>ab";
    const held = engine.holds((request) => {
      const constraint = request.constraint!;
      expect(constraint.mask()).toBe(null);
      for (const id of tokenizer.encode("Hm.</think>", { special: false })) constraint.accept(id);
      expect([allows(constraint.mask(), "a"), allows(constraint.mask(), "b")]).toEqual([true, false]);
      constraint.accept(tokenizer.tokenId("a")!);
      expect([allows(constraint.mask(), "a"), allows(constraint.mask(), "b")]).toEqual([false, true]);
      expect(constraint.ended).toBe(false);
    });
    const answer = await json(await chat({ regex: "ab|ac", chat_template_kwargs: { thinking: true } }));
    expect(answer).toMatchObject({ choices: [{ message: { content: "ab", reasoning_content: "Hm." } }] });
    await held;
  });

  it("is read as a call where one was forced, and refused with what is wrong", async () => {
    says = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>';
    const forced = await json(await chat({ tools, tool_choice: "required", parallel_tool_calls: false }));
    expect(forced).toMatchObject({ choices: [{ message: { tool_calls: [{ function: { name: "look" } }] } }] });
    expect(asked().constraint).toBeDefined();
    for (const [fields, param] of [
      [{ grammar: "root ::= nothing" }, "grammar"],
      [{ guided_json: { type: "objekt" } }, "guided_json"],
      [{ structured_outputs: { regex: "(" } }, "structured_outputs.regex"],
      [{ tools, tool_choice: "required", response_format: { type: "json_object" } }, "tool_choice"],
    ] as const) {
      const response = await chat(fields);
      expect([response.status, await json(response)]).toMatchObject([400, { error: { param } }]);
    }
    says = "{}";
    for (const fields of [{ response_format: { type: "json_object" } }, { guided_json: "{}" }, { guided_choice: "{}" }])
      expect(await json(await chat(fields))).toMatchObject({ choices: [{ message: { content: "{}" } }] });
  });
});

describe("a completion", () => {
  const complete = (fields: object) => server.post("/v1/completions", fields);

  it("goes on with texts and token ids, one or several", async () => {
    says = " and so on";
    const answer = await json(await complete({ prompt: ["Once", [5, 6]], n: 2, max_tokens: 50 }));
    const choices = answer.choices as unknown as { index: number; text: string }[];
    expect(choices.map(({ index, text }) => [index, text])).toEqual([0, 1, 2, 3].map((i) => [i, says]));
    expect(engine.requests.slice(-4).map(({ prompt }) => prompt)).toEqual([
      tokenizer.encode("Once"),
      tokenizer.encode("Once"),
      [5, 6],
      [5, 6],
    ]);
    // Two prompts, with two tokens of each in the cache.
    expect(answer.usage).toMatchObject({ prompt_tokens: tokenizer.encode("Once").length + 2 });
    await complete({ prompt: [7, 8, 9] });
    expect([asked().prompt, asked().maxTokens]).toEqual([[7, 8, 9], 16]);
  });

  it("streams, with logprobs and usage", async () => {
    says = " and so";
    const response = await complete({
      prompt: "Once",
      stream: true,
      stream_options: { include_usage: true },
      logprobs: 1,
    });
    const chunks = eventsOf(await response.text()).slice(0, -1) as {
      choices: { text: string; logprobs: { tokens: string[]; text_offset: number[] } }[];
    }[];
    const parts = chunks.flatMap(({ choices }) => choices);
    expect(parts.map(({ text }) => text).join("")).toBe(says);
    expect(
      parts
        .flatMap(({ logprobs }) => logprobs.tokens)
        .slice(0, -1)
        .join(""),
    ).toBe(says);
    expect(parts[1]!.logprobs.text_offset).toEqual([" and".length]);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: expect.any(Number) }, timings: {} });
  });
});

describe("a response", () => {
  const respond = (fields: object) => server.post("/v1/responses", fields);

  it("has items for reasoning, text and calls", async () => {
    says = '<think>Hm.</think>I look.<tool_call>{"name": "look", "arguments": {}}</tool_call>';
    const answer = await json(
      await respond({
        instructions: "Be brief.",
        input: "Hello",
        tools: [{ type: "function", name: "look", parameters: { type: "object" } }],
      }),
    );
    expect(answer).toMatchObject({
      object: "response",
      status: "completed",
      output: [
        { type: "reasoning", content: [{ type: "reasoning_text", text: "Hm." }] },
        { type: "message", role: "assistant", content: [{ type: "output_text", text: "I look." }] },
        { type: "function_call", name: "look", arguments: "{}", call_id: expect.any(String) },
      ],
      usage: { input_tokens: asked().prompt.length, input_tokens_details: { cached_tokens: 2 } },
    });
    expect(tokenizer.decode(asked().prompt)).toMatch(/\[system\]Be brief\.\[user\]Hello\[assistant\]$/);
  });

  it("streams events with names and numbers", async () => {
    says = "One two.";
    const text = await (await respond({ input: "Hello", stream: true, max_output_tokens: 3 })).text();
    const events = eventsOf(text) as { type: string; sequence_number: number; delta?: string; response?: object }[];
    expect(events.map(({ sequence_number: n }) => n)).toEqual(events.map((_, i) => i));
    expect([...text.matchAll(/^event: (.*)$/gm)].map(([, name]) => name)).toEqual(events.map(({ type }) => type));
    expect([...new Set(events.map(({ type }) => type))]).toEqual([
      "response.created",
      "response.in_progress",
      "response.output_item.added",
      "response.content_part.added",
      "response.output_text.delta",
      "response.output_text.done",
      "response.content_part.done",
      "response.output_item.done",
      "response.incomplete",
    ]);
    expect(events.at(-1)!.response).toMatchObject({
      status: "incomplete",
      incomplete_details: { reason: "max_output_tokens" },
    });
  });

  it("takes a conversation as items", async () => {
    says = "Yes.";
    await respond({
      input: [
        { role: "user", content: [{ type: "input_text", text: "A" }] },
        { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "T" }] },
        { type: "message", role: "assistant", content: [{ type: "output_text", text: "B" }] },
        { type: "function_call", call_id: "c1", name: "look", arguments: "{}" },
        { type: "function_call_output", call_id: "c1", output: "R" },
        { role: "developer", content: "D" },
      ],
    });
    expect(tokenizer.decode(asked().prompt)).toBe("[user]A[assistant]TBlook[tool]R[system]D[assistant]");
  });
});

it("embeds texts as numbers, and as base64", async () => {
  const embed = async (fields: object) =>
    (await json(await server.post("/v1/embeddings", fields))) as unknown as {
      data: { index: number; embedding: number[] | string }[];
      usage: { prompt_tokens: number };
    };
  const { data, usage } = await embed({ input: ["a king", "a king", [5, 6]] });
  expect(data.map(({ index }) => index)).toEqual([0, 1, 2]);
  expect(data[0]!.embedding).toEqual(data[1]!.embedding);
  expect(usage.prompt_tokens).toBe(2 * tokenizer.encode("a king").length + 2);
  const [coded] = (await embed({ input: "a king", encoding_format: "base64" })).data;
  const bytes = Buffer.from(coded!.embedding as string, "base64");
  const values = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  expect(Array.from(values)).toEqual(data[0]!.embedding);
  expect(values.reduce((sum, x) => sum + x * x, 0)).toBeCloseTo(1, 4);
});
