/**
 * The package that native libraries are called through. Nothing here runs before one is needed, so Wick imports on machines
 * where it cannot be loaded.
 */
import { createRequire } from "node:module";
import { fail } from "../core/errors.ts";

export type Koffi = typeof import("koffi");

const require = createRequire(import.meta.url);
let koffi: Koffi | undefined;
/** What libraries expect of a thread. The FFI's own stacks are smaller: 2 MiB, and 128 KiB for asynchronous calls. */
export const STACK_BYTES = 8 * 2 ** 20;

export function ffi(): Koffi {
  if (koffi) return koffi;
  try {
    koffi = require("koffi") as Koffi;
    enlargeStacks(koffi);
    return koffi;
  } catch (cause) {
    return fail(
      "LibraryNotFound",
      "GPU libraries are called through the package koffi, which cannot be loaded here; reinstall it for this platform, or use the device cpu",
      { cause },
    );
  }
}

/** It can be done before the first call only; where others have made calls already, compilers still have their own processes. */
function enlargeStacks({ config }: Koffi): void {
  try {
    config({ sync_stack_size: STACK_BYTES, async_stack_size: STACK_BYTES });
  } catch {
    // Their stacks stay.
  }
}

/** Where child processes find the FFI package. */
export const ffiPath = (): string => require.resolve("koffi");
