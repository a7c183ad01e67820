// What `npm run kernels` reads off compiled kernels: loops, the hot one of them, and the matrix unit's share of it.
import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { compileAmd, disassemble, findToolchains, mca, sharesByMca } from "../../../scripts/kernels/compile.mjs";
import { mayShow, mustUse, shareOf, signsOf, unitsOf } from "../../../scripts/kernels/expected.mjs";
import {
  bytesOf,
  cyclesOf,
  hotRound,
  type RoundFacts,
  roundFacts,
  shareByCount,
} from "../../../scripts/kernels/hot-loop.mjs";
import { plannedLaunch } from "../../../scripts/kernels/launches.mjs";
import { blocksOf, functionsOf, loopsOf, roundOf } from "../../../scripts/kernels/listing.mjs";
import { reportOf, tableOf } from "../../../scripts/kernels/report.mjs";
import { definesOf } from "../../../src/backend/gpu/catalogue.ts";
import { occupancy, readCodeObject } from "../../../src/backend/gpu/codeobject.ts";

/** A listing as llvm-objdump writes it, of instructions of 4 bytes; a branch to "@n" goes to line n. */
function listing(name: string, lines: readonly string[]): string {
  const text = lines.map((line, i) => {
    const branch = /^(s_c?branch\w*) @(\d+)$/.exec(line);
    const shown = branch ? `${branch[1]} ${(Number(branch[2]) - i - 1) & 0xffff}` : line;
    return `\t${shown.padEnd(58)} // ${(0x1000 + 4 * i).toString(16).toUpperCase().padStart(12, "0")}: BF800000`;
  });
  return [`0000000000001000 <${name}>:`, ...text].join("\n");
}
const codeOf = (lines: readonly string[]) => functionsOf(listing("k", lines)).get("k")!;
const namesOf = (round: readonly { readonly name: string }[]) => round.map(({ name }) => name);

describe("A listing", () => {
  it("has the instructions of each function, and where branches go", () => {
    const text = `\nk.co:\tfile format elf64-amdgpu\n\n${listing("one", ["s_nop 0", "s_cbranch_scc1 @0"])}\n${listing("two", ["s_endpgm"])}\n`;
    expect([...functionsOf(text)]).toEqual([
      [
        "one",
        [
          { at: 0x1000, name: "s_nop", operands: "0" },
          { at: 0x1004, name: "s_cbranch_scc1", operands: "65534", to: 0x1000 },
        ],
      ],
      ["two", [{ at: 0x1000, name: "s_endpgm", operands: "" }]],
    ]);
  });

  it("is cut into blocks where branches go and behind them", () => {
    const blocks = blocksOf(codeOf(["v_a", "s_cbranch_vccz @3", "v_b", "v_c", "s_endpgm", "v_never"]));
    expect(blocks.map(({ code, next }) => [code.length, next])).toEqual([
      [2, [1, 2]],
      [1, [2]],
      [2, []],
      [1, []],
    ]);
    expect(loopsOf(blocks)).toEqual([]);
    expect(loopsOf([])).toEqual([]);
  });
});

