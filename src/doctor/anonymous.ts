/** A report without its owner: homes, names of users and the machine, and what tells one GPU from all others go. */
import { homedir, hostname, userInfo } from "node:os";

export interface Owner {
  readonly home: string;
  readonly user: string;
  readonly host: string;
}

function owner(): Owner {
  let user = "";
  try {
    user = userInfo().username;
  } catch {
    // A user id without an entry has no name.
  }
  return { home: homedir(), user, host: hostname() };
}

/** Names that say nothing of a person, and that are words of their own in a report. */
const impersonal = new Set(["", "root", "localhost", "user", "node"]);

/** Homes of others; GPUs by their ids, as variables that choose devices name them; network addresses. */
const anyones: readonly [RegExp, string][] = [
  [/(\/home\/|\/Users\/|\\Users\\)(?!user\b)[^/\\:;"\s]+/g, "$1user"],
  [/\b(GPU|MIG)-[0-9a-f][0-9a-f-]{7,}/gi, "$1-…"],
  [/\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b/gi, "…"],
];

export function anonymous<T>(value: T, { home, user, host }: Owner = owner()): T {
  const rules: [RegExp, string][] = [];
  if (home.length > 1) rules.push([new RegExp(`${escaped(home)}(?![\\w.-])`, "g"), "~"]);
  for (const [name, instead] of [
    [user, "user"],
    [host, "host"],
  ] as const) {
    if (!impersonal.has(name)) rules.push([new RegExp(`(?<![\\w-])${escaped(name)}(?![\\w-])`, "g"), instead]);
  }
  rules.push(...anyones);
  const clean = (text: string): string => rules.reduce((t, [pattern, instead]) => t.replace(pattern, instead), text);
  const walk = (v: unknown): unknown => {
    if (typeof v === "string") return clean(v);
    if (Array.isArray(v)) return v.map(walk);
    if (typeof v === "object" && v !== null) return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, walk(x)]));
    return v;
  };
  return walk(value) as T;
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
