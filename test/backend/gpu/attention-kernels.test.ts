// The attention kernels on the simulator against a plain double-precision formula, with every matrix unit's layout of registers.
import { createRequire } from "node:module";
import { afterAll, describe, expect, test } from "vitest";
import { buildSim } from "../../../sim/build.mjs";
import {
  decodeBlocks,
  headDimFor,
  headDims,
  isBatchDim,
  type MatrixUnit,
  matrixUnit,
  planDecode,
  planPrefill,
  planSplit,
  planSplits,
  planWarpgroups,
  prefillBlocks,
  scratchFloats,
  sharedBudget,
} from "../../../src/backend/gpu/attention-plan.ts";
import { kernelNamed } from "../../../src/backend/gpu/catalogue.ts";
import type { KernelCompiler } from "../../../src/backend/gpu/driver.ts";
import { KernelCache } from "../../../src/backend/gpu/kernel-cache.ts";
import { isInPieces } from "../../../src/backend/gpu/ops/attention.ts";
import { MOST_PARTS, PartsPlanner } from "../../../src/backend/gpu/paged-plan.ts";
import { platform } from "../../../src/backend/gpu/platforms.ts";
import { type Program, programCode } from "../../../src/backend/gpu/program.ts";
import { PAGE_SIZE } from "../../../src/backend/paged-attention.ts";
import { type DType, decode, encode, sizeOf } from "../../../src/core/dtype.ts";
import { oneIn } from "../../helpers/devices.ts";

interface NativeLibrary {
  func(signature: string): (...args: unknown[]) => unknown;
}
const koffi = createRequire(import.meta.url)("koffi") as {
  load(path: string): NativeLibrary;
  address(value: unknown): bigint;
};
const library = koffi.load((await buildSim()).hip);
const bind = (signature: string) => library.func(signature) as (...args: unknown[]) => number;
const hip = {
  setDevice: bind("int hipSetDevice(int)"),
  malloc: bind("int hipMalloc(void*, size_t)"),
  free: bind("int hipFree(void*)"),
  copy: bind("int hipMemcpy(void*, void*, size_t, int)"),
  load: bind("int hipModuleLoadData(void*, void*)"),
  unload: bind("int hipModuleUnload(void*)"),
  find: bind("int hipModuleGetFunction(void*, void*, str)"),
  launch: bind("int hipModuleLaunchKernel(void*, uint, uint, uint, uint, uint, uint, uint, void*, void*, void*)"),
};
const message = library.func("str wickSimLastMessage()") as () => string;
const ok = (code: number) => {
  if (code !== 0) throw new Error(`error ${code}: ${message()}`);
};
const slot = new BigUint64Array(1);
function given(call: (slot: BigUint64Array) => number): bigint {
  ok(call(slot));
  return slot[0]!;
}

const simulated = sharedBudget("gfx1100");

type Half = "bf16" | "f16" | "f32";
/** A unit, or prefill by products of warpgroups beside it. */
type Played = MatrixUnit | "wgmma";
const programs = new Map<string, bigint>();
/** An architecture whose compiler picks the unit, so that a program is the one of other tests where they need it, too. */
const archOf: Readonly<Record<Played, string>> = {
  ...{ fma: "gfx1030", mma: "sm_90", wgmma: "sm_90a", wmma11: "gfx1100", wmma12: "gfx1200", mfma: "gfx90a" },
};
const compiler = platform("sim").compiler();
/** Launches are planned here for AMD's shared memory, whatever the unit, but for warpgroups. */
const shared = ["-UGPU_SHARED_KB", `-DGPU_SHARED_KB=${simulated / 1024}`];
const small: KernelCompiler = {
  library: compiler.library,
  version: compiler.version,
  identity: `${compiler.identity} ${shared.join(" ")}`,
  supports: (arch) => compiler.supports(arch),
  codeArch: (arch) => compiler.codeArch(arch),
  compile: (source, name, arch, options) => compiler.compile(source, name, arch, [...options, ...shared]),
  compileAsync: (source, name, arch, options) => compiler.compileAsync(source, name, arch, [...options, ...shared]),
};
const cache = new KernelCache();
/** All of a file's kernels for the dtype, or some of them where not all are tried. */
function program(file: string, unit: Played, dtype: Half, device: number, some: readonly string[] = []): bigint {
  const id = `${file} ${unit} ${dtype} ${device} ${some}`;
  let loaded = programs.get(id);
  if (loaded === undefined) {
    const own = { file, unit: dtype, kernels: some.map(kernelNamed), isPart: some.length > 0 };
    const program: Program = { id: `${file} ${dtype}`, ...own };
    const device = { name: unit, arch: archOf[unit] };
    const fits = sharedBudget(device.arch) === simulated || unit === "wgmma";
    const { code } = programCode(program, { device, compiler: fits ? compiler : small, cache });
    loaded = given((m) => hip.load(m, code));
    programs.set(id, loaded);
  }
  return loaded;
}
afterAll(() => {
  for (const loaded of programs.values()) ok(hip.unload(loaded));
});

/** Deterministic, about normal. */
function randoms(seed: number): () => number {
  let state = seed * 2654435761 + 12345;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    return ((state >>> 8) + 0.5) / 2 ** 24;
  };
  return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** A (b, h, t, d) tensor in memory: `values` by logical place, its strides and where it starts. */