describe("A loop", () => {
  it("is found with those inside of it", () => {
    const blocks = blocksOf(codeOf(["v_a", "v_b", "v_c", "s_cbranch_scc0 @2", "s_cbranch_scc0 @1", "s_endpgm"]));
    const loops = loopsOf(blocks).map(({ head, blocks: inside }) => [head, [...inside].sort()]);
    expect(loops).toEqual(
      expect.arrayContaining([
        [1, [1, 2, 3]],
        [2, [2]],
      ]),
    );
    expect(loops).toHaveLength(2);
  });

  it("is not every branch backwards: what seldom runs stands behind", () => {
    // Line 3 goes to 6, which comes back to 4: no loop.
    const blocks = blocksOf(
      codeOf(["v_a", "v_b", "v_c", "s_cbranch_scc0 @6", "v_d", "s_endpgm", "v_seldom", "s_branch @4"]),
    );
    expect(loopsOf(blocks)).toEqual([]);
  });

  it("goes round by both sides of a branch, in their order, and not through the loops it should avoid", () => {
    const lines = [
      ...["v_a", "s_cbranch_scc0 @5", "v_inner", "s_cbranch_scc0 @2", "s_branch @8"],
      ...["v_b", "s_cbranch_execz @8", "v_masked", "v_c", "s_cbranch_scc0 @0", "s_endpgm"],
    ];
    const blocks = blocksOf(codeOf(lines));
    const loops = loopsOf(blocks);
    const outer = loops.find(({ head }) => head === 0)!;
    const inner = loops.filter((loop) => loop !== outer);
    expect(namesOf(roundOf(blocks, outer, inner))).toEqual([
      ...["v_a", "s_cbranch_scc0", "v_b", "s_cbranch_execz", "v_masked", "v_c", "s_cbranch_scc0"],
    ]);
    // Where every way leads through an inner loop, that is part of the round.
    const through = blocksOf(codeOf(["v_a", "v_inner", "s_cbranch_scc0 @1", "v_b", "s_cbranch_scc0 @0", "s_endpgm"]));
    const all = loopsOf(through);
    const around = all.find(({ head }) => head === 0)!;
    expect(
      namesOf(
        roundOf(
          through,
          around,
          all.filter((loop) => loop !== around),
        ),
      ),
    ).toContain("v_inner");
  });
});

describe("The hot loop", () => {
  const edge = ["global_load_ushort v1, v[2:3], off", "ds_write_b16 v4, v1", "s_cbranch_scc0 @1"];

  it("is the innermost one with matrix instructions, without the loop for edges", () => {
    const round = hotRound(
      codeOf([
        ...["v_outer", ...edge, "s_cbranch_scc1 @8"],
        // Behind the loop for edges: the one that multiplies.
        ...["global_load_dwordx4 v[4:7], v[2:3], off", "v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]"],
        ...["s_cbranch_scc0 @5", "s_cbranch_scc0 @0", "s_endpgm"],
      ]),
    );
    expect(namesOf(round)).toEqual(["global_load_dwordx4", "v_mfma_f32_16x16x16_f16", "s_cbranch_scc0"]);
  });

  it("is the one that loads in the widest pieces where nothing is multiplied", () => {
    const wide = ["global_load_b128 v[4:7], v[2:3], off", "s_cbranch_scc0 @4"];
    expect(namesOf(hotRound(codeOf(["v_a", ...edge, ...wide, "s_endpgm"])))).toEqual([
      ...["global_load_b128", "s_cbranch_scc0"],
    ]);
    expect(namesOf(hotRound(codeOf(["v_a", ...edge, "s_endpgm"])))).toEqual(namesOf(codeOf(edge)));
    // A row that stays in registers is read in no loop at all.
    const straight = hotRound(codeOf(["global_load_b128 v[4:7], v[2:3], off", ...edge, "v_b", "s_endpgm"]));
    expect(namesOf(straight)).toEqual(["global_load_b128", "v_b", "s_endpgm"]);
  });

  it("is counted by kinds of instructions and widths of accesses", () => {
    const round = codeOf([
      ...["global_load_b128 v[0:3], v[4:5], off", "global_load_b128 v[0:3], v[4:5], off", "buffer_gl0_inv"],
      ...["global_load_d16_hi_b16 v0, v[4:5], off", "flat_load_b32 v1, v[4:5]", "s_load_b64 s[0:1], s[2:3], null"],
      ...["v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", "v_dot4_i32_iu8 v1, v2, v3, v1"],
      ...["v_add_nc_u32_e32 v1, v2, v3", "s_waitcnt vmcnt(0)", "ds_load_b128 v[0:3], v4", "s_barrier"],
      ...["ds_bpermute_b32 v1, v2, v3", "global_store_b64 v[4:5], v[0:1], off", "s_add_i32 s0, s0, 1"],
    ]);
    expect(roundFacts(round, "gfx1100")).toEqual({
      ...{ matrix: 1, dot: 1, vector: 1, scalar: 2, shared: 1, flat: 1, counted: 0.7 },
      loads: [
        [16, 2],
        [4, 1],
        [2, 1],
      ],
      stores: [[8, 1]],
    });
  });

  it.each([
    ["global_load_dwordx4", 16],
    ["global_load_b96", 12],
    ["buffer_load_dwordx2", 8],
    ["global_load_dword", 4],
    ["global_load_short_d16_hi", 2],
    ["global_load_u16", 2],
    ["global_load_sbyte", 1],
    ["global_load_u8", 1],
    ["ds_read2_b64", 16],
    ["ds_read2st64_b32", 8],
    ["ds_store_b128", 16],
  ])("knows that %s moves %i bytes", (name, bytes) => {
    expect(bytesOf({ name })).toBe(bytes);
  });
});

