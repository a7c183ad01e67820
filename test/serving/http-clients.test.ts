/** The clients that people have, against a real `wick serve`: OpenAI's own, and Vercel's AI SDK. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, jsonSchema, streamText, type ToolSet, tool } from "ai";
import { Ajv2020 } from "ajv/dist/2020.js";
import fc from "fast-check";
import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { buildCli } from "../helpers/built-cli.ts";
import { tryAll } from "../helpers/devices.ts";
import { randomSchema } from "../helpers/random-schemas.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";
import { type ServeProcess, startServe } from "../helpers/wick-serve.ts";

const folder = temporaryFolder();
const model = "fable-7m";
const apiKey = "test-key";
/** fable-7m's token of it. */
const QUOTE = 3;
const messages = [{ role: "user" as const, content: "Once upon a time there lived a king" }];
const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 8 }, age: { type: "integer", minimum: 0, maximum: 120 } },
  required: ["name", "age"],
  additionalProperties: false,
} as const;

let server: ServeProcess;
let openai: OpenAI;
beforeAll(async () => {
  server = await startServe(await buildCli(folder("cli")), ["--api-key", apiKey]);
  openai = new OpenAI({ baseURL: `${server.address}/v1`, apiKey, maxRetries: 0 });
}, 60_000);
afterAll(() => server?.[Symbol.asyncDispose]());

const isPerson = (value: unknown): boolean => {
  const { name, age, ...others } = value as { name: unknown; age: unknown };
  return typeof name === "string" && Number.isInteger(age) && Object.keys(others).length === 0;
};

