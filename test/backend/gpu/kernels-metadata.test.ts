import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import {
  amdCompilers,
  compileAmd,
  disassemble,
  findToolchains,
  instructionsIn,
  sourceHash,
  targetsOf,
} from "../../../scripts/kernels/compile.mjs";
import { isWhole, kernelsToCheck } from "../../../scripts/kernels/coverage.mjs";
import { maySpill, unitsOf } from "../../../scripts/kernels/expected.mjs";
import { type CheckedFile, readRecord } from "../../../scripts/kernels/record.mjs";
import { matrixUnit, planSplits, sharedBudget } from "../../../src/backend/gpu/attention-plan.ts";
import {
  argBytes,
  argumentsHash,
  definesOf,
  type Kernel,
  kernelFiles,
  kernelNamed,
  kernels,
} from "../../../src/backend/gpu/catalogue.ts";
import { compareWithCatalogue, occupancy, readCodeObject } from "../../../src/backend/gpu/codeobject.ts";
import { planLinear, planQuantizedLinear } from "../../../src/backend/gpu/families/linear.ts";
import { unitOf } from "../../../src/backend/gpu/matrix-unit.ts";
import { platform } from "../../../src/backend/gpu/platforms.ts";
import { programs } from "../../../src/backend/gpu/program.ts";
import { kernelSource } from "../../../src/backend/gpu/source.ts";
import { gpuNames } from "../../helpers/devices.ts";

const preprocessor = ["g++", "clang++", "clang++-19"].find((name) => spawnSync(name, ["--version"]).status === 0);
const compilers = findToolchains().amd;
const newest = compilers.at(-1);
const record = readRecord().files;

const bytesOf: Readonly<Record<string, number>> = {
  ...{ size_t: 8, u64: 8, i64: 8, f64: 8, u32: 4, i32: 4, f32: 4, i16: 2, bf16: 2, f16: 2, u8: 1, f8e4m3: 1 },
};

interface Definition {
  readonly threads: number;
  readonly args: readonly { readonly pointer: boolean; readonly bytes: number }[];
}

/** Every kernel that a file defines for AMD, read off its preprocessed text. */
function definitions(file: string): Map<string, Definition> {
  const flags = ["-E", "-P", "-x", "c++", "-std=c++17", "-D__HIP__", "-Ikernels", ...definesOf(file, "gfx1100")];
  const { stdout, stderr, status } = spawnSync(preprocessor!, [...flags, `kernels/${file}.hip`], {
    encoding: "utf8",
    maxBuffer: 2 ** 28,
  });
  if (status !== 0) throw new Error(stderr);
  const kernel =
    /extern "C" __attribute__\(\(global(?:, amdgpu_flat_work_group_size\(1, (.+?)\))?\)\)\s*void\s+(\w+)\(([^)]*)\)/g;
  const constant = (word: string): number => Number(new RegExp(`\\b${word} = (\\d+)[;,]`).exec(stdout)?.[1] ?? word);
  const quotient = (text: string): number =>
    text
      .split("/")
      .map((word) => constant(word.trim()))
      .reduce((a, b) => a / b);
  // Of a template's constant nothing is known here: its own tests launch it.
  const bound = (text: string): number =>
    text.includes("<")
      ? Number.POSITIVE_INFINITY
      : text
          .split("*")
          .map(quotient)
          .reduce((a, b) => a * b);
  return new Map(
    [...stdout.matchAll(kernel)].map(([, threads, name, args]) => [
      name!,
      {
        threads: bound(threads ?? "1024"),
        args: args!.split(",").map((text) => {
          const pointer = text.includes("*");
          return { pointer, bytes: pointer ? 8 : (bytesOf[text.trim().split(/\s+/)[0]!] ?? Number.NaN) };
        }),
      },
    ]),
  );
}

const ofFile = (file: string): Kernel[] => [...kernels.values()].filter((kernel) => kernel.file === file);

describe.skipIf(!preprocessor)("The kernel sources and the catalogue agree", () => {
  it.each(kernelFiles)("on names, arguments and block sizes of %s.hip", (file) => {
    const defined = definitions(file);
    expect([...defined.keys()].sort()).toEqual(
      ofFile(file)
        .map((kernel) => kernel.name)
        .sort(),
    );
    for (const kernel of ofFile(file)) {
      const { args, threads } = defined.get(kernel.name)!;
      expect({ kernel: kernel.name, args }).toEqual({
        kernel: kernel.name,
        args: kernel.args.map((arg) => ({ pointer: arg.kind === "ptr", bytes: argBytes(kernel, arg) })),
      });
      expect(
        kernel.launch(new Proxy({}, { get: (_, name) => (/^(row_threads|threads)$/.test(String(name)) ? 32 : 2048) }))
          .block,
      ).toBeLessThanOrEqual(threads);
    }
  });
});

