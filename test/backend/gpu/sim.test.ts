// The simulator against its own promises: what a driver refuses, what a device would do wrong silently.
import { spawnSync } from "node:child_process";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { kernelSource } from "../../../src/backend/gpu/source.ts";
import {
  addressOf,
  Code,
  compile,
  download,
  errorName,
  hip,
  launch,
  malloc,
  message,
  ok,
  out,
  paths,
  upload,
} from "../../helpers/hip.ts";

const gpuHeader = kernelSource("gpu.h");

// A namespace of their own, so that no name in the header is in their way.
const kernels = /* c++ */ `
namespace test {
using namespace gpu;
KERNEL(scale, const f32* x, f32* y, size_t n, f32 by) {
  single_loop(n, [&](size_t i) { y[i] = x[i] * by; });
}
KERNEL(increment, i32* x) { x[bid_x() * bdim_x() + tid_x()] += 1; }
KERNEL(mixed, f64* out, u8 a, f64 b, i32 c, f16 d) { out[0] = a + b + c + widen(d); }
KERNEL_BOUNDS(64, bounded, f32* y) { y[tid_x()] = 1; }
KERNEL(reverse_block, const f32* x, f32* y) {
  SHARED(f32, tile, 1024);
  tile[tid_x()] = x[tid_x()];
  barrier();
  y[tid_x()] = tile[bdim_x() - 1 - tid_x()];
}
KERNEL(reverse_dynamic, const f32* x, f32* y) {
  DYNAMIC_SHARED(f32, tile);
  tile[tid_x()] = x[tid_x()];
  barrier();
  y[tid_x()] = tile[bdim_x() - 1 - tid_x()];
}
KERNEL(warp_sums, const f32* x, f32* y) {
  f32 v = x[tid_x()];
  for (int m = 16; m; m /= 2) v += shfl_xor(v, m);
  y[tid_x()] = v;
}
KERNEL(warp_moves, i64* down, f64* pick) {
  down[tid_x()] = shfl_down((i64)tid_x() << 33, 3);
  pick[tid_x()] = shfl(tid_x() + 0.5, 5);
}
KERNEL(exit_before_barrier, f32* y) {
  if (tid_x() == 7) return;
  barrier();
  y[tid_x()] = 1;
}
KERNEL(two_barriers, f32* y) {
  if (tid_x() < 16) {
    barrier();
  } else {
    barrier();
  }
  y[tid_x()] = 1;
}
KERNEL(shuffle_from_gone, f32* y) {
  if (tid_x() == 3) return;
  y[tid_x()] = shfl((f32)tid_x(), 3);
}
KERNEL(divergent_shuffle, f32* y) {
  if (tid_x() & 1) y[tid_x()] = shfl_xor(1.0f, 2);
  else y[tid_x()] = shfl_xor(2.0f, 2);
}
KERNEL(unwritten, f32* y) {
  SHARED(f32, s, 64);
  if (bid_x() == 0 || tid_x() != 5) s[tid_x()] = 1;
  barrier();
  y[tid_x()] = s[tid_x()];
}
KERNEL(beyond_shared, f32* y, i32 at) {
  SHARED(f32, first, 32);
  SHARED(f32, second, 32);
  first[tid_x()] = second[tid_x()] = 1;
  barrier();
  y[tid_x()] = first[at + (i32)tid_x()];
}
KERNEL(missing_barrier, f32* y) {
  SHARED(f32, s, 64);
  s[tid_x()] = 0;
  barrier();
  s[tid_x()] = tid_x();
  y[tid_x()] = s[tid_x() ^ 33];
}
KERNEL(late_overwrite, f32* y) {
  SHARED(f32, s, 64);
  s[tid_x()] = tid_x();
  barrier();
  y[tid_x()] = s[tid_x() ^ 33];
  s[tid_x()] += 1;
}
KERNEL(waves_by_themselves, f32* y) {
  SHARED(f32, s, 128);
  f32 sum = 0;
  for (u32 turn = 0; turn <= tid_x() / 64; turn++) {
    s[tid_x()] = tid_x() + 100 * turn;
    wave_sync();
    sum += s[tid_x() ^ 1];
    wave_sync();
  }
  y[tid_x()] = sum;
}
KERNEL(lanes_out_of_order, f32* y) {
  SHARED(f32, s, 128);
  s[tid_x()] = 0;
  wave_sync();
  s[tid_x()] = tid_x();
  y[tid_x()] = s[tid_x() ^ 1];
}
KERNEL(wave_for_barrier, f32* y) {
  SHARED(f32, s, 128);
  s[tid_x()] = 0;
  barrier();
  s[tid_x()] = tid_x();
  wave_sync();
  y[tid_x()] = s[tid_x() ^ 64];
}
KERNEL(barrier_behind_wave, f32* y) {
  SHARED(f32, s, 128);
  s[tid_x()] = tid_x();
  wave_sync();
  barrier();
  y[tid_x()] = s[tid_x() ^ 64];
  wave_sync();
  barrier();
  s[tid_x()] = 1;
}
KERNEL(divergent_wave, f32* y) {
  if (tid_x() & 1) wave_sync();
  y[tid_x()] = 1;
  barrier();
}
KERNEL(write_where_others_read, f32* y, u32 writer, f32 value) {
  SHARED(f32, s, 1);
  if (tid_x() == writer) s[0] = 5;
  barrier();
  if (tid_x() / 64 != writer / 64) y[tid_x()] = s[0];
  else if (tid_x() == writer) s[0] = value;
}
KERNEL(write_the_same, f32* y, f32 last) {
  SHARED(f32, s, 64);
  s[tid_x() % 64] = tid_x() < 64 ? 5 : last;
  wave_sync();
  y[tid_x()] = s[tid_x() % 64 ^ 1];
}
KERNEL(overwrite_what_many_read, f32* y, u32 ordered) {
  SHARED(f32, s, 1);
  SHARED(f32, others, 128);
  if (tid_x() == 0) s[0] = 5;
  barrier();
  others[tid_x()] = s[0] + tid_x();
  if (ordered) barrier();
  else wave_sync();
  if (tid_x() % 64 == 3) s[0] = tid_x();
  y[tid_x()] = others[tid_x()];
}
KERNEL(poke, f32* y, size_t at) { if (tid_x() == 9) y[at] = 1; }
KERNEL(peek, const f32* y, size_t at, f32* out) { if (tid_x() == 9) out[0] = y[at]; }
KERNEL(divide, i32* y, i32 by) { y[tid_x()] = 7 / by; }
KERNEL(endless, volatile f32* y) { while (y[0] < 1e30f) y[1] = 2; }
KERNEL(count_all, u32* shared_total, u64* total) {
  SHARED(u32, s, 1);
  if (tid_x() == 0) s[0] = 0;
  barrier();
  __atomic_fetch_add(&s[0], 1u, __ATOMIC_RELAXED);
  u64 seen = 0;
  while ((seen = atomic_cas((unsigned long long*)total, seen, seen + 1)) + 1 && false) {}
  barrier();
  if (tid_x() == 0) shared_total[bid_x()] = s[0];
}
KERNEL(too_much_shared, f32* y) {
  SHARED(f32, s, 16000);
  DYNAMIC_SHARED(f32, d);
  s[tid_x()] = d[tid_x()] = 1;
  y[tid_x()] = s[tid_x()];
}
static f32 deeper(f32 x, i32 depth) {
  volatile f32 room[256];
  room[depth & 255] = x;
  return depth == 0 ? x : deeper(room[depth & 255] + 1, depth - 1) + room[depth & 255];
}
KERNEL(overflow, f32* y, i32 depth) { y[tid_x()] = deeper(1, depth); }
}
`;

