/** Text becomes the ids transformers gives, ids become text again, and streams never cut a character. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Tokenizer } from "../../../src/models/index.ts";
import { JsonFields } from "../../../src/models/json-fields.ts";
import { StopScanner, TextStream } from "../../../src/models/text/text-stream.ts";
import { unigramJson, wordPieceJson } from "../../helpers/encoder-tokenizers.ts";
import { fable } from "../../helpers/model-folders.ts";
import { sentencePieceJson } from "../../helpers/sentence-piece.ts";

const json = JSON.parse(await readFile(join(fable, "tokenizer.json"), "utf8")) as Record<string, unknown>;
const source = "tokenizer.json";
const tokenizer = new Tokenizer(json, { source, bosToken: 0 });
const golden = JSON.parse(await readFile(join(fable, "golden.json"), "utf8")) as {
  prompt: string;
  prompt_ids: number[];
  greedy_ids: number[];
  greedy_text: string;
}[];

const pieces = new Tokenizer(sentencePieceJson, { source, bosToken: 1 });

/** Any text UTF-8 can hold. */
const text = fc.string({ unit: "binary" });

describe("the tokenizer", () => {
  it("gives the ids of transformers", () => {
    for (const { prompt, prompt_ids } of golden) expect(tokenizer.encode(prompt)).toEqual(prompt_ids);
  });

  it("gives the text of transformers", () => {
    for (const { greedy_ids, greedy_text } of golden) expect(tokenizer.decode(greedy_ids)).toBe(greedy_text);
  });

  it("brings back any text", () => {
    fc.assert(
      fc.property(text, (s) => {
        expect(tokenizer.decode(tokenizer.encode(s, { special: false }))).toBe(s);
      }),
      { numRuns: 500 },
    );
  });

  it("brings back any text through bytes, too", () => {
    fc.assert(
      fc.property(text, (s) => {
        // Its own space sign, and a mark its byte decoder drops, are no text to SentencePiece.
        fc.pre(!/[▁\ufeff]|<unk>|<\/?s>|<0x/.test(s));
        expect(pieces.decode(pieces.encode(s, { special: false }))).toBe(s);
      }),
      { numRuns: 300 },
    );
  });

  it("knows special tokens, in text and by id", () => {
    expect(tokenizer.encode("<|eos|>a", { special: false })[0]).toBe(1);
    expect(tokenizer.decode([0, 2524, 1])).toBe("<|bos|>Once<|eos|>");
    expect(tokenizer.decode([0, 2524, 1], { skipSpecial: true })).toBe("Once");
    expect(tokenizer.tokenId("<|eos|>")).toBe(1);
    expect(tokenizer.token(1)).toBe("<|eos|>");
    expect(tokenizer.tokenId("no such token")).toBeUndefined();
    expect(tokenizer.decode([])).toBe("");
    expect(tokenizer.encode("", { special: false })).toEqual([]);
  });

  it("keeps spaces before punctuation", () => {
    const s = "well , do n't . Yes !";
    expect(tokenizer.decode(tokenizer.encode(s, { special: false }))).toBe(s);
  });

  it("refuses a file that is none", () => {
    expect(() => new Tokenizer([], { source })).toThrow(/tokenizer.json must be a JSON object/);
    expect(() => new Tokenizer({}, { source })).toThrow(/tokenizer.json cannot be used/);
  });
});

describe("the first token", () => {
  const starts = (config?: Record<string, unknown>, own: Record<string, unknown> = {}) =>
    new Tokenizer(
      { ...json, ...own },
      { source, bosToken: 0, config: config && new JsonFields(config, "tokenizer_config.json") },
    ).encode("a")[0] === 0;

  it("is added where no rule speaks of it, and never twice", () => {
    expect(starts()).toBe(true);
    expect(tokenizer.encode("<|bos|>a")).toEqual(tokenizer.encode("a"));
    expect(new Tokenizer(json, { source }).encode("a")[0]).not.toBe(0);
  });

  it("follows add_bos_token, with the token named as text or as an object", () => {
    expect(starts({ add_bos_token: true, bos_token: "<|bos|>" })).toBe(true);
    expect(starts({ add_bos_token: true, bos_token: { content: "<|bos|>" } })).toBe(true);
    expect(starts({ add_bos_token: true })).toBe(true);
    expect(starts({ add_bos_token: false })).toBe(false);
    expect(starts({})).toBe(false);
  });

  it("is the post-processor's affair where there is one", () => {
    expect(starts(undefined, { post_processor: { type: "ByteLevel", trim_offsets: false } })).toBe(false);
    expect(pieces.encode("a")).toEqual([1, ...pieces.encode("a", { special: false })]);
  });
});

