/** How many characters the texts of an expression have, and expressions kept to a number of them. */
import { choice, type Expression, isNothing, NOTHING, repeat, sequence } from "./expression.ts";

export interface Lengths {
  readonly least: number;
  readonly most: number;
}

/** For expressions without rules. */
export function lengthsOf(e: Expression): Lengths {
  switch (e.kind) {
    case "text": {
      const count = Array.from(e.text).length;
      return { least: count, most: count };
    }
    case "class":
      return { least: 1, most: 1 };
    case "sequence": {
      const all = e.items.map(lengthsOf);
      return { least: total(all.map((each) => each.least)), most: total(all.map((each) => each.most)) };
    }
    case "choice": {
      const all = e.items.map(lengthsOf);
      return {
        least: Math.min(...all.map((each) => each.least)),
        most: Math.max(...all.map((each) => each.most)),
      };
    }
    case "repeat": {
      const { least, most } = lengthsOf(e.item);
      const times = e.most ?? Number.POSITIVE_INFINITY;
      return { least: e.least * least, most: most === 0 ? 0 : times * most };
    }
    case "rule":
      return { least: 0, most: Number.POSITIVE_INFINITY };
    default:
      return e satisfies never;
  }
}

const total = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0);

/**
 * Texts of the expression that have from `least` to `most` characters: all of them where that can be said of its parts one by
 * one, otherwise some; nothing where none are found.
 */
export function withLengths(e: Expression, least: number, most: number): Expression {
  const own = lengthsOf(e);
  if (own.least >= least && own.most <= most) return e;
  if (own.least > most || own.most < least) return NOTHING;
  if (e.kind === "choice")
    return choice(...e.items.map((item) => withLengths(item, least, most)).filter((x) => !isNothing(x)));
  if (e.kind === "repeat") return fewer(e.item, e.least, e.most ?? Number.POSITIVE_INFINITY, least, most);
  return e.kind === "sequence" ? shared(e.items, least, most) : NOTHING;
}

function fewer(item: Expression, from: number, to: number, least: number, most: number): Expression {
  const each = lengthsOf(item);
  const times = Math.max(from, each.least === 0 ? 0 : Math.ceil(least / each.least));
  const limit = Math.min(to, Math.floor(most / each.most));
  if (times <= limit) return repeat(item, times, Number.isFinite(limit) ? limit : null);
  return NOTHING;
}

/** Each part may have a share of the characters that are not needed anyway. */
function shared(items: readonly Expression[], least: number, most: number): Expression {
  const lengths = items.map(lengthsOf);
  let needed = least - total(lengths.map((each) => each.least));
  const lows = lengths.map((each) => {
    const more = Math.max(0, Math.min(needed, each.most - each.least));
    needed -= more;
    return each.least + more;
  });
  let spare = most - total(lows);
  if (needed > 0 || spare < 0) return NOTHING;
  let open = lengths.filter((each, i) => each.most > lows[i]!).length;
  const highs = lengths.map((each, i) => {
    const room = each.most - lows[i]!;
    if (room === 0) return lows[i]!;
    const part = Math.min(room, Math.ceil(spare / open--));
    spare -= part;
    return lows[i]! + part;
  });
  return sequence(...items.map((item, i) => withLengths(item, lows[i]!, highs[i]!)));
}