const built = compile(`${gpuHeader}\n${kernels}`, ["--gpu-architecture=gfx1100", "-std=c++17", "-DUNUSED=1"]);
if (built.result) throw new Error(built.log);
const module = out((m) => hip.hipModuleLoadData(m, built.code));
const kernel = (name: string) => out((f) => hip.hipModuleGetFunction(f, module, name));

const compiler = process.env.WICK_SIM_CXX;
const changed = [
  "WICK_SIM_LAZY",
  "WICK_SIM_MEMORY",
  "WICK_SIM_HOST_MEMORY",
  "WICK_SIM_INTEGRATED",
  "WICK_SIM_DEVICES",
  "WICK_SIM_TIMEOUT",
];
beforeEach(() => ok(hip.hipSetDevice(0)));
afterEach(() => {
  for (const name of changed) delete process.env[name];
});

describe("devices", () => {
  test.each([
    ["sm_90a", 0],
    ["gfx1201", 0],
    ["gfx942", 1],
  ] as const)("are of the architecture and the size that are asked for: %s", (arch, ordinal) => {
    vi.stubEnv("WICK_SIM_ARCH", arch);
    vi.stubEnv("WICK_SIM_UNITS", "7");
    const [card, other] = [ordinal, 1 - ordinal].map((which) => {
      const properties = Buffer.alloc(1472);
      ok(hip.hipGetDevicePropertiesR0600(properties, which));
      const name = properties.toString("latin1", 1160);
      return { arch: name.slice(0, name.indexOf("\0")), units: properties.readInt32LE(388) };
    });
    vi.unstubAllEnvs();
    expect(card).toEqual({ arch, units: 7 });
    expect(other!.arch).not.toBe(arch);
  });

  test("two devices, wave 32 and wave 64, with AMD's names", () => {
    ok(hip.hipInit(0));
    const count = new Int32Array(1);
    ok(hip.hipGetDeviceCount(count));
    expect(count[0]).toBe(2);
    const expected = ["gfx1100", "gfx90a:sramecc+:xnack-"];
    for (const [ordinal, arch] of expected.entries()) {
      const value = new Int32Array(1);
      const attribute = (id: number) => {
        ok(hip.hipDeviceGetAttribute(value, id, ordinal));
        return value[0];
      };
      expect(attribute(87)).toBe(32 << ordinal);
      expect(attribute(56)).toBe(1024);
      expect(attribute(74)).toBe(65536);
      expect(attribute(63)).toBeGreaterThan(0);
      const now = Buffer.alloc(1472, 0xee);
      ok(hip.hipGetDevicePropertiesR0600(now, ordinal));
      expect(now.toString("latin1", 1160, 1160 + arch.length + 1)).toBe(`${arch}\0`);
      expect(now.readInt32LE(308)).toBe(32 << ordinal);
      expect(now.readBigUInt64LE(288)).toBe(2n << 30n);
      const old = Buffer.alloc(792, 0xee);
      ok(hip.hipGetDeviceProperties(old, ordinal));
      expect(old.toString("latin1", 396, 396 + arch.length + 1)).toBe(`${arch}\0`);
      expect(old.readInt32LE(276)).toBe(32 << ordinal);
      const name = Buffer.alloc(64);
      ok(hip.hipDeviceGetName(name, 64, ordinal));
      expect(name.toString()).toContain(`wave ${32 << ordinal}`);
    }
    expect(hip.hipDeviceGetAttribute(count, 31337, 0)).toBe(Code.invalidValue);
    expect(hip.hipSetDevice(2)).toBe(Code.invalidDevice);
  });

  test("a machine without devices says so without crashing", () => {
    process.env.WICK_SIM_DEVICES = "0";
    const count = new Int32Array([7]);
    expect(hip.hipGetDeviceCount(count)).toBe(Code.noDevice);
    expect(count[0]).toBe(0);
    expect(hip.hipInit(0)).toBe(Code.invalidDevice);
    expect(hip.hipMalloc(new BigUint64Array(1), 16)).toBe(Code.invalidDevice);
  });

  test("the last error stays until it is read", () => {
    hip.hipGetLastError();
    expect(hip.hipSetDevice(9)).toBe(Code.invalidDevice);
    ok(hip.hipSetDevice(0));
    expect(hip.hipPeekAtLastError()).toBe(Code.invalidDevice);
    expect(hip.hipGetLastError()).toBe(Code.invalidDevice);
    expect(hip.hipGetLastError()).toBe(Code.success);
    expect(errorName(719)).toBe("hipErrorLaunchFailure");
  });
});

