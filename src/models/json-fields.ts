/** Typed reading of a JSON object from a file: what is missing or wrong is named with what was found. */
import { readFile } from "node:fs/promises";
import { fail } from "../core/errors.ts";

export class JsonFields {
  readonly values: Readonly<Record<string, unknown>>;
  /** Opens the error messages. */
  readonly source: string;

  /** Put before the names in messages. */
  readonly #prefix: string;

  constructor(values: unknown, source: string, prefix = "") {
    this.source = source;
    this.#prefix = prefix;
    if (typeof values !== "object" || values === null || Array.isArray(values)) {
      fail("InvalidFile", `${source} must be a JSON object, not ${describe(values)}`);
    }
    this.values = values as Readonly<Record<string, unknown>>;
  }

  /** Whether the field is there and not null. */
  has(name: string): boolean {
    return Object.hasOwn(this.values, name) && this.values[name] !== null;
  }

  count(name: string, least = 1): number {
    return this.#field(name, isCount(least), `a whole number from ${least} up`);
  }

  countOr<T>(name: string, otherwise: T, least = 1): number | T {
    return this.has(name) ? this.count(name, least) : otherwise;
  }

  positive(name: string): number {
    return this.#field(name, (v): v is number => isNumber(v) && v > 0, "a positive number");
  }

  positiveOr<T>(name: string, otherwise: T): number | T {
    return this.has(name) ? this.positive(name) : otherwise;
  }

  flagOr(name: string, otherwise: boolean): boolean {
    return this.has(name) ? this.#field(name, (v): v is boolean => typeof v === "boolean", "true or false") : otherwise;
  }

  text(name: string): string {
    return this.#field(name, (v): v is string => typeof v === "string", "a string");
  }

  textOr<T>(name: string, otherwise: T): string | T {
    return this.has(name) ? this.text(name) : otherwise;
  }

  positives(name: string, length: number): number[] {
    const is = (v: unknown): v is number[] =>
      Array.isArray(v) && v.length === length && v.every((n) => isNumber(n) && n > 0);
    return this.#field(name, is, `${length} positive numbers`);
  }

  textList(name: string): readonly string[] {
    const is = (v: unknown): v is string[] => Array.isArray(v) && v.every((s) => typeof s === "string");
    return this.#field(name, is, "strings");
  }

  /** `length` numbers, in a plain or a typed array. */
  numbers(name: string, length: number): ArrayLike<number> {
    const is = (v: unknown): v is ArrayLike<number> =>
      (Array.isArray(v) || ArrayBuffer.isView(v)) && (v as ArrayLike<unknown> & object as number[]).length === length;
    return this.#field(name, is, `${length} numbers`);
  }

  /** A count, or the same one for each of `length` layers. */
  uniformCount(name: string, length: number): number {
    const value = this.values[name];
    if (!ArrayBuffer.isView(value) && !Array.isArray(value)) return this.count(name);
    const [first, ...others] = Array.from(this.numbers(name, length));
    if (!isCount(1)(first) || others.some((n) => n !== first)) {
      fail(
        "InvalidFile",
        `${this.source}: ${this.#prefix}${name} differs from layer to layer; models with layers alike are run`,
      );
    }
    return first;
  }

  texts(name: string, length: number): string[] {
    const is = (v: unknown): v is string[] =>
      Array.isArray(v) && v.length === length && v.every((s) => typeof s === "string");
    return this.#field(name, is, `${length} strings`);
  }

  /** A token id or several; none where the field is missing. */
  tokens(name: string): number[] {
    if (!this.has(name)) return [];
    const is = (v: unknown): v is number | number[] => (Array.isArray(v) ? v : [v]).every(isCount(0));
    return [this.#field(name, is, "a token id, or several")].flat();
  }

  /** Whole numbers from 0 up; none where the field is missing. */
  counts(name: string): readonly number[] {
    if (!this.has(name)) return [];
    const is = (v: unknown): v is number[] => Array.isArray(v) && v.every(isCount(0));
    return this.#field(name, is, "whole numbers from 0 up");
  }

  objects(name: string): JsonFields[] {
    const is = (v: unknown): v is unknown[] => Array.isArray(v);
    return this.#field(name, is, "a list").map((entry) => new JsonFields(entry, `${this.source}: ${name}`));
  }

  object(name: string): JsonFields | undefined {
    return this.has(name) ? new JsonFields(this.values[name], `${this.source}: ${name}`) : undefined;
  }

  /** The fields whose names start with `prefix`, without it; messages have it. */
  under(prefix: string): JsonFields {
    const own = Object.entries(this.values).filter(([name]) => name.startsWith(prefix));
    const values = Object.fromEntries(own.map(([name, value]) => [name.slice(prefix.length), value]));
    return new JsonFields(values, this.source, prefix);
  }

  #field<T>(name: string, is: (v: unknown) => v is T, what: string): T {
    const value = Object.hasOwn(this.values, name) ? this.values[name] : undefined;
    return is(value)
      ? value
      : fail("InvalidFile", `${this.source}: ${this.#prefix}${name} must be ${what}, ${found(value)}`);
  }
}

const isNumber = (v: unknown): v is number => typeof v === "number" && Number.isFinite(v);
const isCount =
  (least: number) =>
  (v: unknown): v is number =>
    Number.isSafeInteger(v) && (v as number) >= least;
const describe = (v: unknown): string => {
  const some = ArrayBuffer.isView(v) ? Array.from((v as Uint8Array).subarray(0, 80)) : v;
  const text = JSON.stringify(some, (_, value: unknown) => (typeof value === "bigint" ? `${value}` : value));
  return (text ?? "nothing").slice(0, 80);
};
const found = (v: unknown): string => (v === undefined ? "but it is missing" : `not ${describe(v)}`);

/** The file's JSON, or undefined where there is no such file. */
export async function readJsonIfPresent(path: string): Promise<unknown> {
  const text = await readTextIfPresent(path);
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    return fail("InvalidFile", `${path} is not JSON: ${(cause as Error).message}`, { cause });
  }
}

export async function readTextIfPresent(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    return fail("InvalidFile", `${path} cannot be read: ${(cause as Error).message}`, { cause });
  }
}
