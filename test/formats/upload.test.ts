/** Bytes on their way from a file to a device: in pieces, several at a time, and what is left where one fails. */
import { truncate } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { openWeights, SafetensorsFile, saveSafetensors, writeGguf } from "../../src/formats/index.ts";
import { piecesOf, Transfers } from "../../src/formats/upload.ts";
import { Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();
const piece = 8 * 2 ** 20;

describe("pieces", () => {
  it("cover a range in whole units", () => {
    const all = (start: number, end: number, unit?: number) => [...piecesOf({ start, end }, unit)];
    expect(all(5, 5)).toEqual([]);
    expect(all(5, 9)).toEqual([{ start: 5, end: 9 }]);
    expect(all(1, piece + 3)).toEqual([
      { start: 1, end: piece + 1 },
      { start: piece + 1, end: piece + 3 },
    ]);
    const unit = 3 * 2 ** 20;
    expect(all(0, 3 * unit, unit).map(({ start, end }) => (end - start) / unit)).toEqual([2, 1]);
    expect(all(0, 2 * (piece + 1), piece + 1)).toHaveLength(2);
  });
});

describe("transfers", () => {
  it("run side by side, but never more than a few", async () => {
    const transfers = new Transfers();
    let [running, most, done] = [0, 0, 0];
    for (let i = 0; i < 50; i++) {
      await transfers.begin(async () => {
        most = Math.max(most, ++running);
        await pause(i % 3);
        running--;
        done++;
      });
    }
    await transfers.end();
    expect(done).toBe(50);
    expect(most).toBe(6);
  });

  it("end with the first failure, behind which none begins", async () => {
    const transfers = new Transfers();
    const begun: number[] = [];
    const all = async () => {
      for (let i = 0; i < 50; i++) {
        await transfers.begin(async () => {
          begun.push(i);
          await pause(1);
          if (i >= 3) throw new Error(`transfer ${i}`);
        });
      }
    };
    await expect(all()).rejects.toThrow("transfer 3");
    expect(begun.length).toBeLessThan(12);
    await expect(transfers.end()).rejects.toThrow("transfer 3");
  });
});

describeInTurns("receiving", (device) => {
  const bytesOf = (n: number, seed: number) => Uint8Array.from({ length: n }, (_, i) => (i * 31 + seed) & 255);

  it("writes what is read, at any place and size, several at a time", async () => {
    const sizes = [1, 3, 4096, 70_001, 1, 2 ** 17];
    const total = sizes.reduce((a, b) => a + b, 0);
    using x = Tensor.zeros([total + 2], { dtype: "u8", device });
    const want = new Uint8Array(total + 2);
    let next = 1;
    const all = sizes.map((n, i) => {
      const data = bytesOf(n, i);
      const to = next;
      want.set(data, to);
      next += n;
      return x.storage.receive(to, n, async (out) => {
        expect(out.byteLength).toBe(n);
        await pause((i * 5) % 3);
        out.set(data);
      });
    });
    await Promise.all(all);
    expect(Buffer.compare(await x.bytes(), want)).toBe(0);
  });

  it("goes on when cached memory is given back in the middle", async () => {
    using x = Tensor.zeros([300_000], { dtype: "u8", device });
    const receive = (at: number) =>
      x.storage.receive(at, 100_000, async (out) => {
        await pause(1);
        device.backend.trim();
        out.fill(at / 100_000 + 1);
      });
    await Promise.all([receive(0), receive(100_000)]);
    device.backend.trim();
    await receive(200_000);
    const bytes = await x.bytes();
    expect([0, 99_999, 100_000, 199_999, 200_000, 299_999].map((i) => bytes[i])).toEqual([1, 1, 2, 2, 3, 3]);
  });

  it("leaves the bytes as they were where reading fails", async () => {
    using x = Tensor.ones([100], { dtype: "u8", device });
    const failing = x.storage.receive(10, 50, async () => {
      throw new Error("no more");
    });
    await expect(failing).rejects.toThrow("no more");
    expect([...(await x.bytes())]).toEqual(Array(100).fill(1));
  });

  it("keeps the memory of a disposed tensor until it is done", async () => {
    collect();
    const before = device.memory().live;
    const x = Tensor.ones([4096], { dtype: "u8", device });
    const held = device.memory().live;
    const receiving = x.storage.receive(0, 4096, async (out) => {
      await pause(1);
      out.fill(7);
    });
    x.dispose();
    expect(device.memory().live).toBe(held);
    await receiving;
    expect(device.memory().live).toBe(before);
  });

  async function* inPieces(bytes: Uint8Array) {
    yield bytes;
  }
  const large = 2 * piece + 12_345;
  const data = bytesOf(large, 3);

  it("brings tensors of several pieces from both formats", async () => {
    const path = at("large.safetensors");
    using x = Tensor.fromBytes(data, [large], "u8");
    await saveSafetensors(path, { x });
    await using file = await SafetensorsFile.open(path);
    using read = await file.read("x", { device });
    expect(Buffer.compare(await read.bytes(), data)).toBe(0);

    const ggufPath = at("large.gguf");
    const floats = data.subarray(0, large - (large % 4));
    const tensors = [{ name: "x", type: "F32", shape: [floats.length / 4], data: () => inPieces(floats) }];
    await writeGguf(ggufPath, { metadata: {}, tensors });
    await using weights = await openWeights(ggufPath);
    const out = new Uint8Array(10);
    await weights.readInto(out, "x", piece - 5);
    expect([...out]).toEqual([...floats.subarray(piece - 5, piece + 5)]);
    await expect(weights.readInto(out, "x", floats.length - 9)).rejects.toThrow(/bytes \d+ to \d+ of tensor "x"/);
  });

  it("frees the tensor of a file that ends too early, or that nobody waits for any more", async () => {
    const path = at("cut.safetensors");
    using x = Tensor.fromBytes(data, [large], "u8");
    await saveSafetensors(path, { x });
    await using file = await SafetensorsFile.open(path);
    collect();
    const before = device.memory().live;
    await truncate(path, piece + 100);
    await expect(file.read("x", { device })).rejects.toThrow(/cut\.safetensors ended at byte \d+, but had \d+ bytes/);
    const signal = AbortSignal.abort(new Error("enough"));
    await expect(file.read("x", { device, signal })).rejects.toThrow("enough");
    expect(device.memory().live).toBe(before);
  });
});
