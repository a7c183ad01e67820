// Patterns, GBNF, tool calls and the thread that compiles them.
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Tensor } from "../../../src/index.ts";
import { parseAnswer } from "../../../src/models/chat/answer.ts";
import type { ToolCallForm } from "../../../src/models/chat/answer-form.ts";
import { BatchSampler, type Choice } from "../../../src/models/generation/batch-sampler.ts";
import { samplerSpec } from "../../../src/models/generation/sampling.ts";
import { loadModel, type Model, Tokenizer } from "../../../src/models/index.ts";
import { toEbnf } from "../../../src/serving/grammar/ebnf.ts";
import { parseGbnf } from "../../../src/serving/grammar/gbnf.ts";
import { type CompiledGrammar, Grammars } from "../../../src/serving/grammar/grammars.ts";
import { parsePattern } from "../../../src/serving/grammar/regex.ts";
import { toolGrammar } from "../../../src/serving/grammar/tool-grammar.ts";
import { babble, taker } from "./helper.ts";

const leaf = fc.constantFrom("a", "b", "ab", "[ab]", "[bc]", "ba", "é", "[é-ü]", "abc", "\\w", "[^ab]", "ca", "😀");
const several = (of: fc.Arbitrary<string>) => fc.array(of, { minLength: 1, maxLength: 3 }).map((all) => all.join(""));
const either = (of: fc.Arbitrary<string>) =>
  fc.array(of, { minLength: 2, maxLength: 4 }).map((all) => `(?:${all.join("|")})`);
const counts = fc.constantFrom("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0,20}", "{3,5}", "{1,17}", "{14}");
const again = (of: fc.Arbitrary<string>) => fc.tuple(of, counts).map(([each, count]) => `(?:${each})${count}`);
const part = fc.oneof(leaf, again(leaf), again(several(leaf)), either(several(leaf)), again(either(several(leaf))));
const patterns = fc.oneof(several(part), either(several(part)));

test("patterns take the texts that they match, and no others", { timeout: 60_000 }, async () => {
  const letters = fc.string({ unit: fc.constantFrom("a", "b", "c", "é", "ü", "😀"), maxLength: 9 });
  for (const pattern of fc.sample(patterns, { numRuns: 120, seed: 4 })) {
    const takes = await taker(toEbnf(parsePattern(pattern).expression, new Map()));
    const whole = new RegExp(`^(?:${pattern})$`, "u");
    const texts = fc.sample(letters, { numRuns: 60, seed: 5 }).flatMap((text) => [text, text + text, `${text}a`]);
    expect({ pattern, wrong: texts.filter((text) => takes(text) !== whole.test(text)) }).toEqual({
      pattern,
      wrong: [],
    });
  }
});

test("bytes that are no UTF-8 are no characters", async () => {
  const takes = await taker(toEbnf(parsePattern("[^a]").expression, new Map()));
  for (const bytes of [[0x80], [0xff], [0xc3], [0xed, 0xa0, 0x80], [0xc0, 0x80], [0xf5, 0x80, 0x80, 0x80]])
    expect(takes(Uint8Array.from(bytes))).toBe(false);
  for (const text of ["b", "\u{7f}", "é", "\u{800}", "\u{d7ff}", "\u{ffff}", "😀", "\u{10ffff}"])
    expect(takes(text)).toBe(true);
});

describe("GBNF", () => {
  const ebnf = (source: string): string => {
    const { root, grammar } = parseGbnf(source);
    return toEbnf(root, grammar.rules);
  };

  test("is read as llama.cpp writes it", async () => {
    const takes = await taker(
      ebnf(`# a comment
root   ::= (expr "=" ws
            term "\\n")+   # over two lines
expr ::= term ([-+*/] term)*
term::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]{0,3} ws
num   ::= [0-9]+ ws
ws  ::= [ \\t\\n]?
`),
    );
    for (const text of ["a=1\n", "(a+b)*22 = c \nx=y\n", "1-2-3=abcd\n"]) expect(takes(text)).toBe(true);
    for (const text of ["", "a=1", "abcde=1\n", "(a=1\n", "A=1\n"]) expect(takes(text)).toBe(false);
    const any = await taker(ebnf('root ::= "\\x41\\u00e9\\U0001F600" . [^\\]\\-x-z] "true" {2}\ntrue ::= "t"'));
    expect(any("Aé😀日atruetrue")).toBe(true);
    expect(any("Aé😀日ytruetrue")).toBe(false);
  });

  test.each([
    ['start ::= "a"', 'no rule "root"'],
    ["root ::= other", 'no rule "other"'],
    ['root ::= "a', "closing quote"],
    ['root ::= ("a"', 'misses a ")"'],
    ["root ::= [a", 'without its "]"'],
    ['root ::= "a"{x}', "no number of repetitions"],
    ['root ::= "a"{99999}', "more than 10000"],
    ['root ::= "a"\nroot ::= "b"', "twice"],
    ['root = "a"', 'misses "::="'],
    ['root ::= "a" )', "belongs to nothing"],
    ["root ::= root", "no text at all"],
    [`root ::= ${"(".repeat(200)}`, "too many parentheses"],
  ])("%j is refused", (source, message) => expect(() => ebnf(source)).toThrow(message));
});