describe("OpenAI's client", () => {
  it("chats, and streams the same", async () => {
    const asked = { model, messages, max_tokens: 12, seed: 5, temperature: 0.8 };
    const { choices, usage } = await openai.chat.completions.create(asked);
    const text = choices[0]!.message.content!;
    expect(text.length).toBeGreaterThan(5);
    expect([choices[0]!.finish_reason, usage!.completion_tokens]).toEqual(["length", 12]);
    const stream = await openai.chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    let streamed = "";
    let last: OpenAI.ChatCompletionChunk | undefined;
    for await (const chunk of stream) {
      streamed += chunk.choices[0]?.delta.content ?? "";
      last = chunk;
    }
    expect(streamed).toBe(text);
    expect(last!.usage).toMatchObject({ completion_tokens: 12, prompt_tokens: usage!.prompt_tokens });
    const { choices: three } = await openai.chat.completions.create({ ...asked, n: 3 });
    expect(three.map(({ message }) => message.content)[0]).toBe(text);
    expect(new Set(three.map(({ message }) => message.content)).size).toBe(3);
  });

  it("completes prompts, with logprobs", async () => {
    const { choices } = await openai.completions.create({
      model,
      prompt: ["The princess", "The princess"],
      max_tokens: 6,
      temperature: 0,
      logprobs: 2,
    });
    expect(choices[0]!.text).toBe(choices[1]!.text);
    const { tokens, token_logprobs: logprobs, top_logprobs: top } = choices[0]!.logprobs!;
    expect(tokens!.join("")).toBe(choices[0]!.text);
    expect(logprobs!.every((value) => value < 0 && value > -20)).toBe(true);
    // Greedy is the likeliest.
    for (const [i, token] of tokens!.entries()) expect(Object.keys(top![i]!)[0]).toBe(token);
  });

  it("is made to call a tool", async () => {
    const tools = [{ type: "function" as const, function: { name: "add_person", parameters: person } }];
    for (const choice of ["required", { type: "function", function: { name: "add_person" } }] as const) {
      const { choices } = await openai.chat.completions.create({
        model,
        messages,
        tools,
        tool_choice: choice,
        max_tokens: 100,
        seed: 1,
      });
      const [call] = choices[0]!.message.tool_calls!;
      expect([choices[0]!.finish_reason, call!.type === "function" && call!.function.name]).toEqual([
        "tool_calls",
        "add_person",
      ]);
      expect(isPerson(JSON.parse((call as { function: { arguments: string } }).function.arguments))).toBe(true);
    }
    const runner = openai.chat.completions.stream({ model, messages, tools, tool_choice: "required", max_tokens: 100 });
    const final = await runner.finalChatCompletion();
    expect(final.choices[0]!.message.tool_calls).toHaveLength(1);
    const { choices: free } = await openai.chat.completions.create({ model, messages, tools, max_tokens: 3 });
    expect(free[0]!.message.content).toBeTruthy();
  });

  it("gets JSON, of a schema, of a regular expression and of a grammar", async () => {
    const ask = async (fields: object) => {
      const asked = { model, messages, max_tokens: 80, seed: 3, ...fields };
      const { choices } = await openai.chat.completions.create(asked as OpenAI.ChatCompletionCreateParamsNonStreaming);
      return choices[0]!.message.content!;
    };
    const schema = { name: "person", strict: true, schema: person };
    expect(isPerson(JSON.parse(await ask({ response_format: { type: "json_schema", json_schema: schema } })))).toBe(
      true,
    );
    expect(typeof JSON.parse(await ask({ response_format: { type: "json_object" } }))).toBe("object");
    expect(await ask({ regex: "[a-z]{3}-[0-9]{2}" })).toMatch(/^[a-z]{3}-[0-9]{2}$/);
    expect(await ask({ grammar: 'root ::= "yes" | "no"' })).toMatch(/^(yes|no)$/);
    expect(await ask({ guided_choice: ["a cat", "a dog"] })).toMatch(/^a (cat|dog)$/);
    await expect(ask({ regex: "(" })).rejects.toMatchObject({ status: 400, param: "regex" });
  });

  it("gets JSON that random schemas allow", async () => {
    const ajv = new Ajv2020({ strict: false, validateFormats: false });
    const ask = async (schema: Record<string, unknown>, seed: number, most: number): Promise<string> => {
      const { choices } = await openai.chat.completions.create({
        model,
        messages,
        max_tokens: most,
        seed,
        // A teller of tales likes long strings: what ends them is made likelier.
        logit_bias: { [QUOTE]: 8 },
        response_format: { type: "json_schema", json_schema: { name: "any", schema, strict: true } },
      });
      // Few have no text at all that is so short.
      if (choices[0]!.finish_reason === "length" && most < 400) return ask(schema, seed, 400);
      return choices[0]!.message.content!;
    };
    const schemas = fc.sample(randomSchema, { numRuns: tryAll ? 200 : 60, seed: 15 });
    const texts = await Promise.all(schemas.map((schema, i) => ask(schema, i, 64)));
    for (const [i, text] of texts.entries()) {
      const [schema, answer] = [schemas[i]!, JSON.parse(text) as unknown];
      expect({ schema, answer, isValid: ajv.validate(schema, answer) }).toMatchObject({ isValid: true });
    }
  }, 120_000);

  it("embeds, and lists models", async () => {
    const { data } = await openai.embeddings.create({ model, input: ["a king", "a queen"] });
    expect(data.map(({ embedding }) => embedding.length)).toEqual([256, 256]);
    expect((await openai.models.list()).data.map(({ id }) => id)).toEqual([model]);
    expect((await openai.models.retrieve(model)).id).toBe(model);
  });

  it("has responses, whole and streamed", async () => {
    const asked = { model, input: "Once upon a time", max_output_tokens: 8, temperature: 0 };
    const { output_text: text, status, usage } = await openai.responses.create(asked);
    expect([text.length > 3, status, usage!.output_tokens]).toEqual([true, "incomplete", 8]);
    const stream = openai.responses.stream(asked);
    const types: string[] = [];
    for await (const { type } of stream) types.push(type);
    expect([types[0], types.at(-1)]).toEqual(["response.created", "response.incomplete"]);
    expect((await stream.finalResponse()).output_text).toBe(text);
    const format = { type: "json_schema" as const, name: "person", schema: person, strict: true };
    const typed = await openai.responses.create({ model, input: "Who?", text: { format } });
    expect(isPerson(JSON.parse(typed.output_text))).toBe(true);
    const tools = [{ type: "function" as const, name: "add_person", parameters: person, strict: true }];
    const { output } = await openai.responses.create({ model, input: "Add.", tools, tool_choice: "required" });
    expect(output).toMatchObject([{ type: "function_call", name: "add_person" }]);
  });

  it("knows the errors", async () => {
    const ask = (fields: object, client = openai) =>
      client.chat.completions.create({ model, messages, max_tokens: 2, ...fields } as never);
    await expect(ask({ model: "gpt-4o" })).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(ask({ temperature: 5 })).rejects.toMatchObject({ status: 400, param: "temperature" });
    const content = "a ".repeat(700);
    await expect(ask({ messages: [{ role: "user", content }] })).rejects.toMatchObject({
      status: 400,
      code: "context_length_exceeded",
    });
    const stranger = new OpenAI({ baseURL: `${server.address}/v1`, apiKey: "wrong", maxRetries: 0 });
    await expect(ask({}, stranger)).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
    const failure = await ask({ model: "x" }).catch((error: InstanceType<typeof OpenAI.APIError>) => error);
    expect((failure as { requestID?: string }).requestID).toMatch(/^[\w-]+$/);
  });

  it("can leave, and its answer ends", async () => {
    const stream = await openai.chat.completions.create({ model, messages, stream: true, max_tokens: 400 });
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) break;
    const leave = new AbortController();
    const whole = openai.chat.completions.create({ model, messages, max_tokens: 400 }, { signal: leave.signal });
    setTimeout(() => leave.abort(), 50);
    await expect(whole).rejects.toBeInstanceOf(OpenAI.APIUserAbortError);
    const running = `wick_running{model="${model}"}`;
    const headers = { authorization: `Bearer ${apiKey}` };
    await expect.poll(async () => (await server.metrics(headers)).get(running), { timeout: 5000 }).toBe(0);
  });
});