interface Placed {
  readonly values: Float64Array;
  readonly strides: readonly [number, number, number];
  readonly offset: number;
  readonly memory: Float64Array;
}
type Placing = "packed" | "heads inside" | "padded and shifted";
function place(shape: readonly number[], how: Placing, next: () => number): Placed {
  const [b, h, t, d] = shape as [number, number, number, number];
  const row = how === "padded and shifted" ? d + 3 : d;
  const offset = how === "padded and shifted" ? 1 : 0;
  const strides: [number, number, number] =
    how === "heads inside" ? [t * h * d, d, h * d] : [h * t * row, t * row, row];
  const values = new Float64Array(b * h * t * d);
  // Whatever lies between the rows must not matter.
  const memory = new Float64Array(b * h * t * row + offset).fill(Number.NaN);
  let at = 0;
  for (let i = 0; i < b; i++)
    for (let j = 0; j < h; j++)
      for (let k = 0; k < t; k++)
        for (let l = 0; l < d; l++) {
          values[at] = next();
          memory[offset + i * strides[0] + j * strides[1] + k * strides[2] + l] = values[at]!;
          at++;
        }
  return { values, strides, offset, memory };
}

interface Case {
  b?: number;
  hq?: number;
  hk?: number;
  tq: number;
  tk: number;
  d: number;
  scale?: number;
  causal?: boolean;
  window?: number;
  softcap?: number;
  /** Dims of the mask, 1 where it is broadcast. */
  mask?: readonly [number, number, number, number];
  lengths?: readonly number[];
  /** Ends of sequences one behind the other, in tq = tk rows; b is 1 then. In pages each has its own `tk` keys at most. */
  ends?: readonly number[];
  /** Keys and values lie in pages, in no order; `lengths` says how many there are. */
  paged?: boolean;
  /** Blocks that parts are planned for, by the lengths. */
  planned?: number;
  dv?: number;
  /** Of each query head. */
  sinks?: readonly number[];
  placing?: Placing;
  splits?: number;
  /** Changes the inputs after they were drawn. */
  edit?: (x: { q: Placed; k: Placed; v: Placed; mask: Float64Array | null }) => void;
}

const bits = (x: Iterable<number>, dtype: DType) => encode(Array.from(x), dtype);
const rounded = (x: Float64Array, dtype: DType) => Float64Array.from(decode(bits(x, dtype), dtype) as Iterable<number>);

function prepare(c: Case, dtype: DType) {
  const { b = 1, hq = 2, hk = hq, tq, tk, d, placing = "packed" } = c;
  const next = randoms(tq * 1000 + tk * 10 + d);
  const q = place([b, hq, tq, d], placing, next);
  const sequences = c.paged && c.ends ? c.ends.length : b;
  const k = place([sequences, hk, tk, d], placing, next);
  const v = place([sequences, hk, tk, c.dv ?? d], placing, next);
  const maskSize = c.mask?.reduce((x, y) => x * y, 1) ?? 0;
  const mask = c.mask ? Float64Array.from({ length: maskSize }, (_, i) => (i % 7 === 3 ? -Infinity : next())) : null;
  c.edit?.({ q, k, v, mask });
  const round = (x: Placed): Placed => ({ ...x, values: rounded(x.values, dtype) });
  return { q: round(q), k: round(k), v: round(v), mask: mask && rounded(mask, dtype) };
}

function reference(c: Case, inputs: ReturnType<typeof prepare>): Float64Array {
  const { b = 1, hq = 2, hk = hq, tq, tk, d, scale = 1 / Math.sqrt(c.d) } = c;
  const { q, k, v, mask } = inputs;
  const dv = c.dv ?? d;
  const out = new Float64Array(b * hq * tq * dv);
  const m = c.mask ?? [1, 1, 1, 1];
  for (let i = 0; i < b; i++)
    for (let h = 0; h < hq; h++)
      for (let t = 0; t < tq; t++) {
        // The sequence that a row is of, where they lie one behind the other.
        const stop = c.ends?.find((end) => t < end) ?? tk;
        const start = c.ends?.findLast((end) => end <= t) ?? 0;
        const own = c.paged && c.ends ? c.ends.indexOf(stop) : i;
        const length = c.ends && !c.paged ? stop - start : (c.lengths?.[own] ?? tk);
        const kv = own * hk + Math.floor(h / (hq / hk));
        const past = c.ends ? t - start + length - (stop - start) : t + length - tq;
        const from = c.paged ? 0 : start;
        const ahead = c.causal ? 0 : (c.window ?? Infinity);
        const end = Math.min(length, past + ahead + 1);
        const first = c.window ? Math.max(0, past + Number(c.causal ?? false) - c.window) : 0;
        const row = (i * hq + h) * tq + t;
        if (first >= end) continue;
        const scores: number[] = [];
        for (let j = first; j < end; j++) {
          let s = 0;
          for (let l = 0; l < d; l++) s += q.values[row * d + l]! * k.values[(kv * tk + from + j) * d + l]!;
          s *= scale;
          if (c.softcap) s = Math.tanh(s / c.softcap) * c.softcap;
          const index = [i, h, t, j].reduce((sum, x, dim) => sum * m[dim]! + (m[dim] === 1 ? 0 : x), 0);
          scores.push(mask ? s + mask[index]! : s);
        }
        const sink = c.sinks?.[h] ?? -Infinity;
        const top = scores.reduce((x, y) => (Number.isNaN(x) || x > y ? x : y), sink);
        const weights = scores.map((s) => Math.exp(s - top));
        const total = weights.reduce((x, y) => x + y, Math.exp(sink - top));
        const at = (c.ends ? t * hq + h : row) * dv;
        for (let l = 0; l < dv; l++) {
          let sum = 0;
          for (let j = first; j < end; j++) sum += weights[j - first]! * v.values[(kv * tk + from + j) * dv + l]!;
          out[at + l] = sum / total;
        }
      }
  return out;
}

