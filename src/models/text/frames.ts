/** What a tokenizer puts around a text, or around two as one: found out once, so that texts can be cut to fit inside. */

/** A special token, or the place of a text. */
export type FrameItem =
  | { readonly id: number; readonly type: number }
  | { readonly text: 0 | 1; readonly type: number };
export type Frame = readonly FrameItem[];

/** Token ids with the segment each belongs to: 0 for a first text, 1 for what a tokenizer counts to a second. */
export interface Segments {
  readonly ids: number[];
  readonly types: number[];
  /** How many there would be if nothing were cut. */
  readonly uncut: number;
}

interface Processed {
  readonly tokens: readonly string[];
  readonly token_type_ids?: readonly number[];
}
/** A tokenizer's rule for what stands around its tokens. */
export type PostProcessor = (first: string[], second: string[] | null, special: boolean) => Processed;

/** No vocabulary has these. */
const PLACES = ["\u0000first", "\u0000second"];

/** What `process` puts around one text or two. */
export function frameOf(
  process: PostProcessor | null,
  count: 1 | 2,
  idOf: (token: string) => number | undefined,
): Frame {
  const [first, second] = PLACES as [string, string];
  const bare: Processed = { tokens: PLACES.slice(0, count) };
  const { tokens, token_type_ids: types = [] } = process?.([first], count === 2 ? [second] : null, true) ?? bare;
  return tokens.flatMap((token, i): FrameItem[] => {
    const type = types[i] ?? 0;
    const text = PLACES.indexOf(token);
    if (text >= 0) return [{ text: text as 0 | 1, type }];
    const id = idOf(token);
    return id === undefined ? [] : [{ id, type }];
  });
}

/** The frame around texts that are cut at their ends until all is at most `limit` tokens: of two the longer one first. */
export function framed(frame: Frame, texts: readonly (readonly number[])[], limit: number): Segments {
  const around = frame.length - texts.length;
  const room = Math.max(limit - around, 0);
  const kept = texts.length === 2 ? share(texts[0]!.length, texts[1]!.length, room) : [room];
  const uncut = texts.reduce((sum, { length }) => sum + length, around);
  const out: Segments = { ids: [], types: [], uncut };
  for (const item of frame) {
    const ids = "id" in item ? [item.id] : texts[item.text]!.slice(0, kept[item.text]!);
    for (const id of ids) {
      out.ids.push(id);
      out.types.push(item.type);
    }
  }
  return out;
}

function share(first: number, second: number, room: number): [number, number] {
  if (first + second <= room) return [first, second];
  const shorter = Math.min(first, second, Math.floor(room / 2));
  return first <= second ? [shorter, room - shorter] : [room - shorter, shorter];
}
