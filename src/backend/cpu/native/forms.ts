/** Which form of an instruction takes some operands, and what of its encoding does not depend on which they are. */
import { fail } from "../../../core/errors.ts";
import { type Form, formsOf, type Kind } from "./encodings.ts";
import { type GeneralForm, generalFormsOf } from "./general.ts";
import { type Gpr, Label, Mem, type Operand, Tile, Vec } from "./operands.ts";

/** How operands of these kinds and widths are encoded by a form of a vector instruction. */
export interface VectorPlan {
  readonly form: Form;
  /** Which operand goes to a field; −1: none. */
  readonly reg: number;
  readonly vvvv: number;
  readonly rm: number;
  readonly is4: number;
  readonly imm: number;
  readonly isMemory: boolean;
  /** Bytes behind the operands. */
  readonly behind: 0 | 1;
  /** The first operand may have a mask. */
  readonly isMasked: boolean;
  /** Without masks, and registers from 16 on. */
  readonly takesVex: boolean;
  readonly vexW: number;
  readonly evexW: number;
  /** The bits of the last byte of either prefix that say length, and what a memory operand repeats. */
  readonly vexLast: number;
  readonly evexLast: number;
  /** Of short displacements in EVEX. */
  readonly unit: number;
}

const name = (operand: Operand): string =>
  typeof operand === "object" ? `${operand.kind}${"bits" in operand ? operand.bits : ""}` : `${operand}`;
const refuse = (instruction: string, operands: readonly Operand[]): never =>
  fail("InvalidArgument", `assembler: no form of ${instruction} takes ${operands.map(name).join(", ")}`);

export function vectorPlan(instruction: string, operands: readonly Operand[]): VectorPlan {
  const form = formsOf(instruction).find((candidate) => matches(candidate, operands));
  if (!form) return refuse(instruction, operands);
  let bits = 0;
  let wide = false;
  for (const operand of operands) {
    if (operand instanceof Vec) bits = Math.max(bits, operand.bits);
    else if (typeof operand === "object" && operand.kind === "gpr" && operand.bits === 64) wide = true;
  }
  const { reg, vvvv, rm, is4, imm } = form.fieldAt;
  const place = operands[rm];
  const memory = place instanceof Mem ? place : undefined;
  const repeated = memory?.repeated ?? false;
  const takesVex = form.vex && !(bits === 512 || repeated || (reg < 0 && memory !== undefined && vvvv >= 0));
  if (!takesVex && !form.evex) return refuse(instruction, operands);
  const first = operands[0]!;
  return {
    ...{ form, reg, vvvv, rm, is4, imm, takesVex, isMemory: memory !== undefined, behind: imm < 0 && is4 < 0 ? 0 : 1 },
    isMasked: typeof first === "object" && "mask" in first,
    vexW: form.byRegister ? Number(wide) : form.vexW,
    evexW: form.byRegister ? Number(wide) : form.evexW,
    vexLast: ((form.length ?? (bits === 256 ? 1 : 0)) << 2) | form.prefix,
    evexLast: ((bits >> 8) << 5) | (Number(repeated) << 4),
    unit: memory ? extentBytes(form, bits, repeated, wide ? 8 : 4) : 1,
  };
}

/** The same of a general instruction. */
export interface GeneralPlan {
  readonly form: GeneralForm;
  /** What the instruction works on; 0: as much as its memory operand says. */
  readonly bits: number;
  /** A register of 8 bits is among the operands. */
  readonly hasByte: boolean;
  /** A 64-bit register gets a constant, which has encodings of its own. */
  readonly isMovImmediate: boolean;
  readonly isShift: boolean;
  /** Constants of a byte have an opcode of their own. */
  readonly hasShort: boolean;
  /** The opcode says how wide what is widened is. */
  readonly isWidening: boolean;
}

const SHIFTS = new Set(["shl", "shr", "sar", "rol", "ror", "bt"]);

export function generalPlan(instruction: string, operands: readonly Operand[]): GeneralPlan {
  const form =
    generalFormsOf(instruction).find((candidate) => matchesGeneral(candidate, operands)) ??
    refuse(instruction, operands);
  const widens = form.pattern === "r:reg S:rm";
  const [rm, reg] = [operands[form.fieldAt.rm], operands[form.fieldAt.reg]].map((o) => (o && isGpr(o) ? o : undefined));
  return {
    form,
    bits: form.memory ? 32 : ((widens ? reg : (rm ?? reg))?.bits ?? 0),
    hasByte: operands.some((operand) => isGpr(operand) && operand.bits === 8),
    isMovImmediate: instruction === "mov" && form.fieldAt.imm >= 0 && rm?.bits === 64,
    isShift: SHIFTS.has(instruction),
    hasShort: instruction === "imul" || form.opcode[0] === 0x81,
    isWidening: widens && instruction !== "movsxd",
  };
}

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
  s: (o) => o instanceof Mem && o.index !== undefined,
  t: (o) => o instanceof Tile,
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
