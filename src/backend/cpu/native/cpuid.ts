/** What the processor can do, asked of it by its own instruction, and whether the system saves the registers for it. */

import { addressOfBuffer } from "../libc.ts";
import { Assembler } from "./assembler.ts";
import { callable, executable, systemFunction } from "./memory.ts";
import { d, eax, ebx, ecx, edx, mem, r8, rbx, rdi, rdx, rsi } from "./operands.ts";

export interface Features {
  /** AVX2 with FMA, F16C and the bit instructions, which came with it. */
  readonly avx2: boolean;
  /** AVX-512 F, BW, DQ and VL. */
  readonly avx512: boolean;
  readonly vnni: boolean;
  readonly vbmi: boolean;
  readonly vbmi2: boolean;
  readonly bf16: boolean;
  /** Products of pairs of bf16 are as fast as fused multiply-adds are: on AMD's processors. Intel's take four times as long. */
  readonly pairs: boolean;
  /**
   * Columns come fastest where the next ones are fetched in the order in which they lie in memory: on AMD's processors before Zen 5,
   * whose own fetching keeps up with sixteen columns that are each fetched ahead.
   */
  readonly inOrder: boolean;
  /** AMX with products of bytes. */
  readonly amx: boolean;
}

type Registers = readonly [a: number, b: number, c: number, d: number];

/** void query(leaf, subleaf, out): cpuid's four registers; with leaf −1 the state that the system saves. */
function emitQuery(): Uint8Array {
  const a = new Assembler();
  const [asked, end] = [a.label(), a.label()];
  a.push(rbx);
  a.mov(r8, rdx);
  a.mov(eax, d(rdi));
  a.mov(ecx, d(rsi));
  a.cmp(eax, -1);
  a.jne(asked);
  a.mov(ecx, 0);
  a.xgetbv();
  a.jmp(end);
  a.bind(asked);
  a.cpuid();
  a.bind(end);
  for (const [i, register] of [eax, ebx, ecx, edx].entries()) a.mov(mem(r8, 4 * i), register);
  a.pop(rbx);
  a.ret();
  return a.finish();
}

export function queryFeatures(): Features {
  const call = callable(executable(emitQuery()), 3);
  const out = new Uint32Array(4);
  const query = (leaf: number, subleaf = 0): Registers => {
    call(leaf, subleaf, addressOfBuffer(out.buffer));
    return [...out] as unknown as Registers;
  };
  const has = (word: number, ...bits: number[]): boolean => bits.every((bit) => (word >>> bit) & 1);
  const [highest, vendor] = query(0);
  const [signature, , basic] = query(1);
  // FMA, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C
  if (highest < 7 || !has(basic, 12, 20, 23, 27, 28, 29)) return none;
  const [saved] = query(-1);
  const [, b7, c7, d7] = query(7);
  const [a71] = query(7, 1);
  // The system keeps the halves of the vector registers (bits 1, 2) and, for AVX-512, masks and the rest (5 to 7).
  const avx2 = has(saved, 1, 2) && has(b7, 3, 5, 8);
  const avx512 = avx2 && has(saved, 5, 6, 7) && has(b7, 16, 17, 30, 31);
  return {
    avx2,
    avx512,
    vnni: avx512 && has(c7, 11),
    vbmi: avx512 && has(c7, 1),
    vbmi2: avx512 && has(c7, 6),
    bf16: avx512 && has(a71, 5),
    pairs: avx512 && has(a71, 5) && vendor === AMD,
    inOrder: vendor === AMD && familyOf(signature) < ZEN5,
    amx: avx512 && has(c7, 11) && has(saved, 17, 18) && has(d7, 24, 25) && mayUseTiles(),
  };
}

/** The first four letters of the vendor's name: "Auth". */
const AMD = 0x68747541;
const ZEN5 = 0x1a;
/** The family's number; what lies above 15 is in another place. */
const familyOf = (signature: number): number => ((signature >>> 8) & 0xf) + ((signature >>> 20) & 0xff);

const none: Features = {
  avx2: false,
  avx512: false,
  vnni: false,
  vbmi: false,
  vbmi2: false,
  bf16: false,
  pairs: false,
  inOrder: false,
  amx: false,
};

/** Linux saves tiles, which are large, for those that have asked. */
function mayUseTiles(): boolean {
  const [arch_prctl, REQUEST_PERMISSION, TILES] = [158, 0x1023, 18];
  return (
    process.platform === "linux" && callable(systemFunction("syscall"), 3)(arch_prctl, REQUEST_PERMISSION, TILES) === 0
  );
}