describe("memory", () => {
  test("copies go through and fresh memory is not zero", () => {
    const data = Float32Array.from({ length: 1000 }, (_, i) => i - 0.5);
    const [a, b] = [upload(data), malloc(4000)];
    expect(download(b, new Float32Array(1000)).every(Number.isNaN)).toBe(true);
    ok(hip.hipMemcpyDtoDAsync(b, a, 4000, null));
    expect(download(b, new Float32Array(1000))).toEqual(data);
    ok(hip.hipMemsetD8Async(b + 4n, 0, 8, null));
    expect([...download(b, new Float32Array(4))]).toEqual([-0.5, 0, 0, 2.5]);
    const pinned = out((p) => hip.hipHostMalloc(p, 4000, 0));
    ok(hip.hipMemcpyDtoHAsync(pinned, a, 4000, null));
    ok(hip.hipMemcpyHtoDAsync(b, pinned, 4000, null));
    expect(download(b, new Float32Array(1000))).toEqual(data);
    ok(hip.hipHostFree(pinned));
    ok(hip.hipFree(a));
    ok(hip.hipFree(b));
    ok(hip.hipFree(null));
  });

  test("copies outside an allocation are refused and described", () => {
    const p = malloc(64);
    const host = new Uint8Array(128);
    expect(hip.hipMemcpyHtoDAsync(p, host, 65, null)).toBe(Code.invalidValue);
    expect(message()).toContain("65 bytes from byte 0 pass the end of the allocation of 64 bytes");
    expect(hip.hipMemcpyHtoDAsync(p + 60n, host, 8, null)).toBe(Code.invalidValue);
    expect(hip.hipMemcpyDtoHAsync(host, p - 1n, 1, null)).toBe(Code.invalidValue);
    expect(message()).toContain("1 bytes before the allocation of 64 bytes");
    expect(hip.hipMemsetD8Async(p + 64n, 0, 1, null)).toBe(Code.invalidValue);
    expect(hip.hipMemcpyHtoDAsync(host, host, 8, null)).toBe(Code.invalidValue);
    expect(hip.hipMemcpyHtoDAsync(p, null, 8, null)).toBe(Code.invalidValue);
    expect(hip.hipMemcpyHtoDAsync(p, 64n, 8, null)).toBe(Code.invalidValue);
    expect(message()).toContain("cannot be touched");
    expect(hip.hipMemcpyDtoDAsync(p, p + 8n, 16, null)).toBe(Code.invalidValue);
    expect(message()).toContain("overlap");
    ok(hip.hipMemcpyHtoDAsync(p, host, 64, null));
    ok(hip.hipFree(p));
    expect(hip.hipMemcpyHtoDAsync(p, host, 8, null)).toBe(Code.invalidValue);
    expect(message()).toContain("freed");
  });

  test("double frees, inner pointers and the wrong kind of free are refused", () => {
    const p = malloc(64);
    expect(hip.hipFree(p + 8n)).toBe(Code.invalidValue);
    expect(hip.hipHostFree(p)).toBe(Code.invalidValue);
    ok(hip.hipFree(p));
    expect(hip.hipFree(p)).toBe(Code.invalidValue);
    expect(hip.hipFree(12345n)).toBe(Code.invalidValue);
  });

  test("memory runs out at the limit and comes back", () => {
    process.env.WICK_SIM_MEMORY = String(1 << 20);
    const info = () => {
      const [free, total] = [new BigUint64Array(1), new BigUint64Array(1)];
      ok(hip.hipMemGetInfo(free, total));
      return [Number(free[0]), Number(total[0])];
    };
    ok(hip.hipSetDevice(1));
    expect(info()).toEqual([1 << 20, 1 << 20]);
    const p = malloc(1 << 19);
    expect(hip.hipMalloc(new BigUint64Array(1), (1 << 19) + 1)).toBe(Code.outOfMemory);
    expect(hip.hipMalloc(new BigUint64Array(1), 2n ** 63n)).toBe(Code.outOfMemory);
    expect(info()[0]).toBe(1 << 19);
    ok(hip.hipFree(p));
    ok(hip.hipFree(malloc(1 << 20)));
    expect(malloc(0)).toBe(0n);
    process.env.WICK_SIM_HOST_MEMORY = String(1 << 20);
    expect(hip.hipHostMalloc(new BigUint64Array(1), (1 << 20) + 1, 0)).toBe(Code.outOfMemory);
    ok(hip.hipHostFree(out((q) => hip.hipHostMalloc(q, 1 << 20, 0))));
  });

  test("an integrated device says so, and its memory may be the host's", () => {
    const value = new Int32Array(1);
    const integrated = () => {
      ok(hip.hipDeviceGetAttribute(value, 16, 0));
      return value[0];
    };
    expect(integrated()).toBe(0);
    process.env.WICK_SIM_INTEGRATED = "1";
    expect(integrated()).toBe(1);
    process.env.WICK_SIM_INTEGRATED = "gtt";
    expect(integrated()).toBe(1);
    process.env.WICK_SIM_MEMORY = "4096";
    process.env.WICK_SIM_HOST_MEMORY = String(1 << 20);
    const [free, total] = [new BigUint64Array(1), new BigUint64Array(1)];
    ok(hip.hipMemGetInfo(free, total));
    expect(Number(total[0])).toBe(1 << 20);
    const p = malloc(1 << 19);
    expect(hip.hipHostMalloc(new BigUint64Array(1), (1 << 19) + 1, 0)).toBe(Code.outOfMemory);
    ok(hip.hipFree(p));
  });
});