describe("Only the headers of kernels/gpu/ know the compiler", () => {
  const vendor =
    /GPU_(AMD|NVIDIA|HOST|HAS)\b|__HIP|__AMDGCN|__CUDA|__NV|__gfx|__GFX|__clang|__GNUC|__builtin_|__ocml|\basm\b/;
  const files = readdirSync("kernels", { recursive: true, encoding: "utf8" }).filter((name) => /\.(h|hip)$/.test(name));
  const testing = files.filter((name) => vendor.test(readFileSync(`kernels/${name}`, "utf8")));

  it("and no kernel or other header tests for a vendor or uses what only one has", () => {
    expect(testing.filter((name) => !name.startsWith("gpu/"))).toEqual([]);
    expect(testing).toEqual(expect.arrayContaining(["gpu/compiler.h", "gpu/matrix.h", "gpu/warp.h"]));
  });

  it("and none has a generic lambda, which NVRTC takes for a host function", () => {
    expect(files.filter((name) => /\]\s*\(auto\b/.test(readFileSync(`kernels/${name}`, "utf8")))).toEqual([]);
  });
});

describe("Constants of kernels and their launches", () => {
  const defined = (file: string): string[] =>
    definesOf(file, "gfx1100").map((option) => /^-D(\w+)=\d+$/.exec(option)![1]!);
  const everywhere = defined("glu");

  it.each(kernelFiles)("of %s are read by its source and stated nowhere in it", (file) => {
    const source = kernelSource(`${file}.hip`);
    for (const name of defined(file)) {
      // The last of a list of numbers is what the others are not.
      const isRest = name === "GLU_gelu" && /\bGLU_silu\b/.test(source) && /\bGLU_clampedSwiglu\b/.test(source);
      if (!everywhere.includes(name) && !isRest) expect(source).toMatch(new RegExp(`\\b${name}\\b`));
      expect(source).not.toMatch(new RegExp(`#define ${name}\\b|\\b${name} =(?!=)`));
    }
  });

  it("differ by vendor where the kernels do", () => {
    expect(definesOf("quant-matvec", "sm_90")).toContain("-DMATVEC_ROWS=4");
    expect(definesOf("quant-matvec", "gfx1100")).toContain("-DMATVEC_ROWS=2");
    expect(definesOf("attention", "sm_86")).toContain("-DGPU_SHARED_KB=99");
  });
});

describe("What `npm run kernels` compiles", () => {
  it("is every kernel for one target of each generation, and every family by each compiler for each target", () => {
    for (const compiler of amdCompilers) {
      const met = new Set<string>();
      for (const target of targetsOf(compiler)) {
        for (const file of kernelFiles) {
          const chosen = kernelsToCheck(compiler, target, ofFile(file));
          for (const { name } of chosen) met.add(name);
          if (isWhole(compiler, target, file)) expect(chosen).toEqual(ofFile(file));
          const families = (list: readonly Kernel[]) => new Set(list.map((kernel) => kernel.family));
          expect(families(chosen)).toEqual(families(ofFile(file)));
        }
      }
      expect(met.size / kernels.size, compiler).toBeGreaterThan(0.4);
    }
    const generations = new Set(amdCompilers.flatMap((c) => targetsOf(c).filter((target) => isWhole(c, target))));
    expect([...generations].sort()).toEqual(
      ["gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1200"].sort(),
    );
  });
});

describe("The record of `npm run kernels`", () => {
  it.each(kernelFiles)("is about %s as it stands, by all compilers on all targets", (file) => {
    const unknown: CheckedFile = { source: "", arguments: "", compilers: {} };
    const { source, arguments: believed, compilers } = record[file] ?? unknown;
    const advice = "run `npm run kernels`, which compiles what has changed";
    expect({ source, believed }, advice).toEqual({ source: sourceHash(file), believed: argumentsHash(file) });
    for (const compiler of amdCompilers) {
      const targets = compilers[compiler] ?? {};
      expect(Object.keys(targets), `${compiler}: ${advice}`).toEqual(expect.arrayContaining([...targetsOf(compiler)]));
      for (const [arch, [count, , , spilling]] of Object.entries(targets)) {
        // A run with --all has compiled more.
        expect(count, `${compiler} ${arch}`).toBeGreaterThanOrEqual(
          kernelsToCheck(compiler, arch, ofFile(file)).length,
        );
        const allowed = ofFile(file).filter(({ name }) =>
          maySpill.some((known) => known.test(`${compiler} ${arch} ${name}`)),
        );
        expect(spilling, `spilling by ${compiler} on ${arch}`).toBeLessThanOrEqual(allowed.length);
      }
    }
  });
});

