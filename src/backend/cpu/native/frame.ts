/** The usual start and end of a kernel, and named places on its stack. */
import type { Assembler } from "./assembler.ts";
import { d, type Gpr, type Mem, mem, r12, r13, r14, r15, rbp, rbx, rsp } from "./operands.ts";
import type { Word } from "./pool.ts";

/** Registers that a function must leave as they were. */
const kept: readonly Gpr[] = [rbx, rbp, r12, r13, r14, r15];

/** Saves the kept registers and makes room for `names`, each 8 bytes; `leave` ends the function. */
export function enter<Name extends string>(
  a: Assembler,
  ...names: readonly Name[]
): { readonly local: Readonly<Record<Name, Mem>>; leave(): void } {
  for (const register of kept) a.push(register);
  // Six registers and the return address: one word more makes calls find 16 bytes.
  const bytes = 8 * (names.length | 1);
  a.sub(rsp, bytes);
  const local = Object.fromEntries(names.map((name, i) => [name, mem(rsp, 8 * i)])) as Record<Name, Mem>;
  return {
    local,
    leave() {
      a.vzeroupper();
      a.add(rsp, bytes);
      for (const register of kept.toReversed()) a.pop(register);
      a.ret();
    },
  };
}

/** to = what is left from `at` to `end`, but no more than `most`, which `via` is for. */
export function emitRest(a: Assembler, to: Gpr, end: Gpr | Mem, at: Gpr | Mem, most: number, via: Gpr): void {
  a.mov(to, end);
  a.sub(to, at);
  a.mov(d(via), most);
  a.cmp(to, via);
  a.cmova(to, via);
}

/** Words of an argument block by name: in what order they are given, and where a kernel finds them. */
export function layoutArguments<Name extends string>(...names: readonly Name[]) {
  const places = new Map<Gpr, Readonly<Record<Name, Mem>>>();
  return {
    /** How many there are, and which one has a name. */
    count: names.length,
    indexOf: (name: Name): number => names.indexOf(name),
    /** Where the words are, with the block's address in `base`. */
    at(base: Gpr): Readonly<Record<Name, Mem>> {
      let found = places.get(base);
      if (found === undefined) {
        found = Object.fromEntries(names.map((name, i) => [name, mem(base, 8 * i)])) as Record<Name, Mem>;
        places.set(base, found);
      }
      return found;
    },
    /** The words in their order. */
    words(values: Readonly<Record<Name, Word>>): Word[] {
      const words = new Array<Word>(names.length);
      for (let i = 0; i < names.length; i++) words[i] = values[names[i]!];
      return words;
    },
    /** The same of two objects, which together have them all: copying many into one takes longer. */
    wordsOf<First extends Name>(
      first: Readonly<Record<First, Word>>,
      second: Readonly<Record<Exclude<Name, First>, Word>>,
    ): Word[] {
      const [one, other] = [first, second] as Readonly<Partial<Record<string, Word>>>[];
      const words = new Array<Word>(names.length);
      for (let i = 0; i < names.length; i++) words[i] = one![names[i]!] ?? other![names[i]!]!;
      return words;
    },
  };
}