/** Keys or values in pages that lie from the last sequence's to the first's, what is behind a length unwritten; and the tables. */
function inPages(
  x: Placed,
  c: Case,
  width: number,
): { memory: Float64Array; strides: Placed["strides"]; tables: number[] } {
  const { hq = 2, hk = hq, tk } = c;
  const lengths = c.lengths!;
  const pages = Math.ceil(tk / PAGE_SIZE);
  const tables = Array.from({ length: lengths.length * pages }, (_, i) => lengths.length * pages - 1 - i);
  const strides: Placed["strides"] = [hk * PAGE_SIZE * width, PAGE_SIZE * width, width];
  const memory = new Float64Array(tables.length * strides[0]).fill(Number.NaN);
  for (const [s, length] of lengths.entries())
    for (let h = 0; h < hk; h++)
      for (let t = 0; t < length; t++) {
        const page = tables[s * pages + Math.floor(t / PAGE_SIZE)]!;
        const from = ((s * hk + h) * tk + t) * width;
        const to = page * strides[0] + h * strides[1] + (t % PAGE_SIZE) * width;
        memory.set(x.values.subarray(from, from + width), to);
      }
  // Nobody follows what is behind the last page.
  for (const [s, length] of lengths.entries())
    tables.fill(1e9, s * pages + Math.ceil(length / PAGE_SIZE), (s + 1) * pages);
  return { memory, strides, tables };
}

/** Compiling all of the file would take longer than running them. */
const splitKernels = (dtype: Half) =>
  [`attention_split_64_${dtype}`, `attention_split_masked_128_${dtype}`, `attention_join_${dtype}`] as const;

