/**
 * Tokenizers by the names that GGUF files give. test/data/vocabularies holds what llama.cpp publishes for testing them
 * (ids by the models' own tokenizers), each vocabulary cut down to the tokens and merges that its texts need.
 */
import { readdirSync, readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import fc from "fast-check";
import { afterEach, describe, expect, it, vi } from "vitest";
import { tokenizeCommand } from "../../../src/cli/tokenize.ts";
import { writeGguf } from "../../../src/formats/index.ts";
import { preTokenizers } from "../../../src/models/gguf/pre-tokenizers.ts";
import { readGgufTokenizer } from "../../../src/models/gguf/tokenizer.ts";
import { loadTokenizer, Tokenizer } from "../../../src/models/index.ts";
import { JsonFields } from "../../../src/models/json-fields.ts";
import { CharactersMap } from "../../../src/models/text/characters-map.ts";
import { Merges } from "../../../src/models/text/merges.ts";
import { fable } from "../../helpers/model-folders.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const folder = new URL("../../data/vocabularies/", import.meta.url);
const read = (name: string): unknown => JSON.parse(readFileSync(new URL(name, folder), "utf8"));
const texts = read("texts.json") as string[];

interface Vocabulary {
  readonly model: string;
  readonly pre: string;
  readonly merges?: string[];
  readonly tokens: Readonly<Record<string, string>>;
  readonly ids: number[][];
  readonly userDefined: number[];
  readonly unknown?: number;
  readonly seperator?: number;
  readonly cls?: number;
}

/** As the file has it, with other tokens between those that are there. */
function tokenizerOf({ model, pre, merges, tokens, userDefined, unknown, seperator, cls }: Vocabulary): Tokenizer {
  const size = Math.max(...Object.keys(tokens).map(Number)) + 1;
  const fields: Record<string, unknown> = {
    "tokenizer.ggml.model": model,
    "tokenizer.ggml.pre": pre,
    "tokenizer.ggml.tokens": Array.from({ length: size }, (_, id) => tokens[id] ?? `[gap ${id}]`),
    "tokenizer.ggml.token_type": Int32Array.from({ length: size }, (_, id) => (userDefined.includes(id) ? 4 : 1)),
    ...(merges && { "tokenizer.ggml.merges": merges }),
    ...Object.fromEntries(
      Object.entries({ unknown, seperator, cls })
        .filter(([, id]) => id !== undefined)
        .map(([name, id]) => [`tokenizer.ggml.${name}_token_id`, id]),
    ),
  };
  return readGgufTokenizer(new JsonFields(fields, "vocabulary"))!;
}

describe("a vocabulary", () => {
  const names = readdirSync(folder).filter((name) => name !== "texts.json");

  it.each(names)("%s gives the ids of its model", (name) => {
    const vocabulary = read(name) as Vocabulary;
    const tokenizer = tokenizerOf(vocabulary);
    for (const [i, text] of texts.entries()) {
      expect(tokenizer.encode(text, { special: false }), JSON.stringify(text)).toEqual(vocabulary.ids[i]);
    }
  });

  it("of an encoder puts a text between its first token and its last", () => {
    const tokenizer = tokenizerOf(read("bert-bge.json") as Vocabulary);
    expect(tokenizer.encode("Hello world")).toEqual([101, 7592, 2088, 102]);
  });
});

/** Pieces as a pre-tokenizer cuts them. */
function cut(pre: string, text: string): string[] {
  const { patterns } = preTokenizers[pre]!;
  const step = (pattern: string) => ({
    type: "Split",
    pattern: { Regex: pattern },
    behavior: "Isolated",
    invert: false,
  });
  const json = {
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: "Sequence", pretokenizers: patterns.map(step) },
    post_processor: null,
    decoder: null,
    model: { type: "BPE", vocab: {}, merges: [] },
  };
  const inner = new HuggingFaceTokenizer(json, {}) as unknown as { pre_tokenizer: (text: string) => string[] };
  return inner.pre_tokenizer(text);
}

describe("a pre-tokenizer", () => {
  it.each(Object.keys(preTokenizers))("%s cuts any text and loses nothing", (name) => {
    for (const text of [...texts, "你好 Ünïcode\r\n\t 1234567.89 don't ΑΒΓ 한국어 ทดสอบ"])
      expect(cut(name, text).join("")).toBe(text);
  });

  it.each([
    ["llama-bpe", "it's 12345", "it|'s| |123|45"],
    ["qwen2", "it'S 123", "it|'S| |1|2|3"],
    ["deepseek-v3", "12345你好abc", "123|45|你好|abc"],
    ["afmoe", "1234567 1234", "1|234|567| |1|234"],
    ["tiny_aya", "1234567 12345abc", "1|234|567| |123|45|abc"],
    ["superbpe", "by the way 12345", "by the way |12|345"],
    ["kimi-k2", "abc你好Def 1234", "abc|你好|Def| |123|4"],
    ["bloom", "One two, three.", "One| two|,| three|."],
    ["viking", "a 12", "a| |1|2"],
    ["seed-coder", "a ??\n", "a| ??|\n"],
    ["exaone-moe", "a b cd!/", "a b cd|!/"],
    ["jais-2", "a       b", "a|    |  | b"],
    ["chameleon", "IMGIMGABZ!", "IMGIMGABZ|!"],
    ["laguna", "a\n\nb", "a|\n\n|b"],
    ["whitespace", "a  b", "a|  |b"],
    ["youtu", "한국AbC1", "한국|Ab|C|1"],
  ])("%s cuts %j as its model does", (name, text, pieces) => {
    expect(cut(name, text).join("|")).toBe(pieces);
  });
});

