/**
 * An assembler for x86-64: a method for each instruction, typed by its operands, encoded from the tables in
 * encodings.ts (vectors, masks) and general.ts. VEX or EVEX is chosen by what the operands need.
 *
 *     const a = new Assembler();
 *     const loop = a.here();
 *     a.vfmadd231ps(zmm(8), zmm(3), mem(rsi, { index: rcx, scale: 4 }));
 *     a.sub(rcx, 16);
 *     a.jne(loop);
 *     a.ret();
 */
import { fail } from "../../../core/errors.ts";
import { type encodings, type Form, forms, type Kind } from "./encodings.ts";
import { type GeneralForm, type GeneralPattern, type general, generalForms } from "./general.ts";
import { type Gpr, Label, type Mask, Mem, mem, type Operand, Vec } from "./operands.ts";

interface Fixup {
  /** Where the four bytes are, and from where they count. */
  readonly at: number;
  readonly from: number;
  readonly label: Label;
  readonly addend: number;
}

const fits8 = (n: number): boolean => n === (n << 24) >> 24;
const name = (operand: Operand): string =>
  typeof operand === "object" ? `${operand.kind}${"bits" in operand ? operand.bits : ""}` : `${operand}`;

/** What forms are told apart by: kind and width of each operand, four bits each. */
function signature(operands: readonly Operand[]): number {
  let sum = operands.length;
  for (let i = 0; i < operands.length; i++) {
    const operand = operands[i]!;
    let code = 15;
    if (typeof operand === "number") code = operand >= -128 && operand < 256 ? 1 : 2;
    else if (typeof operand === "bigint") code = 2;
    else if (operand.kind === "vec") code = operand.bits === 512 ? 3 : operand.bits === 256 ? 4 : 5;
    else if (operand.kind === "mem") code = operand.repeated ? 6 : operand.bits === 64 ? 7 : 8;
    else if (operand.kind === "mask") code = 9;
    else if (operand.kind === "gpr") {
      const isCl = operand.bits === 8 && operand.id === 1;
      code = isCl ? 10 : operand.bits === 64 ? 11 : operand.bits === 32 ? 12 : operand.bits === 16 ? 13 : 14;
    }
    sum = sum * 16 + code;
  }
  return sum;
}

/** Forms that were found, by instruction and signature. */
const known = new Map<string, Map<number, Form>>();
const knownGeneral = new Map<string, Map<number, GeneralForm>>();

function formOf<F>(
  cache: Map<string, Map<number, F>>,
  all: ReadonlyMap<string, readonly F[]>,
  instruction: string,
  operands: readonly Operand[],
  fits: (form: F, operands: readonly Operand[]) => boolean,
): F {
  let own = cache.get(instruction);
  if (!own) {
    own = new Map();
    cache.set(instruction, own);
  }
  const key = signature(operands);
  let form = own.get(key);
  if (form) return form;
  form = all.get(instruction)!.find((candidate) => fits(candidate, operands));
  if (!form) {
    return fail("InvalidArgument", `assembler: no form of ${instruction} takes ${operands.map(name).join(", ")}`);
  }
  own.set(key, form);
  return form;
}

class Encoder {
  #bytes = new Uint8Array(4096);
  #at = 0;
  readonly #fixups: Fixup[] = [];
  readonly #data = new Map<string, { readonly label: Label; readonly bytes: Uint8Array }>();

  get length(): number {
    return this.#at;
  }

  /** A label to be bound later. */
  label(): Label {
    return new Label();
  }

  bind(label: Label): void {
    if (label.at >= 0) fail("InvalidArgument", "assembler: a label was bound twice");
    label.at = this.#at;
  }

  /** A label that is bound here. */
  here(): Label {
    const label = new Label();
    this.bind(label);
    return label;
  }

