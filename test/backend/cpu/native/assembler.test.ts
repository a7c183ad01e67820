/** Every form of every instruction, as GNU objdump reads it. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Assembler, extentBytes, registerBits } from "../../../../src/backend/cpu/native/assembler.ts";
import { type Form, formsOf, type Kind, vectorInstructions } from "../../../../src/backend/cpu/native/encodings.ts";
import { type GeneralForm, generalFormsOf, generalInstructions } from "../../../../src/backend/cpu/native/general.ts";
import {
  type Bits,
  type Gpr,
  k1,
  k3,
  k6,
  low,
  Mask,
  Mem,
  mem,
  type Operand,
  r9,
  r12,
  r13,
  r64,
  rbp,
  rcx,
  rsp,
  tmm,
  Vec,
} from "../../../../src/backend/cpu/native/operands.ts";

const sizes: Readonly<Record<number, string>> = {
  1: "BYTE",
  2: "WORD",
  4: "DWORD",
  8: "QWORD",
  16: "XMMWORD",
  32: "YMMWORD",
  64: "ZMMWORD",
};
const legacy = ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"];

function registerName({ id, bits }: Gpr): string {
  if (id > 7) return `r${id}${{ 64: "", 32: "d", 16: "w", 8: "b" }[bits]}`;
  const stem = legacy[id]!;
  if (bits === 8) return id > 3 ? `${stem}l` : `${stem[0]}l`;
  return `${{ 64: "r", 32: "e", 16: "" }[bits]}${stem}`;
}

const hex = (n: number): string => (n < 0 ? `-0x${(-n).toString(16)}` : `+0x${n.toString(16)}`);

/** An operand as objdump writes it; `bytes` is what memory holds, 0 for an address alone. */
function written(operand: Operand, bytes: number, element: number): string {
  if (operand instanceof Vec) {
    const mask = operand.mask ? `{k${operand.mask}}${operand.zeroing ? "{z}" : ""}` : "";
    return `${{ 128: "x", 256: "y", 512: "z" }[operand.bits]}mm${operand.id}${mask}`;
  }
  if (operand instanceof Mask) return `k${operand.id}${operand.mask ? `{k${operand.mask}}` : ""}`;
  if (operand instanceof Mem) {
    const { base, index, scale, disp, repeated, mask } = operand;
    const place = `${registerName(base as Gpr)}${index ? `+${registerName(index)}*${scale}` : ""}`;
    // r12, r13 and their likes need a displacement or an index byte that objdump shows as they are.
    const offset = disp === 0 && (base as Gpr).id % 8 !== 5 ? "" : hex(disp);
    const size = repeated ? `${sizes[element]} BCST ` : bytes ? `${sizes[bytes]} PTR ` : "";
    return `${size}[${place}${offset}]${mask ? `{k${mask}}` : ""}`;
  }
  if (typeof operand === "object" && operand.kind === "gpr") return registerName(operand);
  if (typeof operand === "object" && operand.kind === "tile") return `tmm${operand.id}`;
  return `0x${Number(operand).toString(16)}`;
}

interface Line {
  readonly at: number;
  readonly text: string;
}

/** Assembles and notes what objdump should say. */
class Listing {
  readonly a = new Assembler();
  readonly lines: Line[] = [];

  add(name: string, operands: readonly Operand[], texts: readonly string[]): void {
    this.lines.push({ at: this.a.length, text: `${name} ${texts.join(",")}`.trim() });
    (this.a as unknown as Record<string, (...given: readonly Operand[]) => void>)[name]!(...operands);
  }