/** The result of the kernel on the simulator, launched as the backend does. */
type Kind = "prefill" | "decode" | "split";
function attend(kind: Kind, unit: Played, dtype: Half, device: number, c: Case) {
  const { b = 1, hq = 2, hk = hq, tq, tk, d, scale = 1 / Math.sqrt(c.d), splits = 1 } = c;
  const inputs = prepare(c, dtype);
  const dv = c.dv ?? d;
  const dim = headDimFor(d);
  ok(hip.setDevice(device));
  const held: bigint[] = [];
  const upload = (data: ArrayBufferView): bigint => {
    const at = given((p) => hip.malloc(p, Math.max(data.byteLength, 1)));
    if (data.byteLength) ok(hip.copy(at, data, data.byteLength, 1));
    held.push(at);
    return at;
  };
  const keys = c.paged ? { ...inPages(inputs.k, c, d), offset: 0 } : inputs.k;
  const values = c.paged ? { ...inPages(inputs.v, c, dv), offset: 0 } : inputs.v;
  const pointers = [inputs.q, keys, values].map(
    (x) => upload(bits(x.memory, dtype)) + BigInt(x.offset * sizeOf(dtype)),
  );
  const m = c.mask ?? [1, 1, 1, 1];
  const maskStrides = [m[1] * m[2] * m[3], m[2] * m[3], m[3], 1].map((stride, i) => (m[i] === 1 ? 0 : stride));
  const out = upload(new Uint8Array(b * hq * tq * dv * sizeOf(dtype)).fill(0x7f));
  const word = (...x: number[]) => x.map((value) => BigInt64Array.of(BigInt(value)));
  const masked = inputs.mask !== null || c.softcap !== undefined || scale <= 0;
  const pointer = (at: bigint) => BigUint64Array.of(at);
  const operands = [
    ...pointers,
    inputs.mask ? upload(bits(inputs.mask, dtype)) : 0n,
    c.sinks ? upload(bits(c.sinks, dtype)) : 0n,
    c.lengths ? upload(BigInt64Array.from(c.lengths, BigInt)) : 0n,
    "tables" in keys ? upload(BigInt64Array.from(keys.tables, BigInt)) : 0n,
    out,
  ].map(pointer);
  const sizes: ArrayBufferView[] = [
    ...word(
      c.ends?.length ?? b,
      hq,
      hk,
      tq,
      c.paged ? Math.ceil(tk / PAGE_SIZE) * PAGE_SIZE : tk,
      d,
      dv,
      ...(c.paged && c.ends ? inputs.q.strides.with(0, 0) : inputs.q.strides),
      ...keys.strides,
      ...values.strides,
      ...maskStrides,
    ),
    ...word(c.window ?? 0),
    Float64Array.of(scale),
    Float64Array.of(c.softcap ?? 0),
    Uint32Array.of(c.causal ? 1 : 0),
  ];
  const run = (
    file: string,
    name: string,
    grid: number,
    block: number,
    shared: number,
    values: ArrayBufferView[],
    some?: readonly string[],
  ) => {
    const kernel = given((f) => hip.find(f, program(file, unit, dtype, device, some), name));
    const params = BigUint64Array.from(values, (value) => koffi.address(value));
    ok(hip.launch(kernel, grid, 1, 1, block, 1, 1, shared, null, params, null));
  };
  const capped =
    kind === "prefill" && unit === "wgmma" && dim !== 32 && inputs.mask === null && c.softcap !== undefined;
  const simple = !masked && !c.sinks && !c.paged && !c.ends;
  const inPieces = [inputs.q, keys, values].every(({ strides }, i) =>
    isInPieces({ at: Number(pointers[i]), strides }, sizeOf(dtype)),
  );
  const batched = kind === "prefill" && unit === "wgmma" && isBatchDim(dim) && simple && inPieces;
  const infix = capped ? "_capped" : batched ? "_batch" : masked ? "_masked" : "";
  // The first and the last are not read, but where other rows may be before the first.
  const before = c.paged ? 3 : 0;
  const inner = c.ends?.slice(0, -1).map((end) => end + before) ?? [];
  const offsets = c.ends ? upload(BigInt64Array.from([before || -1, ...inner, -1], BigInt)) : 0n;
  const strides = c.ends ? word(0, dv, hq * dv) : word(hq * tq * dv, tq * dv, dv);
  try {
    if (kind === "split") {
      const { threads, rows, shared } = planSplit(unit as MatrixUnit, dtype, dim, masked, simulated);
      const scratch = upload(
        new Float32Array(scratchFloats(hq * tq, splits, dv) || hq * tq * (dv + 2)).fill(Number.NaN),
      );
      const args = [...operands, pointer(offsets), pointer(scratch), ...sizes, ...strides, Uint32Array.of(splits)];
      const names = [`attention_split${infix}_${dim}_${dtype}`, `attention_join_${dtype}`];
      // Fewer blocks than there are items: some go round once more.
      run("attention_split", names[0]!, 5, threads, shared, args, splitKernels(dtype));
      run("attention_split", names[1]!, 3, threads, 0, [...args, Uint32Array.of(rows)], splitKernels(dtype));
    } else if (kind === "prefill") {
      const { threads, rows, shared } =
        unit === "wgmma"
          ? dim === 32
            ? planPrefill("mma", dtype, dim, sharedBudget("sm_90a"))
            : planWarpgroups(dim, masked && !capped)
          : planPrefill(unit, dtype, dim, simulated);
      const grid = prefillBlocks(c.ends?.length ?? b, hq, tq, rows, c.ends !== undefined);
      const args = [...operands, pointer(offsets), ...sizes, ...strides];
      const file = capped ? "attention_capped" : batched ? "attention_batch" : "attention";
      run(file, `attention${infix}_${dim}_${dtype}`, grid, threads, shared, args);
    } else {
      const { threads, shared } = planDecode(unit === "wgmma" ? "mma" : unit, dtype, dim, simulated);
      const rows = b * hq * tq;
      const scratch = splits > 1 ? upload(new Float32Array(scratchFloats(rows, splits, dv)).fill(Number.NaN)) : 0n;
      const blocks = decodeBlocks(b, hq, hk, tq);
      const each = decodeBlocks(1, hq, hk, tq);
      const plan = c.planned ? new PartsPlanner(c.planned, each).plan(c.lengths!) : null;
      // One block less than there are entries: some go round once more.
      const grid = plan ? plan[0]! * each - 1 : blocks * splits;
      const counters = new Uint32Array(blocks);
      const counting = splits > 1 ? upload(counters) : 0n;
      run("attention_decode", `attention_decode${infix}_${dim}_${dtype}`, grid, threads, shared, [
        ...operands,
        ...[scratch, counting, plan ? upload(BigInt64Array.from(plan, BigInt)) : 0n].map(pointer),
        ...sizes,
        Uint32Array.of(splits),
      ]);
      if (splits > 1) ok(hip.copy(counters.fill(1), counting, counters.byteLength, 2));
      // The next launch counts from zero.
      expect(counters.every((count) => count === 0)).toBe(true);
    }
    const result = new Uint8Array(b * hq * tq * dv * sizeOf(dtype));
    ok(hip.copy(result, out, result.byteLength, 2));
    return { got: Array.from(decode(result, dtype) as Iterable<number>), wanted: reference(c, inputs) };
  } finally {
    for (const p of held) ok(hip.free(p));
  }
}

/** Weights are rounded once more than inputs and outputs; their sum is not. */
const tolerances: Record<Half, number> = { f32: 2e-6, f16: 2e-3, bf16: 1.2e-2 };
function check(kind: Kind, unit: Played, dtype: Half, device: number, c: Case): void {
  const { got, wanted } = attend(kind, unit, dtype, device, c);
  expect(got.length).toBe(wanted.length);
  for (let i = 0; i < got.length; i++) {
    if (Number.isNaN(wanted[i])) expect(got[i], `element ${i}`).toBeNaN();
    else if (!(Math.abs(got[i]! - wanted[i]!) <= tolerances[dtype] * Math.max(1, Math.abs(wanted[i]!))))
      expect.fail(`element ${i} is ${got[i]}, wanted ${wanted[i]}`);
  }
}

