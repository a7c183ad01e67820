/** The fields of a request's JSON, each taken by what it must be; `null` counts as not given. */
import { shown } from "../../core/errors.ts";
import { invalid } from "./errors.ts";

interface Limits {
  readonly min?: number;
  readonly max?: number;
}

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export class Fields {
  readonly values: Readonly<Record<string, unknown>>;
  readonly #path: string;

  constructor(values: unknown, path = "") {
    this.#path = path;
    this.values = isRecord(values)
      ? values
      : invalid(path || null, `${path || "the body"} must be an object`, "invalid_type");
  }

  /** As errors name a field. */
  param(name: string): string {
    return this.#path === "" ? name : `${this.#path}.${name}`;
  }

  has(name: string): boolean {
    return this.get(name) !== undefined;
  }

  get(name: string): unknown {
    return Object.hasOwn(this.values, name) ? (this.values[name] ?? undefined) : undefined;
  }

  text(name: string): string | undefined {
    const value = this.get(name);
    return value === undefined || typeof value === "string" ? value : this.#wrong(name, "text", value);
  }

  flag(name: string): boolean | undefined {
    const value = this.get(name);
    return value === undefined || typeof value === "boolean" ? value : this.#wrong(name, "true or false", value);
  }

  number(name: string, { min = -Number.MAX_VALUE, max = Number.MAX_VALUE }: Limits = {}): number | undefined {
    const value = this.get(name);
    if (value === undefined) return undefined;
    if (typeof value !== "number") return this.#wrong(name, "a number", value);
    if (value >= min && value <= max) return value;
    const limits =
      max === Number.MAX_VALUE ? `${min} or more` : min === -Number.MAX_VALUE ? `at most ${max}` : `${min} to ${max}`;
    return invalid(this.param(name), `${this.param(name)} must be ${limits}, not ${value}`);
  }

  count(name: string, { min = 0, max = Number.MAX_SAFE_INTEGER }: Limits = {}): number | undefined {
    const value = this.number(name, { min, max });
    if (value === undefined || Number.isSafeInteger(value)) return value;
    return invalid(this.param(name), `${this.param(name)} must be a whole number, not ${value}`);
  }

  choice<const T extends string>(name: string, choices: readonly T[]): T | undefined {
    const value = this.text(name);
    const found = choices.find((choice) => choice === value);
    if (value === undefined || found !== undefined) return found;
    return invalid(this.param(name), `${this.param(name)} must be one of ${choices.join(", ")}, not ${shown(value)}`);
  }

  object(name: string): Fields | undefined {
    const value = this.get(name);
    return value === undefined ? undefined : new Fields(value, this.param(name));
  }

  list(name: string): readonly unknown[] | undefined {
    const value = this.get(name);
    return value === undefined || Array.isArray(value) ? value : this.#wrong(name, "a list", value);
  }

  /** A text, or several. */
  texts(name: string): readonly string[] | undefined {
    const value = this.get(name);
    if (value === undefined) return undefined;
    const texts = Array.isArray(value) ? value : [value];
    return texts.every((text) => typeof text === "string")
      ? texts
      : this.#wrong(name, "text or a list of texts", value);
  }

  required(name: string): unknown {
    return this.get(name) ?? invalid(this.param(name), `${this.param(name)} is missing`, "missing_required_parameter");
  }

  /** Fields that mean something which is not done here: leaving them out silently would be another answer than was asked for. */
  refuse(names: readonly string[], isHarmless: (value: unknown) => boolean = () => false): void {
    for (const name of names) {
      const value = this.get(name);
      if (value === undefined || isHarmless(value)) continue;
      invalid(this.param(name), `${this.param(name)} is not supported here`, "unsupported_parameter");
    }
  }

  #wrong(name: string, what: string, value: unknown): never {
    const found = isRecord(value) ? "an object" : Array.isArray(value) ? "a list" : shown(value);
    return invalid(this.param(name), `${this.param(name)} must be ${what}, not ${found}`, "invalid_type");
  }
}
