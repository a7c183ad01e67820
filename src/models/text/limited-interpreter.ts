/**
 * Jinja for templates of strangers: a template sees its variables and a handful of functions, and is stopped where it goes on for
 * too long or makes too much. Each evaluation of a node is a step; what an operation reads or makes costs further ones by its size.
 * What would become huge in one operation is refused before it.
 */
import * as jinja from "@huggingface/jinja";
import { constants, refuse, strftime } from "./template-functions.ts";

/** A node of a parsed template, as far as it is looked at here. */
interface Node {
  readonly type: string;
  readonly operand?: Node;
  readonly filter?: { readonly value?: unknown; readonly callee?: { readonly value?: unknown } };
  readonly operator?: { readonly value?: unknown };
  readonly object?: Node;
  readonly property?: Node;
  readonly callee?: Node;
  readonly test?: Node;
  readonly value?: unknown;
  readonly args?: readonly Node[];
  readonly iterable?: Node;
  readonly lhs?: Node;
}
/** Numbers, text, lists (arrays of these), mappings (of these), functions. */
interface Value {
  readonly value: unknown;
}
interface Environment {
  set(name: string, value: unknown): void;
}
// The package's declarations of these name files that TypeScript does not find.
const { Environment, Interpreter } = jinja as unknown as {
  readonly Environment: new () => Environment;
  readonly Interpreter: new (
    environment: Environment,
  ) => { run(program: unknown): Value; evaluate(node: Node | undefined, environment: Environment): Value };
};

/** A template that has been stopped; the message goes on from "the chat template". */
export class TemplateStopped extends Error {}

/** And one more for each character that the template was given. An item of a list that it makes is a step, too. */
const STEPS = 1_000_000;
const DEPTH = 400;
/** Characters that a text may have, besides a few times what the template was given. */
const LENGTH = 2 ** 20;
const LENGTH_PER_INPUT = 4;
/** What one operation may write at most, before the result is measured. */
const BURST = 2 ** 26;
/** Reading or copying so many characters takes about as long as a step. */
const CHARACTERS_PER_STEP = 64;

/** A round of a loop, besides what is in it. */
const STEPS_PER_ROUND = 8;

/** Filters that look at no more than a list's ends or its length, or give it as it is. */
const cheapFilters = new Set(["default", "first", "last", "length", "count", "list", "safe"]);
/** Nodes whose results are new lists, not ones that were there. */
const makers = new Set(["ArrayLiteral", "TupleLiteral", "ObjectLiteral", "FilterExpression", "BinaryExpression"]);
const blocks = new Set(["Program", "If", "For", "CallStatement", "FilterStatement", "CallExpression", "Set"]);

/** A node that is being evaluated: what it works on, and the largest argument. */
interface Frame {
  readonly node: Node;
  readonly parent: Frame | undefined;
  weight: number;
  factor: number;
}

const isText = (value: Value): value is Value & { value: string } => typeof value.value === "string";

/** The items of a list, the keys and values of a mapping. */
function itemsOf({ value }: Value): readonly (Value | string)[] {
  if (Array.isArray(value)) return value as Value[];
  return value instanceof Map ? [...(value as Map<string, Value>)].flat() : [];
}

const sizeOf = (value: Value): number =>
  Array.isArray(value.value) ? value.value.length : value.value instanceof Map ? value.value.size : 0;

export class LimitedInterpreter extends Interpreter {
  readonly #longest: number;
  readonly #limit: number;
  #steps = 0;
  #depth = 0;
  #frame: Frame | undefined;

  /** `given` counts the characters of the variables. */
  constructor(variables: Readonly<Record<string, unknown>>, given: number) {
    const environment = new Environment();
    super(environment);
    this.#longest = LENGTH + LENGTH_PER_INPUT * given;
    this.#limit = STEPS + given;
    const range = (...args: unknown[]) => this.#range(args);
    const all = { ...constants, range, strftime_now: strftime, raise_exception: refuse, ...variables };
    for (const [name, value] of Object.entries(all)) environment.set(name, value);
  }