describe("launches", () => {
  test.each([0, 1])("grids, arguments of every size, results (device %d)", (ordinal) => {
    ok(hip.hipSetDevice(ordinal));
    const x = Float32Array.from({ length: 1003 }, (_, i) => i);
    const [px, py] = [upload(x), malloc(4012)];
    ok(launch(kernel("scale"), [px, py, 1003n, Float32Array.of(0.5)], { grid: 3, block: 128 }));
    expect(download(py, new Float32Array(1003))).toEqual(x.map((v) => v / 2));
    const mixed = [py, Int32Array.of(7), Float64Array.of(0.25), Int32Array.of(-3), Int32Array.of(0x3c00)];
    ok(launch(kernel("mixed"), mixed));
    expect(download(py, new Float64Array(1))[0]).toBe(5.25);
    ok(hip.hipFree(px));
    ok(hip.hipFree(py));
  });

  test("arguments through `extra` need the exact size", () => {
    const py = malloc(8);
    const buffer = Buffer.alloc(32);
    buffer.writeBigUInt64LE(py, 0);
    buffer.writeUInt8(1, 8);
    buffer.writeDoubleLE(2, 16);
    buffer.writeInt32LE(3, 24);
    buffer.writeUInt16LE(0x3c00, 28);
    const run = (bytes: bigint) => {
      const size = BigUint64Array.of(bytes);
      const extra = BigUint64Array.of(1n, addressOf(buffer), 2n, addressOf(size), 3n);
      return hip.hipModuleLaunchKernel(kernel("mixed"), 1, 1, 1, 1, 1, 1, 0, null, null, extra);
    };
    ok(run(30n));
    ok(run(32n));
    expect(download(py, new Float64Array(1))[0]).toBe(7);
    expect(run(28n)).toBe(Code.invalidValue);
    expect(message()).toContain("an argument buffer of 28 bytes, its 5 arguments take 30");
    ok(hip.hipFree(py));
  });

  test("impossible shapes and missing arguments are refused", () => {
    const py = malloc(8192);
    const run = (grid: number, block: number, shared = 0, name = "increment") =>
      launch(kernel(name), [py], { grid, block, shared });
    expect(run(0, 32)).toBe(Code.invalidConfiguration);
    expect(run(1, 0)).toBe(Code.invalidConfiguration);
    expect(run(1, 1025)).toBe(Code.invalidConfiguration);
    expect(run(1 << 23, 1024)).toBe(Code.invalidConfiguration);
    expect(run(1, 32, 65537)).toBe(Code.invalidConfiguration);
    expect(run(1, 65, 0, "bounded")).toBe(Code.launchFailure);
    ok(run(1, 64, 0, "bounded"));
    expect(run(1, 64, 4096, "too_much_shared")).toBe(Code.launchFailure);
    expect(message()).toContain("shared memory");
    const bare = (params: unknown) =>
      hip.hipModuleLaunchKernel(kernel("increment"), 1, 1, 1, 1, 1, 1, 0, null, params, null);
    expect(bare(null)).toBe(Code.invalidValue);
    expect(bare(BigUint64Array.of(0n))).toBe(Code.invalidValue);
    expect(bare(BigUint64Array.of(8n))).toBe(Code.invalidValue);
    expect(message()).toContain("cannot be read");
    ok(hip.hipFree(py));
  });

  test("attributes of a function", () => {
    const value = new Int32Array(1);
    ok(hip.hipFuncGetAttribute(value, 0, kernel("bounded")));
    expect(value[0]).toBe(64);
    const [px, py] = [upload(new Float32Array(4)), malloc(16)];
    ok(launch(kernel("reverse_block"), [px, py], { block: 4 }));
    ok(hip.hipFuncGetAttribute(value, 1, kernel("reverse_block")));
    expect(value[0]).toBe(4096);
    ok(hip.hipFree(px));
    ok(hip.hipFree(py));
  });
});

