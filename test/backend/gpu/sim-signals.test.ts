// What the simulator plays of Hopper's copy engine and its signals: copies that come when they like, places that are used again, threads
// of a block that meet without the others.
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { unitDefines } from "../../../src/backend/gpu/attention-plan.ts";
import { kernelSource } from "../../../src/backend/gpu/source.ts";
import { Code, compile, download, hip, launch, malloc, message, ok, out, upload } from "../../helpers/hip.ts";

const source = /* c++ */ `
namespace test {
using namespace gpu;
// The last of three warps brings pieces of 64 words to two places in turns, the others add them up.
#define PIPELINE(name, WHEN_FREE, BYTES, FROM, WHEN_FULL) \\
  KERNEL(name, const u32* x, u32* y, i32 pieces) { \\
    SHARED(u32, places, 128); \\
    SHARED(Signal, signals, 4); \\
    Signal *full = signals, *free = signals + 2; \\
    if (tid_x() == 0) for (u32 i = 0; i < 2; i++) make_signal(full + i, 1), make_signal(free + i, 2); \\
    signals_made(); \\
    barrier(); \\
    if (tid_x() >= 64) { \\
      if (one_lane()) for (i32 i = 0; i < pieces; i++) { \\
        if (i >= 2) { WHEN_FREE; } \\
        expect_bytes(full + i % 2, BYTES); \\
        copy_bulk(places + i % 2 * 64, FROM, 256, full + i % 2); \\
      } \\
      return; \\
    } \\
    u32 sum = 0; \\
    for (i32 i = 0; i < pieces; i++) { \\
      WHEN_FULL; \\
      sum += places[i % 2 * 64 + tid_x()]; \\
      meeting_come(free + i % 2); \\
    } \\
    y[tid_x()] = sum; \\
  }
#define IS_FREE await_signal(free + i % 2, (i / 2 - 1) & 1)
#define IS_FULL await_signal(full + i % 2, i / 2 & 1)
PIPELINE(pipeline, IS_FREE, 256, x + i * 64, IS_FULL)
PIPELINE(reads_too_soon, IS_FREE, 256, x + i * 64, )
PIPELINE(reads_by_the_turn_before, IS_FREE, 256, x + i * 64, await_signal(full + i % 2, (i / 2 & 1) ^ 1))
PIPELINE(brings_too_soon, , 256, x + i * 64, IS_FULL)
PIPELINE(expects_too_much, IS_FREE, 272, x + i * 64, IS_FULL)
PIPELINE(comes_from_anywhere, IS_FREE, 256, x + 1, IS_FULL)
PIPELINE(comes_from_beyond, IS_FREE, 256, x + 8 * 64 - 32, IS_FULL)
KERNEL(overwrites, const u32* x, u32* y) {
  SHARED(u32, place, 64);
  SHARED(Signal, signal, 1);
  if (tid_x() == 0) make_signal(signal, 1);
  place[tid_x()] = 1;
  barrier();
  y[tid_x()] = place[tid_x() ^ 1];
  if (tid_x() == 0) expect_bytes(signal, 256), copy_bulk(place, x, 256, signal);
  await_signal(signal, 0);
  y[tid_x()] += place[tid_x()];
}
// The first two warps meet, over and over, while the third has gone.
#define CREW(name, MEET) \\
  KERNEL(name, u32* y) { \\
    SHARED(u32, s, 64); \\
    if (tid_x() >= 64) return; \\
    u32 sum = 0; \\
    for (u32 turn = 0; turn < 3; turn++) { \\
      s[tid_x()] = tid_x() + turn; \\
      MEET; \\
      sum += s[tid_x() ^ 33]; \\
      barrier_of<64>(); \\
    } \\
    y[tid_x()] = sum; \\
  }
CREW(crew, barrier_of<64>())
CREW(crew_of_a_wave, wave_sync())
}
`;

const units = Object.entries(unitDefines).map(([name, number]) => `-D${name}=${number}`);
const options = ["-std=c++17", "-DGPU_HOST_WARPGROUPS", "-DGPU_HOST_TILE=1", ...units];
const headers = ["gpu/crews.h", "gpu/uniform.h"].map(kernelSource).join("\n");
const program = compile(`${headers}\n${source}`, options);
if (program.result) throw new Error(program.log);
const loaded = out((m) => hip.hipModuleLoadData(m, program.code));
const named = (name: string) => out((f) => hip.hipModuleGetFunction(f, loaded, name));

describe.each([[0], [1]])("signals on device %i", (ordinal) => {
  let [x, y] = [0n, 0n];
  beforeEach(() => {
    ok(hip.hipSetDevice(ordinal));
    x = upload(Int32Array.from({ length: 512 }, (_, i) => i));
    y = malloc(256);
  });
  afterEach(() => {
    for (const at of [x, y]) ok(hip.hipFree(at));
  });
  const run = (name: string, pieces = 8) =>
    launch(named(name), [x, y, Int32Array.of(pieces)], { block: 96, shared: 0 });

  test.each([1, 2, 3, 8])("bring %i pieces to two places", (pieces) => {
    ok(run("pipeline", pieces));
    const sums = Int32Array.from({ length: 64 }, (_, i) => pieces * i + 32 * pieces * (pieces - 1));
    expect(download(y, new Int32Array(64))).toEqual(sums);
  });

  test.each([
    ["reads_too_soon", "reads byte"],
    ["reads_by_the_turn_before", "reads byte"],
    ["brings_too_soon", "arrives at a signal more often than it was made for"],
    ["expects_too_much", "it waits for a signal", "never come"],
    ["comes_from_anywhere", "no multiples of 16"],
    ["comes_from_beyond", "past its end"],
  ])("%s is found", (name, ...parts) => {
    expect(run(name)).toBe(Code.launchFailure);
    for (const part of parts) expect(message()).toContain(part);
  });

  test("a copy to what is read meanwhile is a race", () => {
    expect(launch(named("overwrites"), [x, y], { block: 64 })).toBe(Code.launchFailure);
    expect(message()).toContain("race: ");
  });

  test("some of a block's threads meet", () => {
    ok(launch(named("crew"), [y], { block: 96 }));
    expect(download(y, new Int32Array(64))).toEqual(Int32Array.from({ length: 64 }, (_, i) => 3 * (i ^ 33) + 3));
    // A wave of 64 lanes is all of them.
    const alone = launch(named("crew_of_a_wave"), [y], { block: 96 });
    expect(alone).toBe(ordinal === 0 ? Code.launchFailure : 0);
    if (ordinal === 0) expect(message()).toContain("reads byte 132");
  });
});
