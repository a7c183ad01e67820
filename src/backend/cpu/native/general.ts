/**
 * How the general instructions are encoded, by the pattern of their operands (as in encodings.ts; `c` is the register
 * cl, `j` a label). A row: the opcode's bytes in hexadecimal as written for 32 bits (prefix, map, opcode), then the
 * opcode's extension; `byte` where the opcode before it is that for 8 bits; `b4`: memory of 4 bytes; `g64`: 64 bits
 * without saying so.
 */

const arithmetic = ["add", "or", "adc", "sbb", "and", "sub", "xor", "cmp"] as const;
type Arithmetic = (typeof arithmetic)[number];
const table = <Name extends string>(names: readonly Name[], row: (i: number) => string): Record<Name, string> =>
  Object.fromEntries(names.map((name, i) => [name, row(i)])) as Record<Name, string>;
const hex = (n: number): string => n.toString(16).padStart(2, "0");

/** Conditions in the order of their codes. */
export const conditions = [..."o no b ae e ne be a s ns p np l ge le g".split(" ")] as unknown as readonly Condition[];
type Condition = "o" | "no" | "b" | "ae" | "e" | "ne" | "be" | "a" | "s" | "ns" | "p" | "np" | "l" | "ge" | "le" | "g";
const conditional = <Start extends string>(start: Start, row: (code: number) => string) =>
  Object.fromEntries(conditions.map((name, i) => [`${start}${name}`, row(i)])) as Record<
    `${Start}${Condition}`,
    string
  >;

const counts = { popcnt: "f3.0f.b8", tzcnt: "f3.0f.bc", lzcnt: "f3.0f.bd", bsf: "0f.bc", bsr: "0f.bd" } as const;

export const general = {
  "R:rm r:reg": {
    ...(table(arithmetic, (i) => `${hex(8 * i + 1)} byte`) as Record<Arithmetic, string>),
    mov: "89 byte",
    test: "85 byte",
    xchg: "87 byte",
    xadd: "0f.c1 byte",
    cmpxchg: "0f.b1 byte",
  },
  "r:reg R:rm": {
    ...(table(arithmetic, (i) => `${hex(8 * i + 3)} byte`) as Record<Arithmetic, string>),
    mov: "8b byte",
    imul: "0f.af",
    ...counts,
    ...conditional("cmov", (code) => `0f.${hex(0x40 + code)}`),
  },
  "R:rm i:imm": {
    ...(table(arithmetic, (i) => `81 /${i}`) as Record<Arithmetic, string>),
    mov: "c7 /0",
    test: "f7 /0",
    shl: "c1 /4",
    shr: "c1 /5",
    sar: "c1 /7",
    rol: "c1 /0",
    ror: "c1 /1",
    bt: "0f.ba /4",
  },
  "r:reg R:rm i:imm": { imul: "69" },
  "R:rm c:cl": { shl: "d3 /4", shr: "d3 /5", sar: "d3 /7" },
  "R:rm": { inc: "ff /0", dec: "ff /1", neg: "f7 /3", not: "f7 /2", mul: "f7 /4", div: "f7 /6", idiv: "f7 /7" },
  "r:rm": { push: "ff /6 g64", pop: "8f /0 g64" },
  "R64:rm": { call: "ff /2 g64", jmp: "ff /4 g64" },
  "r8:rm": conditional("set", (code) => `0f.${hex(0x90 + code)} /0`),
  "r:reg m:rm": { lea: "8d" },
  "m:rm": {
    prefetcht0: "0f.18 /1 b1",
    prefetcht1: "0f.18 /2 b1",
    prefetcht2: "0f.18 /3 b1",
    prefetchnta: "0f.18 /0 b1",
    prefetchw: "0f.0d /1 b1",
    ldmxcsr: "0f.ae /2 b4",
    stmxcsr: "0f.ae /3 b4",
  },
  "r:reg S:rm": { movzx: "0f.b6", movsx: "0f.be", movsxd: "63" },
  "j:label": { jmp: "e9", call: "e8", ...conditional("j", (code) => `0f.${hex(0x80 + code)}`) },
  "": {
    ret: "c3",
    cpuid: "0f.a2",
    xgetbv: "0f.01.d0",
    syscall: "0f.05",
    pause: "f3.90",
    mfence: "0f.ae.f0",
    sfence: "0f.ae.f8",
    rdtsc: "0f.31",
    ud2: "0f.0b",
    int3: "cc",
    nop: "90",
    lock: "f0",
    cdq: "99",
    cqo: "48.99",
    vzeroupper: "c5.f8.77",
    vzeroall: "c5.fc.77",
    tilerelease: "c4.e2.78.49.c0",
  },
} as const;

export type GeneralPattern = keyof typeof general;

/** A row, read. */
export interface GeneralForm {
  readonly name: string;
  readonly pattern: GeneralPattern;
  /** Which operand goes to a field; −1: none. */
  readonly fieldAt: Readonly<Record<"reg" | "rm" | "imm", number>>;
  /** Mandatory prefix, 0 for none. */
  readonly prefix: number;
  readonly opcode: readonly number[];
  /** −1: the register is in its field. */
  readonly extension: number;
  readonly hasByte: boolean;
  /** Bits of memory where no register tells; 0: as asked. */
  readonly memory: number;
  readonly isWide: boolean;
}

function read(pattern: GeneralPattern, name: string, row: string): GeneralForm {
  const [code, ...flags] = row.split(" ") as [string, ...string[]];
  const bytes = code.split(".").map((byte) => Number.parseInt(byte, 16));
  const hasPrefix = pattern !== "" && (bytes[0] === 0xf3 || bytes[0] === 0xf2) && bytes.length > 1;
  const extension = flags.find((flag) => flag.startsWith("/"));
  const fields = pattern.split(" ").map((part) => part.split(":")[1]);
  return {
    name,
    pattern,
    fieldAt: { reg: fields.indexOf("reg"), rm: fields.indexOf("rm"), imm: fields.indexOf("imm") },
    prefix: hasPrefix ? bytes[0]! : 0,
    opcode: hasPrefix ? bytes.slice(1) : bytes,
    extension: extension === undefined ? -1 : Number(extension.slice(1)),
    hasByte: flags.includes("byte"),
    memory: 8 * Number(flags.find((flag) => /^b\d+$/.test(flag))?.slice(1) ?? 0),
    isWide: flags.includes("g64"),
  };
}

const rowsOf = new Map<string, [pattern: GeneralPattern, row: string][]>();
for (const [pattern, rows] of Object.entries(general)) {
  for (const [name, row] of Object.entries(rows)) {
    const others = rowsOf.get(name);
    if (others) others.push([pattern as GeneralPattern, row]);
    else rowsOf.set(name, [[pattern as GeneralPattern, row]]);
  }
}

export const generalInstructions: readonly string[] = [...rowsOf.keys()];

const known = new Map<string, readonly GeneralForm[]>();
/** As in encodings.ts. */
export function generalFormsOf(name: string): readonly GeneralForm[] {
  let found = known.get(name);
  if (found === undefined) {
    found = rowsOf.get(name)!.map(([pattern, row]) => read(pattern, name, row));
    known.set(name, found);
  }
  return found;
}