describe("The matrix unit's share", () => {
  const repeat = (name: string, count: number) => Array.from({ length: count }, () => ({ name }));

  it("counts vector instructions against products that they cannot run beside", () => {
    const round = [
      ...repeat("v_wmma_f32_16x16x16_bf16", 2),
      ...repeat("v_add_f32_e32", 12),
      ...repeat("v_exp_f32_e32", 1),
    ];
    expect(cyclesOf(round, "gfx1100")).toMatchObject({ matrix: 64, vector: 16 });
    expect(shareByCount(round, "gfx1100")).toBeCloseTo(64 / 80);
    // gfx12 multiplies twice as fast.
    expect(shareByCount(round, "gfx1201")).toBeCloseTo(32 / 48);
  });

  it("takes the busier one where they run beside each other", () => {
    const round = [...repeat("v_mfma_f32_16x16x16_bf16", 4), ...repeat("v_add_f32_e32", 8)];
    // Four products take 64 cycles; with them issued, twelve instructions 48.
    expect(cyclesOf(round, "gfx942")).toMatchObject({ matrix: 64, vector: 48 });
    expect(shareByCount(round, "gfx942")).toBe(1);
    expect(shareByCount([...round, ...repeat("v_add_f32_e32", 20)], "gfx942")).toBeCloseTo(64 / 128);
    expect(cyclesOf(round, "gfx90a").matrix).toBe(128);
  });

  it("is bound by shared memory and the cache, which all SIMDs of a compute unit read", () => {
    const products = repeat("v_wmma_f32_16x16x16_f16", 1);
    // 16 bytes for each of 32 lanes and 2 SIMDs, at 128 in a cycle.
    expect(cyclesOf([...products, ...repeat("ds_load_b128", 8)], "gfx1100").shared).toBe(64);
    expect(shareByCount([...products, ...repeat("ds_load_b128", 8)], "gfx1100")).toBe(0.5);
    expect(shareByCount([...products, ...repeat("global_load_b128", 8)], "gfx1100")).toBe(0.25);
  });

  it("goes by the work of an instruction", () => {
    expect(cyclesOf([{ name: "v_mfma_f32_32x32x8_f16" }], "gfx942").matrix).toBe(32);
    expect(cyclesOf([{ name: "v_mfma_i32_16x16x32_i8" }], "gfx942").matrix).toBe(16);
  });

  it("is that of all waves that fit, up to what the units allow", () => {
    const facts = roundFacts([{ name: "v_wmma_f32_16x16x16_f16" }], "gfx1100");
    expect(shareOf({ ...facts, counted: 0.9 }, 4)).toBe(0.9);
    expect(shareOf({ ...facts, counted: 0.9, alone: 0.25 }, 2)).toBe(0.5);
    expect(shareOf({ ...facts, counted: 0.9, alone: 0.25 }, 4)).toBe(0.9);
  });
});

