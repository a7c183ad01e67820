/**
 * The vector instructions that kernels are written for, as far as they differ in width, registers and masks: one
 * description of a kernel serves both.
 */
import type { Features } from "./cpuid.ts";
import { Vec, type VectorBits } from "./operands.ts";

export type IsaName = "avx2" | "avx512";

export interface Isa {
  readonly name: IsaName;
  readonly bits: VectorBits;
  /** Bytes of a vector. */
  readonly bytes: 32 | 64;
  /** Floats in a vector. */
  readonly lanes: 8 | 16;
  /** Vector registers. */
  readonly registers: 16 | 32;
  /** Elements can be masked, and memory operands repeated. */
  readonly masks: boolean;
  readonly vnni: boolean;
  readonly vbmi2: boolean;
  readonly amx: boolean;
  /** Products of pairs of bf16 are worth it; no kernel depends on it but those that are for it alone. */
  readonly pairs: boolean;
  /** Columns are fetched as they lie in memory, which no kernel depends on. */
  readonly inOrder: boolean;
  /** A vector register. */
  v(id: number): Vec;
}

const registersOf = (bits: VectorBits, count: number): readonly Vec[] =>
  Array.from({ length: count }, (_, id) => new Vec(id, bits));

type Options = Pick<Features, "vnni" | "vbmi2" | "amx" | "pairs" | "inOrder">;

export function isaOf(name: IsaName, { vnni, vbmi2, amx, pairs, inOrder }: Options): Isa {
  if (name === "avx512") {
    const all = registersOf(512, 32);
    const v = (id: number) => all[id]!;
    return {
      name,
      bits: 512,
      bytes: 64,
      lanes: 16,
      registers: 32,
      masks: true,
      vnni,
      vbmi2,
      amx,
      pairs,
      inOrder,
      v,
    };
  }
  const all = registersOf(256, 16);
  const v = (id: number) => all[id]!;
  return {
    name,
    bits: 256,
    bytes: 32,
    lanes: 8,
    registers: 16,
    masks: false,
    vnni: false,
    vbmi2: false,
    amx: false,
    pairs: false,
    inOrder,
    v,
  };
}

/** What code depends on, as a name: "avx512-vnni-vbmi2". */
export const isaKey = ({ name, vnni, vbmi2, amx }: Isa): string =>
  `${name}${vnni ? "-vnni" : ""}${vbmi2 ? "-vbmi2" : ""}${amx ? "-amx" : ""}`;

/** For people: "AVX-512 with VNNI". */
export const isaText = ({ name, vnni, amx }: Isa): string =>
  name === "avx2" ? "AVX2" : `AVX-512${amx ? " with AMX" : vnni ? " with VNNI" : ""}`;