/** Each unit's layout goes through all cases in one dtype, by turns with the others; the other dtypes and the wave of 64 through some. */
const units: readonly (readonly [Played, Half, number, "all" | "some"])[] = [
  ["fma", "f32", 0, "all"],
  ["fma", "f32", 1, "some"],
  ["fma", "bf16", 1, "some"],
  ["mma", "bf16", 0, "all"],
  ["mma", "f16", 0, "some"],
  ["wgmma", "bf16", 0, "all"],
  ["wgmma", "f16", 0, "some"],
  ["wmma11", "bf16", 0, "all"],
  ["wmma11", "f16", 0, "some"],
  ["wmma12", "bf16", 0, "all"],
  ["mfma", "bf16", 1, "all"],
  ["mfma", "f16", 1, "some"],
];
const order = Object.keys(archOf);
const pick = (cases: Record<string, Case>, amount: "all" | "some", unit: Played) =>
  amount === "all"
    ? oneIn(2, Object.entries(cases), order.indexOf(unit))
    : Object.entries(cases).filter((_, i) => i % 4 === 2);

const prefills: Record<string, Case> = {
  "a short block of d 32": { tq: 7, tk: 7, d: 32 },
  "a short block of d 32, causal": { tq: 7, tk: 7, d: 32, causal: true },
  "grouped heads, causal": { b: 2, hq: 4, hk: 1, tq: 19, tk: 19, d: 64, causal: true },
  "more keys than queries, causal": { hq: 1, tq: 33, tk: 70, d: 64, causal: true },
  "several blocks and tiles, causal": { hq: 1, tq: 130, tk: 150, d: 40, causal: true },
  "d 80 with a mask for each batch": { b: 2, tq: 9, tk: 41, d: 80, mask: [2, 1, 9, 41] },
  "d 96 with a mask for each head and softcap": {
    hq: 3,
    hk: 1,
    tq: 17,
    tk: 35,
    d: 96,
    mask: [1, 3, 1, 35],
    softcap: 2,
    scale: 0.5,
  },
  "d 128, causal, softcap": { hq: 1, tq: 20, tk: 37, d: 128, causal: true, softcap: 20 },
  "d 256 with every option": {
    hq: 2,
    hk: 1,
    tq: 18,
    tk: 40,
    d: 256,
    causal: true,
    window: 9,
    softcap: 5,
    mask: [1, 1, 18, 40],
  },
  "a window over several tiles": { hq: 1, tq: 75, tk: 100, d: 64, causal: true, window: 33 },
  "lengths of 0, 1 and less than the queries": {
    b: 4,
    hq: 1,
    tq: 10,
    tk: 50,
    d: 64,
    causal: true,
    lengths: [0, 1, 9, 50],
  },
  "lengths without causality": { b: 3, hq: 1, tq: 12, tk: 50, d: 72, lengths: [0, 33, 50] },
  "heads inside rows": { b: 2, hq: 2, tq: 20, tk: 33, d: 64, placing: "heads inside" },
  "rows that no vector fits": { hq: 1, tq: 20, tk: 33, d: 88, placing: "padded and shifted", causal: true },
  "a scale of zero and below": { hq: 1, tq: 9, tk: 20, d: 64, scale: -0.3 },
  "values narrower than keys": { hq: 2, hk: 1, tq: 20, tk: 37, d: 96, dv: 64, causal: true },
  "sequences one behind the other, one of them empty": {
    ...{ hq: 2, hk: 1, tq: 190, tk: 190, d: 64, causal: true, ends: [1, 1, 40, 120, 190], placing: "heads inside" },
  },
  "a window to both sides": { hq: 1, tq: 100, tk: 100, d: 64, window: 20 },
  "a window to both sides of the last queries, with sinks": {
    ...{ hq: 2, hk: 1, tq: 20, tk: 150, d: 64, window: 40, sinks: [0.5, -1] },
  },
  "sinks of every size, causal": {
    ...{ b: 2, hq: 4, hk: 2, tq: 17, tk: 35, d: 64, causal: true, sinks: [1.5, 300, -300, -Infinity] },
  },
};
const oddities: Record<string, Case> = {
  "a fully masked row is NaN, its neighbours are not": {
    ...{ hq: 1, tq: 9, tk: 20, d: 64, mask: [1, 1, 9, 20] },
    edit: ({ mask }) => mask!.fill(-Infinity, 40, 60),
  },
  "a NaN query stays in its row": {
    ...{ hq: 1, tq: 18, tk: 20, d: 64, causal: true },
    edit: ({ q }) => {
      q.values[3 * 64 + 5] = q.memory[3 * 64 + 5] = Number.NaN;
    },
  },
  "an infinite key makes rows that see it NaN or drop it": {
    ...{ hq: 1, tq: 12, tk: 12, d: 64, causal: true },
    edit: ({ k }) => {
      for (let i = 0; i < 64; i++) k.values[11 * 64 + i] = k.memory[11 * 64 + i] = Infinity;
    },
  },
  "large scores stay finite": {
    ...{ hq: 1, tq: 10, tk: 34, d: 64, scale: 40 },
    edit: () => undefined,
  },
};