describe("Vercel's AI SDK", () => {
  const provider = () =>
    createOpenAICompatible({ name: "wick", baseURL: `${server.address}/v1`, apiKey, supportsStructuredOutputs: true });

  it("generates and streams text", async () => {
    const asked = { model: provider()(model), prompt: "The old woman", maxOutputTokens: 8, temperature: 0 };
    const { text, usage, finishReason } = await generateText(asked);
    expect([text.length > 3, usage.outputTokens, finishReason]).toEqual([true, 8, "length"]);
    const { textStream } = streamText(asked);
    let streamed = "";
    for await (const part of textStream) streamed += part;
    expect(streamed).toBe(text);
  });

  it("calls tools, generates objects and embeds", async () => {
    const schema = jsonSchema<{ name: string; age: number }>(person);
    const tools = { add_person: tool({ inputSchema: schema }) } as unknown as ToolSet;
    const asked = { model: provider()(model), prompt: "The old woman", maxOutputTokens: 100 };
    const { toolCalls } = await generateText({ ...asked, tools, toolChoice: "required" });
    expect(toolCalls[0]).toMatchObject({ toolName: "add_person" });
    expect(isPerson(toolCalls[0]!.input)).toBe(true);
    expect(isPerson((await generateObject({ ...asked, schema })).object)).toBe(true);
    const { embeddings } = await embedMany({ model: provider().embeddingModel(model), values: ["a", "b"] });
    expect(embeddings.map(({ length }) => length)).toEqual([256, 256]);
  });

  it("hears of errors", async () => {
    const asked = { model: provider()("none"), prompt: "x", maxRetries: 0 };
    await expect(generateText(asked)).rejects.toMatchObject({ statusCode: 404 });
  });
});