describe("a stream of text", () => {
  const isWhole = (s: string) => !/\p{Surrogate}/u.test(s);

  it.each([
    ["byte-level", tokenizer],
    ["SentencePiece", pieces],
  ] as const)("of %s tokens joins to the text, in whole characters", (_, t) => {
    fc.assert(
      fc.property(text, (s) => {
        fc.pre(!/[▁\ufeff\ufffd]|<unk>|<\/?s>|<0x|<\|/.test(s));
        const prompt = t.encode("a");
        const ids = t.encode(`a${s}`);
        fc.pre(prompt.every((id, i) => id === ids[i]));
        const stream = new TextStream(t, prompt, []);
        const parts = ids.slice(prompt.length).map((id) => stream.push(id));
        expect(parts.every((part) => isWhole(part) && !part.includes("\ufffd"))).toBe(true);
        expect(parts.join("") + stream.end()).toBe(s);
      }),
      { numRuns: 300 },
    );
  });

  it("keeps the space that starts the first word after the prompt", () => {
    const stream = new TextStream(pieces, pieces.encode("bc"), []);
    expect(pieces.encode(" a", { special: false })).toHaveLength(2);
    expect(stream.push(pieces.tokenId("▁a")!)).toBe(" a");
  });

  it("gives bytes that never become a character as one replacement", () => {
    const byte = (hex: string) => pieces.tokenId(`<0x${hex}>`)!;
    const stream = new TextStream(pieces, [1], []);
    expect(stream.push(byte("E2"))).toBe("");
    expect(stream.push(byte("82"))).toBe("");
    expect(stream.push(pieces.tokenId("b")!)).toBe("\ufffdb");
    expect(stream.push(byte("F0"))).toBe("");
    expect(stream.end()).toBe("\ufffd");
  });

  it("leaves special tokens out", () => {
    const stream = new TextStream(tokenizer, [0], []);
    expect([2524, 1, 686].map((id) => stream.push(id)).join("")).toBe(tokenizer.decode([2524, 686]));
  });

  it("is empty without a tokenizer", () => {
    const stream = new TextStream(null, [1], []);
    expect(stream.push(5) + stream.end()).toBe("");
  });
});

describe("stop strings", () => {
  it("end the text before the first of them, however it is cut", () => {
    const word = fc.string({ unit: fc.constantFrom("a", "b", "c"), minLength: 1, maxLength: 4 });
    const words = fc.array(word, { maxLength: 12 });
    fc.assert(
      fc.property(words, fc.uniqueArray(word, { minLength: 1, maxLength: 3 }), (parts, stops) => {
        const all = parts.join("");
        // What a reader of single letters sees: the first prefix that ends in a stop string ends the text.
        const end = Array.from(all, (_, i) => all.slice(0, i + 1)).find((p) => stops.some((stop) => p.endsWith(stop)));
        const longest = Math.max(0, ...stops.filter((stop) => end?.endsWith(stop)).map((stop) => stop.length));
        const want = end?.slice(0, end.length - longest) ?? all;
        const scanner = new StopScanner(stops);
        let got = "";
        for (const part of parts) {
          got += scanner.push(part);
          expect(want.startsWith(got)).toBe(true);
          if (scanner.stopped) break;
        }
        expect(scanner.stopped).toBe(end !== undefined);
        expect(got + scanner.end()).toBe(want);
      }),
      { numRuns: 1000 },
    );
  });

  it("hold back no more than what may be one", () => {
    const scanner = new StopScanner(["END"]);
    expect(scanner.push("the EN")).toBe("the ");
    expect(scanner.push("E")).toBe("EN");
    expect(scanner.push("ND!")).toBe("");
    expect(scanner.stopped).toBe(true);
    expect(scanner.push("more")).toBe("");
  });
});

describe("texts in segments", () => {
  const words = new Tokenizer(wordPieceJson, { source });
  const units = new Tokenizer(unigramJson, { source });
  const ids = (given: Tokenizer, ...names: string[]): number[] => names.map((name) => given.tokenId(name)!);

  it("have what the tokenizer puts around one or two", () => {
    const [cls, sep, the, cat, dog] = ids(words, "[CLS]", "[SEP]", "the", "cat", "dog") as [
      number,
      number,
      number,
      number,
      number,
    ];
    expect(words.encodeSegments(["the cat"])).toEqual({ ids: [cls, the, cat, sep], types: [0, 0, 0, 0], uncut: 4 });
    expect(words.encodeSegments(["the cat", "dog"])).toEqual({
      ids: [cls, the, cat, sep, dog, sep],
      types: [0, 0, 0, 0, 1, 1],
      uncut: 6,
    });
    expect(words.encodeSegments(["the cat", ""]).ids).toEqual([cls, the, cat, sep, sep]);
    const [start, end, unigramCat] = ids(units, "<s>", "</s>", "▁cat") as [number, number, number];
    expect(units.encodeSegments(["cat", "cat"]).ids).toEqual([start, unigramCat, end, end, unigramCat, end]);
    expect(tokenizer.encodeSegments([golden[0]!.prompt]).ids).toEqual(golden[0]!.prompt_ids);
    expect([words.firstToken, words.lastToken, tokenizer.firstToken, tokenizer.lastToken]).toEqual([cls, sep, 0, null]);
  });

  it("are cut to a limit, of two the longer one first", () => {
    const kept = (limit: number, first: string, second: string) => {
      const { ids, types, uncut } = words.encodeSegments([first, second], limit);
      expect(ids).toHaveLength(Math.min(limit, uncut));
      return [types.lastIndexOf(0) - 1, ids.length - types.lastIndexOf(0) - 2];
    };
    expect(kept(9, "a a a a a", "b b")).toEqual([4, 2]);
    expect(kept(9, "a a", "b b b b b")).toEqual([2, 4]);
    expect(kept(8, "a a a a a", "b b b b")).toEqual([3, 2]);
    expect(kept(8, "a a a a", "b b b b")).toEqual([2, 3]);
    expect(kept(20, "a a", "b")).toEqual([2, 1]);
    expect(words.encodeSegments(["a b c"], 4)).toMatchObject({ ids: [2, 5, 6, 3], uncut: 5 });
    expect(words.encodeSegments(["a b c"], 1).ids).toEqual([2, 3]);
  });

  it("end by a token where tokenizer_config.json says so", () => {
    const config = new JsonFields({ add_eos_token: true, eos_token: { content: "</s>" } }, "tokenizer_config.json");
    const ending = new Tokenizer({ ...sentencePieceJson, post_processor: null }, { source, config });
    const plain = pieces.encode("a", { special: false });
    expect(ending.encode("a")).toEqual([...plain, 2]);
    expect(ending.encodeSegments(["a"]).ids).toEqual([...plain, 2]);
  });
});