/**
 * All files by all compilers for all targets take hours, so each run compiles a few kernels of them, and another few the next
 * minute. WICK_KERNEL_SLICE=n repeats those of a run.
 */
const slice = process.env.WICK_KERNEL_SLICE ?? String(Math.floor(Date.now() / 60_000));
const sliced = compilers.flatMap((toolchain, i) => {
  const pick = <T>(what: string, from: readonly T[]): T =>
    from[createHash("sha256").update(`${slice} ${i} ${what}`).digest().readUInt32LE(0) % from.length]!;
  const targets = targetsOf(toolchain.name);
  if (targets.length === 0) return [];
  const { file, unit, kernels: all } = pick("program", programs());
  const picked = [...new Set(["first", "second", "third"].map((which) => pick(which, all)))];
  const arch = pick("target", targets);
  const title = `${toolchain.name} for ${arch}: ${picked.map(({ name }) => name).join(", ")}`;
  return [[title, { toolchain, arch, file, unit, picked }] as const];
});

describe.skipIf(sliced.length === 0)(`Compiled AMD kernels, slice ${slice}`, { timeout: 60_000 }, () => {
  it.each(sliced)("%s", async (_, { toolchain, arch, file, unit, picked }) => {
    const options = [
      ...definesOf(file, arch),
      "-DGPU_ONLY",
      `-DGPU_ONLY_${unit}`,
      "-DGPU_PICK",
      ...picked.map(({ name }) => `-DGPU_PICK_${name}`),
    ];
    const found = readCodeObject(readFileSync(await compileAmd(toolchain, file, arch, options)));
    expect(compareWithCatalogue(found, picked)).toEqual([]);
    for (const kernel of found) {
      const name = `${toolchain.name} ${arch} ${kernel.name}`;
      if (!maySpill.some((pattern) => pattern.test(name))) {
        expect(`${name}: ${kernel.vgprSpills} spilt`).toBe(`${name}: 0 spilt`);
      }
      expect(kernel.wave).toBe(arch.startsWith("gfx9") ? 64 : 32);
      expect(occupancy(arch, kernel)).toBeGreaterThanOrEqual(1);
    }
  });
});

describe("Picked kernels", () => {
  const picked = ["softmax_f32", "log_softmax_wide_f32"];
  const picks = ["-DGPU_ONLY", "-DGPU_ONLY_f32", "-DGPU_PICK", ...picked.map((name) => `-DGPU_PICK_${name}`)];
  const options = [...definesOf("softmax", "gfx1100"), ...picks];

  it.skipIf(gpuNames.length === 0)("are all that a program of the simulator has", () => {
    const { driver, compiler } = platform("sim");
    const context = driver.open(0);
    const code = compiler().compile(kernelSource("softmax.hip"), "softmax.hip", "gfx1100", options);
    const module = context.loadModule(code);
    const has = (name: string): boolean => {
      try {
        return context.getFunction(module, name) !== 0n;
      } catch {
        return false;
      }
    };
    const names = ofFile("softmax").map((kernel) => kernel.name);
    expect(names.filter(has)).toEqual(names.filter((name) => picked.includes(name)));
    context.unloadModule(module);
    context.close();
  });

  it.each(compilers)("are all that a program by $name has, without a warning about the others", async (toolchain) => {
    const path = await compileAmd(toolchain, "softmax", "gfx1100", options);
    expect(
      readCodeObject(readFileSync(path))
        .map((kernel) => kernel.name)
        .sort(),
    ).toEqual([...picked].sort());
  });
});

