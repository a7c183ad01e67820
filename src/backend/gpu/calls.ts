/**
 * Native calls as data, so that a trial in a child process makes the very calls that this process would make. An argument
 * is a number or names a cell, that is some words of native memory: "x" is the word in cell x, "&x" is its address.
 */
import { type Argument, addressOf, type NativeFunction } from "./library.ts";

export type Step = readonly [call: string, ...args: (number | string)[]];
export type Words = Readonly<Record<string, readonly bigint[]>>;

export class Cells {
  readonly #cells = new Map<string, BigUint64Array>();

  constructor(words: Words) {
    for (const [name, values] of Object.entries(words)) {
      // A buffer of its own does not move, so its address may be kept.
      const cell = new BigUint64Array(new ArrayBuffer(8 * values.length));
      cell.set(values);
      this.#cells.set(name, cell);
    }
  }

  words(name: string): BigUint64Array {
    const cell = this.#cells.get(name);
    if (!cell) throw new TypeError(`no cell is named ${name}`);
    return cell;
  }

  address(name: string): bigint {
    return addressOf(this.words(name));
  }

  value(name: string): bigint {
    return this.words(name)[0]!;
  }

  resolve(argument: number | string): number | bigint {
    if (typeof argument === "number") return argument;
    return argument.startsWith("&") ? this.address(argument.slice(1)) : this.value(argument);
  }
}

/** A function and the arguments it is to be called with. */
export type Call = readonly [fn: NativeFunction, ...args: Argument[]];

export const callOf = (
  api: Readonly<Record<string, NativeFunction>>,
  [name, ...args]: Step,
  cells: Cells,
): [NativeFunction, ...Argument[]] => [api[name]!, ...args.map((argument) => cells.resolve(argument))];

/** Makes the calls in order, until one does not give 0. */
export function take(
  api: Readonly<Record<string, NativeFunction>>,
  steps: readonly Step[],
  cells: Cells,
  failed: (status: number, call: string) => void,
): void {
  for (const step of steps) {
    const [fn, ...args] = callOf(api, step, cells);
    const status = fn(...args);
    if (status !== 0) {
      failed(status, step[0]);
      return;
    }
  }
}

/** A 32- or 64-bit integer as the word that holds it. */
export const word = (value: number): bigint => BigInt.asUintN(64, BigInt(value));

/** Bytes as words; their number is a multiple of eight. */
export const wordsOf = (bytes: Uint8Array): bigint[] => [
  ...new BigUint64Array(bytes.slice().buffer, 0, bytes.byteLength / 8),
];