  override evaluate(node: Node | undefined, environment: Environment): Value {
    if (!node) return super.evaluate(node, environment);
    if (++this.#depth > DEPTH) throw new TemplateStopped(`nests more than ${DEPTH} deep`);
    this.#spend(1);
    const parent = this.#frame;
    this.#frame = { node, parent, weight: 0, factor: 0 };
    try {
      const value = super.evaluate(node, environment);
      if (isText(value)) this.#measureText(value.value, node, parent);
      else if (sizeOf(value) > 0) this.#measureList(value, node, parent);
      else if (typeof value.value === "number") this.#noteArgument(value.value, node, parent);
      return value;
    } finally {
      this.#depth--;
      this.#frame = parent;
    }
  }

  #measureText(text: string, node: Node, parent: Frame | undefined): void {
    if (text.length > this.#longest) throw new TemplateStopped(`makes a text of ${text.length} characters`);
    this.#spend(text.length / CHARACTERS_PER_STEP);
    if (!parent) return;
    const { operand, object } = parent.node;
    if (parent.node.type === "FilterExpression" && node === operand) parent.weight = text.length;
    else if (parent.node.type === "MemberExpression" && node === object) {
      const call = parent.parent;
      if (call?.node.type !== "CallExpression" || call.node.callee !== parent.node) return;
      call.weight = text.length;
      this.#checkBurst(call);
    } else {
      if (parent.node.type === "FilterStatement") parent.weight += text.length;
      this.#noteArgument(text.length, node, parent);
    }
  }

  #measureList(list: Value, node: Node, parent: Frame | undefined): void {
    const size = sizeOf(list);
    const slices = node.type === "MemberExpression" && node.property?.type === "SliceExpression";
    const splits = node.type === "CallExpression";
    if (slices || splits || (makers.has(node.type) && !cheapFilters.has(filterOf(node)))) {
      this.#spend(size);
    }
    if (parent) this.#consumeList(list, node, parent);
  }

  /** What the node above does with a list. */
  #consumeList(list: Value, node: Node, parent: Frame): void {
    const { type, operand, iterable, lhs, operator, test, value, args, callee } = parent.node;
    if (node === iterable || node === lhs) {
      this.#spend(STEPS_PER_ROUND * sizeOf(list));
    } else if (type === "FilterExpression") {
      if (node !== operand) this.#noteArgument(this.#weigh(list), node, parent);
      else if (!cheapFilters.has(filterOf(parent.node))) parent.weight = this.#weigh(list);
    } else if (type === "BinaryExpression") {
      // Beside a text a list is written out.
      if (operator?.value === "~" || operator?.value === "+") this.#weigh(list);
      else this.#spend(sizeOf(list) / 8);
    } else if (blocks.has(type)) {
      const isPart = node === test || node === value || node === callee || args?.includes(node);
      if (!isPart) this.#weigh(list);
    }
  }

  /** How long a list is when it is written out, or more. One may hold another many times over. */
  #weigh(list: Value): number {
    const waiting: (Value | string)[] = [list];
    let weight = 0;
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
      const text = typeof next === "string" ? next : isText(next) ? next.value : "";
      weight += 2 + text.length;
      if (typeof next !== "string") for (const item of itemsOf(next)) waiting.push(item);
      this.#spend(1);
      if (weight > 2 * this.#longest) throw new TemplateStopped("writes out too large a list");
    }
    this.#spend(weight / CHARACTERS_PER_STEP);
    return weight;
  }

  /** An argument of a filter or a method: what is repeated, or how often. */
  #noteArgument(size: number, node: Node, parent: Frame | undefined): void {
    const type = parent?.node.type;
    if (!parent || (type !== "FilterExpression" && type !== "FilterStatement" && type !== "CallExpression")) return;
    if (node === parent.node.operand) return;
    parent.factor = Math.max(parent.factor, size);
    this.#checkBurst(parent);
  }

  #checkBurst({ weight, factor }: Frame): void {
    if (weight * factor > BURST && weight * factor > 64 * this.#longest)
      throw new TemplateStopped(`repeats ${factor} characters ${weight} times`);
  }

  #spend(steps: number): void {
    this.#steps += steps;
    if (this.#steps > this.#limit) throw new TemplateStopped(`takes more than ${this.#limit} steps`);
  }

  #range(args: readonly unknown[]): number[] {
    const [first = 0, second, step = 1] = args.filter((value) => typeof value === "number");
    const [start, stop] = second === undefined ? [0, first] : [first, second];
    if (step === 0) throw new Error("range() needs a step other than 0");
    const count = Math.max(0, Math.ceil((stop - start) / step));
    if (!(count <= this.#limit)) throw new TemplateStopped(`counts to ${count}`);
    this.#spend(count);
    return Array.from({ length: count }, (_, i) => start + i * step);
  }
}

function filterOf(node: Node): string {
  const filter = node.filter;
  return String(filter?.value ?? filter?.callee?.value ?? "");
}
