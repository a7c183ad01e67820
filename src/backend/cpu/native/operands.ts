/**
 * What instructions work on: registers of each kind, memory and labels, as plain values. Emitting makes many of them, and most
 * of it runs once: fields are declared, and written by the constructor alone.
 */
import { fail } from "../../../core/errors.ts";

export type Bits = 8 | 16 | 32 | 64;
export type VectorBits = 128 | 256 | 512;

/** A general register, by the part of it that is meant. */
export interface Gpr {
  readonly kind: "gpr";
  readonly id: number;
  readonly bits: Bits;
  readonly code: number;
}

// What forms of an instruction are told apart by: a number for each kind and width of operand.
export const codes = { byte: 1, integer: 2, vec: { 512: 3, 256: 4, 128: 5 }, repeated: 6, mem64: 7, mem: 8, mask: 9 };
const gprCodes = { 64: 11, 32: 12, 16: 13, 8: 14 } as const;
const CL = 10;
const LABEL = 15;
const TILE = 0; // instructions with tiles have one form each

/** A mask register of AVX-512; as a destination perhaps under another mask. */
export class Mask {
  declare readonly kind: "mask";
  declare readonly code: number;
  declare readonly id: number;
  declare readonly mask: number;

  constructor(id: number, mask = 0) {
    this.kind = "mask";
    this.code = codes.mask;
    this.id = id;
    this.mask = mask;
  }

  /** Bits outside the mask become zero. */
  k({ id }: Mask): Mask {
    return new Mask(this.id, id);
  }
}

/** A vector register, as a destination perhaps under a mask: elements outside it stay, or become zero. */
export class Vec {
  declare readonly kind: "vec";
  declare readonly code: number;
  declare readonly id: number;
  declare readonly bits: VectorBits;
  declare readonly mask: number;
  declare readonly zeroing: boolean;

  constructor(id: number, bits: VectorBits, mask = 0, zeroing = false) {
    if (!(id >= 0 && id < 32)) fail("InvalidArgument", `assembler: there is no vector register ${id}`);
    this.kind = "vec";
    this.code = codes.vec[bits];
    this.id = id;
    this.bits = bits;
    this.mask = mask;
    this.zeroing = zeroing;
  }

  /** Elements outside the mask keep what they had. */
  k({ id }: Mask): Vec {
    return new Vec(this.id, this.bits, id);
  }

  /** Elements outside the mask become zero. */
  kz({ id }: Mask): Vec {
    return new Vec(this.id, this.bits, id, true);
  }

  /** The same register, as wide as asked. */
  as(bits: VectorBits): Vec {
    return this.mask === 0 ? plain[bits][this.id]! : new Vec(this.id, bits, this.mask, this.zeroing);
  }

  get x(): Vec {
    return this.as(128);
  }
  get y(): Vec {
    return this.as(256);
  }
  get z(): Vec {
    return this.as(512);
  }
}

const all = (bits: VectorBits): readonly Vec[] => Array.from({ length: 32 }, (_, id) => new Vec(id, bits));
/** Every vector register without a mask: emitting makes no new ones. */
const plain = { 128: all(128), 256: all(256), 512: all(512) } as const;

/** A tile register of AMX. */
export class Tile {
  declare readonly kind: "tile";
  declare readonly code: number;
  declare readonly id: number;

  constructor(id: number) {
    this.kind = "tile";
    this.code = TILE;
    this.id = id;
  }
}
export const tmm = (id: number): Tile => new Tile(id);

/** A place in the code, known once it is bound. */
export class Label {
  declare readonly kind: "label";
  declare readonly code: number;
  declare at: number;

  constructor() {
    this.kind = "label";
    this.code = LABEL;
    this.at = -1;
  }
}

export interface MemOptions {
  readonly index?: Gpr;
  readonly scale?: 1 | 2 | 4 | 8;
  readonly disp?: number;
  /** What a general instruction without a register operand works on. */
  readonly bits?: Bits;
}

/** Memory at base + index·scale + disp, or at a label of the code. */
export class Mem {
  declare readonly kind: "mem";
  declare readonly code: number;
  declare readonly base: Gpr | Label;
  declare readonly index: Gpr | undefined;
  declare readonly scale: 1 | 2 | 4 | 8;
  declare readonly disp: number;
  declare readonly bits: Bits;
  declare readonly mask: number;
  /** One element is read and repeated. */
  declare readonly repeated: boolean;

