/** A report without its owner: the home folder becomes ~, and names of the user and the machine go. */
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

export function anonymous<T>(value: T, { home, user, host }: Owner = owner()): T {
  const rules: [RegExp, string][] = [];
  if (home.length > 1) rules.push([new RegExp(`${escaped(home)}(?![\\w.-])`, "g"), "~"]);
  for (const [name, instead] of [
    [user, "user"],
    [host, "host"],
  ] as const) {
    if (!impersonal.has(name)) rules.push([new RegExp(`(?<![\\w-])${escaped(name)}(?![\\w-])`, "g"), instead]);
  }
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