// a·b + 0 is not −0 where a·b is: the sign of zero is kept by not letting compilers fuse the conversion.
describe.each(compilers)("A product rounded to f16 by $name", (toolchain) => {
  it.each([
    ["binary", "f16", "mul_f16"],
    ["quant-blocks", "q4_0", "dequantize_block_q4_0_f16"],
    ["quant-blocks", "q6_k", "get_rows_q6_k_f16"],
  ])("is a product and a conversion in %s %s", async (file, unit, name) => {
    const options = ["-DGPU_ONLY", `-DGPU_ONLY_${unit}`, "-DGPU_PICK", `-DGPU_PICK_${name}`];
    const path = await compileAmd(toolchain, file, "gfx1100", [...definesOf(file, "gfx1100"), ...options]);
    const wanted = ["v_fma_mixlo", "v_fma_mixhi", "v_cvt_f16_f32"];
    expect(instructionsIn(await disassemble(toolchain, path), wanted)).toEqual(["v_cvt_f16_f32"]);
  });
});

describe.skipIf(!newest)("The matrix unit", () => {
  const targets = ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1036", "gfx1103", "gfx1153", "gfx1201"];
  const known = targets.filter((arch) => targetsOf(newest?.name ?? "").includes(arch));
  it.each(known)("that the newest compiler took for %s is the one that it has", async (arch) => {
    const code = readFileSync(await compileAmd(newest!, "probe", arch, definesOf("probe", arch)));
    expect(unitOf(code, "gfx900")).toBe(unitsOf(arch)!.unit);
    expect(matrixUnit(arch, "bf16")).toBe(unitsOf(arch)!.unit);
  });
  it("goes by the code, not by the arch", async () => {
    const code = readFileSync(
      await compileAmd(newest!, "probe", "gfx1100", [...definesOf("probe", "gfx1100"), "-U__GFX11__"]),
    );
    expect(unitOf(code, "gfx1100")).toBe("fma");
    const other = readFileSync(await compileAmd(newest!, "glu", "gfx1100", definesOf("glu", "gfx1100")));
    expect(() => unitOf(other, "gfx1100")).toThrow("swiglu_f32");
  });
});

describe("Launch shapes", () => {
  it.each([32, 256, 512, 1024])(
    "of %i threads stay within what every driver takes, however many elements",
    (threads) => {
      for (const kernel of kernels.values()) {
        for (const size of [1, 33, 2 ** 11, 2 ** 20, 2 ** 32, 2 ** 40]) {
          const small: Readonly<Record<string, number>> = {
            threads,
            shared_bytes: 0,
            row_threads: threads,
            col_threads: 32,
            pieces: 1,
            blocks: 0,
          };
          const sizes = new Proxy({}, { get: (_, name) => small[String(name)] ?? size });
          const { grid, block, shared } = kernel.launch(sizes);
          const at = `${kernel.name} at ${size}`;
          expect(Number.isInteger(grid) && grid >= 1, at).toBe(true);
          expect(block % 32 === 0 && block <= 1024, at).toBe(true);
          expect(grid * block, at).toBeLessThan(2 ** 32);
          expect(shared, at).toBeLessThanOrEqual(64 * 1024);
        }
      }
    },
  );

  // HIP counts work-group processors on RDNA, two compute units each, unless it is told otherwise.
  it.each([1, 30, 48, 96, 1216])("are right where a device counts %i multiprocessors", (multiprocessors) => {
    for (const arch of ["gfx1100", "gfx942"]) {
      for (const [m, n, k] of [
        [1, 1, 256],
        [1, 4096, 4096],
        [4, 17, 14336],
        [8, 128256, 2048],
      ] as const) {
        const shape = { m, n, k, norm: false };
        const plans = [
          planLinear(shape, "bf16", { arch, multiprocessors }),
          planQuantizedLinear(shape, "Q4_K", { arch, multiprocessors }),
        ];
        for (const plan of plans.flatMap((found) => (found ? [found] : []))) {
          const { threads, splits, blocks, shared_bytes } = plan.launch;
          const at = `${plan.kernel} ${n} × ${k} on ${arch}`;
          expect((threads / 32) % splits, at).toBe(0);
          expect(blocks >= 1 && blocks <= n, at).toBe(true);
          expect(shared_bytes, at).toBeLessThanOrEqual(sharedBudget(arch));
        }
      }
    }
    for (const keys of [1, 300, 131072]) {
      const splits = planSplits(3 * multiprocessors, 8, keys);
      expect(splits >= 1 && splits <= Math.ceil(keys / 64)).toBe(true);
    }
  });

  it("of an unknown kernel are an error that names it", () => {
    expect(() => kernelNamed("exp_u8")).toThrow("exp_u8");
  });
});

