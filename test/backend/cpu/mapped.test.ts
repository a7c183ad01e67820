/** Tensors that are pages of a file: in the heap's place and in native memory; and memory that the system gets back. */
import { readFile, truncate, writeFile } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../../src/backend/cpu/backend.ts";
import { isNative } from "../../../src/backend/cpu/blocks.ts";
import { libc } from "../../../src/backend/cpu/libc.ts";
import { collect } from "../../../src/backend/storage.ts";
import { GgufFile, loadSafetensors, SafetensorsFile, saveSafetensors, writeGguf } from "../../../src/formats/index.ts";
import { Device, scope, Tensor } from "../../../src/index.ts";
import { loadModel } from "../../../src/models/index.ts";
import { QTensor, qmatmul } from "../../../src/quantized/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const open = (name: string, make: () => CpuBackend) =>
  Device.open(name, () => Object.defineProperty(make(), "name", { value: name }));
const native = open("mapped-native", () => new CpuBackend({ allNative: true, pieceBytes: 2 ** 18 }));
const heap = open("mapped-heap", () => new CpuBackend());
const copying = open("copying", () => {
  process.env.WICK_MMAP = "0";
  try {
    return new CpuBackend();
  } finally {
    delete process.env.WICK_MMAP;
  }
});
const MIB = 2 ** 20;
const numbers = (n: number) => Float32Array.from({ length: n }, (_, i) => (i * 37) % 1009);

describe.runIf(libc())("files as tensors", () => {
  describe.each([
    ["in the heap's place", heap],
    ["in native memory", native],
  ])("%s", (name, device) => {
    it("are not copied, outlive their file's being open, and are given back", async () => {
      const values = numbers(MIB);
      const path = at(`${name}.safetensors`);
      await saveSafetensors(path, { x: Tensor.from(values, { shape: [1024, 1024] }), small: Tensor.ones([5]) });
      const before = device.memory();
      const { x, small } = Object.fromEntries(await loadSafetensors(path, { device })) as Record<string, Tensor>;
      expect(device.memory()).toMatchObject({ mapped: 4 * MIB, storages: before.storages + 2 });
      expect(device.memory().live - before.live).toBeLessThan(4 * MIB);
      expect(isNative(x!)).toBe(device === native);
      expect(Buffer.from(x!.bytesSync()).equals(Buffer.from(values.buffer))).toBe(true);
      const sums = scope(() => x!.t().sum(0).narrow(0, 3, 1).toArraySync());
      expect(sums).toEqual([values.subarray(3072, 4096).reduce((a, b) => a + b)]);
      x!.dispose();
      small!.dispose();
      expect(device.memory()).toMatchObject({ mapped: 0, live: before.live, storages: before.storages });
      // What takes their place is nobody's file.
      const again = Tensor.ones([MIB + 9], { device });
      expect(again.sumAll().toScalarSync()).toBe(MIB + 9);
    });

    it("can be written to, and the file stays as it was", async () => {
      const path = at(`${name}-written.gguf`);
      const weight = QTensor.quantize(Tensor.randn([2048, 1024], { seed: 1 }), "Q8_0");
      await writeGguf(path, {
        metadata: {},
        tensors: [blocksOf("w", weight)],
      });
      const stored = await readFile(path);
      await using file = await GgufFile.open(path);
      const w = (await file.readTensor("w", { device })) as QTensor;
      expect(device.memory().mapped).toBe(w.byteLength);
      using x = Tensor.randn([3, 1024], { seed: 2, device });
      const product = () => Buffer.from(qmatmul(x, w).bytesSync());
      const expected = Buffer.from(qmatmul(await x.toDevice(copying), await weight.toDevice(copying)).bytesSync());
      expect(product().equals(expected)).toBe(true);
      // The first row becomes the second.
      scope(() => w.blocks.sliceSet(w.blocks.narrow(0, 1, 1).copy(), 0, 0));
      const [first, second] = qmatmul(x, w).narrow(0, 0, 1).flattenAll().toArraySync() as number[];
      expect(first).toBe(second);
      expect((await readFile(path)).equals(stored)).toBe(true);
      w.dispose();
      expect(device.memory().mapped).toBe(0);
    });
  });

  it("are copied where elements would not be aligned", async () => {
    const header = Buffer.from(
      JSON.stringify({
        a: { dtype: "U8", shape: [1], data_offsets: [0, 1] },
        b: { dtype: "F32", shape: [MIB], data_offsets: [1, 1 + 4 * MIB] },
      }).padEnd(160),
    );
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    const path = at("odd.safetensors");
    await writeFile(path, Buffer.concat([length, header, Buffer.alloc(1), Buffer.from(numbers(MIB).buffer)]));
    await using file = await SafetensorsFile.open(path);
    const b = await file.read("b", { device: heap });
    expect(heap.memory().mapped).toBe(0);
    expect(b.narrow(0, 1000, 3).toArraySync()).toEqual([...numbers(1003).subarray(1000)]);
  });

  it("are refused where the file was cut since it was opened", async () => {
    const path = at("cut.safetensors");
    await saveSafetensors(path, { x: Tensor.zeros([MIB]) });
    await using file = await SafetensorsFile.open(path);
    await truncate(path, 2 * MIB);
    for (const device of [heap, native])
      await expect(file.read("x", { device })).rejects.toThrow(/ended at byte 2097152/);
  });

  it("are a model's weights, which answers as with copies", async () => {
    const path = at("llama.gguf");
    await writeGguf(path, randomLlama());
    const progress: number[] = [];
    const logits: Buffer[] = [];
    for (const device of [copying, heap, native]) {
      const model = await loadModel(path, {
        device,
        onProgress: ({ bytesLoaded, bytesTotal }) => progress.push(bytesLoaded / bytesTotal),
      });
      expect(progress.at(-1)).toBe(1);
      const { mapped = 0, live } = device.memory();
      if (device === copying) expect(mapped).toBe(0);
      else expect(mapped).toBeGreaterThan(7 * MIB);
      if (device === heap) expect(live).toBeLessThan(3 * MIB);
      const tokens: number[] = [];
      for await (const { token } of model.generate([5, 6, 7], { maxTokens: 4, temperature: 0 })) tokens.push(token);
      logits.push(Buffer.from(Uint32Array.from(tokens).buffer));
      model.dispose();
      collect();
      expect(device.memory().mapped ?? 0).toBe(0);
    }
    expect(logits[1]).toEqual(logits[0]);
    expect(logits[2]).toEqual(logits[0]);
  });
});

