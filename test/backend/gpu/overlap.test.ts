// Kernels that begin while others end must wait before they touch what others write (kernels/gpu/entry.h).
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { definesOf } from "../../../src/backend/gpu/catalogue.ts";

const kernels = fileURLToPath(new URL("../../../kernels", import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "wick-overlap-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const hasNvcc = spawnSync("nvcc", ["--version"]).status === 0;

/** The PTX of each kernel of a file, or of those picked. */
function assembly(arch: string, file: string, unit: string, picked: string[] = []): [name: string, body: string][] {
  const out = join(folder, `${file}-${arch}.ptx`);
  const picks = picked.length > 0 ? ["-DGPU_PICK", ...picked.map((name) => `-DGPU_PICK_${name}`)] : [];
  const only = ["-DGPU_ONLY", `-DGPU_ONLY_${unit}`, ...picks];
  const flags = ["-x", "cu", "-std=c++17", `-arch=${arch}`, "-ptx", `-I${kernels}`, ...only];
  const made = spawnSync("nvcc", [...flags, ...definesOf(file, arch), "-o", out, join(kernels, `${file}.hip`)], {
    encoding: "utf8",
  });
  if (made.status !== 0) throw new Error(made.stderr);
  const entries = readFileSync(out, "utf8").split(".visible .entry ").slice(1);
  return entries.map((entry) => [/^\w+/.exec(entry)![0], entry.slice(entry.indexOf("{"))]);
}

test("no kernel is made but by the macros that let it wait", () => {
  for (const file of readdirSync(kernels, { recursive: true, encoding: "utf8" })) {
    if (!/\.(h|hip)$/.test(file) || file === "gpu/entry.h") continue;
    expect(readFileSync(join(kernels, file), "utf8"), file).not.toContain("__global__");
  }
});

test.runIf(hasNvcc)(
  "every kernel waits before it reads or writes memory, but for weights of linear layers",
  () => {
    // One of each shape of the many kernels that differ in rows and rounding only: they take seconds each.
    const quantized = ["linear_q4_0_b1", "linear_fine_q4_0_b2", "expert_linear_q4_0", "expert_sum_q4_0"];
    for (const [file, unit, isEarly, picked] of [
      ["rope", "bf16", false, []],
      ["glu", "f32", false, []],
      ["linear", "f32", true, []],
      ["quant-matvec", "q4_0", true, quantized],
    ] as const) {
      const made = assembly("sm_90", file, unit, [...picked]);
      if (picked.length > 0) expect(made.map(([name]) => name).sort()).toEqual([...picked].sort());
      expect(made.length).toBeGreaterThan(0);
      for (const [name, body] of made) {
        const wait = body.indexOf("griddepcontrol.wait;");
        expect(wait, name).toBeGreaterThan(0);
        expect(body.indexOf("griddepcontrol.launch_dependents;"), name).toBeGreaterThan(0);
        const before = body.slice(0, wait);
        expect(before, name).not.toMatch(/\b(st|atom|red)\.global/);
        // Weights come past the caches or by the copies that run beside; nothing else does.
        if (isEarly) expect(before, name).not.toMatch(/ld\.global\.(?!nc\.L1::no_allocate)/);
        else expect(before, name).not.toMatch(/ld\.global|cp\.async/);
      }
    }
  },
  120_000,
);

test.runIf(hasNvcc)(
  "older devices know nothing of it",
  () => {
    for (const [name, body] of assembly("sm_80", "rope", "bf16")) expect(body, name).not.toContain("griddepcontrol");
  },
  60_000,
);