describe("The code object reader", () => {
  const pad4 = (bytes: number[]): number[] => [...bytes, ...new Array<number>((4 - (bytes.length % 4)) % 4).fill(0)];
  const u32 = (x: number): number[] => [x & 255, (x >> 8) & 255, (x >> 16) & 255, (x >> 24) & 255];
  const str = (text: string): number[] => [0xa0 | text.length, ...Buffer.from(text)];
  const str8 = (text: string): number[] => [0xd9, text.length, ...Buffer.from(text)];
  const map = (...entries: number[][]): number[] => [0x80 | (entries.length / 2), ...entries.flat()];
  const list = (...items: number[][]): number[] => [0xdc, 0, items.length, ...items.flat()];
  const arg = (offset: number[], size: number, kind: string): number[] =>
    map(str(".offset"), offset, str(".size"), [size], str8(".value_kind"), str(kind));

  /** An ELF file of a header, one note section with the given contents, and its section header. */
  function elf(metadata: number[], name = "AMDGPU"): Uint8Array {
    const label = pad4([...Buffer.from(name), 0]);
    const note = [...u32(name.length + 1), ...u32(metadata.length), ...u32(32), ...label, ...pad4(metadata)];
    const bytes = new Uint8Array(64 + note.length + 64);
    bytes.set([0x7f, 0x45, 0x4c, 0x46, 2, 1]);
    bytes.set(note, 64);
    const view = new DataView(bytes.buffer);
    view.setBigUint64(40, BigInt(64 + note.length), true);
    view.setUint16(58, 64, true);
    view.setUint16(60, 1, true);
    view.setUint32(64 + note.length + 4, 7, true);
    view.setBigUint64(64 + note.length + 24, 64n, true);
    view.setBigUint64(64 + note.length + 32, BigInt(note.length), true);
    return bytes;
  }
  const kernel = (args: number[]): number[] =>
    map(
      str("amdhsa.kernels"),
      list(
        map(
          str(".name"),
          str("k"),
          str(".args"),
          args,
          str8(".vgpr_count"),
          [0xcd, 1, 4],
          str("x"),
          [0xc3],
          str("y"),
          [0xc0],
        ),
      ),
      str("n"),
      [0xff],
    );

  it("lists arguments and registers, without the hidden arguments", () => {
    const args = list(
      arg([0], 8, "global_buffer"),
      arg([0xcc, 8], 4, "by_value"),
      arg([16], 4, "hidden_block_count_x"),
    );
    expect(readCodeObject(elf(kernel(args)))).toMatchObject([
      {
        name: "k",
        vgprs: 260,
        args: [
          { offset: 0, size: 8, pointer: true },
          { offset: 8, size: 4, pointer: false },
        ],
      },
    ]);
  });

  it("refuses what is not a code object", () => {
    expect(() => readCodeObject(new Uint8Array(100))).toThrow("ELF");
    expect(() => readCodeObject(elf(kernel(list()), "OTHER"))).toThrow("no AMDGPU metadata");
    expect(() => readCodeObject(elf(kernel(list()).slice(0, 30)))).toThrow("ends in the middle");
    expect(() => readCodeObject(elf([0xca, 0, 0, 0, 0]))).toThrow("0xca");
    expect(() => readCodeObject(elf([1]))).toThrow("a map was expected");
    expect(() => readCodeObject(elf(map(str("amdhsa.kernels"), [1])))).toThrow("a list was expected");
  });

  it("names every way in which a kernel and the catalogue differ", () => {
    const expected = kernelNamed("affine_f32");
    const [found] = readCodeObject(elf(kernel(list(arg([0], 8, "global_buffer")))));
    const named = { ...found!, name: expected.name, maxThreads: 256 };
    const layout = expected.args.map((a, i) => ({ offset: i * 8, size: 8, pointer: a.kind === "ptr" }));
    expect(compareWithCatalogue([found!], [expected])).toEqual([
      "k is compiled but not in the catalogue",
      "affine_f32 is in the catalogue but not compiled",
    ]);
    expect(compareWithCatalogue([named], [expected])).toEqual(["affine_f32 takes 1 arguments, the catalogue has 7"]);
    expect(compareWithCatalogue([{ ...named, args: layout, maxThreads: 128 }], [expected])).toEqual([
      "affine_f32: mul is a value of 8 bytes at 40, the catalogue has a value of 4 bytes at 40",
      "affine_f32: add is a value of 8 bytes at 48, the catalogue has a value of 4 bytes at 44",
      "affine_f32 runs 256 threads, 128 are allowed",
    ]);
  });
});