describe("merges", () => {
  /** As it is defined: the best pair, the leftmost of several, until there is none. */
  function naive(pairs: readonly (readonly [string, string])[], word: string): string[] {
    const rank = new Map<string, number>();
    for (const [i, pair] of pairs.entries()) if (!rank.has(pair.join("\0"))) rank.set(pair.join("\0"), i);
    const symbols = Array.from(word);
    for (;;) {
      const ranks = symbols.slice(1).map((right, i) => rank.get(`${symbols[i]}\0${right}`) ?? Number.POSITIVE_INFINITY);
      const best = ranks.indexOf(Math.min(...ranks));
      if (ranks.length === 0 || ranks[best] === Number.POSITIVE_INFINITY) return symbols;
      symbols.splice(best, 2, symbols[best]! + symbols[best + 1]!);
    }
  }

  it("are those of the definition, in words short and long", () => {
    const symbol = fc.constantFrom("a", "b", "▁", "é", "😀", "ab", "ba", "aa", "▁a", "aab", "b▁");
    const word = fc.string({ unit: fc.constantFrom("a", "b", "▁", "é", "😀", "c"), maxLength: 60 });
    fc.assert(
      fc.property(fc.array(fc.tuple(symbol, symbol), { maxLength: 12 }), word, (pairs, text) => {
        expect(new Merges(pairs).split(text)).toEqual(naive(pairs, text));
      }),
      { numRuns: 500 },
    );
  });
});

