/** Parts in their order with commas between them, of which some may be missing, and how many there are in all. */
import {
  choice,
  EMPTY,
  type Expression,
  type Grammar,
  isNothing,
  NOTHING,
  optional,
  repeat,
  sequence,
} from "./expression.ts";
import { COMMA } from "./json-text.ts";

export interface Member {
  readonly text: Expression;
  readonly required: boolean;
}

export interface Counts {
  readonly least: number;
  readonly most: number;
  /** What may follow behind the members: the first ones that are needed, and any other. */
  readonly others: { readonly needed: (index: number) => Expression; readonly free: Expression } | null;
}

export function counted(grammar: Grammar, members: readonly Member[], { least, most, others }: Counts): Expression {
  const counts = least > 0 || Number.isFinite(most);
  const made = new Map<string, Expression>();
  /** Members from `at` on, behind so many that are there. */
  const from = (at: number, there: number): Expression => {
    const key = `${at},${there}`;
    const known = made.get(key);
    if (known) return known;
    const rest = at === members.length ? behind(there) : grammar.define("members", () => member(at, there));
    made.set(key, rest);
    return rest;
  };
  const member = (at: number, there: number): Expression => {
    const { text, required } = members[at]!;
    const comma = there > 0 ? COMMA : EMPTY;
    const taken = there < most ? sequence(comma, text, resolved(from(at + 1, counts ? there + 1 : 1))) : NOTHING;
    const left = required ? NOTHING : resolved(from(at + 1, there));
    return choice(...[taken, left].filter((each) => !isNothing(each)));
  };
  /** A rule without texts is none. */
  const resolved = (e: Expression): Expression =>
    e.kind === "rule" && isNothing(grammar.rules.get(e.name) ?? NOTHING) ? NOTHING : e;
  const behind = (there: number): Expression => {
    const missing = Math.max(0, least - there);
    const room = most - there;
    if (!others || room <= 0) return missing > 0 ? NOTHING : EMPTY;
    const needed = Array.from({ length: missing }, (_, i) => {
      return sequence(there + i > 0 ? COMMA : EMPTY, others.needed(i));
    });
    const left = Number.isFinite(room) ? room - missing : null;
    const more = sequence(COMMA, others.free);
    if (there + missing > 0) return sequence(...needed, repeat(more, 0, left));
    return left === 0 ? EMPTY : optional(sequence(others.free, repeat(more, 0, left === null ? null : left - 1)));
  };
  return resolved(from(0, 0));
}
