/** Kernel sources as run-time compilers take them: one string, in which each header appears where it is first included. */
import { readFileSync } from "node:fs";

const folder = new URL("../../../kernels/", import.meta.url);
const assembled = new Map<string, string>();

export function kernelSource(file: string): string {
  let source = assembled.get(file);
  if (source === undefined) {
    source = assemble(file, new Set());
    assembled.set(file, source);
  }
  return source;
}

function assemble(file: string, seen: Set<string>): string {
  seen.add(file);
  const text = readFileSync(new URL(file, folder), "utf8");
  // sim.h is the simulator's own, found by its compiler; the preprocessor skips it for GPUs.
  return text.replace(/^#include "([^"]+)"$/gm, (line, name: string) => {
    if (name === "sim.h") return line;
    return seen.has(name) ? "" : assemble(name, seen);
  });
}