  constructor(
    base: Gpr | Label,
    index: Gpr | undefined,
    scale: 1 | 2 | 4 | 8,
    disp: number,
    bits: Bits,
    mask: number,
    repeated: boolean,
  ) {
    if (index !== undefined) {
      if (index.id === 4) fail("InvalidArgument", "assembler: rsp cannot be an index");
      if (base.kind === "label") fail("InvalidArgument", "assembler: a label takes no index");
    }
    if (disp !== (disp | 0)) {
      fail("InvalidArgument", `assembler: the displacement ${disp} is not a 32-bit integer`);
    }
    this.kind = "mem";
    this.code = repeated ? codes.repeated : bits === 64 ? codes.mem64 : codes.mem;
    this.base = base;
    this.index = index;
    this.scale = scale;
    this.disp = disp;
    this.bits = bits;
    this.mask = mask;
    this.repeated = repeated;
  }

  /** As a destination: elements outside the mask are not written. */
  k({ id }: Mask): Mem {
    return new Mem(this.base, this.index, this.scale, this.disp, this.bits, id, this.repeated);
  }

  /** `bytes` further. */
  plus(bytes: number): Mem {
    return new Mem(this.base, this.index, this.scale, this.disp + bytes, this.bits, this.mask, this.repeated);
  }

  /** The same place, of so many bits for a general instruction. */
  sized(bits: Bits): Mem {
    return new Mem(this.base, this.index, this.scale, this.disp, bits, this.mask, this.repeated);
  }

  /** Each element of the vector is this one (AVX-512). */
  get each(): Mem {
    return new Mem(this.base, this.index, this.scale, this.disp, this.bits, this.mask, true);
  }
}

export type Operand = Vec | Mem | Gpr | Mask | Tile | Label | number | bigint;

export const mem = (base: Gpr | Label, options: MemOptions | number = 0): Mem =>
  typeof options === "number"
    ? new Mem(base, undefined, 1, options, 64, 0, false)
    : new Mem(base, options.index, options.scale ?? 1, options.disp ?? 0, options.bits ?? 64, 0, false);

const registerOf = (id: number, bits: VectorBits): Vec =>
  plain[bits][id] ?? fail("InvalidArgument", `assembler: there is no vector register ${id}`);
export const xmm = (id: number): Vec => registerOf(id, 128);
export const ymm = (id: number): Vec => registerOf(id, 256);
export const zmm = (id: number): Vec => registerOf(id, 512);

const sized = (bits: Bits): readonly Gpr[] =>
  Array.from({ length: 16 }, (_, id) => ({
    kind: "gpr",
    id,
    bits,
    code: bits === 8 && id === 1 ? CL : gprCodes[bits],
  }));
const gprs = { 8: sized(8), 16: sized(16), 32: sized(32), 64: sized(64) } as const;
const gpr = (id: number, bits: Bits): Gpr => gprs[bits][id]!;
export const r64 = (id: number): Gpr => gpr(id, 64);
/** The low part of a register. */
export const low = ({ id }: Gpr, bits: Bits): Gpr => gpr(id, bits);
/** The low 32 bits; writing them clears the rest. */
export const d = (register: Gpr): Gpr => low(register, 32);

export const [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi] = Array.from({ length: 8 }, (_, id) => r64(id)) as Tuple8;
export const [r8, r9, r10, r11, r12, r13, r14, r15] = Array.from({ length: 8 }, (_, id) => r64(id + 8)) as Tuple8;
export const [eax, ecx, edx, ebx, esp, ebp, esi, edi] = Array.from({ length: 8 }, (_, id) => gpr(id, 32)) as Tuple8;
type Tuple8 = [Gpr, Gpr, Gpr, Gpr, Gpr, Gpr, Gpr, Gpr];

export const [k0, k1, k2, k3, k4, k5, k6, k7] = Array.from({ length: 8 }, (_, id) => new Mask(id)) as [
  Mask,
  Mask,
  Mask,
  Mask,
  Mask,
  Mask,
  Mask,
  Mask,
];