/** Tiles of 128 keys by warpgroups go round their places in shared memory; masks are read in runs where they can be. */
const longPrefills: Record<string, Case> = {
  "several blocks and many tiles, causal": { hq: 2, hk: 1, tq: 200, tk: 650, d: 64, causal: true },
  "a window over many tiles": { hq: 1, tq: 130, tk: 600, d: 128, causal: true, window: 333 },
  "d 96 without causality, lengths": { b: 2, hq: 1, tq: 20, tk: 530, d: 96, lengths: [520, 17] },
  "d 256, causal": { hq: 1, tq: 70, tk: 300, d: 256, causal: true },
  "a mask in runs": { hq: 2, hk: 1, tq: 70, tk: 520, d: 128, mask: [1, 2, 70, 520] },
  "a mask that no run fits": { hq: 1, tq: 20, tk: 401, d: 64, mask: [1, 1, 20, 401] },
  "a mask in runs, a window and softcap on both sides of its bend": {
    ...{ hq: 1, tq: 66, tk: 408, d: 64, causal: true, window: 200, softcap: 0.8, scale: 0.3, mask: [1, 1, 1, 408] },
  },
  "a softcap alone, on both sides of its bend": {
    ...{ hq: 1, tq: 130, tk: 400, d: 128, causal: true, softcap: 1.5, scale: 0.3 },
  },
  "rows that only a part of the tiles is masked for": {
    ...{ hq: 1, tq: 9, tk: 400, d: 64, mask: [1, 1, 9, 400] },
    edit: ({ mask }) => mask!.fill(-Infinity, 0, 300).fill(-Infinity, 400 + 128, 800),
  },
  "many sequences one behind the other, with a window, softcap and sinks": {
    ...{ hq: 2, tq: 320, tk: 320, d: 64, window: 9, softcap: 4, sinks: [1, -1], placing: "heads inside" },
    ends: Array.from({ length: 40 }, (_, i) => 8 * i + 8 - (i % 7)).with(39, 320),
  },
  "a window to both sides, sinks": { hq: 1, tq: 300, tk: 600, d: 64, window: 100, sinks: [3] },
  "a fully masked row with a sink is zero": {
    ...{ hq: 1, tq: 9, tk: 200, d: 64, mask: [1, 1, 9, 200], sinks: [1] },
    edit: ({ mask }) => mask!.fill(-Infinity, 200, 400),
  },
  "the least number as a mask is a mask, and not infinite": {
    ...{ hq: 1, tq: 9, tk: 200, d: 64, mask: [1, 1, 9, 200] },
    edit: ({ mask }) => mask!.fill(-3.3895313892515355e38),
  },
};
describe("long prefill with wgmma in bf16", () => {
  test.each(Object.entries(longPrefills))("%s", (_, c) => check("prefill", "wgmma", "bf16", 0, c));
});

describe.each(units)("prefill with %s in %s on device %i", (unit, dtype, device, amount) => {
  test.each(pick({ ...prefills, ...oddities }, amount, unit))("%s", (_, c) => check("prefill", unit, dtype, device, c));
});

const decodes: Record<string, Case> = {
  "one query of four heads": { hq: 4, hk: 1, tq: 1, tk: 77, d: 128 },
  "one query of four heads, in parts": { hq: 4, hk: 1, tq: 1, tk: 277, d: 128, causal: true, splits: 3 },
  "more parts than tiles of keys": { b: 2, hq: 2, tq: 1, tk: 140, d: 64, splits: 9 },
  "too few keys for parts": { b: 2, hq: 2, tq: 1, tk: 70, d: 64, splits: 5 },
  "five queries of d 80, causal": { b: 2, hq: 2, tq: 5, tk: 130, d: 80, causal: true, splits: 2 },
  "more rows than a tile": { hq: 6, hk: 1, tq: 4, tk: 90, d: 96, causal: true, splits: 2 },
  "a mask, softcap and a window": {
    hq: 2,
    hk: 1,
    tq: 3,
    tk: 200,
    d: 64,
    causal: true,
    window: 150,
    softcap: 3,
    mask: [1, 2, 3, 200],
    splits: 2,
  },
  "rows masked in one part, masked in all, and NaN": {
    ...{ hq: 1, tq: 3, tk: 150, d: 64, mask: [1, 1, 3, 150], splits: 2 },
    edit: ({ q, mask }) => {
      mask!.fill(-Infinity, 0, 100).fill(-Infinity, 150, 300);
      q.values[2 * 64 + 5] = q.memory[2 * 64 + 5] = Number.NaN;
    },
  },
  "d 256": { hq: 2, hk: 1, tq: 2, tk: 67, d: 256, causal: true, splits: 2 },
  "lengths of 0, 1, fewer than the queries and all": {
    b: 4,
    hq: 2,
    hk: 1,
    tq: 2,
    tk: 190,
    d: 64,
    causal: true,
    lengths: [0, 1, 133, 190],
    splits: 3,
  },
  "lengths, one part": { b: 3, hq: 2, hk: 1, tq: 2, tk: 40, d: 32, causal: true, lengths: [0, 1, 40] },
  "heads inside rows": { b: 2, hq: 4, hk: 2, tq: 1, tk: 50, d: 64, placing: "heads inside" },
  "sinks of every size": {
    ...{ b: 2, hq: 4, hk: 2, tq: 1, tk: 140, d: 64, causal: true, sinks: [1.5, 300, -300, -Infinity] },
    ...{ lengths: [1, 140], splits: 2 },
  },
  "values narrower than keys, in parts": { hq: 2, hk: 1, tq: 1, tk: 140, d: 96, dv: 40, splits: 2 },
  "a window to both sides with a sink, one part": { hq: 1, tq: 3, tk: 90, d: 64, window: 5, sinks: [2] },
  "rows that no vector fits": { hq: 2, tq: 1, tk: 50, d: 72, placing: "padded and shifted", splits: 2 },
};
const decodeUnits = units.filter(([unit]) => unit !== "wgmma");
describe.each(decodeUnits)("decode with %s in %s on device %i", (unit, dtype, device, amount) => {
  const inParts = Object.entries(oddities).map(([name, c]) => [name, { ...c, splits: 2 }] as const);
  const cases = pick({ ...decodes, ...Object.fromEntries(inParts) }, amount, unit);
  test.each(cases)("%s", (_, c) => check("decode", unit, dtype, device, c));
});

