/** Bytes of code: labels, constant data behind it, and instructions by their forms. */
import { fail } from "../../../core/errors.ts";
import type { GeneralPlan, VectorPlan } from "./forms.ts";
import type { GeneralForm } from "./general.ts";
import { type Gpr, Label, type Mask, type Mem, mem, type Operand, type Tile, Vec } from "./operands.ts";

interface Fixup {
  /** Where the four bytes are, and from where they count. */
  readonly at: number;
  readonly from: number;
  readonly label: Label;
  readonly addend: number;
}

const fits8 = (n: number): boolean => n === (n << 24) >> 24;
const SCALES: Readonly<Record<number, number>> = { 1: 0, 2: 0x40, 4: 0x80, 8: 0xc0 };
/** Room that there is for an instruction. */
const LONGEST = 32;
/** Bytes that code is written to before it has a place of its own: used again, as making them costs more than filling them. */
const buffers: Uint8Array[] = [];
const BUFFER_BYTES = 65536;
const words = new Int32Array(1);
const floats = new Float32Array(words.buffer);

export class Encoder {
  #bytes = buffers.pop() ?? new Uint8Array(BUFFER_BYTES);
  #at = 0;
  readonly #fixups: Fixup[] = [];
  /** Constant data behind the code: by what it is, its label. A number is 32 bits. */
  readonly #data = new Map<string | number, Label>();

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
    while (this.#at % bytes !== 0) this.#all(LONG_NOPS[Math.min(bytes - (this.#at % bytes), LONG_NOPS.length) - 1]!);
  }

  /** Constant data behind the code; equal data exists once. Aligned to its size, at most 64 bytes. */
  data(bytes: Uint8Array): Mem {
    return this.#constant(String.fromCharCode(...bytes));
  }

  f32(...values: number[]): Mem {
    if (values.length > 1) return this.data(new Uint8Array(Float32Array.from(values).buffer));
    floats[0] = values[0]!;
    return this.#constant(words[0]!);
  }

  i32(...values: number[]): Mem {
    return values.length > 1
      ? this.data(new Uint8Array(Int32Array.from(values).buffer))
      : this.#constant(values[0]! | 0);
  }