describe.each([0, 1])("threads of a block (device %d)", (ordinal) => {
  let y = 0n;
  beforeEach(() => {
    ok(hip.hipSetDevice(ordinal));
    y = upload(new Float32Array(2048));
  });
  afterEach(() => ok(hip.hipFree(y)));
  const expectFault = (code: number, ...parts: string[]) => {
    expect(code).toBe(Code.launchFailure);
    for (const part of parts) expect(message()).toContain(part);
  };

  test.each([1, 33, 64, 1000, 1024])("static and dynamic shared memory, %d threads", (n) => {
    const x = Float32Array.from({ length: n }, (_, i) => i * 3);
    const px = upload(x);
    for (const [name, shared] of [
      ["reverse_block", 0],
      ["reverse_dynamic", 4 * n],
    ] as const) {
      ok(launch(kernel(name), [px, y], { block: n, shared }));
      expect(download(y, new Float32Array(n))).toEqual(x.slice().reverse());
    }
    expectFault(launch(kernel("reverse_dynamic"), [px, y], { block: n, shared: 4 * n - 4 }), "dynamic shared memory");
    ok(hip.hipFree(px));
  });

  test("shuffles stay within 32 lanes", () => {
    const x = Float32Array.from({ length: 128 }, (_, i) => i);
    const px = upload(x);
    ok(launch(kernel("warp_sums"), [px, y], { block: 128 }));
    const sums = x.map((_, i) => 32 * 32 * Math.floor(i / 32) + 496);
    expect(download(y, new Float32Array(128))).toEqual(sums);
    ok(launch(kernel("warp_moves"), [y, px], { block: 64 }));
    const down = BigInt64Array.from({ length: 64 }, (_, i) => BigInt(i % 32 < 29 ? i + 3 : i) << 33n);
    expect(download(y, new BigInt64Array(64))).toEqual(down);
    const pick = Float64Array.from({ length: 64 }, (_, i) => (i < 32 ? 5.5 : 37.5));
    expect(download(px, new Float64Array(64))).toEqual(pick);
    ok(hip.hipFree(px));
  });

  test("atomics in shared and global memory", () => {
    const total = upload(new BigUint64Array(1));
    ok(launch(kernel("count_all"), [y, total], { grid: 3, block: 96 }));
    expect([...download(y, new Uint32Array(3))]).toEqual([96, 96, 96]);
    ok(hip.hipFree(total));
  });

  test("divergent barriers", () => {
    expectFault(
      launch(kernel("exit_before_barrier"), [y]),
      'kernel "exit_before_barrier", block (0,0,0), thread (7,0,0)',
    );
    expect(message()).toContain("has exited while thread");
    expectFault(launch(kernel("two_barriers"), [y]), "divergent barrier", "thread (16,0,0)", "test.hip:");
    expectFault(launch(kernel("two_barriers"), [y], { block: 128 }), "divergent barrier");
  });

  test("shuffles without a source, or out of step", () => {
    expectFault(launch(kernel("shuffle_from_gone"), [y]), "reads lane 3, which has exited", "thread (0,0,0)");
    expectFault(launch(kernel("shuffle_from_gone"), [y], { block: 2 }), "which the block does not have");
    expectFault(launch(kernel("divergent_shuffle"), [y]), "divergent shuffle");
  });

  test("shared memory that nobody wrote in this block", () => {
    ok(launch(kernel("unwritten"), [y], { block: 64 }));
    expectFault(launch(kernel("unwritten"), [y], { block: 64, grid: 2 }), "block (1,0,0), thread (5,0,0)", '"s"');
    expect(message()).toContain("no thread of the block has written");
  });

  test("indices beyond a shared array", () => {
    ok(launch(kernel("beyond_shared"), [y, Int32Array.of(0)]));
    expectFault(launch(kernel("beyond_shared"), [y, Int32Array.of(1)]), 'at byte 128 of "first", which has 128 bytes');
    expectFault(launch(kernel("beyond_shared"), [y, Int32Array.of(-1)]), "shared memory");
  });

  test("a missing barrier is a race, whatever the order of execution", () => {
    expectFault(launch(kernel("missing_barrier"), [y], { block: 64 }), "race:", "since they last met");
    expectFault(launch(kernel("late_overwrite"), [y], { block: 64 }), "race:", "since they last met");
  });

  test("waves meet by themselves, which orders what their lanes do and nothing else", () => {
    ok(launch(kernel("waves_by_themselves"), [y], { block: 128 }));
    const sums = Float32Array.from({ length: 128 }, (_, i) => (i < 64 ? i ^ 1 : 2 * (i ^ 1) + 100));
    expect(download(y, new Float32Array(128))).toEqual(sums);
    ok(launch(kernel("barrier_behind_wave"), [y], { block: 128 }));
    expectFault(launch(kernel("lanes_out_of_order"), [y], { block: 128 }), "race: ", "which thread");
    expectFault(launch(kernel("wave_for_barrier"), [y], { block: 128 }), "race: ", "which thread");
    expectFault(launch(kernel("divergent_wave"), [y], { block: 64 }), "divergent wave", "not all come");
  });

  test("writes of what others read, unless they leave it as it was", () => {
    // The wave that comes last.
    const writer = Int32Array.of(ordinal === 0 ? 64 : 0);
    const write = (value: number) =>
      launch(kernel("write_where_others_read"), [y, writer, Float32Array.of(value)], { block: 128 });
    ok(write(5));
    expectFault(write(6), "race: writes", "read since they last met");
    const same = (last: number) => launch(kernel("write_the_same"), [y, Float32Array.of(last)], { block: 128 });
    ok(same(5));
    expect(download(y, new Float32Array(128))).toEqual(new Float32Array(128).fill(5));
    expectFault(same(6), "race: ");
    const overwrite = (ordered: number) =>
      launch(kernel("overwrite_what_many_read"), [y, Int32Array.of(ordered)], { block: 128 });
    ok(overwrite(1));
    expectFault(overwrite(0), "race: ");
  });

  test("device memory: out of bounds, null, freed, another device's", () => {
    const small = malloc(64);
    const poke = (p: bigint, at: bigint) => launch(kernel("poke"), [p, BigUint64Array.of(at)]);
    ok(poke(small, 15n));
    expectFault(
      poke(small, 16n),
      'kernel "poke"',
      "thread (9,0,0)",
      "0 bytes past the end of the allocation of 64 bytes",
    );
    expectFault(poke(small, -1n & 0xffffffffffffffffn), "4 bytes before the allocation");
    expectFault(poke(0n, 0n), "a null pointer");
    expectFault(launch(kernel("peek"), [small, BigUint64Array.of(16n), y]), "reads 4 bytes");
    expectFault(poke(small + 62n, 0n), "misaligned");
    ok(hip.hipFree(small));
    expectFault(poke(small, 0n), "freed");
    ok(hip.hipSetDevice(1 - ordinal));
    expectFault(poke(y, 0n), "memory of device");
    ok(hip.hipSetDevice(ordinal));
    ok(poke(y, 0n));
  });

  test("mapped host memory: kernels use it within its bounds", () => {
    const nonCoherent = 0x80000000;
    const host = out((p) => hip.hipHostMalloc(p, 64, nonCoherent));
    const mapped = out((p) => hip.hipHostGetDevicePointer(p, host, 0));
    const poke = (at: bigint) => launch(kernel("poke"), [mapped, BigUint64Array.of(at)]);
    ok(poke(15n));
    expectFault(poke(16n), "0 bytes past the end of the allocation of 64 bytes", "pinned host memory");
    const slot = new BigUint64Array(1);
    for (const wrong of [y, 0n, mapped + 64n]) {
      expect(hip.hipHostGetDevicePointer(slot, wrong, 0)).toBe(Code.invalidValue);
    }
    expect(hip.hipHostGetDevicePointer(slot, host, 1)).toBe(Code.invalidValue);
    for (const flags of [0xc0000000, 0x100]) expect(hip.hipHostMalloc(slot, 64, flags)).toBe(Code.invalidValue);
    ok(hip.hipHostFree(host));
    expectFault(poke(0n), "freed");
  });

  test("faults of the processor end the launch, not the process", () => {
    ok(launch(kernel("divide"), [y, Int32Array.of(2)]));
    expectFault(launch(kernel("divide"), [y, Int32Array.of(0)]), 'kernel "divide"', "divides an integer by zero");
    ok(launch(kernel("overflow"), [y, Int32Array.of(8)]));
    expectFault(launch(kernel("overflow"), [y, Int32Array.of(1 << 20)]), "overflows its stack");
    process.env.WICK_SIM_TIMEOUT = "0.05";
    expectFault(launch(kernel("endless"), [y]), "WICK_SIM_TIMEOUT");
    delete process.env.WICK_SIM_TIMEOUT;
    ok(launch(kernel("increment"), [y]));
    ok(hip.hipDeviceSynchronize());
  });
});