  /** Fills up with the long forms of `nop`, for loops that are jumped to. */
  align(bytes: number): void {
    while (this.#at % bytes !== 0) {
      const gap = Math.min(bytes - (this.#at % bytes), LONG_NOPS.length);
      this.emit(...LONG_NOPS[gap - 1]!);
    }
  }

  /** Constant data behind the code; equal data exists once. Aligned to its size, at most 64 bytes. */
  data(bytes: Uint8Array): Mem {
    const key = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("latin1");
    let entry = this.#data.get(key);
    if (!entry) {
      entry = { label: new Label(), bytes };
      this.#data.set(key, entry);
    }
    return mem(entry.label);
  }

  f32(...values: number[]): Mem {
    return this.data(new Uint8Array(Float32Array.from(values).buffer));
  }

  i32(...values: number[]): Mem {
    return this.data(new Uint8Array(Int32Array.from(values).buffer));
  }

  /** The code, labels resolved, data behind it. */
  finish(): Uint8Array {
    for (const { label, bytes } of this.#data.values()) {
      const step = Math.min(64, 2 ** Math.ceil(Math.log2(bytes.length)));
      while (this.#at % step !== 0) this.emit(0xcc);
      label.at = this.#at;
      this.emit(...bytes);
    }
    const view = new DataView(this.#bytes.buffer);
    for (const { at, from, label, addend } of this.#fixups) {
      if (label.at < 0) fail("InvalidArgument", "assembler: a label is used and never bound");
      view.setInt32(at, label.at - from + addend, true);
    }
    return this.#bytes.slice(0, this.#at);
  }

  emit(...bytes: number[]): void {
    if (this.#at + bytes.length > this.#bytes.length) {
      const larger = new Uint8Array(2 * (this.#bytes.length + bytes.length));
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    for (const byte of bytes) this.#bytes[this.#at++] = byte;
  }

  emit32(n: number): void {
    this.emit(n & 255, (n >> 8) & 255, (n >> 16) & 255, (n >> 24) & 255);
  }

  /**
   * The ModRM byte and what follows it. A displacement of a byte counts in units of `unit` bytes; `behind` bytes follow.
   */
  modrm(reg: number, rm: Mem | { readonly id: number }, unit: number, behind: number): void {
    const field = (reg & 7) << 3;
    if (!(rm instanceof Mem)) {
      this.emit(0xc0 | field | (rm.id & 7));
      return;
    }
    const { base, index, scale, disp } = rm;
    if (base.kind === "label") {
      this.emit(field | 5);
      this.#fixups.push({ at: this.#at, from: this.#at + 4 + behind, label: base, addend: disp });
      this.emit32(0);
      return;
    }
    const short = disp % unit === 0 && fits8(disp / unit);
    const mod = disp === 0 && (base.id & 7) !== 5 ? 0 : short ? 0x40 : 0x80;
    if (index || (base.id & 7) === 4) {
      this.emit(mod | field | 4, (Math.log2(scale) << 6) | (((index?.id ?? 4) & 7) << 3) | (base.id & 7));
    } else this.emit(mod | field | (base.id & 7));
    if (mod === 0x40) this.emit((disp / unit) & 255);
    else if (mod === 0x80) this.emit32(disp);
  }

  /** A jump over 32 bits, or over 8 where the label is known and near. */
  jump({ name, opcode }: GeneralForm, label: Label): void {
    const near = label.at - (this.#at + 2);
    if (name !== "call" && label.at >= 0 && fits8(near)) {
      const short = name === "jmp" ? 0xeb : 0x70 | (opcode[1]! & 15);
      this.emit(short, near & 255);
      return;
    }
    this.emit(...opcode);
    this.#fixups.push({ at: this.#at, from: this.#at + 4, label, addend: 0 });
    this.emit32(0);
  }

  vector(instruction: string, operands: readonly Operand[]): void {
    this.#vectorForm(formOf(known, forms, instruction, operands, matches), operands);
  }

  #vectorForm(form: Form, operands: readonly Operand[]): void {
    let bits = 0;
    let far = false;
    let wide = false;
    for (let i = 0; i < operands.length; i++) {
      const operand = operands[i]!;
      if (operand instanceof Vec) {
        if (operand.bits > bits) bits = operand.bits;
        if (operand.id > 15) far = true;
      } else if (typeof operand === "object" && operand.kind === "gpr" && operand.bits === 64) wide = true;
    }
    const at = form.fieldAt;
    const reg = operands[at.reg] as Vec | Gpr | Mask | undefined;
    const vvvv = operands[at.vvvv] as Vec | Gpr | Mask | undefined;
    const rm = operands[at.rm] as Vec | Mem | Gpr | Mask;
    const is4 = operands[at.is4] as Vec | undefined;
    const imm = operands[at.imm] as number | undefined;
    const first = operands[0] as Vec | Mem | Mask;
    const mask = "mask" in first ? first.mask : 0;
    const memory = rm instanceof Mem ? rm : undefined;
    const id = idOf;
    const regId = reg ? id(reg) : form.extension;
    const behind = imm !== undefined || is4 ? 1 : 0;
    const w = (given: number) => (form.byRegister ? Number(wide) : given);
    const [bBit, xBit] = memory
      ? [memory.base.kind === "gpr" ? memory.base.id >> 3 : 0, (memory.index?.id ?? 0) >> 3]
      : [id(rm as Vec) >> 3, id(rm as Vec) >> 4];
    const needsEvex = bits === 512 || far || mask !== 0 || memory?.repeated || (!reg && memory !== undefined);
    if (form.vex && !needsEvex) {
      const length = form.length ?? (bits === 256 ? 1 : 0);
      const last = ((~id(vvvv) & 15) << 3) | (length << 2) | form.prefix;
      const [r, x, b, wBit] = [(regId >> 3) & 1, xBit & 1, bBit & 1, w(form.vexW)];
      if (x || b || wBit || form.map !== 1) {
        this.emit(0xc4, ((((r << 2) | (x << 1) | b) ^ 7) << 5) | form.map, (wBit << 7) | last);
      } else this.emit(0xc5, ((r ^ 1) << 7) | last);
      this.emit(form.opcode);
      this.modrm(regId, rm, 1, behind);
    } else {
      if (!form.evex)
        fail("InvalidArgument", `assembler: ${form.name} has no form for ${operands.map(name).join(", ")}`);
      const high = (((regId >> 3) & 1) << 3) | ((xBit & 1) << 2) | ((bBit & 1) << 1) | ((regId >> 4) & 1);
      const zeroing = first instanceof Vec && first.zeroing;
      this.emit(
        0x62,
        ((high ^ 15) << 4) | form.map,
        (w(form.evexW) << 7) | ((~id(vvvv) & 15) << 3) | 4 | form.prefix,
        (Number(zeroing) << 7) |
          ((bits >> 8) << 5) |
          (Number(memory?.repeated ?? false) << 4) |
          (((id(vvvv) >> 4) ^ 1) << 3) |
          mask,
        form.opcode,
      );
      this.modrm(regId, rm, memory ? extentBytes(form, bits, memory.repeated, wide ? 8 : 4) : 1, behind);
    }
    if (imm !== undefined) this.emit(imm & 255);
    else if (is4) this.emit(id(is4) << 4);
  }

  general(instruction: string, operands: readonly Operand[]): void {
    this.#generalForm(formOf(knownGeneral, generalForms, instruction, operands, matchesGeneral), operands);
  }

  #generalForm(form: GeneralForm, operands: readonly Operand[]): void {
    const { pattern, opcode } = form;
    if (pattern === "") this.emit(...opcode);
    else if (pattern === "j:label") this.jump(form, operands[0] as Label);
    else this.#withModrm(form, operands);
  }

  #withModrm(form: GeneralForm, operands: readonly Operand[]): void {
    const { pattern } = form;
    const rm = operands[form.fieldAt.rm] as Gpr | Mem;
    const reg = operands[form.fieldAt.reg] as Gpr | undefined;
    const imm = operands[form.fieldAt.imm] as number | bigint | undefined;
    if (form.name === "mov" && imm !== undefined && rm.kind === "gpr" && rm.bits === 64) {
      this.#movImmediate(rm, imm);
      return;
    }
    const sized = pattern === "r:reg S:rm" ? reg! : rm.kind === "gpr" ? rm : (reg ?? rm);
    const bits = form.memory ? 32 : sized.bits;
    const bytes = this.#opcodeFor(form, bits, rm, imm);
    const extension = reg?.id ?? form.extension;
    this.#prefixes(form, bits, rm, reg);
    this.emit(...bytes);
    const width = imm === undefined ? 0 : immediateBytes(form, bits, Number(imm));
    this.modrm(extension, rm, 1, width);
    if (width === 1) this.emit(Number(imm) & 255);
    else if (width === 2) this.emit(Number(imm) & 255, (Number(imm) >> 8) & 255);
    else if (width === 4) this.emit32(Number(imm) | 0);
  }

  #opcodeFor(form: GeneralForm, bits: number, rm: Gpr | Mem, imm: number | bigint | undefined): number[] {
    const bytes = [...form.opcode];
    const last = bytes.length - 1;
    if (form.pattern === "r:reg S:rm") {
      if (form.name !== "movsxd" && rm.bits === 16) bytes[last]! += 1;
    } else if (imm !== undefined && !SHIFTS.has(form.name)) {
      if (form.name === "imul") bytes[last] = fits8(Number(imm)) ? 0x6b : 0x69;
      else if (bits === 8) bytes[last]! -= 1;
      else if (bytes[last] === 0x81 && fits8(Number(imm))) bytes[last] = 0x83;
    } else if (bits === 8 && form.pattern !== "r8:rm") bytes[last]! -= 1;
    return bytes;
  }

  #prefixes(form: GeneralForm, bits: number, rm: Gpr | Mem, reg: Gpr | undefined): void {
    if (bits === 16) this.emit(0x66);
    if (form.prefix) this.emit(form.prefix);
    const memory = rm instanceof Mem ? rm : undefined;
    const base = memory ? (memory.base.kind === "gpr" ? memory.base.id : 0) : (rm as Gpr).id;
    const rex =
      (bits === 64 && !form.isWide ? 8 : 0) |
      (((reg?.id ?? 0) >> 3) << 2) |
      (((memory?.index?.id ?? 0) >> 3) << 1) |
      (base >> 3);
    // Without the prefix, spl … dil would mean ah … bh.
    const isByte = (operand: Gpr | Mem | undefined) => operand?.kind === "gpr" && operand.bits === 8 && operand.id > 3;
    if (rex || isByte(rm) || isByte(reg)) this.emit(0x40 | rex);
  }

  #movImmediate({ id }: Gpr, imm: number | bigint): void {
    const value = BigInt(imm);
    if (value >= 0n && value <= 0xffffffffn) {
      if (id > 7) this.emit(0x41);
      this.emit(0xb8 | (id & 7));
      this.emit32(Number(value) | 0);
    } else if (BigInt.asIntN(32, value) === value) {
      this.emit(0x48 | (id >> 3), 0xc7, 0xc0 | (id & 7));
      this.emit32(Number(value));
    } else {
      this.emit(0x48 | (id >> 3), 0xb8 | (id & 7));
      this.emit32(Number(BigInt.asIntN(32, value)));
      this.emit32(Number(BigInt.asIntN(32, value >> 32n)));
    }
  }
}

const SHIFTS = new Set(["shl", "shr", "sar", "rol", "ror", "bt"]);
const immediateBytes = (form: GeneralForm, bits: number, imm: number): number => {
  if (SHIFTS.has(form.name) || bits === 8) return 1;
  const hasShort = form.name === "imul" || form.opcode[0] === 0x81;
  return hasShort && fits8(imm) ? 1 : bits === 16 ? 2 : 4;
};

const idOf = (operand: Vec | Gpr | Mask | undefined): number => operand?.id ?? 0;

/** The bytes of a memory operand: the unit of short displacements in EVEX. */
export function extentBytes({ extent }: Form, bits: number, repeated: boolean, registerBytes: number): number {
  if (repeated) return extent.element;
  if (extent.byRegister) return registerBytes;
  return extent.part === 0 ? extent.bytes : bits / 8 / extent.part;
}

/** How wide a register in the place of a form's memory operand is. */
export function registerBits({ extent }: Form, bits: number): number {
  return Math.max(128, extent.part === 0 ? extent.bytes * 8 : bits / extent.part);
}

const kinds: Readonly<Record<Kind, (operand: Operand) => boolean>> = {
  v: (o) => o instanceof Vec,
  V: (o) => o instanceof Vec || o instanceof Mem,
  m: (o) => o instanceof Mem,
  r: (o) => typeof o === "object" && o.kind === "gpr",
  R: (o) => typeof o === "object" && (o.kind === "gpr" || o.kind === "mem"),
  k: (o) => typeof o === "object" && o.kind === "mask",
  K: (o) => typeof o === "object" && (o.kind === "mask" || o.kind === "mem"),
  i: (o) => typeof o === "number" && o >= -128 && o < 256,
};

function matches(form: Form, operands: readonly Operand[]): boolean {
  if (operands.length !== form.operands.length) return false;
  if (!form.operands.every(({ kind }, i) => kinds[kind](operands[i]!))) return false;
  const vectors = form.operands.flatMap(({ field }, i) => {
    const operand = operands[i]!;
    return operand instanceof Vec ? [{ field, bits: operand.bits }] : [];
  });
  const bits = Math.max(0, ...vectors.map((vector) => vector.bits));
  if (vectors.length > 0 && !form.widths.includes(bits as 128)) return false;
  const narrow = form.extent.narrows ? "reg" : "rm";
  const narrowBits = form.extent.narrows ? Math.max(128, bits / 2) : registerBits(form, bits);
  if (vectors.some((vector) => vector.bits !== (vector.field === narrow ? narrowBits : bits))) return false;
  for (const operand of operands) {
    if (operand instanceof Mem && operand.repeated && !form.extent.element) return false;
    if (typeof operand === "object" && operand.kind === "gpr" && form.gprBits && operand.bits !== form.gprBits)
      return false;
  }
  return true;
}

const isGpr = (o: Operand): o is Gpr => typeof o === "object" && o.kind === "gpr";
const isInteger = (o: Operand): boolean => typeof o === "number" || typeof o === "bigint";
const generalKinds: Readonly<Record<string, (operand: Operand) => boolean>> = {
  r: isGpr,
  r8: (o) => isGpr(o) && o.bits === 8,
  R: (o) => isGpr(o) || o instanceof Mem,
  R64: (o) => (isGpr(o) || o instanceof Mem) && o.bits === 64,
  S: (o) => isGpr(o) || o instanceof Mem,
  m: (o) => o instanceof Mem,
  c: (o) => isGpr(o) && o.id === 1 && o.bits === 8,
  i: isInteger,
  j: (o) => o instanceof Label,
};

function matchesGeneral({ pattern, name: called, hasByte }: GeneralForm, operands: readonly Operand[]): boolean {
  const parts = pattern === "" ? [] : pattern.split(" ");
  if (parts.length !== operands.length) return false;
  if (!parts.every((part, i) => generalKinds[part.split(":")[0]!]!(operands[i]!))) return false;
  const widths = new Set(operands.filter(isGpr).map(({ bits }) => bits));
  if (pattern === "R:rm r:reg" || pattern === "r:reg R:rm") return widths.size === 1 && (hasByte || !widths.has(8));
  if (pattern === "R:rm i:imm" && called !== "mov") {
    const [, imm] = operands;
    return Number(imm) >= -(2 ** 31) && Number(imm) < 2 ** 31;
  }
  return true;
}

const LONG_NOPS: readonly (readonly number[])[] = [
  [0x90],
  [0x66, 0x90],
  [0x0f, 0x1f, 0x00],
  [0x0f, 0x1f, 0x40, 0x00],
  [0x0f, 0x1f, 0x44, 0x00, 0x00],
  [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
  [0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
  [0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

interface KindTypes {
  v: Vec;
  V: Vec | Mem;
  m: Mem;
  r: Gpr;
  r8: Gpr;
  R: Gpr | Mem;
  R64: Gpr | Mem;
  S: Gpr | Mem;
  k: Mask;
  K: Mask | Mem;
  i: number | bigint;
  c: Gpr;
  j: Label;
}
type Operands<Pattern> = Pattern extends `${infer First} ${infer Rest}`
  ? [...Operands<First>, ...Operands<Rest>]
  : Pattern extends `${infer K extends keyof KindTypes}:${string}`
    ? [K extends "i" ? number : KindTypes[K]]
    : [];
type GeneralOperands<Pattern> = Pattern extends `${infer First} ${infer Rest}`
  ? [...GeneralOperands<First>, ...GeneralOperands<Rest>]
  : Pattern extends `${infer K extends keyof KindTypes}:${string}`
    ? [KindTypes[K]]
    : [];
type Together<Union> = (Union extends unknown ? (member: Union) => void : never) extends (all: infer All) => void
  ? All
  : never;
type VectorMethods = Together<
  {
    [P in keyof typeof encodings]: {
      [N in keyof (typeof encodings)[P]]: (...operands: Operands<P>) => void;
    };
  }[keyof typeof encodings]
>;
type GeneralMethods = Together<
  {
    [P in GeneralPattern]: { [N in keyof (typeof general)[P]]: (...operands: GeneralOperands<P>) => void };
  }[GeneralPattern]
>;

for (const [names, method] of [
  [forms.keys(), "vector"],
  [generalForms.keys(), "general"],
] as const) {
  for (const instruction of names) {
    Object.defineProperty(Encoder.prototype, instruction, {
      value(this: Encoder, ...operands: Operand[]) {
        this[method](instruction, operands);
      },
    });
  }
}

export type Assembler = Encoder & VectorMethods & GeneralMethods;
export const Assembler = Encoder as unknown as new () => Assembler;
