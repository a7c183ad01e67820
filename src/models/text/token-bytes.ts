/** What a token writes, as bytes: a token may hold a part of a character only. */
import { JsonFields } from "../json-fields.ts";

type Step = (token: string) => string;

const BYTE = /^<0x([0-9A-Fa-f]{2})>$/;
const encoder = new TextEncoder();

/** Tokens of a tokenizer.json; the text of those that were added is as it stands. */
export function tokenBytes(decoder: unknown): (token: string) => Uint8Array {
  const steps = flat(decoder);
  if (steps.some(({ values }) => values.type === "ByteLevel")) return bytesOfCharacters;
  const takesBytes = steps.some(({ values }) => values.type === "ByteFallback");
  const texts = steps.flatMap((step) => textStep(step));
  return (token) => {
    const byte = takesBytes ? BYTE.exec(token)?.[1] : undefined;
    if (byte !== undefined) return Uint8Array.of(Number.parseInt(byte, 16));
    return encoder.encode(texts.reduce((text, step) => step(text), token));
  };
}

function flat(decoder: unknown): JsonFields[] {
  if (typeof decoder !== "object" || decoder === null) return [];
  const fields = new JsonFields(decoder, "the tokenizer's decoder");
  const { decoders } = fields.values;
  return Array.isArray(decoders) ? decoders.flatMap(flat) : [fields];
}

function textStep({ values }: JsonFields): Step[] {
  const { type, content, replacement, prefix, suffix } = values;
  const pattern = (values.pattern as { readonly String?: unknown } | undefined)?.String;
  if (type === "Replace" && typeof pattern === "string") {
    return [(token) => token.replaceAll(pattern, String(content))];
  }
  if (type === "Metaspace") return [(token) => token.replaceAll(String(replacement ?? "▁"), " ")];
  if (type === "BPEDecoder") return [(token) => token.replaceAll(String(suffix ?? "</w>"), " ")];
  const mark = String(prefix ?? "##");
  if (type === "WordPiece") return [(token) => (token.startsWith(mark) ? token.slice(mark.length) : ` ${token}`)];
  return [];
}

let characters: ReadonlyMap<string, number> | undefined;

/** GPT-2 writes a byte as a character: those that can be seen as themselves, the others as those from 256 on. */
function byteCharacters(): ReadonlyMap<string, number> {
  const isSeen = (byte: number): boolean => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let next = 256;
  const pairs = Array.from({ length: 256 }, (_, byte): [string, number] => {
    return [String.fromCharCode(isSeen(byte) ? byte : next++), byte];
  });
  return new Map(pairs);
}

function bytesOfCharacters(token: string): Uint8Array {
  characters ??= byteCharacters();
  const known = characters;
  return Uint8Array.from(Array.from(token).flatMap((c) => (known.has(c) ? [known.get(c)!] : [...encoder.encode(c)])));
}
