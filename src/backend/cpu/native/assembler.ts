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
import { type encodings, vectorInstructions } from "./encodings.ts";
import { type GeneralPlan, generalPlan, type VectorPlan, vectorPlan } from "./forms.ts";
import { type GeneralPattern, type general, generalInstructions } from "./general.ts";
import { codes, type Gpr, type Label, type Mask, type Mem, type Operand, type Tile, type Vec } from "./operands.ts";

export { extentBytes, registerBits } from "./forms.ts";

interface KindTypes {
  v: Vec;
  V: Vec | Mem;
  m: Mem;
  s: Mem;
  t: Tile;
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
const given = (...operands: (Operand | undefined)[]): Operand[] => operands.filter((operand) => operand !== undefined);

/*
 * What forms are told apart by, kind and width of each operand, is a key of four bits each, and what was found for it is kept;
 * most often it is that of the call before. All of this is written out: methods run some hundred times before the engine
 * compiles them, and each call or list in them costs as much as the instruction.
 */
const methods: Record<string, (this: Encoder, a: Operand, b: Operand, c: Operand, e: Operand) => void> = {};
for (const instruction of vectorInstructions) {
  const known = new Map<number, VectorPlan>();
  let lastKey = -1;
  let plan: VectorPlan | undefined;
  methods[instruction] = function (a, b, c: Operand | undefined, e: Operand | undefined) {
    let key =
      (typeof a === "object" ? a.code : integerCode(a)) | ((typeof b === "object" ? b.code : integerCode(b)) << 4);
    if (c !== undefined) key |= (typeof c === "object" ? c.code : integerCode(c)) << 8;
    if (e !== undefined) key |= (typeof e === "object" ? e.code : integerCode(e)) << 12;
    if (key !== lastKey) {
      const found = known.get(key) ?? vectorPlan(instruction, given(a, b, c, e));
      known.set(key, found);
      plan = found;
      lastKey = key;
    }
    this.vector(plan!, a, b, c!, e!);
  };
}
for (const instruction of generalInstructions) {
  const known = new Map<number, GeneralPlan>();
  let lastKey = -1;
  let plan: GeneralPlan | undefined;
  methods[instruction] = function (a: Operand | undefined, b: Operand | undefined, c: Operand | undefined) {
    let key = 0;
    if (a !== undefined) key = typeof a === "object" ? a.code : integerCode(a);
    if (b !== undefined) key |= (typeof b === "object" ? b.code : integerCode(b)) << 4;
    if (c !== undefined) key |= (typeof c === "object" ? c.code : integerCode(c)) << 8;
    if (key !== lastKey) {
      const found = known.get(key) ?? generalPlan(instruction, given(a, b, c));
      known.set(key, found);
      plan = found;
      lastKey = key;
    }
    this.general(plan!, a!, b!, c!);
  };
}
// All at once: a prototype takes longer to get them one by one than everything else here.
Object.setPrototypeOf(Encoder.prototype, methods);

export type Assembler = Encoder & VectorMethods & GeneralMethods;
export const Assembler = Encoder as unknown as new () => Assembler;