const pagedPrefills: Record<string, Case> = {
  "prompts in pages, with a past and without": {
    ...{ hq: 4, hk: 2, tq: 157, tk: 300, d: 64, causal: true, ends: [130, 131, 157], lengths: [130, 200, 300] },
    paged: true,
  },
  "a window and a softcap in pages": {
    ...{
      hq: 2,
      hk: 1,
      tq: 40,
      tk: 260,
      d: 128,
      causal: true,
      ends: [7, 40],
      lengths: [260, 150],
      window: 70,
      softcap: 3,
    },
    paged: true,
  },
  "values narrower than keys, sinks, in pages": {
    ...{
      hq: 2,
      tq: 20,
      tk: 90,
      d: 96,
      dv: 40,
      causal: true,
      ends: [5, 20],
      lengths: [5, 90],
      sinks: [1, -2],
      paged: true,
    },
  },
  "d 32 and no vectors in pages": { hq: 1, tq: 9, tk: 70, d: 24, causal: true, ends: [9], lengths: [70], paged: true },
  "d 256 in pages": { hq: 2, hk: 1, tq: 70, tk: 200, d: 256, causal: true, ends: [70], lengths: [200], paged: true },
};
const pagedDecodes: Record<string, Case> = {
  "one query each in pages, one without any key": {
    ...{ b: 4, hq: 8, hk: 2, tq: 1, tk: 300, d: 64, causal: true, lengths: [0, 1, 300, 64], splits: 3, paged: true },
  },
  "a window in pages": {
    ...{ b: 2, hq: 2, hk: 1, tq: 1, tk: 300, d: 128, causal: true, lengths: [65, 290], window: 100, paged: true },
  },
  "a softcap and sinks in pages": {
    ...{ b: 2, hq: 2, hk: 1, tq: 1, tk: 140, d: 96, causal: true, lengths: [140, 30], softcap: 2, sinks: [0.5, 1] },
    ...{ splits: 2, paged: true },
  },
  "parts by the lengths of pages, more of a long one": {
    ...{
      b: 5,
      hq: 4,
      hk: 2,
      tq: 1,
      tk: 900,
      d: 64,
      causal: true,
      lengths: [900, 0, 70, 130, 300],
      sinks: [1, 0, 2, -1],
    },
    ...{ splits: MOST_PARTS, planned: 24, paged: true },
  },
  "several queries of d 256 in pages": {
    ...{ hq: 2, hk: 1, tq: 3, tk: 200, d: 256, causal: true, lengths: [200], splits: 2, paged: true },
  },
};
describe.each(units)("prefill over pages with %s in %s on device %i", (unit, dtype, device, amount) => {
  test.each(pick(pagedPrefills, amount, unit))("%s", (_, c) => check("prefill", unit, dtype, device, c));
});
describe.each(decodeUnits)("decode over pages with %s in %s on device %i", (unit, dtype, device, amount) => {
  test.each(pick(pagedDecodes, amount, unit))("%s", (_, c) => check("decode", unit, dtype, device, c));
});

const splits: Record<string, Case> = {
  "prompts that share keys out, one in several tiles, one of nobody": {
    ...{ hq: 6, hk: 2, tq: 36, tk: 900, d: 64, causal: true, splits: 3, paged: true },
    ...{ ends: [25, 26, 26, 36], lengths: [900, 1, 0, 0] },
  },
  "fewer parts than there may be, a sink of every size, values narrower than keys": {
    ...{ hq: 2, hk: 1, tq: 12, tk: 630, d: 64, dv: 40, causal: true, splits: 8, paged: true },
    ...{ ends: [5, 12], lengths: [629, 150], sinks: [300, -1] },
  },
  "more sequences than a warp has lanes": {
    ...{ hq: 2, hk: 1, tq: 70, tk: 300, d: 64, causal: true, splits: 2, paged: true },
    ends: Array.from({ length: 35 }, (_, i) => 2 * i + 2),
    lengths: Array.from({ length: 35 }, (_, i) => (i === 33 ? 300 : 2 + i)),
  },
  "a window and a softcap": {
    ...{ hq: 4, hk: 1, tq: 20, tk: 900, d: 128, causal: true, window: 700, softcap: 3, splits: 4, paged: true },
    ...{ ends: [3, 20], lengths: [600, 900] },
  },
};
const splitUnits = units.filter(([unit, , , amount]) => unit !== "wgmma" && unit !== "wmma12" && amount === "all");
describe.each(splitUnits)("few queries over pages with %s in %s on device %i", (unit, dtype, device) => {
  test.each(Object.entries(splits))("%s", (_, c) => check("split", unit, dtype, device, c));
});

