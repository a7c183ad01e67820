/** The record of kernels asks for a new compilation where compilers for GPUs see something else, and only there. */
import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { deviceSource } from "../../../scripts/kernels/device-source.mjs";

const source = `
// A comment.
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
nvidia("// no comment");
#elif GPU_AMD
amd(); /* another
comment */
#else
host();
#endif
#if GPU_HOST && defined(GPU_HOST_TILE)
#include "host.h"
#elif (defined(__GFX11__) || defined(__GFX12__)) && GPU_HAS(builtin(x))
gfx();
#endif
#if GPU_WARPGROUPS
#if GPU_NVIDIA
hopper();
#else
played();
#endif
#endif
#ifndef GUARD
#if !GPU_HOST
both();
#endif
#endif
`;
const named = (text: string) => [...deviceSource(text).matchAll(/^(\w+)\(.*/gm)].map(([, name]) => name);

it("is what AMD's and NVIDIA's compilers may see", () => {
  // What is behind #else is for NVIDIA's cards before Ampere, too.
  expect(named(source)).toEqual(["nvidia", "amd", "host", "gfx", "hopper", "both"]);
  expect(named(source.replace(" && __CUDA_ARCH__ >= 800", ""))).toEqual(["nvidia", "amd", "gfx", "hopper", "both"]);
  expect(deviceSource(source)).toContain('nvidia("// no comment");');
  expect(deviceSource(source)).not.toMatch(/comment\.|another|host\.h|played/);
});

it("stays the same where only comments, spaces or the simulator's part change", () => {
  const same = source
    .replace("A comment.", "Another.")
    .replace("played();", "  played(1);")
    .replace("amd();", "  amd();");
  expect(deviceSource(same)).toBe(deviceSource(source));
  for (const [from, to] of [
    ["amd();", "amd(1);"],
    ["hopper", "blackwell"],
    [">= 800", ">= 750"],
    ["!GPU_HOST", "GPU_AMD"],
  ] as const)
    expect(deviceSource(source.replace(from, to)), to).not.toBe(deviceSource(source));
});

it("has no comments of real sources, but their code", () => {
  const text = readFileSync(new URL("../../../kernels/gpu/warp.h", import.meta.url), "utf8");
  expect(deviceSource(text)).toContain("__syncwarp();");
  expect(deviceSource(text)).not.toContain("//");
  expect(() => deviceSource("#if GPU_AMD\n")).toThrow("no end");
});