describe.runIf(libc() && process.platform === "linux")("memory that is free", () => {
  it("goes back to the system: at once where it is native, and of the heap by trim", () => {
    const grown = (device: Device, trim: boolean) => {
      const before = process.memoryUsage.rss();
      const x = Tensor.ones([16 * MIB], { device });
      const peak = process.memoryUsage.rss() - before;
      x.dispose();
      if (trim) device.backend.trim();
      return [peak, process.memoryUsage.rss() - before].map((bytes) => bytes / MIB) as [number, number];
    };
    for (const [peak, after] of [grown(native, false), grown(heap, true)]) {
      expect(peak).toBeGreaterThan(50);
      expect(after).toBeLessThan(peak - 50);
    }
  });

  it("is what the system has, and more than there is is refused", () => {
    expect(heap.available().bytes).toBeGreaterThan(2 ** 28);
    expect(heap.available().near).toBeLessThanOrEqual(2 ** 32);
    expect(() => Tensor.empty([2 ** 44], { device: heap })).toThrow(
      /cannot allocate 64\.0 TiB: .* the system can give/,
    );
  });
});

const blocksOf = (name: string, weight: QTensor) => ({
  name,
  type: weight.type,
  shape: weight.shape,
  async *data() {
    yield await weight.bytes();
  },
});

/** Some 12 MB in Q8_0, of which most is in matrices that are large enough to stay in their file. */
function randomLlama() {
  const [hidden, ffn, vocab] = [512, 4608, 1024];
  const matrix = (name: string, rows: number, columns: number, seed: number) => {
    const values = Tensor.randn([rows, columns], { seed }).affine(0.05, 0);
    return blocksOf(name, QTensor.quantize(values, "Q8_0"));
  };
  const norm = (name: string) => ({
    name,
    type: "F32",
    shape: [hidden],
    async *data() {
      yield new Uint8Array(new Float32Array(hidden).fill(1).buffer);
    },
  });
  const u32 = (value: number) => ({ type: "u32" as const, value });
  return {
    metadata: {
      "general.architecture": "llama",
      "llama.block_count": u32(1),
      "llama.context_length": u32(64),
      "llama.embedding_length": u32(hidden),
      "llama.feed_forward_length": u32(ffn),
      "llama.attention.head_count": u32(8),
      "llama.attention.head_count_kv": u32(8),
      "llama.attention.layer_norm_rms_epsilon": { type: "f32" as const, value: 1e-5 },
      "llama.vocab_size": u32(vocab),
    },
    tensors: [
      matrix("token_embd.weight", vocab, hidden, 1),
      norm("output_norm.weight"),
      norm("blk.0.attn_norm.weight"),
      norm("blk.0.ffn_norm.weight"),
      ...["q", "k", "v", "output"].map((part, i) => matrix(`blk.0.attn_${part}.weight`, hidden, hidden, 2 + i)),
      matrix("blk.0.ffn_gate.weight", ffn, hidden, 6),
      matrix("blk.0.ffn_up.weight", ffn, hidden, 7),
      matrix("blk.0.ffn_down.weight", hidden, ffn, 8),
    ],
  };
}
