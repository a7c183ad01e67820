/** Executable memory, the processor's features and the native threads. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { addressOfBuffer } from "../../../../src/backend/cpu/libc.ts";
import { Assembler } from "../../../../src/backend/cpu/native/assembler.ts";
import { queryFeatures } from "../../../../src/backend/cpu/native/cpuid.ts";
import { callable, executable } from "../../../../src/backend/cpu/native/memory.ts";
import { mem, rax, rcx, rdi, rdx, rsi } from "../../../../src/backend/cpu/native/operands.ts";
import { settle } from "../../../../src/backend/cpu/native/pending.ts";
import { NativePool } from "../../../../src/backend/cpu/native/pool.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";

const isHere = tiers().length > 1;

describe.runIf(isHere)("native code", () => {
  test("is called with its arguments, and cannot be written to", () => {
    const a = new Assembler();
    a.lea(rax, mem(rdi, { index: rsi, scale: 4, disp: 5 }));
    a.ret();
    const address = executable(a.finish());
    expect(callable(address, 2)(1000, 7)).toBe(1033);
    const page = readFileSync("/proc/self/maps", "utf8")
      .split("\n")
      .find((line) => line.startsWith(address.toString(16)));
    expect(page).toMatch(/ r-xp /);
  });

  test("features are those that the system names", () => {
    const flags = new Set(/^flags\s*: (.*)$/m.exec(readFileSync("/proc/cpuinfo", "utf8"))![1]!.split(" "));
    const found = queryFeatures();
    expect(found.avx2).toBe(flags.has("avx2"));
    expect(found.avx512).toBe(flags.has("avx512f") && flags.has("avx512bw"));
    expect(found.vnni).toBe(flags.has("avx512_vnni"));
    expect(found.vbmi).toBe(flags.has("avx512vbmi"));
    expect(found.vbmi2).toBe(flags.has("avx512_vbmi2"));
    expect(found.bf16).toBe(flags.has("avx512_bf16"));
  });

  test("a tier that the machine lacks is refused by name, wasm never", () => {
    expect(chooseIsa("wasm")).toBe(null);
    expect(chooseIsa(tiers()[0])?.name).toBe(tiers()[0]);
  });

  test("jobs run one after the other, every item once, on any number of threads", () => {
    // args: where to count; every item adds one to its place, and the items of a job before must be there.
    const a = new Assembler();
    a.mov(rdi, mem(rdi));
    const top = a.here();
    a.add(mem(rdi, { index: rsi, scale: 4, bits: 32 }), 1);
    a.add(rsi, 1);
    a.cmp(rsi, rdx);
    a.jb(top);
    a.ret();
    const kernel = executable(a.finish());
    const counts = new Uint32Array(10007);
    const args = [addressOfBuffer(counts.buffer)];
    const pool = new NativePool();
    for (const threads of [1, 2, 5, 1, 3]) {
      pool.threads = threads;
      for (let i = 0; i < 200; i++) {
        counts.fill(0);
        const total = i === 0 ? 0 : i === 1 ? 1 : counts.length - i;
        pool.run({ kernel, args, total, grain: 1 + (i % 97) }, { kernel, args, total, grain: 1 + ((7 * i) % 97) });
        expect(counts.subarray(0, total).every((n) => n === 2)).toBe(true);
        expect(counts.subarray(total).every((n) => n === 0)).toBe(true);
      }
    }
    expect(rcx.id).toBe(1);
  });

  test("jobs in the queue run in their order, whoever waits for them", () => {
    // args: numbers, the last of which is where the counts are; every item takes thrice what it finds and adds a number.
    const a = new Assembler();
    a.mov(rcx, mem(rdi, 8));
    a.mov(rdi, mem(rdi));
    a.mov(rdi, mem(rdi));
    const top = a.here();
    a.mov(rax, mem(rdi, { index: rsi, scale: 8 }));
    a.imul(rax, rax, 3);
    a.add(rax, rcx);
    a.mov(mem(rdi, { index: rsi, scale: 8 }), rax);
    a.add(rsi, 1);
    a.cmp(rsi, rdx);
    a.jb(top);
    a.ret();
    const kernel = executable(a.finish());
    const values = new BigUint64Array(1000);
    const at = addressOfBuffer(values.buffer);
    const pool = new NativePool();
    for (const threads of [2, 1, 4]) {
      pool.threads = threads;
      let want = 0n;
      values.fill(0n);
      for (let i = 0; i < 3000; i++) {
        const job = { kernel, args: [{ own: 2 }, i, at] as const, total: values.length, grain: 1 + (i % 500) };
        if (i % 997 === 0) pool.run(job);
        else pool.give(job);
        want = BigInt.asUintN(64, 3n * want + BigInt(i));
        if (i % 701 === 0) pool.settle();
      }
      settle();
      expect(values.every((value) => value === want)).toBe(true);
    }
  });
});