describe("handles", () => {
  test("what is not alive is refused", () => {
    const gone = out((s) => hip.hipStreamCreateWithFlags(s, 1));
    ok(hip.hipStreamDestroy(gone));
    for (const handle of [gone, 1n, 0xdeadbeefn]) {
      expect(hip.hipStreamSynchronize(handle)).toBe(Code.invalidHandle);
      expect(hip.hipStreamDestroy(handle)).toBe(Code.invalidHandle);
      expect(hip.hipEventSynchronize(handle)).toBe(Code.invalidHandle);
      expect(hip.hipModuleUnload(handle)).toBe(Code.invalidHandle);
      expect(launch(handle, [0n])).toBe(Code.invalidHandle);
      expect(hip.hipGraphLaunch(handle, null)).toBe(Code.invalidValue);
      expect(hip.hiprtcCompileProgram(handle, 0, null)).toBe(4);
    }
  });

  test("modules: damaged images, unknown names, use after unload", () => {
    const slot = new BigUint64Array(1);
    expect(hip.hipModuleLoadData(slot, Buffer.from("not a code object".padEnd(256)))).toBe(Code.invalidImage);
    const damaged = built.code.slice();
    damaged[damaged.length >> 1]! ^= 1;
    expect(hip.hipModuleLoadData(slot, damaged)).toBe(Code.invalidImage);
    expect(message()).toContain("damaged");
    expect(hip.hipModuleGetFunction(slot, module, "no_such_kernel")).toBe(Code.notFound);
    const second = out((m) => hip.hipModuleLoadData(m, built.code));
    const increment = out((f) => hip.hipModuleGetFunction(f, second, "increment"));
    ok(hip.hipModuleUnload(second));
    expect(launch(increment, [0n])).toBe(Code.invalidHandle);
    expect(hip.hipModuleUnload(second)).toBe(Code.invalidHandle);
  });
});

