/** How a thread sleeps until a word in memory changes, and wakes those that do: the system's own calls for it. */
import type { Assembler } from "./assembler.ts";
import { systemFunction } from "./memory.ts";
import { d, type Gpr, mem, r10, rax, rcx, rdi, rdx, rsi } from "./operands.ts";

export interface Sleep {
  /** Sleeps while the 32-bit word at base + disp is still `seen`. Registers that calls keep are kept. */
  wait(a: Assembler, base: Gpr, disp: number, seen: Gpr): void;
  wakeAll(a: Assembler, base: Gpr, disp: number): void;
}

const FUTEX = 202;
const WAIT_PRIVATE = 128;
const WAKE_PRIVATE = 129;

const linux: Sleep = {
  wait(a, base, disp, seen) {
    a.mov(d(rdx), d(seen));
    a.lea(rdi, mem(base, disp));
    a.mov(rsi, WAIT_PRIVATE);
    a.mov(r10, 0);
    a.mov(rax, FUTEX);
    a.syscall();
  },
  wakeAll(a, base, disp) {
    a.lea(rdi, mem(base, disp));
    a.mov(rsi, WAKE_PRIVATE);
    a.mov(rdx, 0x7fffffff);
    a.mov(rax, FUTEX);
    a.syscall();
  },
};

const COMPARE_AND_WAIT = 1;
const WAKE_ALL = 0x100;

const darwin = (): Sleep => {
  const [wait, wake] = [systemFunction("__ulock_wait"), systemFunction("__ulock_wake")];
  return {
    wait(a, base, disp, seen) {
      a.mov(d(rdx), d(seen));
      a.lea(rsi, mem(base, disp));
      a.mov(rdi, COMPARE_AND_WAIT);
      a.mov(rcx, 0);
      a.mov(rax, wait);
      a.call(rax);
    },
    wakeAll(a, base, disp) {
      a.lea(rsi, mem(base, disp));
      a.mov(rdi, COMPARE_AND_WAIT | WAKE_ALL);
      a.mov(rdx, 0);
      a.mov(rax, wake);
      a.call(rax);
    },
  };
};

export const sleepCalls = (): Sleep => (process.platform === "darwin" ? darwin() : linux);
