/**
 * The header of NumPy's npy format: a magic number, a version, a length, and a Python dict such as
 * {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Shape } from "../../core/layout.ts";
import { quoted } from "../named-tensors.ts";

const MAGIC = Buffer.from("\x93NUMPY", "latin1");
/** Far more than three fields need; only record types, which tensors cannot have, take more. */
const MAX_HEADER = 65535;
/** NumPy starts the data at a multiple of this. */
const ALIGNMENT = 64;

/** What follows the byte order in `descr`. */
const read: ReadonlyMap<string, DType> = new Map([
  ["b1", "u8"],
  ["u1", "u8"],
  ["u4", "u32"],
  ["i2", "i16"],
  ["i4", "i32"],
  ["i8", "i64"],
  ["f2", "f16"],
  ["f4", "f32"],
  ["f8", "f64"],
]);

const written: ReadonlyMap<DType, string> = new Map([
  ["u8", "|u1"],
  ["u32", "<u4"],
  ["i16", "<i2"],
  ["i32", "<i4"],
  ["i64", "<i8"],
  ["f16", "<f2"],
  ["f32", "<f4"],
  ["f64", "<f8"],
]);

export interface NpyHeader {
  readonly dtype: DType;
  readonly bigEndian: boolean;
  /** The first index runs fastest. */
  readonly fortranOrder: boolean;
  readonly shape: Shape;
  /** Where the elements start. */
  readonly dataStart: number;
}

export function parseNpyHeader(file: Buffer, source: string): NpyHeader {
  const invalid = (problem: string): never => fail("InvalidFile", `${source}: ${problem}`);
  if (!file.subarray(0, 6).equals(MAGIC)) invalid("does not start with NumPy's magic bytes: not an npy file");
  const major = file[6] ?? 0;
  if (major < 1 || major > 3 || file[7] !== 0)
    invalid(`npy version ${major}.${file[7] ?? "?"} is unknown; 1.0, 2.0 and 3.0 are known`);
  const textStart = major === 1 ? 10 : 12;
  if (file.length < textStart) invalid(`ends after ${file.length} bytes, within the npy header`);
  const length = major === 1 ? file.readUInt16LE(8) : file.readUInt32LE(8);
  const dataStart = textStart + length;
  if (length > MAX_HEADER) invalid(`claims an npy header of ${length} bytes; no more than ${MAX_HEADER} are read`);
  if (dataStart > file.length)
    invalid(`claims an npy header of ${length} bytes, but only ${file.length - textStart} follow`);
  const text = file.subarray(textStart, dataStart).toString(major === 3 ? "utf8" : "latin1");
  const { descr, fortranOrder, shape } = new DictReader(text, source).read();
  return { ...parseDescr(descr, source), fortranOrder, shape, dataStart };
}

function parseDescr(descr: string, source: string): { dtype: DType; bigEndian: boolean } {
  const dtype = read.get(descr.slice(1));
  const order = descr.charAt(0);
  if (dtype === undefined || !(dtype === "u8" ? "|<>" : "<>").includes(order)) {
    fail(
      "UnexpectedDType",
      `${source}: NumPy dtype ${quoted(descr)} is not supported; known are ${[...read.keys()].join(", ")} after "<", ">" or "|"; convert it with astype() in NumPy`,
    );
  }
  return { dtype, bigEndian: order === ">" };
}

/** The part of Python's literals that an array of plain elements needs. Nothing is evaluated. */
class DictReader {
  readonly #text: string;
  readonly #source: string;
  #at = 0;

  constructor(text: string, source: string) {
    this.#text = text;
    this.#source = source;
  }

  read(): { descr: string; fortranOrder: boolean; shape: number[] } {
    let descr: string | undefined;
    let fortranOrder: boolean | undefined;
    let shape: number[] | undefined;
    this.#need(/\{/y, '"{"');
    while (!this.#take(/\}/y)) {
      const key = this.#string("a key");
      this.#need(/:/y, '":"');
      if (key === "descr" && descr === undefined) descr = this.#descr();
      else if (key === "fortran_order" && fortranOrder === undefined) fortranOrder = this.#boolean();
      else if (key === "shape" && shape === undefined) shape = this.#tuple();
      else this.#fail(`the key ${quoted(key)} is unknown or appears twice`);
      if (!this.#take(/,/y)) {
        this.#need(/\}/y, '"," or "}"');
        break;
      }
    }
    this.#need(/$/y, "the end");
    if (descr === undefined || fortranOrder === undefined || shape === undefined) {
      return this.#fail("one of 'descr', 'fortran_order' and 'shape' is missing");
    }
    return { descr, fortranOrder, shape };
  }

  /** Record types are lists of fields: well-formed, but no dtype of ours. */
  #descr(): string {
    if (!this.#take(/\[/y)) return this.#string("a string");
    const fields = this.#text.slice(this.#at - 1).trim();
    return fail(
      "UnexpectedDType",
      `${this.#source}: NumPy record dtype ${quoted(fields)} is not supported; save each field as an array of its own`,
    );
  }

  #string(what: string): string {
    return this.#need(/'[^'\\\n]*'|"[^"\\\n]*"/y, what).slice(1, -1);
  }

  #boolean(): boolean {
    return this.#need(/True|False/y, "True or False") === "True";
  }

  #tuple(): number[] {
    const out: number[] = [];
    this.#need(/\(/y, "a tuple");
    while (!this.#take(/\)/y)) {
      // Python 2 wrote an L after some.
      const size = Number.parseInt(this.#need(/(?:0|[1-9]\d*)L?/y, "a size"), 10);
      if (!Number.isSafeInteger(size)) this.#fail(`the size ${size} is too large`);
      out.push(size);
      if (this.#take(/,/y)) continue;
      if (out.length === 1) this.#fail("(n) is a number; a tuple of one size is (n,)");
      this.#need(/\)/y, '"," or ")"');
      break;
    }
    return out;
  }

  /** What `pattern` matches after white space. */
  #take(pattern: RegExp): string | undefined {
    while (" \t\n\r".includes(this.#text[this.#at] ?? "end")) this.#at++;
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0];
    this.#at += found?.length ?? 0;
    return found;
  }

  #need(pattern: RegExp, what: string): string {
    return (
      this.#take(pattern) ?? this.#fail(`expected ${what}, found ${quoted(this.#text.slice(this.#at, this.#at + 20))}`)
    );
  }

  #fail(problem: string): never {
    return fail("InvalidFile", `${this.#source}: the npy header is not valid: ${problem} (at character ${this.#at})`);
  }
}

/** Throws for the dtypes that NumPy does not have. */
export function descrOf(dtype: DType): string {
  const descr = written.get(dtype);
  return (
    descr ??
    fail(
      "UnsupportedDTypeForOp",
      `NumPy has no dtype for ${dtype}; cast the tensor first, for instance with toDType("f32")`,
    )
  );
}

export function formatNpyHeader(dtype: DType, shape: Shape): Uint8Array {
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  const dict = `{'descr': '${descrOf(dtype)}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const total = Math.ceil((10 + dict.length + 1) / ALIGNMENT) * ALIGNMENT;
  const out = Buffer.alloc(total, " ");
  MAGIC.copy(out);
  out.writeUInt16BE(0x0100, 6); // version 1.0
  out.writeUInt16LE(total - 10, 8);
  out.write(dict, 10, "latin1");
  out.write("\n", total - 1);
  return out;
}
