/**
 * Which devices there are. Each family has a prefix, "rocm" in "rocm:0+miopen", and is opened by whoever registered it;
 * nothing here knows any of them.
 */
import { fail } from "../core/errors.ts";
import type { Backend } from "./backend.ts";

/** A device's name in its parts: prefix, number and what was asked for by +. */
export interface DeviceAddress {
  /** In full: "rocm" is "rocm:0". */
  readonly name: string;
  /** Which of the family: "0"; empty where it has one device. */
  readonly id: string;
  readonly extras: readonly string[];
}

export interface FamilyOptions {
  /** The ids that there may be: without it, the family is one device. */
  readonly ids?: RegExp;
  /** The id that is meant where none is given. */
  readonly first?: string;
  /** What may be asked for by + behind the name. */
  readonly extras?: readonly string[];
  /** For people: "rocm:0", and what it is. */
  readonly about?: string;
}

interface Family extends FamilyOptions {
  readonly open: (address: DeviceAddress) => Backend;
}

const families = new Map<string, Family>();
export type Search = () => Iterable<string> | string | null;
const searches: Search[] = [];

/** Makes a family of devices known by the prefix of its names. `open` is called once per name. */
export function registerDevice(
  prefix: string,
  open: (address: DeviceAddress) => Backend,
  options: FamilyOptions = {},
): void {
  if (!/^[a-z][a-z0-9]*$/.test(prefix)) {
    fail("InvalidArgument", `registerDevice: a prefix is lower-case letters and digits, not ${JSON.stringify(prefix)}`);
  }
  if (families.has(prefix)) fail("InvalidArgument", `registerDevice: there are devices named "${prefix}" already`);
  families.set(prefix, { ...options, open });
}

/**
 * `search` names the devices that it knows, the best first, or one of them, or null; the first that finds one decides what
 * `Device.best()` is.
 */
export function registerSearch(search: Search): void {
  searches.push(search);
}

/** Those that searches find, the best first; each is looked for when it is asked for. */
export function* presentNames(): Generator<string> {
  for (const search of searches) {
    const found = search();
    if (typeof found === "string") yield found;
    else yield* found ?? [];
  }
}

/** The device that a name means, and how to open it. */
export function locate(name: string): { readonly address: DeviceAddress; open(): Backend } {
  const [, prefix = "", given, plus = ""] = /^([a-z][a-z0-9]*)(?::([^+]*))?((?:\+[a-z]+)*)$/.exec(String(name)) ?? [];
  const family = families.get(prefix);
  const extras = plus.split("+").slice(1);
  const id = given ?? family?.first ?? "";
  if (!family || !isId(family, id, given) || extras.some((extra) => !family.extras?.includes(extra))) {
    const known = [...families.entries()].map(([prefix, { about }]) => about ?? prefix).join(", ");
    return fail("UnknownDevice", `unknown device ${JSON.stringify(name)}; devices are ${known}`);
  }
  const address = { name: `${prefix}${id === "" ? "" : `:${id}`}${plus}`, id, extras };
  return { address, open: () => family.open(address) };
}

const isId = ({ ids }: Family, id: string, given: string | undefined): boolean =>
  ids ? ids.test(id) : given === undefined;
