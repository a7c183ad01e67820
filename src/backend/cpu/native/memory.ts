/** Memory for machine code: written first and made executable after, never both at once, between pages that fault. */
import { fail } from "../../../core/errors.ts";
import { ffi } from "../../ffi.ts";
import { addressOfBuffer, libc, protections } from "../libc.ts";

/** Native functions take and give whole numbers: addresses and sizes are below 2^53. */
export type NativeCall = (...args: number[]) => number;

const need = () => libc() ?? fail("LibraryNotFound", "cpu: the system's calls for memory cannot be reached here");

/** `bytes` bytes, all zeros, with a page before and behind them that nothing may touch. Never given back. */
export function guarded(bytes: number, align = 64): { address: number; seal(protection: number): void } {
  const { calls, pageBytes, allocate } = bound();
  const length = Math.ceil(bytes / pageBytes) * pageBytes;
  const start = allocate(length + 2 * pageBytes + align);
  if (start === null) return fail("OutOfMemory", `cpu: the system refuses ${bytes} bytes of native memory`);
  const address = Math.ceil((start + pageBytes) / Math.max(align, pageBytes)) * Math.max(align, pageBytes);
  calls.mprotect(address - pageBytes, pageBytes, protections.none);
  calls.mprotect(address + length, pageBytes, protections.none);
  return {
    address,
    seal(protection) {
      if (calls.mprotect(address, length, protection) !== 0) {
        fail("LibraryNotFound", "cpu: the system refuses executable memory");
      }
    },
  };
}

function bound() {
  const system = need();
  return { ...system, calls: system.calls, pageBytes: system.pageBytes, allocate: (n: number) => system.allocate(n) };
}

/** The address of the code, ready to be called. */
export function executable(code: Uint8Array): number {
  const memory = guarded(code.byteLength);
  need().calls.memmove(memory.address, addressOfBuffer(code.buffer as ArrayBuffer) + code.byteOffset, code.byteLength);
  memory.seal(protections.read | protections.execute);
  return memory.address;
}

/** Code at an address as a function of `count` whole numbers. */
export function callable(address: number, count: number): NativeCall {
  const { proto, decode } = ffi();
  const parameters = Array.from({ length: count }, () => "int64_t");
  return decode(BigInt(address), proto("int64_t", parameters)) as NativeCall;
}

/** The address of one of the system's functions. */
export const systemFunction = (name: string): number => Number(ffi().load(null).symbol(name));