const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 8 }, days: { type: "integer", minimum: 1, maximum: 9 } },
        required: ["city", "days"],
      },
    },
  },
  { type: "function", function: { name: "now" } },
] as const;

describe("on a thread", () => {
  let model: Model;
  let grammars: Grammars;
  beforeAll(async () => {
    model = await loadModel("models/fable-7m.Q8_0.gguf");
    const { vocabSize, eosTokens } = model.config;
    grammars = new Grammars({ tokenizer: model.tokenizer!, vocabSize, eosTokens });
  });
  afterAll(() => {
    grammars[Symbol.dispose]();
    model.dispose();
  });
  const answer = (grammar: CompiledGrammar, seed = 1, maxTokens = 150): string => {
    using constraint = grammar.constraint({ maxTokens });
    const { vocabSize, eosTokens } = model.config;
    return model.tokenizer!.decode(babble(constraint, vocabSize, eosTokens, maxTokens, seed)!);
  };

  test("JSON, patterns and GBNF come out whole", async () => {
    expect(JSON.parse(answer(await grammars.json()))).toBeTypeOf("object");
    expect(answer(await grammars.regex("[a-z]{3}(-\\d+)?!"))).toMatch(/^[a-z]{3}(-\d+)?!$/);
    expect(answer(await grammars.gbnf('root ::= "yes" | "no" root'))).toMatch(/^(no)*yes$/);
  });

  const forms: ToolCallForm[] = [
    "none",
    "llama3",
    "hermes",
    "nemotron",
    "granite",
    "cohere",
    "mistral",
    "kimi",
    "deepseek",
    "harmony",
  ];
  test.each(forms)("calls in the form %s are read as calls", async (toolCalls) => {
    for (const [i, names] of [["weather"], ["now"], undefined].entries()) {
      const grammar = await grammars.tools({ form: { toolCalls, reasoning: null }, tools, names, parallel: i === 2 });
      const text = answer(grammar, i + 3, 300);
      const { toolCalls: calls, content } = parseAnswer(text, grammar.form!, { toolNames: ["weather", "now"] });
      expect({ text, count: calls.length > 0, content }).toEqual({ text, count: true, content: "" });
      for (const { function: call } of calls) {
        expect(names ?? ["weather", "now"]).toContain(call.name);
        const args = JSON.parse(call.arguments) as { city?: string; days?: number };
        if (call.name === "weather") expect(args.days).toBeGreaterThanOrEqual(1);
        else expect(args).toEqual({});
      }
    }
  });

  test("a tool that is not there is refused", async () => {
    const form = { toolCalls: "none", reasoning: null } as const;
    await expect(grammars.tools({ form, tools, names: ["other"] })).rejects.toThrow("name one of weather, now");
    const newer = toolGrammar({ form: { toolCalls: "mistral", reasoning: null }, tools, hasToken: () => true });
    expect(toEbnf(newer.root, newer.grammar.rules)).toContain("ARGS");
  });

  test("a mask leads the sampler, and ends where nothing but the end may come", async () => {
    const { vocabSize, eosTokens } = model.config;
    using constraint = (await grammars.schema({ enum: ["cat", "dog"] })).constraint();
    using sampler = new BatchSampler(model.device, vocabSize, 1);
    sampler.assign(0, samplerSpec({ temperature: 1, seed: 5 }, [], 0, { masked: true }));
    using logits = Tensor.zeros([1, vocabSize], { device: model.device });
    const said: number[] = [];
    while (!constraint.ended) {
      sampler.place([0], [constraint.mask()]);
      sampler.choose(logits);
      const [choice] = (await sampler.read()) as Choice[];
      said.push(choice!.token);
      constraint.accept(choice!.token);
    }
    expect(model.tokenizer!.decode(said).trim()).toMatch(/^"(cat|dog)"$/);
    const ends = constraint.mask()!;
    expect((ends[eosTokens[0]! >> 5]! >> (eosTokens[0]! & 31)) & 1).toBe(1);
    constraint.accept(eosTokens[0]!);
    expect(constraint.ended).toBe(true);
  });

  test("what takes too long or too much ends alone: others go on where they were", { timeout: 60_000 }, async () => {
    const { vocabSize, eosTokens } = model.config;
    using own = new Grammars({
      tokenizer: model.tokenizer!,
      vocabSize,
      eosTokens,
      milliseconds: 1500,
      characters: 100_000,
    });
    using before = (await own.regex("abc(d|e){2}")).constraint();
    for (const c of "abc") before.accept(model.tokenizer!.tokenId(c)!);
    before.mask();
    // Parts that may all be anywhere.
    const parts = Array.from(
      { length: 200 },
      (_, i) => `r${i} ::= ([a-z]{0,9999} [a-y${i % 10}]{0,9999} "${i}"?){0,9999}`,
    );
    const hostile = `root ::= ${parts.map((_, i) => `r${i}{0,9999}`).join(" ")}\n${parts.join("\n")}`;
    await expect(own.gbnf(hostile)).rejects.toMatchObject({ code: "InvalidArgument" });
    before.accept(model.tokenizer!.tokenId("d")!);
    const mask = before.mask()!;
    const allowed = Array.from({ length: vocabSize }, (_, id) => id).filter((id) => (mask[id >> 5]! >> (id & 31)) & 1);
    expect(allowed.map((id) => model.tokenizer!.token(id)).sort()).toEqual(["d", "e"]);
    await expect(own.regex("a".repeat(100_001))).rejects.toThrow("at most 100000");
    let deep: unknown = { type: "string" };
    for (let i = 0; i < 5000; i++) deep = { type: "array", items: deep };
    await expect(own.schema(deep)).rejects.toThrow("levels");
    await expect(own.schema({ anyOf: Array.from({ length: 20_000 }, () => ({ type: "null" })) })).rejects.toThrow();
    expect(await own.json()).toBeDefined();
  });

  test("ends with its model", async () => {
    const { vocabSize, eosTokens } = model.config;
    const own = new Grammars({ tokenizer: model.tokenizer!, vocabSize, eosTokens });
    const constraint = (await own.json()).constraint();
    own[Symbol.dispose]();
    expect(() => constraint.mask()).toThrow("disposed");
    constraint[Symbol.dispose]();
    await expect(own.json()).rejects.toThrow("disposed");
    expect(() => new Grammars({ tokenizer: model.tokenizer!, vocabSize, eosTokens: [] })).toThrow("a token that ends");
  });
});