describe("streams and events", () => {
  test("lazy: nothing happens before a synchronising call", () => {
    const stream = out((s) => hip.hipStreamCreateWithFlags(s, 1));
    const x = upload(new Int32Array(32));
    process.env.WICK_SIM_LAZY = "1";
    const host = new Int32Array(32);
    ok(launch(kernel("increment"), [x], { stream }));
    ok(hip.hipMemcpyDtoHAsync(host, x, 128, stream));
    expect(host[0]).toBe(0);
    ok(hip.hipStreamSynchronize(stream));
    expect(host[0]).toBe(1);
    const source = Int32Array.of(41);
    ok(hip.hipMemcpyHtoDAsync(x, source, 4, stream));
    source[0] = 0; // pageable memory was staged
    ok(launch(kernel("increment"), [x], { stream }));
    ok(hip.hipMemcpyDtoHAsync(host, x, 4, stream));
    expect(hip.hipStreamQuery(stream)).toBe(Code.notReady);
    while (hip.hipStreamQuery(stream) === Code.notReady);
    expect(host[0]).toBe(42);
    ok(launch(kernel("divide"), [x, Int32Array.of(0)], { stream }));
    expect(hip.hipStreamSynchronize(stream)).toBe(Code.launchFailure);
    ok(hip.hipStreamSynchronize(stream));
    ok(launch(kernel("increment"), [x], { stream }));
    ok(hip.hipFree(x));
    ok(hip.hipStreamDestroy(stream));
  });

  test("lazy: events order streams, the default stream orders blocking ones", () => {
    const [a, b] = [out((s) => hip.hipStreamCreateWithFlags(s, 1)), out((s) => hip.hipStreamCreateWithFlags(s, 1))];
    const blocking = out((s) => hip.hipStreamCreateWithFlags(s, 0));
    const event = out((e) => hip.hipEventCreateWithFlags(e, 2));
    const x = upload(new Int32Array(32));
    process.env.WICK_SIM_LAZY = "1";
    const host = new Int32Array(1);
    ok(launch(kernel("increment"), [x], { stream: a }));
    ok(hip.hipEventRecord(event, a));
    expect(hip.hipEventQuery(event)).toBe(Code.notReady);
    ok(hip.hipStreamWaitEvent(b, event, 0));
    ok(launch(kernel("increment"), [x], { stream: b }));
    ok(hip.hipMemcpyDtoHAsync(host, x, 4, b));
    ok(hip.hipStreamSynchronize(b));
    expect(host[0]).toBe(2);
    ok(hip.hipEventSynchronize(event));
    expect(hip.hipEventQuery(event)).toBe(Code.success);
    ok(launch(kernel("increment"), [x], { stream: blocking }));
    ok(hip.hipMemcpy(host, x, 4, 2));
    expect(host[0]).toBe(3);
    const time = new Float32Array(1);
    expect(hip.hipEventElapsedTime(time, event, event)).toBe(Code.invalidHandle);
    for (const stream of [a, b, blocking]) ok(hip.hipStreamDestroy(stream));
    ok(hip.hipEventDestroy(event));
    ok(hip.hipFree(x));
  });

  test("lazy: errors of blocking streams surface at the default stream", () => {
    const blocking = out((s) => hip.hipStreamCreateWithFlags(s, 0));
    const x = upload(new Int32Array(32));
    process.env.WICK_SIM_LAZY = "1";
    ok(launch(kernel("divide"), [x, Int32Array.of(0)], { stream: blocking }));
    expect(hip.hipStreamSynchronize(null)).toBe(Code.launchFailure);
    ok(hip.hipStreamDestroy(blocking));
    ok(hip.hipFree(x));
  });

  test("events measure time", () => {
    const [start, stop] = [
      out((e) => hip.hipEventCreateWithFlags(e, 0)),
      out((e) => hip.hipEventCreateWithFlags(e, 0)),
    ];
    const time = Float32Array.of(-1);
    expect(hip.hipEventElapsedTime(time, start, stop)).toBe(Code.invalidHandle);
    ok(hip.hipEventRecord(start, null));
    ok(hip.hipEventRecord(stop, null));
    ok(hip.hipEventElapsedTime(time, start, stop));
    expect(time[0]).toBeGreaterThanOrEqual(0);
    ok(hip.hipEventDestroy(start));
    ok(hip.hipEventDestroy(stop));
  });
});