describe("tokens", () => {
  const unigram = {
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "always" },
    post_processor: null,
    decoder: { type: "Metaspace", replacement: "▁", prepend_scheme: "always" },
    model: {
      type: "Unigram",
      unk_id: 0,
      vocab: [
        ["<unk>", 0],
        ["▁", -2.1],
        ["a", -3.3],
        ["b", -3.9],
        ["ab", -5.2],
        ["▁a", -4.7],
        ["bab", -6.13],
        ["😀", -8.01],
      ],
    },
  };
  const bytes = JSON.parse(readFileSync(`${fable}/tokenizer.json`, "utf8")) as object;

  it.each([
    ["merges", bytes, fc.string({ unit: "binary" })],
    ["unigrams", unigram, fc.string({ unit: fc.constantFrom("a", "b", " ", "x", "😀"), maxLength: 40 })],
  ])("by %s are the library's", (_, json, text) => {
    const own = new Tokenizer(json, { source: "tokenizer.json" });
    const reference = new HuggingFaceTokenizer(json, {});
    fc.assert(
      fc.property(text, (s) => {
        expect(own.encode(s)).toEqual(reference.encode(s).ids);
      }),
    );
  });

  it.each([
    ["merges", bytes, "a"],
    ["unigrams", unigram, "x"],
  ])("by %s of a megabyte without a break take no more than seconds", (_, json, letter) => {
    const tokenizer = new Tokenizer(json, { source: "tokenizer.json" });
    const start = process.cpuUsage();
    const ids = tokenizer.encode(letter.repeat(1e6));
    expect(ids.length).toBeGreaterThan(0);
    const { user, system } = process.cpuUsage(start);
    expect((user + system) / 1e6).toBeLessThan(5);
  });

  /** A table of characters in the form that SentencePiece has: each state gets 256 units. */
  function charactersMap(entries: Readonly<Record<string, string>>): Uint8Array {
    const units: number[] = [];
    let texts = "";
    let blocks = 0;
    const unit = (label: number, from: number, to: number) => ((((from ^ to) >>> 8) << 10) | (1 << 9) | label) >>> 0;
    const node = (place: number, label: number, pairs: [Buffer, string][]): void => {
      const base = (++blocks << 8) | (place & 0xff);
      const whole = pairs.find(([key]) => key.length === 0);
      units[place] = (unit(label, place, base) | (whole ? 1 << 8 : 0)) >>> 0;
      if (whole) {
        units[base] = (0x80000000 | Buffer.byteLength(texts)) >>> 0;
        texts += `${whole[1]}\0`;
      }
      const rest = pairs.filter(([key]) => key.length > 0);
      for (const byte of new Set(rest.map(([key]) => key[0]!))) {
        const own = rest.filter(([key]) => key[0] === byte).map(([key, to]): [Buffer, string] => [key.subarray(1), to]);
        node(base ^ byte, byte, own);
      }
    };
    node(
      0,
      0,
      Object.entries(entries).map(([key, to]) => [Buffer.from(key), to]),
    );
    const array = Uint32Array.from({ length: (blocks + 1) * 256 }, (_, i) => units[i] ?? 0);
    return Buffer.concat(
      [Uint32Array.of(array.byteLength), array, Buffer.from(texts)].map((part) =>
        Buffer.from(part.buffer, part.byteOffset, part.byteLength),
      ),
    );
  }

  it("are rewritten as the table of characters says, by the longest entry", () => {
    const map = new CharactersMap(
      charactersMap({ "\t": " ", ⅽ: "c", ﬀ: "ff", "a\u0301": "á", "a\u0301b": "!", "\u200b": "" }),
    );
    expect(map.normalize("x\tⅽﬀ a\u0301c a\u0301b a\u200b😀é")).toBe("x cff ác ! a😀é");
    expect(map.normalize("plain")).toBe("plain");
    for (const bytes of [new Uint8Array(2), Uint8Array.of(255, 0, 0, 0, 1)])
      expect(() => new CharactersMap(bytes)).toThrow(/is damaged/);
  });

  it("of GGUF's t5 are unigrams, with an end", () => {
    const tokens = ["<pad>", "</s>", "<unk>", "▁", "▁a", "b", "▁ab", "c"];
    const fields = {
      "tokenizer.ggml.model": "t5",
      "tokenizer.ggml.tokens": tokens,
      "tokenizer.ggml.scores": Float32Array.from([0, 0, 0, -3, -2, -2, -5, -4]),
      "tokenizer.ggml.token_type": Int32Array.from([3, 3, 2, 1, 1, 1, 1, 1]),
      "tokenizer.ggml.eos_token_id": 1,
      "tokenizer.ggml.unknown_token_id": 2,
      "tokenizer.ggml.precompiled_charsmap": charactersMap({ ⅽ: "c" }),
    };
    const tokenizer = readGgufTokenizer(new JsonFields(fields, "t5"))!;
    expect(tokenizer.encode("ab  a\tⅽ x")).toEqual([4, 5, 4, 3, 7, 3, 2, 1]);
    expect(tokenizer.decode([4, 5, 4])).toBe("ab a");
    const bare = { ...fields, "tokenizer.ggml.add_eos_token": false, "tokenizer.ggml.add_space_prefix": false };
    const spaced = { ...bare, "tokenizer.ggml.remove_extra_whitespaces": false };
    expect(readGgufTokenizer(new JsonFields(spaced, "t5"))!.encode("b  b")).toEqual([5, 3, 3, 5]);
  });

  it("of GGUF's gemma4 are merges over the text itself", () => {
    const fields = {
      "tokenizer.ggml.model": "gemma4",
      "tokenizer.ggml.tokens": ["a", "▁", "▁a", "\n", "<0xC3>", "<0xA9>", "\n\n"],
      "tokenizer.ggml.merges": ["▁ a"],
    };
    const tokenizer = readGgufTokenizer(new JsonFields(fields, "gemma4"))!;
    expect(tokenizer.encode("a a\né")).toEqual([0, 2, 3, 4, 5]);
    expect(tokenizer.encode("\n\n")).toEqual([6]);
    expect(tokenizer.decode([0, 2, 3, 4, 5])).toBe("a a\né");
  });
});

describe("wick tokenize", () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });
  const printed = async (...args: string[]): Promise<string> => {
    const log = vi.spyOn(console, "log").mockImplementation(() => undefined);
    await tokenizeCommand().parseAsync(args, { from: "user" });
    return log.mock.calls.map(([line]) => String(line)).join("\n");
  };

  it("prints ids and pieces, of a vocabulary without weights", async () => {
    const metadata = {
      "general.architecture": "some",
      "tokenizer.ggml.model": "gpt2",
      "tokenizer.ggml.pre": "gpt-2",
      "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
      "tokenizer.ggml.merges": ["a b"],
      "tokenizer.ggml.bos_token_id": 3,
      "tokenizer.ggml.add_bos_token": true,
    };
    await writeGguf(at("vocabulary.gguf"), { metadata, tensors: [] });
    const model = ["--model", at("vocabulary.gguf")];
    expect(JSON.parse(await printed("abb", "--json", ...model))).toEqual({
      ids: [3, 2, 1],
      pieces: ["<s>", "ab", "b"],
    });
    vi.restoreAllMocks();
    expect(await printed("abb", "--no-special", ...model)).toBe("        2  ab\n        1  b");
    vi.restoreAllMocks();
    await expect(printed("abb", "--file", at("x"), ...model)).rejects.toThrow(/two ways to say one thing/);
    await expect(printed("--file", at("x"), ...model)).rejects.toThrow(/x cannot be read/);
    await mkdir(at("nothing"));
    await expect(loadTokenizer(at("nothing"))).rejects.toThrow(/has no tokenizer/);
    await expect(loadTokenizer(at("nowhere"))).rejects.toThrow(/cannot be opened/);
    expect((await loadTokenizer(fable)).encode("Once", { special: false })).toHaveLength(1);
  });
});