test("tokens are the bytes that they write", () => {
  const make = (decoder: object, vocab: readonly string[], added: readonly object[] = []): Tokenizer =>
    new Tokenizer(
      {
        added_tokens: added,
        normalizer: null,
        pre_tokenizer: null,
        post_processor: null,
        decoder,
        model: {
          type: "BPE",
          vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
          merges: [],
          unk_token: "<unk>",
        },
      },
      { source: "a test" },
    );
  const bytes = (tokenizer: Tokenizer, count: number) =>
    Array.from(
      { length: count },
      (_, id) => tokenizer.bytes(id) && Buffer.from(tokenizer.bytes(id)!).toString("latin1"),
    );
  const special = { id: 3, content: "<|end|>", special: true };
  const plain = { id: 4, content: "<tool>", special: false };
  expect(bytes(make({ type: "ByteLevel" }, ["Ġa", "Ã©", "Ċ", "<|end|>", "<tool>", "ł"], [special, plain]), 7)).toEqual([
    " a",
    "\u00c3\u00a9",
    "\n",
    null,
    "<tool>",
    "\u00a0",
    null,
  ]);
  const fallback = {
    type: "Sequence",
    decoders: [{ type: "Replace", pattern: { String: "▁" }, content: " " }, { type: "ByteFallback" }, { type: "Fuse" }],
  };
  expect(bytes(make(fallback, ["▁a", "<0xE9>", "<unk>", "b"]), 4)).toEqual([" a", "\u00e9", null, "b"]);
  expect(bytes(make({ type: "Metaspace", replacement: "▁" }, ["▁a", "b"]), 2)).toEqual([" a", "b"]);
  expect(bytes(make({ type: "WordPiece", prefix: "##" }, ["a", "##b"]), 2)).toEqual([" a", "b"]);
});