test("keys that have not been written are not read", () => {
  const lengths = [149];
  const c: Case = {
    ...{ hq: 2, hk: 1, tq: 2, tk: 200, d: 64, causal: true, lengths, splits: 2 },
    edit: ({ k, v }) => {
      for (const x of [k, v]) x.memory.fill(Number.NaN, 149 * 64);
    },
  };
  for (const kind of ["prefill", "decode"] as const) check(kind, "mma", "bf16", 0, c);
});

describe("plans", () => {
  test("the compiler's choice of unit by architecture", () => {
    const wanted = {
      sm_75: "fma",
      sm_80: "mma",
      sm_90: "mma",
      gfx906: "fma",
      gfx90a: "mfma",
      gfx942: "mfma",
      gfx1030: "fma",
      gfx908: "fma",
      gfx950: "mfma",
      gfx1250: "fma",
    };
    for (const [arch, unit] of Object.entries({ ...wanted, gfx1100: "wmma11", gfx1201: "wmma12" })) {
      expect(matrixUnit(arch, "bf16"), arch).toBe(unit);
      expect(matrixUnit(arch, "f32"), arch).toBe("fma");
    }
    expect(matrixUnit("gfx90a:sramecc+:xnack-", "f16")).toBe("mfma");
  });
  test("shared memory fits the devices", () => {
    const archs = ["sm_75", "sm_80", "sm_86", "sm_90", "gfx906", "gfx90a", "gfx1100", "gfx1201"];
    for (const arch of archs)
      for (const dtype of ["bf16", "f32"] as const)
        for (const d of headDims) {
          const unit = matrixUnit(arch, dtype);
          const budget = sharedBudget(arch);
          expect(planPrefill(unit, dtype, d, budget).shared, `${arch} ${dtype} ${d}`).toBeLessThanOrEqual(budget);
          expect(planDecode(unit, dtype, d, budget).shared, `${arch} ${dtype} ${d}`).toBeLessThanOrEqual(budget);
          for (const masked of [false, true])
            expect(planSplit(unit, dtype, d, masked, budget).shared, `${arch} ${dtype} ${d}`).toBeLessThanOrEqual(
              budget,
            );
        }
    for (const d of [64, 96, 128, 256] as const)
      for (const masked of [false, true])
        expect(planWarpgroups(d, masked).shared).toBeLessThanOrEqual(sharedBudget("sm_90a"));
    expect(planPrefill("mma", "bf16", 128, sharedBudget("sm_90"))).toEqual({
      ...{ threads: 128, rows: 128, shared: 104448 },
    });
    expect(planDecode("mma", "bf16", 128, sharedBudget("sm_90"))).toEqual({ threads: 128, shared: 69632, crowd: 2 });
  });
  test("long sequences are cut into more parts, and plans are no longer than they may be", () => {
    const partsBy = (planner: PartsPlanner, lengths: number[]) => {
      const [count, ...entries] = planner.plan(lengths) as [number, ...number[]];
      expect(entries.length).toBe(count);
      expect(count).toBeLessThan(planner.words(lengths.length));
      return lengths.map((_, i) => entries.filter((word) => word % 8192 === i).length);
    };
    const planner = new PartsPlanner(528, 8);
    expect(partsBy(planner, Array(64).fill(640))).toEqual(Array(64).fill(1));
    expect(partsBy(planner, Array(32).fill(640))).toEqual(Array(32).fill(2));
    expect(partsBy(planner, [640])).toEqual([10]);
    expect(partsBy(planner, [0, 100, 8000])).toEqual([1, 1, 32]);
    expect(partsBy(planner, [...Array(63).fill(640), 8000])).toEqual([...Array(63).fill(1), 11]);
    for (let n = 1; n < 300; n += 37)
      for (const length of [0, 64, 700, 9000])
        partsBy(
          planner,
          Array.from({ length: n }, (_, i) => (i * length) % 9001),
        );
    expect(PartsPlanner.for(528, 8, 600)).toBeNull();
  });
  test("a decode is cut until the device is full, but not into crumbs", () => {
    expect(planSplits(264, 64, 8192)).toBe(4);
    expect(planSplits(264, 8, 8192)).toBe(33);
    expect(planSplits(264, 140, 8192)).toBe(2);
    expect(planSplits(264, 1000, 8192)).toBe(1);
    expect(planSplits(264, 8, 100)).toBe(2);
    expect(planSplits(264, 8, 64)).toBe(1);
    expect(planSplits(20000, 5000, 8192)).toBe(1);
  });
});
