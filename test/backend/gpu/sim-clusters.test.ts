// Hopper's clusters in the simulator: blocks that run together, and what they may do wrong.
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { kernelSource } from "../../../src/backend/gpu/source.ts";
import { Code, compile, download, hip, launch, malloc, message, ok, out } from "../../helpers/hip.ts";

describe.each([0, 1])("clusters (device %d)", (ordinal) => {
  const source = /* c++ */ `
namespace test {
using namespace gpu;
// Each block's number and the thread's, to the next block's memory.
#define PASS_ON(name, barriers) \
KERNEL_CLUSTER(64, 1, 4, name, f32* y) { \
  DYNAMIC_SHARED(f32, s); \
  cluster_barrier(); \
  cluster_put(s + tid_x() * 4, Vec<f32, 4>{{(f32)bid_x(), (f32)tid_x(), 0, 0}}, (bid_x() + 1) % 4); \
  barriers; \
  y[bid_x() * 64 + tid_x()] = s[tid_x() * 4] * 100 + s[tid_x() * 4 + 1]; \
}
PASS_ON(pass_on, cluster_barrier())
PASS_ON(pass_in_pieces, cluster_come(); cluster_wait())
PASS_ON(pass_block_barrier, barrier())
PASS_ON(pass_too_soon, )
#define SEND(name, bytes, waits) \
KERNEL_CLUSTER(64, 1, 4, name, f32* y) { \
  DYNAMIC_SHARED(f32, s); \
  Signal* const signal = (Signal*)(s + 4 * 64 * 2); \
  if (tid_x() == 0) cluster_expect(signal, bytes); \
  cluster_barrier(); \
  for (u32 to = 0; to < 4; to++) cluster_send(s + (bid_x() % 4 * 64 + tid_x()) * 2, Vec<f32, 2>{{(f32)tid_x(), (f32)to}}, to, signal); \
  waits; \
  f32 sum = 0; \
  for (u32 from = 0; from < 4; from++) sum += s[(from * 64 + tid_x()) * 2] * 10 + s[(from * 64 + tid_x()) * 2 + 1]; \
  y[bid_x() * 64 + tid_x()] = sum; \
}
SEND(send, 4 * 64 * 8, cluster_await(signal))
SEND(send_unheard, 4 * 64 * 8, )
SEND(send_too_little, 4 * 64 * 8 + 8, cluster_await(signal))
KERNEL_CLUSTER(64, 1, 2, each_its_own, f32* y) {
  SHARED(f32, s, 64);
  s[tid_x()] = bid_x();
  barrier();
  y[bid_x() * 64 + tid_x()] = s[tid_x() ^ 33];
}
KERNEL_CLUSTER(64, 1, 2, beyond, f32* y) {
  DYNAMIC_SHARED(f32, s);
  cluster_barrier();
  cluster_put(s + 1024, Vec<f32, 4>{}, 1);
  y[tid_x()] = 0;
}
KERNEL_CLUSTER(64, 1, 2, too_early, f32* y) {
  DYNAMIC_SHARED(f32, s);
  cluster_put(s + tid_x() * 4, Vec<f32, 4>{}, 1 - bid_x() % 2);
  cluster_barrier();
  y[tid_x()] = 0;
}
KERNEL_CLUSTER(64, 1, 2, too_late, f32* y) {
  DYNAMIC_SHARED(f32, s);
  cluster_barrier();
  if (bid_x() % 2) return;
  barrier();
  cluster_put(s + tid_x() * 4, Vec<f32, 4>{}, 1);
  y[tid_x()] = 0;
}
KERNEL_CLUSTER(512, 1, 4, crowd, f32* y) { y[tid_x()] = 0; }
}
`;
  const options = ["--gpu-architecture=sm_90a", "-std=c++17", "-DGPU_HOST_WARPGROUPS"];
  const program = compile(`${kernelSource("gpu/cluster.h")}\n${source}`, options);
  if (program.result) throw new Error(program.log);
  const loaded = out((m) => hip.hipModuleLoadData(m, program.code));
  const named = (name: string) => out((f) => hip.hipModuleGetFunction(f, loaded, name));
  const shape = { grid: 8, block: 64, shared: 4096 };
  const values = (of: (block: number, thread: number) => number) =>
    Float32Array.from({ length: 512 }, (_, i) => of(Math.floor(i / 64), i % 64));
  let y = 0n;
  beforeEach(() => {
    ok(hip.hipSetDevice(ordinal));
    y = malloc(2048);
  });
  afterEach(() => ok(hip.hipFree(y)));

  test.each(["pass_on", "pass_in_pieces"])("blocks write to each other's memory: %s", (name) => {
    ok(launch(named(name), [y], shape));
    const from = (b: number) => b - (b % 4) + ((b + 3) % 4);
    expect(download(y, new Float32Array(512))).toEqual(values((b, t) => from(b) * 100 + t));
  });

  test("a signal is up when all bytes have come", () => {
    ok(launch(named("send"), [y], shape));
    expect(download(y, new Float32Array(512))).toEqual(values((b, t) => 4 * (t * 10 + (b % 4))));
  });

  test("memory is each block's own, static arrays, too", () => {
    ok(launch(named("each_its_own"), [y], shape));
    expect(download(y, new Float32Array(512))).toEqual(values((b) => b));
  });

  test.each([
    ["pass_block_barrier", "race: reads", "of another block"],
    ["pass_too_soon", 'reads byte 0 of "dynamic shared memory"', "no thread of the block has written"],
    ["send_unheard", 'reads byte 0 of "dynamic shared memory"'],
    ["send_too_little", "waits for a signal", "never come"],
    ["beyond", "bytes of shared memory"],
    ["too_early", "that may not have begun"],
    ["too_late", "that has ended"],
  ])("%s is found", (name, ...parts) => {
    expect(launch(named(name), [y], shape)).toBe(Code.launchFailure);
    for (const part of parts) expect(message()).toContain(part);
  });

  test("shapes that are no clusters are refused", () => {
    expect(launch(named("send"), [y], { ...shape, grid: 6 })).toBe(Code.invalidConfiguration);
    expect(message()).toContain("6 blocks are no whole clusters of 4");
    expect(launch(named("crowd"), [y], { ...shape, block: 512 })).toBe(Code.invalidConfiguration);
    expect(message()).toContain("no room for clusters of 4 blocks of 512 threads");
  });
});
