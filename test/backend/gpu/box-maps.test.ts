// Maps of boxes: each is made once, a place is never given twice, and what the driver refuses is not asked for again.
import { expect, it } from "vitest";
import { BoxMaps } from "../../../src/backend/gpu/box-maps.ts";
import type { Boxes, GpuContext } from "../../../src/backend/gpu/driver.ts";

const boxes: Boxes = { at: 4096, rows: 64, halves: 1, pieces: 4, pieceBytes: 272, boxRows: 16, boxPieces: 1 };

const make = (): void => {};
const refuse = (): never => {
  throw new Error("recorded");
};

function maps(map: Uint8Array | null) {
  const asked: Boxes[] = [];
  const uploads: number[] = [];
  let next = 1 << 20;
  const context = {
    boxMap: (given: Boxes) => {
      asked.push(given);
      return map;
    },
  } as unknown as GpuContext;
  const alloc = (bytes: number): number => {
    next += bytes;
    return next - bytes;
  };
  return { found: new BoxMaps(context, alloc, (to) => uploads.push(to)), asked, uploads };
}

it("makes a map once, and another for another matrix, gate or box", () => {
  const { found, asked, uploads } = maps(new Uint8Array(128));
  const first = found.find(boxes, make);
  expect(found.find({ ...boxes }, make)).toBe(first);
  const others = [{ at: 8192 }, { halves: 2 as const }, { boxRows: 8 }, { rows: 128 }].map((other) =>
    found.find({ ...boxes, ...other }, make),
  );
  expect(new Set([first, ...others]).size).toBe(5);
  expect(uploads).toEqual([first, ...others]);
  expect(asked.length).toBe(5);
  for (const address of uploads) expect(address % 128).toBe(0);
});

it("makes none while work is recorded, but finds those that are there", () => {
  const { found, asked } = maps(new Uint8Array(128));
  expect(() => found.find(boxes, refuse)).toThrow("recorded");
  expect(asked).toEqual([]);
  const address = found.find(boxes, make);
  expect(found.find(boxes, refuse)).toBe(address);
});

it("gives no map where the driver has none", () => {
  const { found, asked, uploads } = maps(null);
  expect([found.find(boxes, make), found.find(boxes, make)]).toEqual([0, 0]);
  expect([asked.length, uploads.length]).toEqual([1, 0]);
});