describe("Bad signs", () => {
  const good: RoundFacts = {
    ...{ matrix: 16, dot: 0, vector: 10, scalar: 5, shared: 10, flat: 0, counted: 0.9 },
    ...{ loads: [[16, 4]], stores: [] },
  };
  const signs = (file: string, name: string, hot: RoundFacts & { readonly alone?: number }, arch = "gfx1100") =>
    signsOf(file, arch, { name, hot, waves: 1 }).map(({ sign }) => sign);

  it("are what slows a product down", () => {
    expect(signs("product", "product_kk_bf16", good)).toEqual([]);
    expect(signs("product", "product_kk_bf16", { ...good, counted: 0.5 })).toEqual(["low share"]);
    expect(signs("product", "product_small_kk_bf16", { ...good, counted: 0.5 })).toEqual([]);
    expect(signs("product", "product_kk_bf16", { ...good, alone: 0.3 }, "gfx942")).toEqual(["low share"]);
    expect(signs("product", "product_kk_bf16", { ...good, matrix: 0 })).toEqual(["no matrix unit"]);
    expect(signs("attention", "attention_64_f16", { ...good, loads: [[8, 4]], flat: 1 })).toEqual([
      ...["narrow loads", "flat loads"],
    ]);
    // No matrix unit, none to be used; and none for f32.
    expect(signs("product", "product_kk_bf16", { ...good, matrix: 0 }, "gfx1030")).toEqual([]);
    expect(signs("attention", "attention_64_f32", { ...good, matrix: 0 })).toEqual([]);
  });

  it("are halves that come one by one", () => {
    const narrow: RoundFacts = { ...good, matrix: 0, loads: [[2, 2]] };
    expect(signs("unary", "exp_bf16", narrow)).toEqual(["2-byte loads"]);
    expect(signs("sort", "sort_bf16", narrow)).toEqual([]);
  });

  it("that are known have their reasons", () => {
    for (const { why } of mayShow) expect(why).toMatch(/^[A-Z].*\.$/);
    expect(mustUse("product", "gfx942")).toEqual([unitsOf("gfx942")!.matrix]);
  });
});

describe("Occupancy", () => {
  it("goes by registers, and by the shared memory of whole blocks where a launch is known", () => {
    const wave64 = { vgprs: 164, wave: 64 };
    expect(occupancy("gfx942", wave64)).toBe(3);
    expect(occupancy("gfx942", wave64, { threads: 256, shared: 40 * 1024 })).toBe(1);
    expect(occupancy("gfx942", wave64, { threads: 256, shared: 20 * 1024 })).toBe(3);
    // Two compute units share theirs on RDNA.
    expect(occupancy("gfx1100", { vgprs: 96, wave: 32 }, { threads: 128, shared: 30 * 1024 })).toBe(4);
    expect(occupancy("gfx950", wave64, { threads: 256, shared: 80 * 1024 })).toBe(2);
  });

  it("is known of the kernels whose shared memory is given at launch", () => {
    for (const name of [
      "product_kk_bf16",
      "product_small_mn_f16",
      "attention_masked_128_bf16",
      "attention_decode_64_f32",
    ]) {
      const launch = plannedLaunch(name, "gfx942")!;
      expect(launch.threads % 64).toBe(0);
      expect(launch.shared).toBeGreaterThan(1024);
    }
    expect(plannedLaunch("product_kk_bf16", "gfx1030")).toBeUndefined();
    expect(plannedLaunch("exp_bf16", "gfx942")).toBeUndefined();
  });
});

const toolchain = findToolchains().amd.find(({ name }) => name === "clang-19");
describe.skipIf(!toolchain)("A product that clang compiled", { timeout: 60_000 }, () => {
  const name = "product_kk_bf16";
  it.each(["gfx942", "gfx1100"])("for %s multiplies in its hot loop, and reads 16 bytes at once", async (arch) => {
    const picks = ["-DGPU_ONLY", "-DGPU_ONLY_bf16", "-DGPU_PICK", `-DGPU_PICK_${name}`];
    const path = await compileAmd(toolchain!, "product", arch, [...definesOf("product", arch), ...picks]);
    const round = hotRound(functionsOf(await disassemble(toolchain!, path)).get(name)!);
    const hot = roundFacts(round, arch);
    expect(hot.matrix).toBeGreaterThanOrEqual(8);
    expect(hot.loads).toEqual([[16, expect.any(Number)]]);
    expect(hot.counted).toBeGreaterThan(0.6);
    const alone = (await sharesByMca(arch, new Map([[name, round]]))).get(name);
    if (mca.targets[arch]) expect(alone).toBeGreaterThan(0.1);
    else expect(alone).toBeUndefined();

    const [kernel] = readCodeObject(readFileSync(path));
    const row = { ...kernel!, hot, arch, compiler: "clang-19", waves: occupancy(arch, kernel!) };
    expect(tableOf([row]).split("\n")).toHaveLength(2);
    expect(reportOf([row])).toContain(`| \`${name}\` | ${arch} | ${kernel!.vgprs} |`);
  });
});
