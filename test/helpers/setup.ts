import { expect } from "vitest";

// What a file before left to the garbage collector is gone when the next one in this process begins, so that what that one
// counts is its own.
globalThis.gc?.();
for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));

// Long arrays that are equal are found so in one pass; vitest's own comparison, which also says where others differ, takes
// microseconds per element.
const isTyped = (x: unknown): x is Uint8Array => ArrayBuffer.isView(x) && !(x instanceof DataView);
const bytesOf = ({ buffer, byteOffset, byteLength }: Uint8Array) => Buffer.from(buffer, byteOffset, byteLength);

expect.addEqualityTesters([
  function sameElements(a: unknown, b: unknown): true | undefined {
    if (isTyped(a) && isTyped(b) && a.constructor === b.constructor) return bytesOf(a).equals(bytesOf(b)) || undefined;
    if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return undefined;
    // By index: `every` would pass over holes.
    for (let i = 0; i < a.length; i++) if (typeof a[i] !== "number" || !Object.is(a[i], b[i])) return undefined;
    return true;
  },
]);