  #constant(key: string | number): Mem {
    let label = this.#data.get(key);
    if (label === undefined) {
      label = new Label();
      this.#data.set(key, label);
    }
    return mem(label);
  }

  /** The code, labels resolved, data behind it. Nothing can be added to it any more. */
  finish(): Uint8Array {
    for (const [key, label] of this.#data) {
      const size = typeof key === "number" ? 4 : key.length;
      this.#room(size + 64);
      const step = Math.min(64, 2 ** Math.ceil(Math.log2(size)));
      while (this.#at % step !== 0) this.#byte(TRAP);
      label.at = this.#at;
      if (typeof key === "number") this.#int(key);
      else for (let i = 0; i < size; i++) this.#byte(key.charCodeAt(i));
    }
    for (const { at, from, label, addend } of this.#fixups) {
      if (label.at < 0) fail("InvalidArgument", "assembler: a label is used and never bound");
      int(this.#bytes, at, label.at - from + addend);
    }
    const code = this.#bytes.slice(0, this.#at);
    buffers.push(this.#bytes);
    this.#bytes = NO_BYTES;
    return code;
  }

  #room(bytes: number): void {
    if (this.#at + bytes <= this.#bytes.length) return;
    const larger = new Uint8Array(2 * (this.#bytes.length + bytes));
    larger.set(this.#bytes);
    this.#bytes = larger;
  }

  #all(bytes: ArrayLike<number>): void {
    this.#room(bytes.length + LONGEST);
    for (let i = 0; i < bytes.length; i++) this.#bytes[this.#at++] = bytes[i]!;
  }

  /** There must be room. */
  #byte(n: number): void {
    this.#bytes[this.#at++] = n;
  }

  #int(n: number): void {
    this.#at = int(this.#bytes, this.#at, n);
  }

  /**
   * The ModRM byte and what follows it, at `at`; where it ends. A displacement of a byte counts in units of `unit` bytes;
   * `behind` bytes follow.
   */
  #place(bytes: Uint8Array, from: number, reg: number, rm: Mem, unit: number, behind: number): number {
    let at = from;
    const field = (reg & 7) << 3;
    const { base, index, disp } = rm;
    if (base.kind === "label") {
      bytes[at] = field | 5;
      this.#fixups.push({ at: at + 1, from: at + 5 + behind, label: base, addend: disp });
      return int(bytes, at + 1, 0);
    }
    const low = base.id & 7;
    const part = unit === 1 ? disp : disp / unit;
    const mod = disp === 0 && low !== 5 ? 0 : part === (part << 24) >> 24 ? 0x40 : 0x80;
    if (index !== undefined || low === 4) {
      bytes[at++] = mod | field | 4;
      bytes[at++] = SCALES[rm.scale]! | ((index === undefined ? 4 : index.id & 7) << 3) | low;
    } else bytes[at++] = mod | field | low;
    if (mod === 0x40) bytes[at++] = part;
    else if (mod === 0x80) at = int(bytes, at, disp);
    return at;
  }

  /** A jump over 32 bits, or over 8 where the label is known and near. */
  #jump({ name, opcode }: GeneralForm, label: Label): void {
    const near = label.at - (this.#at + 2);
    if (name !== "call" && label.at >= 0 && fits8(near)) {
      this.#byte(name === "jmp" ? 0xeb : 0x70 | (opcode[1]! & 15));
      this.#byte(near);
      return;
    }
    for (let i = 0; i < opcode.length; i++) this.#byte(opcode[i]!);
    this.#fixups.push({ at: this.#at, from: this.#at + 4, label, addend: 0 });
    this.#int(0);
  }

  /** Of each kernel there are hundreds, and most code runs once: it is written out, with few calls. */
  vector(plan: VectorPlan, a: Operand, b: Operand, c: Operand, e: Operand): void {
    if (this.#at + LONGEST > this.#bytes.length) this.#room(LONGEST);
    const bytes = this.#bytes;
    let at = this.#at;
    const { form, reg, vvvv, rm } = plan;
    const regId = reg < 0 ? form.extension : ((reg === 0 ? a : reg === 1 ? b : c) as Register).id;
    const vId = vvvv < 0 ? 0 : ((vvvv === 0 ? a : vvvv === 1 ? b : c) as Register).id;
    const mask = plan.isMasked ? (a as Vec | Mem | Mask).mask : 0;
    const place = (rm < 0 ? NO_REGISTER : rm === 0 ? a : rm === 1 ? b : rm === 2 ? c : e) as Register | Mem;
    let far = (regId | vId) > 15;
    let bBit = 0;
    let xBit = 0;
    if (plan.isMemory) {
      const { base, index } = place as Mem;
      if (base.kind === "gpr") bBit = base.id >> 3;
      if (index !== undefined) xBit = index.id >> 3;
    } else {
      const { id } = place as Register;
      bBit = (id >> 3) & 1;
      xBit = id >> 4;
      if (xBit) far = true;
    }
    const rBit = (regId >> 3) & 1;
    let unit = 1;
    if (plan.takesVex && !far && mask === 0) {
      const last = ((~vId & 15) << 3) | plan.vexLast;
      if (xBit || bBit || plan.vexW || form.map !== 1) {
        bytes[at++] = 0xc4;
        bytes[at++] = ((((rBit << 2) | (xBit << 1) | bBit) ^ 7) << 5) | form.map;
        bytes[at++] = (plan.vexW << 7) | last;
      } else {
        bytes[at++] = 0xc5;
        bytes[at++] = ((rBit ^ 1) << 7) | last;
      }
    } else {
      if (!form.evex) fail("InvalidArgument", `assembler: ${form.name} has no form with masks or registers from 16 on`);
      bytes[at++] = 0x62;
      bytes[at++] = ((((rBit << 3) | (xBit << 2) | (bBit << 1) | (regId >> 4)) ^ 15) << 4) | form.map;
      bytes[at++] = (plan.evexW << 7) | ((~vId & 15) << 3) | 4 | form.prefix;
      const zeroing = mask !== 0 && a instanceof Vec && a.zeroing ? 0x80 : 0;
      bytes[at++] = zeroing | plan.evexLast | (((vId >> 4) ^ 1) << 3) | mask;
      unit = plan.unit;
    }
    bytes[at++] = form.opcode;
    if (plan.isMemory) at = this.#place(bytes, at, regId, place as Mem, unit, plan.behind);
    else bytes[at++] = 0xc0 | ((regId & 7) << 3) | ((place as Register).id & 7);
    if (plan.imm >= 0) bytes[at++] = pick(plan.imm, a, b, c, e) as number;
    else if (plan.is4 >= 0) bytes[at++] = (pick(plan.is4, a, b, c, e) as Vec).id << 4;
    this.#at = at;
  }

  general(plan: GeneralPlan, a: Operand, b: Operand, c: Operand): void {
    if (this.#at + LONGEST > this.#bytes.length) this.#room(LONGEST);
    const { form } = plan;
    if (form.pattern === "j:label") {
      this.#jump(form, a as Label);
      return;
    }
    const { opcode } = form;
    const bytes = this.#bytes;
    let at = this.#at;
    const last = opcode.length - 1;
    if (form.pattern === "") {
      for (let i = 0; i <= last; i++) bytes[at++] = opcode[i]!;
      this.#at = at;
      return;
    }
    const { rm, reg, imm } = form.fieldAt;
    const place = (rm === 0 ? a : rm === 1 ? b : c) as Gpr | Mem;
    if (plan.isMovImmediate) {
      this.#movImmediate(place as Gpr, b as number | bigint);
      return;
    }
    const register = reg < 0 ? undefined : ((reg === 0 ? a : b) as Gpr);
    const bits = plan.bits === 0 ? place.bits : plan.bits;
    if (bits === 16) bytes[at++] = 0x66;
    if (form.prefix !== 0) bytes[at++] = form.prefix;
    let rex = bits === 64 && !form.isWide ? 8 : 0;
    let field = form.extension;
    if (register !== undefined) {
      field = register.id;
      rex |= (field >> 3) << 2;
    }
    if (place.kind === "mem") {
      if (place.index !== undefined) rex |= (place.index.id >> 3) << 1;
      if (place.base.kind === "gpr") rex |= place.base.id >> 3;
    } else rex |= place.id >> 3;
    // Without the prefix, spl … dil would mean ah … bh.
    if (rex !== 0 || (plan.hasByte && (isHighByte(place) || isHighByte(register)))) bytes[at++] = 0x40 | rex;
    for (let i = 0; i < last; i++) bytes[at++] = opcode[i]!;
    let value = 0;
    let width = 0;
    let code = opcode[last]!;
    if (imm >= 0) {
      value = Number(imm === 1 ? b : c);
      const isShort = plan.hasShort && bits !== 8 && fits8(value);
      width = isShort || plan.isShift || bits === 8 ? 1 : bits === 16 ? 2 : 4;
      if (isShort)
        code += 2; // 81 is 83, 69 is 6b
      else if (bits === 8) code -= 1;
    } else if (plan.isWidening) {
      if (place.bits === 16) code += 1;
    } else if (bits === 8 && form.pattern !== "r8:rm") code -= 1;
    bytes[at++] = code;
    if (place.kind === "mem") at = this.#place(bytes, at, field, place, 1, width);
    else bytes[at++] = 0xc0 | ((field & 7) << 3) | (place.id & 7);
    if (width === 4) at = int(bytes, at, value | 0);
    else if (width > 0) bytes[at++] = value;
    if (width === 2) bytes[at++] = value >> 8;
    this.#at = at;
  }

  #movImmediate({ id }: Gpr, imm: number | bigint): void {
    if (imm >= 0 && imm <= 0xffffffff) {
      if (id > 7) this.#byte(0x41);
      this.#byte(0xb8 | (id & 7));
      this.#int(Number(imm) | 0);
    } else if (imm >= -(2 ** 31) && imm < 0) {
      this.#byte(0x48 | (id >> 3));
      this.#byte(0xc7);
      this.#byte(0xc0 | (id & 7));
      this.#int(Number(imm));
    } else {
      const value = BigInt(imm);
      this.#byte(0x48 | (id >> 3));
      this.#byte(0xb8 | (id & 7));
      this.#int(Number(BigInt.asIntN(32, value)));
      this.#int(Number(BigInt.asIntN(32, value >> 32n)));
    }
  }
}

type Register = Vec | Gpr | Mask | Tile;
/** What an instruction without an operand for the field has there. */
const NO_REGISTER = { id: 0 } as const;

/** Four bytes at `at`; where they end. */
function int(bytes: Uint8Array, at: number, n: number): number {
  bytes[at] = n;
  bytes[at + 1] = n >> 8;
  bytes[at + 2] = n >> 16;
  bytes[at + 3] = n >> 24;
  return at + 4;
}

const pick = (at: number, a: Operand, b: Operand, c: Operand, e: Operand): Operand =>
  at === 0 ? a : at === 1 ? b : at === 2 ? c : e;

const isHighByte = (operand: Gpr | Mem | undefined): boolean =>
  operand !== undefined && operand.kind === "gpr" && operand.bits === 8 && operand.id > 3;

const TRAP = 0xcc;
const NO_BYTES = new Uint8Array(0);
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
