/**
 * How byte-level BPE tokenizers cut text before they merge, by the names that GGUF files give. The patterns are those
 * of the models' tokenizer.json files, so that a tokenizer can be recognised by its pattern, too.
 */
import { fail } from "../../core/errors.ts";

export interface PreTokenizer {
  /** Applied one after the other; each cuts what the last one left. */
  readonly patterns: readonly string[];
  /** A piece that is a token as it stands is not merged. */
  readonly ignoreMerges?: boolean;
  /** Prompts start with the first token unless the file says otherwise. */
  readonly addBos?: boolean;
  /** Prompts end with the separator, as those of encoders do. */
  readonly addSeparator?: boolean;
  readonly normalizer?: "NFC";
  /** Merges run over the text itself and not over its bytes; what has no token is written as bytes. */
  readonly isRaw?: boolean;
  /** Spaces become "▁", as SentencePiece has them. */
  readonly escapesSpaces?: boolean;
}

/** Ranges of code points, in hexadecimal: editors may change characters that look the same. */
function characters(ranges: string): string {
  const character = (code: string): string => String.fromCodePoint(Number.parseInt(code, 16));
  const range = (text: string): string => text.split("-").map(character).join("-");
  return ranges.trim().split(" ").map(range).join("");
}

const gpt2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
/** Without the last alternative: what no alternative takes stays as it is. */
const gpt2Open = gpt2.replace(/\|\\s\+$/, "");
const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const one = String.raw`\p{N}`;
const three = String.raw`\p{N}{1,3}`;
const spaces = String.raw`\s*[\r\n]+|\s+(?!\S)|\s+`;
interface Words {
  readonly letters?: string;
  readonly digits?: string;
  readonly symbols?: string;
  readonly rest?: string;
}
/** The words of GPT-4 and its kin; `digits` is how many stay together. */
const words = ({
  letters = String.raw`\p{L}+`,
  digits = one,
  symbols = String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`,
  rest = spaces,
}: Words): string => String.raw`${contractions}|[^\r\n\p{L}\p{N}]?${letters}|${digits}|${symbols}|${rest}`;
const upper = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`;
const lower = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
/** Words cut where capitals start; `end` follows a word. */
const capitals = (end: string, digits: string, ends = "[\\r\\n/]*", high = upper, low = lower): string =>
  String.raw`[^\r\n\p{L}\p{N}]?${high}*${low}+${end}|[^\r\n\p{L}\p{N}]?${high}+${low}*${end}|${digits}| ?[^\s\p{L}\p{N}]+${ends}|${spaces}`;
const suffixed = `${contractions}?`;
const notHan = (letters: string): string => String.raw`(?:(?!\p{Script=Han})${letters})`;
/** Digits in threes from the last one on. In two steps, each of which looks at a digit a few times and not at all that follow. */
const threesFromEnd = (run: string): string[] => [run, String.raw`^\p{N}{1,2}(?=(?:\p{N}{3})+$)|\p{N}{3}`];
const ascii = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]";
const marked = String.raw`${ascii}[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|${spaces}`;
const eastAsian = `[${characters("4e00-9fa5 800-4e00 ac00-d7ff")}]+`;
const hanAndKana = `[${characters("4e00-9fa5 3040-309f 30a0-30ff")}]+`;
const sentences = ` ?[^(\\s|.,!?${characters("2026 3002 ff0c 3001 964 6d4 60c")})]+`;
const lines = String.raw`[^\n]+|[\n]+`;
/** The letters of alphabets with capitals, as DeepSeek's first tokenizer lists them. */
const cased = characters(
  "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a " +
    "38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf " +
    "1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d " +
    "1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 " +
    "1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f " +
    "2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f " +
    "a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 " +
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943 ",
);

/** The names of each; the first entry that has a pattern gives the name that is written. */
const entries: readonly (readonly [names: string, PreTokenizer])[] = [
  [
    "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert jina-es jina-de jina-v2-es jina-v2-de exaone4",
    { patterns: [gpt2] },
  ],
  [
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    { patterns: [words({ digits: three })], ignoreMerges: true, addBos: true },
  ],
  ["qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", { patterns: [words({})], normalizer: "NFC" }],
  ["smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", { patterns: [one, gpt2] }],
  ["tekken", { patterns: [capitals("", one)], ignoreMerges: true, addBos: true }],
  ["gpt-4o llama4 kanana2 talkie minimax-m2", { patterns: [capitals(suffixed, three)] }],
  ["dbrx smaug-bpe glm4 chatglm-bpe", { patterns: [words({ digits: three })] }],
  ["mpt olmo jais trillion granite-docling", { patterns: [gpt2] }],
  ["jina-v1-en jina-v2-code roberta-bpe", { patterns: [gpt2], addBos: true, addSeparator: true }],
  ["stablelm2 hunyuan solar-open grok-2", { patterns: [words({})] }],
  [
    "qwen35",
    {
      patterns: [words({ letters: String.raw`[\p{L}\p{M}]+`, symbols: String.raw` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` })],
      normalizer: "NFC",
    },
  ],
  [
    "jais-2",
    {
      patterns: [
        words({
          digits: three,
          rest: String.raw`\s*[\r\n]+|${[512, 256, 128, 64, 32, 16, 8, 4].map((n) => String.raw`\s{${n}}(?!\S)`).join("|")}|\s{1,2}(?!\S)|\s`,
        }),
      ],
    },
  ],
  [
    "deepseek-llm",
    {
      patterns: [
        "[\r\n]",
        String.raw`\s?[${cased}]+`,
        String.raw`\s?[!-/:-~${characters("ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")}]+`,
        String.raw`\s+$`,
        eastAsian,
        `${one}+`,
      ],
    },
  ],
  ["deepseek-coder", { patterns: ["[\r\n]", String.raw`\s?\p{L}+`, String.raw`\s?\p{P}+`, eastAsian, one] }],
  ["deepseek-v3 hunyuan-dense joyai-llm", { patterns: [three, hanAndKana, marked] }],
  [
    "youtu",
    {
      patterns: [
        [
          `[${characters("ac00-d7a3 3131-318e")}]+`,
          `[${characters("ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f")}]+`,
          `[${characters("3105-312f")}]+`,
          hanAndKana,
        ].join("|"),
        capitals(suffixed, one),
      ],
      ignoreMerges: true,
    },
  ],
  ["falcon", { patterns: ["[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2Open, "[0-9][0-9][0-9]"] }],
  ["poro-chat bloom gpt3-finnish", { patterns: [sentences] }],
  ["viking", { patterns: [sentences, one] }],
  [
    "chameleon",
    {
      patterns: [
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        String.raw`[\t\n]|    |  `,
        one,
        "[\\p{P}!-/:-@\\[-`{-~]",
        gpt2,
      ],
      addBos: true,
    },
  ],
  ["granite-embed-multi-97m", { patterns: [capitals(suffixed, three)], ignoreMerges: true }],
  ["tiny_aya cohere2moe", { patterns: [...threesFromEnd(String.raw`\d+\b`), capitals(suffixed, three)] }],
  [
    "kimi-k2",
    { patterns: [String.raw`\p{Script=Han}+|${capitals(suffixed, three, "[\\r\\n]*", notHan(upper), notHan(lower))}`] },
  ],
  ["superbpe", { patterns: threesFromEnd(String.raw`\p{N}+`) }],
  ["bailingmoe bailingmoe2 llada-moe", { patterns: [words({ rest: String.raw`\s*[\r\n]|\s+(?!\S)|\s+` })] }],
  ["seed-coder", { patterns: [words({ symbols: String.raw` ?[^\s\p{L}\p{N}\r\n]+` })] }],
  [
    "afmoe",
    {
      patterns: [
        ...threesFromEnd(String.raw`\p{N}+`),
        `[${characters(
          "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff " +
            "1780-17ff 1000-109f aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff ",
        )}]+`,
        marked,
      ],
    },
  ],
  ["laguna", { patterns: [lines, words({})] }],
  [
    "exaone-moe",
    {
      patterns: [
        words({
          letters: String.raw`(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`,
          symbols: String.raw` ?[^\s\p{L}\p{N}]+[\r\n/]?`,
          rest: String.raw`\s*[\r\n]|\s+(?!\S)|\s+`,
        }),
      ],
    },
  ],
  ["minicpm5", { patterns: [three, words({ digits: `${one}+` })], ignoreMerges: true }],
  [
    "gemma4 granite-embed-multi-311m",
    // Several line feeds are a token each, which not all files have merges for.
    { patterns: [lines], isRaw: true, escapesSpaces: true, ignoreMerges: true, addBos: true },
  ],
  ["sarvam-moe", { patterns: [lines], isRaw: true, escapesSpaces: true }],
  ["whitespace", { patterns: [String.raw`\S+`], isRaw: true }],
  // Files from before the name was written.
  ["default", { patterns: [String.raw`[\p{P}\$\+<=>\^~\|]+`, gpt2Open, `${one}+`, "[0-9][0-9][0-9]"] }],
];

export const preTokenizers: Readonly<Record<string, PreTokenizer>> = Object.fromEntries(
  entries.flatMap(([names, entry]) => names.split(" ").map((name) => [name, entry])),
);

export function preTokenizerNamed(name: string, source: string): PreTokenizer {
  if (Object.hasOwn(preTokenizers, name)) return preTokenizers[name]!;
  const known = Object.keys(preTokenizers).join(", ");
  return fail("InvalidFile", `${source}: unknown pre-tokenizer ${JSON.stringify(name)}; known are ${known}`);
}

/** The name of the pre-tokenizer with these patterns. */
export function preTokenizerName(patterns: readonly string[], ignoreMerges: boolean): string | undefined {
  const has = ({ patterns: own }: PreTokenizer) => own.join("\n") === patterns.join("\n");
  const found = Object.entries(preTokenizers).filter(([, entry]) => has(entry));
  return (found.find(([, entry]) => (entry.ignoreMerges ?? false) === ignoreMerges) ?? found[0])?.[0];
}

/** A step of tokenizer.json's pre_tokenizer. */
export const splitStep = (pattern: string): object => ({
  type: "Split",
  pattern: { Regex: pattern },
  behavior: "Isolated",
  invert: false,
});
export const byteLevelStep = (useRegex: boolean): object => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: false,
  use_regex: useRegex,
});
/** The pattern of ByteLevel's own `use_regex`. */
export const BYTE_LEVEL_PATTERN = gpt2;