describe("graphs", () => {
  test("a capture records and replays launches, copies and fills", () => {
    const stream = out((s) => hip.hipStreamCreateWithFlags(s, 1));
    const [x, y] = [upload(new Int32Array(32)), malloc(128)];
    ok(hip.hipStreamBeginCapture(stream, 0));
    const status = new Int32Array(1);
    ok(hip.hipStreamIsCapturing(stream, status));
    expect(status[0]).toBe(1);
    ok(launch(kernel("increment"), [x], { stream }));
    ok(hip.hipMemcpyDtoDAsync(y, x, 128, stream));
    ok(hip.hipMemsetD8Async(y, 9, 4, stream));
    const graph = out((g) => hip.hipStreamEndCapture(stream, g));
    expect(download(x, new Int32Array(1))[0]).toBe(0);
    const exec = out((g) => hip.hipGraphInstantiate(g, graph, null, null, 0));
    ok(hip.hipGraphDestroy(graph));
    for (let i = 0; i < 3; i++) ok(hip.hipGraphLaunch(exec, stream));
    ok(hip.hipStreamSynchronize(stream));
    expect([...download(y, new Int32Array(2))]).toEqual([0x09090909, 3]);
    ok(hip.hipFree(x));
    expect(hip.hipGraphLaunch(exec, stream)).toBe(Code.launchFailure);
    ok(hip.hipGraphExecDestroy(exec));
    ok(hip.hipFree(y));
    ok(hip.hipStreamDestroy(stream));
  });

  test("forbidden calls invalidate a capture", () => {
    const stream = out((s) => hip.hipStreamCreateWithFlags(s, 1));
    const slot = new BigUint64Array(1);
    const forbidden = [
      () => hip.hipStreamSynchronize(stream),
      () => hip.hipDeviceSynchronize(),
      () => hip.hipMalloc(slot, 16),
    ];
    for (const call of forbidden) {
      ok(hip.hipStreamBeginCapture(stream, 0));
      expect(call()).toBe(Code.captureUnsupported);
      expect(hip.hipStreamEndCapture(stream, slot)).toBe(Code.captureInvalidated);
    }
    ok(hip.hipStreamBeginCapture(stream, 2));
    const p = malloc(16);
    ok(hip.hipGraphDestroy(out((g) => hip.hipStreamEndCapture(stream, g))));
    ok(hip.hipFree(p));
    expect(hip.hipStreamBeginCapture(null, 0)).toBe(Code.captureUnsupported);
    ok(hip.hipStreamDestroy(stream));
  });
});

describe("hiprtc", () => {
  test("the log carries the compiler's message and the source's name and line", () => {
    const { result, log, code } = compile(`${gpuHeader}\nnamespace gpu {\nKERNEL(bad, f32* y) { y[0] = nonsense; }\n}`);
    expect(result).toBe(6);
    expect(log).toContain("nonsense");
    expect(log).toContain(`test.hip:${gpuHeader.split("\n").length + 2}`);
    expect(code.length).toBe(0);
  });
  test("definitions pass, unknown options and missing compilers are errors", () => {
    const source = `${gpuHeader}\nnamespace gpu {\nKERNEL(good, i32* y) { y[0] = ANSWER; }\n}`;
    const { result, log, code } = compile(source, ["-DANSWER=42"]);
    expect([result, log]).toEqual([0, ""]);
    const own = out((m) => hip.hipModuleLoadData(m, code));
    const y = malloc(4);
    ok(
      launch(
        out((f) => hip.hipModuleGetFunction(f, own, "good")),
        [y],
      ),
    );
    expect(download(y, new Int32Array(1))[0]).toBe(42);
    ok(hip.hipFree(y));
    ok(hip.hipModuleUnload(own));
    expect(compile(source, ["--no-such-option"]).result).toBe(5);
    process.env.WICK_SIM_CXX = "no-such-compiler";
    const none = compile(source);
    if (compiler === undefined) delete process.env.WICK_SIM_CXX;
    else process.env.WICK_SIM_CXX = compiler;
    expect(none.result).not.toBe(0);
    expect(none.log).toContain("WICK_SIM_CXX");
  });
});

function child(code: string, env: Record<string, string>) {
  const prelude = `const library = require("koffi").load(${JSON.stringify(paths.hip)});
    const hip = (signature) => library.func(signature); const slot = new BigUint64Array(1);`;
  const cwd = new URL("../../..", import.meta.url);
  return spawnSync(process.execPath, ["-e", prelude + code], {
    cwd,
    env: { ...process.env, ...env },
    encoding: "utf8",
  });
}

test("what is alive at exit is reported on request", () => {
  const code = `hip("int hipMalloc(void*, size_t)")(slot, 4321); hip("int hipStreamCreate(void*)")(slot);`;
  const leaky = child(code, { WICK_SIM_LEAKS: "1" });
  expect(leaky.status).toBe(0);
  expect(leaky.stderr).toContain("leaked 4321 bytes");
  expect(leaky.stderr).toContain("leaked 1 streams");
  expect(child(code, {}).stderr).toBe("");
  expect(child(`hip("int hipMalloc(void*, size_t)")(slot, 0);`, { WICK_SIM_LEAKS: "1" }).stderr).toBe("");
});

test("without instrumentation, canaries still find writes past the end", () => {
  process.env.WICK_SIM_CHECK = "0";
  const plain = compile(`${gpuHeader}\n${kernels}`);
  delete process.env.WICK_SIM_CHECK;
  expect(plain.log).toBe("");
  const own = out((m) => hip.hipModuleLoadData(m, plain.code));
  const poke = out((f) => hip.hipModuleGetFunction(f, own, "poke"));
  const p = malloc(64);
  ok(launch(poke, [p, BigUint64Array.of(16n)]));
  expect(hip.hipDeviceSynchronize()).toBe(Code.launchFailure);
  expect(message()).toContain("a write 0 bytes past the end of the allocation of 64 bytes");
  expect(message()).toContain("poke");
  ok(hip.hipDeviceSynchronize());
  expect(launch(poke, [8n, BigUint64Array.of(0n)])).toBe(Code.launchFailure);
  expect(message()).toContain("thread (9,0,0): touches 0x8");
  ok(hip.hipFree(p));
  ok(hip.hipModuleUnload(own));
});
