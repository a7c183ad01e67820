/** What instructions work on: registers of each kind, memory and labels, as plain values. */
import { fail } from "../../../core/errors.ts";

export type Bits = 8 | 16 | 32 | 64;
export type VectorBits = 128 | 256 | 512;

/** A general register, by the part of it that is meant. */
export interface Gpr {
  readonly kind: "gpr";
  readonly id: number;
  readonly bits: Bits;
}

/** A mask register of AVX-512; as a destination perhaps under another mask. */
export class Mask {
  readonly kind = "mask";
  readonly id: number;
  readonly mask: number;

  constructor(id: number, mask = 0) {
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
  readonly kind = "vec";
  readonly id: number;
  readonly bits: VectorBits;
  readonly mask: number;
  readonly zeroing: boolean;

  constructor(id: number, bits: VectorBits, mask = 0, zeroing = false) {
    if (!(id >= 0 && id < 32)) fail("InvalidArgument", `assembler: there is no vector register ${id}`);
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
    return new Vec(this.id, bits, this.mask, this.zeroing);
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

/** A place in the code, known once it is bound. */
export class Label {
  readonly kind = "label";
  at = -1;
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
  readonly kind = "mem";
  readonly base: Gpr | Label;
  readonly index: Gpr | undefined;
  readonly scale: 1 | 2 | 4 | 8;
  readonly disp: number;
  readonly bits: Bits;
  readonly mask: number;
  /** One element is read and repeated. */
  readonly repeated: boolean;

  constructor(base: Gpr | Label, options: MemOptions, mask = 0, repeated = false) {
    const { index, scale = 1, disp = 0, bits = 64 } = options;
    if (index?.id === 4) fail("InvalidArgument", "assembler: rsp cannot be an index");
    if (index && base.kind === "label") fail("InvalidArgument", "assembler: a label takes no index");
    if (!Number.isInteger(disp) || disp !== (disp | 0)) {
      fail("InvalidArgument", `assembler: the displacement ${disp} is not a 32-bit integer`);
    }
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
    return new Mem(this.base, this.#options(), id, this.repeated);
  }

  /** `bytes` further. */
  plus(bytes: number): Mem {
    return new Mem(this.base, { ...this.#options(), disp: this.disp + bytes }, this.mask, this.repeated);
  }

  /** The same place, of so many bits for a general instruction. */
  sized(bits: Bits): Mem {
    return new Mem(this.base, { ...this.#options(), bits }, this.mask, this.repeated);
  }

  /** Each element of the vector is this one (AVX-512). */
  get each(): Mem {
    return new Mem(this.base, this.#options(), this.mask, true);
  }

  #options(): MemOptions {
    const { index, scale, disp, bits } = this;
    return { scale, disp, bits, ...(index && { index }) };
  }
}

export type Operand = Vec | Mem | Gpr | Mask | Label | number | bigint;

export const mem = (base: Gpr | Label, options: MemOptions | number = {}): Mem =>
  new Mem(base, typeof options === "number" ? { disp: options } : options);

export const xmm = (id: number): Vec => new Vec(id, 128);
export const ymm = (id: number): Vec => new Vec(id, 256);
export const zmm = (id: number): Vec => new Vec(id, 512);

const gpr = (id: number, bits: Bits): Gpr => ({ kind: "gpr", id, bits });
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
