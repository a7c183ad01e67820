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
import { Encoder } from "./encoder.ts";
import { type encodings, forms } from "./encodings.ts";
import { generalFormOf, type VectorPlan, vectorPlan } from "./forms.ts";
import { type GeneralForm, type GeneralPattern, type general, generalForms } from "./general.ts";
import { codes, type Gpr, type Label, type Mask, type Mem, type Operand, type Vec } from "./operands.ts";

export { extentBytes, registerBits } from "./forms.ts";

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

/** Of what is not an object: whether it fits into a byte. */
const integerCode = (n: Operand): number =>
  typeof n === "number" && n >= -128 && n < 256 ? codes.byte : codes.integer;

/** What forms are told apart by: kind and width of each operand, four bits each. */
function signature(a?: Operand, b?: Operand, c?: Operand, e?: Operand): number {
  let sum = 0;
  if (a !== undefined) sum = typeof a === "object" ? a.code : integerCode(a);
  if (b !== undefined) sum |= (typeof b === "object" ? b.code : integerCode(b)) << 4;
  if (c !== undefined) sum |= (typeof c === "object" ? c.code : integerCode(c)) << 8;
  if (e !== undefined) sum |= (typeof e === "object" ? e.code : integerCode(e)) << 12;
  return sum;
}
const given = (...operands: (Operand | undefined)[]): Operand[] => operands.filter((operand) => operand !== undefined);

// Forms that were found are kept by signature. Methods take four operands by name: a list of them would be made each time.
for (const instruction of forms.keys()) {
  const known = new Map<number, VectorPlan>();
  Object.defineProperty(Encoder.prototype, instruction, {
    value(this: Encoder, a: Operand, b: Operand, c: Operand, e: Operand) {
      const key = signature(a, b, c, e);
      let plan = known.get(key);
      if (plan === undefined) {
        plan = vectorPlan(instruction, given(a, b, c, e));
        known.set(key, plan);
      }
      this.vector(plan, a, b, c, e);
    },
  });
}
for (const instruction of generalForms.keys()) {
  const known = new Map<number, GeneralForm>();
  Object.defineProperty(Encoder.prototype, instruction, {
    value(this: Encoder, a: Operand, b: Operand, c: Operand) {
      const key = signature(a, b, c);
      let form = known.get(key);
      if (form === undefined) {
        form = generalFormOf(instruction, given(a, b, c));
        known.set(key, form);
      }
      this.general(form, a, b, c);
    },
  });
}

export type Assembler = Encoder & VectorMethods & GeneralMethods;
export const Assembler = Encoder as unknown as new () => Assembler;