  /** What objdump reads in the same places. */
  read(): string[] {
    const folder = mkdtempSync(join(tmpdir(), "wick-asm-"));
    try {
      const file = join(folder, "code");
      writeFileSync(file, this.a.finish());
      const flags = ["-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn", "-w", file];
      const out = execFileSync("objdump", flags, { encoding: "utf8", maxBuffer: 2 ** 28 });
      const found = new Map<number, string>();
      for (const [, at, text] of out.matchAll(/^\s*([0-9a-f]+):\t(.*)$/gm)) {
        found.set(
          Number.parseInt(at!, 16),
          text!
            .replace(/\s*#.*$|^\{evex\} /g, "")
            .replace(/\s+/g, " ")
            .trim(),
        );
      }
      return this.lines.map(({ at }) => found.get(at) ?? "no instruction begins here");
    } finally {
      rmSync(folder, { recursive: true });
    }
  }

  check(): void {
    const found = this.read();
    const wrong = this.lines.flatMap(({ text }, i) => (found[i] === text ? [] : [`${text} became ${found[i]}`]));
    expect(wrong).toEqual([]);
  }
}

/** Memory with no, a short, a scaled, a long and a negative displacement, over bases that need special bytes. */
const places = (unit: number): Mem[] => [
  mem(rcx),
  mem(rbp, { index: r9, scale: 4, disp: unit }),
  mem(r13, { disp: -128 * unit }),
  mem(rsp, { disp: 127 * unit }),
  mem(r12, { index: rcx, scale: 8, disp: 0x12345 }),
];

function variants(form: Form): { operands: Operand[]; bits: number }[] {
  const vector = form.operands.some(({ kind }) => kind === "v" || kind === "V");
  const widths = vector ? form.widths : [0];
  const hasGpr = form.operands.some(({ kind }) => kind === "r" || kind === "R");
  const gprs: Bits[] = form.gprBits ? [form.gprBits] : hasGpr ? [32, 64] : [32];
  const isEither = (kind: Kind) => kind === "V" || kind === "R" || kind === "K";
  const all: { operands: Operand[]; bits: number }[] = [];
  for (const bits of widths) {
    const sets = bits === 0 ? [[1, 2, 3, 4]] : [[1, 2, 3, 4], [9, 12, 15, 8], ...(form.evex ? [[17, 26, 31, 20]] : [])];
    for (const ids of sets) {
      for (const gprBits of gprs) {
        const register = (kind: Kind, i: number, field: string): Operand => {
          const id = ids[i]!;
          if (kind === "i") return 0x7b;
          if (kind === "t") return tmm(id % 8);
          if (kind === "k" || kind === "K") return new Mask(((id + i) % 7) + 1);
          if (kind === "r" || kind === "R") return low(r64(id % 16 === 4 ? 6 : id % 16), gprBits);
          if (form.extent.narrows) return new Vec(id, (field === "reg" ? Math.max(128, bits / 2) : bits) as 128);
          return new Vec(id, (field === "rm" ? registerBits(form, bits) : bits) as 128);
        };
        const plain = form.operands.map(({ kind, field }, i) => register(kind, i, field));
        const memoryAt = form.operands.findIndex(({ kind }) => kind === "m" || kind === "s" || isEither(kind));
        const onlyMemory = form.operands.some(({ kind }) => kind === "m" || kind === "s");
        const isSpread = form.operands.some(({ kind }) => kind === "s");
        const forms512 = [...(onlyMemory ? [] : [plain])];
        const isVexShift =
          form.operands.some(({ field }) => field === "vvvv") &&
          !form.operands.some(({ field }) => field === "reg") &&
          !form.evex;
        if (memoryAt >= 0 && !isVexShift) {
          for (const place of places(extentBytes(form, bits, false, gprBits / 8)))
            if (place.index || !isSpread) forms512.push(plain.with(memoryAt, place));
          if (form.extent.element) {
            for (const place of places(form.extent.element)) forms512.push(plain.with(memoryAt, place.each));
          }
        }
        for (const operands of forms512) {
          all.push({ operands, bits });
          const [first] = operands;
          if (form.masking === "none" || bits === 0) continue;
          const place = operands[memoryAt];
          // Masks and displacements are apart from each other.
          if (place instanceof Mem && place.base !== rbp) continue;
          if (first instanceof Vec) {
            all.push({ operands: operands.with(0, first.k(k3)), bits });
            if (form.masking === "zero") all.push({ operands: operands.with(0, first.kz(k6)), bits });
          } else if (first instanceof Mem || first instanceof Mask)
            all.push({ operands: operands.with(0, first.k(k1)), bits });
        }
      }
    }
  }
  return all;
}

test("vector, mask and three-operand instructions are what was asked for", () => {
  const listing = new Listing();
  for (const list of vectorInstructions.map(formsOf)) {
    for (const form of list) {
      for (const { operands, bits } of variants(form)) {
        const gpr = operands.find((operand) => typeof operand === "object" && operand.kind === "gpr") as
          | Gpr
          | undefined;
        const bytes = extentBytes(form, bits, false, (gpr?.bits ?? 32) / 8);
        const texts = operands.map((operand) => written(operand, bytes, form.extent.element));
        listing.add(form.name, operands, texts);
      }
    }
  }
  expect(listing.lines.length).toBeGreaterThan(10_000);
  listing.check();
});

/** Operands of a general form in one width. */
function generalOperands(
  { pattern, name, memory, isWide }: GeneralForm,
  bits: Bits,
  high: boolean,
  place: Mem | undefined,
) {
  const sized = place?.sized(bits);
  const reg = (id: number, width: Bits = bits) => low(r64(high ? id + 8 : id), isWide ? 64 : width);
  return pattern.split(" ").map((part) => {
    const kind = part.split(":")[0]!;
    if (kind === "i") return 0x12;
    if (kind === "c") return low(rcx, 8);
    if (kind === "m") return sized ?? mem(rcx, { bits });
    if (kind === "r8") return low(reg(5), 8);
    if (part === "R:rm" || part === "R64:rm") return sized ?? reg(3);
    if (kind === "S") return name === "movsxd" ? reg(6, 32) : reg(6, 8);
    return reg(part === "r:rm" ? 3 : 5, memory ? 32 : bits);
  }) as Operand[];
}

test("general instructions are what was asked for", () => {
  const listing = new Listing();
  const widthsOf = ({ name, pattern, hasByte, isWide }: GeneralForm): Bits[] => {
    if (isWide || pattern === "r8:rm" || pattern === "m:rm" || name === "movsxd") return [64];
    if (pattern === "R:rm i:imm")
      return name === "bt" ? [16, 32, 64] : name === "mov" || name === "shl" ? [32, 64] : [8, 16, 32, 64];
    if (pattern === "R:rm" || pattern === "R:rm c:cl") return [8, 16, 32, 64];
    return hasByte ? [8, 16, 32, 64] : [16, 32, 64];
  };
  for (const list of generalInstructions.map(generalFormsOf)) {
    for (const form of list) {
      if (form.pattern === "j:label") continue;
      if (form.pattern === "") {
        if (form.name !== "lock") listing.add(form.name, [], []);
        continue;
      }
      const hasMemory = /R(64)?:rm/.test(form.pattern) || form.pattern.includes("m:rm");
      for (const bits of widthsOf(form)) {
        for (const high of [false, true]) {
          for (const place of [
            ...(form.pattern.includes("m:rm") ? [] : [undefined]),
            ...(hasMemory ? places(1) : []),
          ]) {
            const operands = generalOperands(form, bits, high, place);
            const bytes = form.name === "lea" ? 0 : (form.memory || bits) / 8;
            const texts = operands.map((operand) => written(operand, bytes, 0));
            // A constant of 32 bits is moved into the low half, which clears the rest.
            if (form.name === "mov" && form.pattern === "R:rm i:imm" && !place)
              texts[0] = registerName(low(operands[0] as Gpr, 32));
            listing.add(form.name, operands, texts);
          }
        }
      }
    }
  }
  listing.check();
});

test("constants take the shortest form, widening moves the width of their source", () => {
  const listing = new Listing();
  const rax = r64(0);
  listing.add("movzx", [low(rax, 32), mem(rcx, { bits: 16 })], ["eax", "WORD PTR [rcx]"]);
  listing.add("movsx", [rax, mem(rcx, { bits: 8 })], ["rax", "BYTE PTR [rcx]"]);
  listing.add("movsxd", [rax, mem(rcx, { bits: 32 })], ["rax", "DWORD PTR [rcx]"]);
  listing.add("add", [rax, 0x1234], ["rax", "0x1234"]);
  listing.add("add", [rax, -1], ["rax", "0xffffffffffffffff"]);
  listing.add("and", [mem(rsp, { bits: 32 }), 0x7fffffff], ["DWORD PTR [rsp]", "0x7fffffff"]);
  listing.add("imul", [r9, r12, 0x1234], ["r9", "r12", "0x1234"]);
  listing.add("mov", [r9, -2], ["r9", "0xfffffffffffffffe"]);
  listing.lines.push({ at: listing.a.length, text: "movabs r9,0x123456789abcdef0" });
  listing.a.mov(r9, 0x123456789abcdef0n);
  listing.lines.push({ at: listing.a.length, text: "lock xadd QWORD PTR [rcx],rax" });
  listing.a.lock();
  listing.a.xadd(mem(rcx), rax);
  listing.check();
});

test("jumps and data find their labels from both sides", () => {
  const listing = new Listing();
  const { a } = listing;
  const [top, end] = [a.here(), a.label()];
  listing.add("jne", [top], ["0x0"]);
  const far = a.length;
  listing.add("je", [end], [`0x${(far + 6 + 300).toString(16)}`]);
  for (let i = 0; i < 300; i++) a.nop();
  a.bind(end);
  listing.add("jmp", [top], ["0x0"]);
  listing.add("call", [end], [`0x${end.at.toString(16)}`]);
  const at = a.length;
  const constant = a.f32(1, 2, 3, 4);
  expect(a.f32(1, 2, 3, 4).base).toBe(constant.base);
  listing.lines.push({ at, text: "" });
  a.vcmpps(k1, new Vec(1, 512), constant.each, 0x7b);
  a.ret();
  const data = Math.ceil(a.length / 16) * 16;
  listing.lines[listing.lines.length - 1] = {
    at,
    text: `vcmpps k1,zmm1,DWORD BCST [rip+0x${(data - (at + 11)).toString(16)}],0x7b`,
  };
  listing.check();
});

test("what no instruction takes is refused", () => {
  const a = new Assembler();
  const untyped = a as unknown as Record<string, (...operands: unknown[]) => void>;
  expect(() => a.vaddps(new Vec(1, 512), new Vec(2, 256), new Vec(3, 512))).toThrow(/no form of vaddps/);
  expect(() => a.vpand(new Vec(17, 256), new Vec(2, 256), new Vec(3, 256))).toThrow(/vpand has no form/);
  expect(() => a.vpmaddwd(new Vec(1, 512), new Vec(2, 512), mem(rcx).each)).toThrow(/no form of vpmaddwd/);
  expect(() => untyped.mov!(r9, low(rcx, 32))).toThrow(/no form of mov/);
  expect(() => mem(rcx, { index: rsp })).toThrow(/rsp cannot be an index/);
  expect(() => new Vec(32, 512)).toThrow(/no vector register 32/);
  a.jmp(a.label());
  expect(() => a.finish()).toThrow(/never bound/);
});
