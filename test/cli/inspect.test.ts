/** `wick inspect` and `wick quantize`. */
import { copyFile, link, mkdir, readdir, readFile, symlink, writeFile } from "node:fs/promises";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { inspectCommand } from "../../src/cli/inspect.ts";
import { quantizeCommand } from "../../src/cli/quantize.ts";
import { WickError } from "../../src/core/errors.ts";
import {
  GgufFile,
  type QuantizedTensorReport,
  type QuantizeProgress,
  quantizeFile,
  saveSafetensors,
  writeGguf,
} from "../../src/formats/index.ts";
import { Tensor } from "../../src/ops/index.ts";
import type { QTensor } from "../../src/quantized/index.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();

/** What the command prints. */
async function printed(command: "inspect" | "quantize", ...args: string[]): Promise<string> {
  const log = vi.spyOn(console, "log").mockImplementation(() => undefined);
  await (command === "inspect" ? inspectCommand() : quantizeCommand()).parseAsync(args, { from: "user" });
  const out = log.mock.calls.map(([line]) => String(line)).join("\n");
  log.mockRestore();
  return out;
}

afterEach(() => {
  process.exitCode = undefined;
});

async function expectError(action: Promise<unknown>, code: string, message: string): Promise<void> {
  const error = await action.then(
    () => "no error",
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(WickError);
  expect(error).toMatchObject({ code });
  expect((error as Error).message).toContain(message);
}

const rows = 9000;

beforeAll(async () => {
  await mkdir(at("model"));
  await saveSafetensors(
    at("model", "model.safetensors"),
    {
      matrix: Tensor.randn([4, 256], { seed: 1, dtype: "bf16" }),
      narrow: Tensor.randn([4, 33], { seed: 2, dtype: "f16" }),
      narrower: Tensor.randn([4, 33], { seed: 3, dtype: "bf16" }),
      vector: Tensor.randn([256], { seed: 4, dtype: "bf16" }),
      scalar: Tensor.from(0.5, { dtype: "f64" }),
      ids: Tensor.arange(0, 3, { dtype: "i64" }),
      hollow: Tensor.zeros([0, 256]),
    },
    { metadata: { format: "pt" } },
  );
  await writeGguf(at("model.gguf"), {
    alignment: 64,
    metadata: {
      "general.name": "a \u001b[31mred\u009b1m name",
      "general.file_type": 0,
      long: "x".repeat(300),
      tokens: ["a", "b", "c", "d", "e", "f", "g"],
      big: 2n ** 64n - 1n,
      infinite: Number.POSITIVE_INFINITY,
      nested: [[1, 2], ["a"]],
    },
    tensors: [
      { name: "w\u001b", tensor: Tensor.randn([8, 512], { seed: 5 }) },
      { name: "v", tensor: Tensor.randn([512], { seed: 6 }) },
    ],
  });
  const row = Tensor.randn([1, 512], { seed: 9 });
  await writeGguf(at("tall.gguf"), { tensors: [{ name: "w", tensor: row.repeat([rows, 1]) }] });
});

describe("wick inspect", () => {
  it("shows a GGUF file, and lets nothing in it steer the terminal", async () => {
    const out = await printed("inspect", at("model.gguf"));
    expect(out).toContain(`${at("model.gguf")}: GGUF version 3, alignment 64`);
    expect(out).toMatch(/Metadata: 8 entries/);
    expect(out).toMatch(/general\.name +string +"a \\u001b\[31mred\\u\{9b\}1m name"/);
    expect(out).toMatch(/long +string +"x{100}…" \(300 characters\)/);
    expect(out).toMatch(/tokens +string\[\] +7 values: \["a", "b", "c", "d", "e", "f", …\]/);
    expect(out).toMatch(/big +u64 +18446744073709551615/);
    expect(out).toMatch(/nested +array\[\] +2 values: \[2 values: \[1, 2\], 1 values: \["a"\]\]/);
    expect(out).toMatch(/Tensors: 2 with 4,608 elements in 18\.0 KiB/);
    expect(out).toMatch(/w\\u\{1b\} +F32 +\[8, 512\] +16\.0 KiB/);
    expect(out).toMatch(/F32 +2 tensors +4,608 elements +18\.0 KiB/);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(out).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  });

  it("prints it as JSON, long arrays shortened", async () => {
    const { metadata, ...rest } = JSON.parse(await printed("inspect", at("model.gguf"), "--json")) as {
      metadata: unknown[];
    };
    expect(metadata).toEqual([
      { key: "general.name", type: "string", value: "a \u001b[31mred\u009b1m name" },
      { key: "general.file_type", type: "u32", value: 0 },
      { key: "long", type: "string", value: "x".repeat(300) },
      { key: "tokens", type: "string[]", length: 7, value: ["a", "b", "c", "d", "e", "f"] },
      { key: "big", type: "u64", value: "18446744073709551615" },
      { key: "infinite", type: "f32", value: "Infinity" },
      {
        key: "nested",
        type: "array[]",
        length: 2,
        value: [
          { type: "u32[]", length: 2, value: [1, 2] },
          { type: "string[]", length: 1, value: ["a"] },
        ],
      },
      { key: "general.alignment", type: "u32", value: 64 },
    ]);
    expect(rest).toEqual({
      path: at("model.gguf"),
      format: "gguf",
      version: 3,
      alignment: 64,
      tensors: [
        { name: "w\u001b", type: "F32", shape: [8, 512], byteLength: 16384 },
        { name: "v", type: "F32", shape: [512], byteLength: 2048 },
      ],
      totals: [{ type: "F32", tensors: 2, elements: 4608, bytes: 18432 }],
    });
  });

  it("shows safetensors: a file, a folder, an index", async () => {
    const index = at("model", "model.safetensors.index.json");
    await writeFile(index, JSON.stringify({ weight_map: { matrix: "model.safetensors" } }));
    const file = await printed("inspect", at("model", "model.safetensors"));
    expect(file).toContain(": safetensors\n");
    expect(file).toMatch(/format +string +"pt"/);
    expect(file).toMatch(/matrix +bf16 +\[4, 256\] +2\.0 KiB/);
    expect(await printed("inspect", at("model"))).toContain("Tensors: 7 with");
    expect(await printed("inspect", index)).toContain("Tensors: 1 with 1,024 elements in 2.0 KiB");
  });

  it("knows a GGUF file by what it holds, and names the problem of others", async () => {
    await copyFile(at("model.gguf"), at("no-ending"));
    expect(await printed("inspect", at("no-ending"))).toContain("GGUF version 3");
    await writeFile(at("text.gguf"), "no");
    await expectError(printed("inspect", at("text.gguf")), "InvalidFile", "needs 4 bytes for its magic bytes");
    await expectError(printed("inspect", at("missing.gguf")), "InvalidFile", "cannot be opened");
    await expectError(printed("inspect", at("missing")), "InvalidFile", "cannot be opened");
  });
});

const byName = (reports: readonly QuantizedTensorReport[]) => new Map(reports.map((report) => [report.name, report]));

describe("wick quantize", () => {
  it("writes matrices as the type and keeps the precision of the rest", async () => {
    const out = at("model.Q4_K.gguf");
    const progress: QuantizeProgress[] = [];
    const reports = byName(await quantizeFile(at("model"), out, { type: "Q4_K", onProgress: (p) => progress.push(p) }));
    const types = Object.fromEntries([...reports].map(([name, { from, to }]) => [name, `${from} ${to}`]));
    expect(types).toEqual({
      matrix: "bf16 Q4_K",
      narrow: "f16 F16",
      narrower: "bf16 F32",
      vector: "bf16 F32",
      scalar: "f64 F32",
      ids: "i64 I64",
      hollow: "f32 Q4_K",
    });
    const { rmse, maxError } = reports.get("matrix")!;
    expect(rmse).toBeGreaterThan(0.02);
    expect(rmse).toBeLessThan(0.1);
    expect(maxError).toBeGreaterThan(rmse);
    expect(maxError).toBeLessThan(0.5);
    for (const [name, report] of reports) if (name !== "matrix") expect([report.rmse, report.maxError]).toEqual([0, 0]);
    expect(progress.map((p) => p.bytesDone)).toEqual(progress.map((p) => p.bytesDone).toSorted((a, b) => a - b));
    expect(progress.at(-1)!.bytesDone).toBe(progress[0]!.bytesTotal);

    await using file = await GgufFile.open(out);
    expect(file.metadata).toEqual(
      new Map([
        ["general.file_type", 15],
        ["general.quantization_version", 2],
      ]),
    );
    // The report is that of what the file now holds.
    using matrix = (await file.readTensor("matrix")) as QTensor;
    const before = (await Tensor.randn([4, 256], { seed: 1, dtype: "bf16" }).toDType("f32").data()) as Float32Array;
    const after = (await matrix.dequantize().data()) as Float32Array;
    const errors = [...before].map((x, i) => Math.abs(x - after[i]!));
    expect(Math.sqrt(errors.reduce((sum, e) => sum + e * e, 0) / errors.length)).toBeCloseTo(rmse, 6);
    expect(Math.max(...errors)).toBeCloseTo(maxError, 6);
    const ids = (await file.readTensor("ids")) as Tensor;
    expect(ids.toArraySync()).toEqual([0n, 1n, 2n]);
  });

  it("takes a GGUF file, keeps its metadata and alignment, and quantizes again", async () => {
    await quantizeFile(at("model.gguf"), at("eight.gguf"), { type: "q8_0" });
    const reports = byName(await quantizeFile(at("eight.gguf"), at("four.gguf"), { type: "Q4_0" }));
    expect(reports.get("w\u001b")).toMatchObject({ from: "Q8_0", to: "Q4_0", bytesBefore: 4352, bytesAfter: 2304 });
    const same = byName(await quantizeFile(at("eight.gguf"), at("same.gguf"), { type: "Q8_0" }));
    expect(same.get("w\u001b")!.rmse).toBe(0);
    expect(Buffer.compare(await readFile(at("same.gguf")), await readFile(at("eight.gguf")))).toBe(0);
    await using first = await GgufFile.open(at("model.gguf"));
    await using last = await GgufFile.open(at("four.gguf"));
    expect(last.alignment).toBe(64);
    const expected = new Map(first.typedMetadata)
      .set("general.file_type", { type: "u32", value: 2 })
      .set("general.quantization_version", { type: "u32", value: 2 });
    expect(last.typedMetadata).toEqual(expected);
    // A type without a number of its own leaves none behind.
    await quantizeFile(at("model.gguf"), at("k.gguf"), { type: "Q8_K" });
    await using k = await GgufFile.open(at("k.gguf"));
    expect(k.metadata.has("general.file_type")).toBe(false);
  });

  it("copies blocks that do not fit the type, and types that it cannot compute with", async () => {
    const data = async function* () {
      yield new Uint8Array(34).fill(3);
    };
    const eights = async function* () {
      yield new Uint8Array(4).fill(5);
    };
    await writeGguf(at("odd.gguf"), {
      tensors: [
        { name: "q", type: "Q8_0", shape: [1, 32], data },
        { name: "i", type: "I8", shape: [2, 2], data: eights },
      ],
    });
    const reports = await quantizeFile(at("odd.gguf"), at("odd.Q4_K.gguf"), { type: "Q4_K" });
    expect(reports.map(({ to, rmse }) => [to, rmse])).toEqual([
      ["Q8_0", 0],
      ["I8", 0],
    ]);
    await using file = await GgufFile.open(at("odd.Q4_K.gguf"));
    expect([...(await file.readBytes("q"))]).toEqual(Array(34).fill(3));
  });

  it("works through a tensor in pieces", async () => {
    const progress: number[] = [];
    const [report] = await quantizeFile(at("tall.gguf"), at("tall.Q8_0.gguf"), {
      type: "Q8_0",
      onProgress: ({ bytesDone }) => progress.push(bytesDone),
    });
    expect(progress).toEqual([2 ** 24, rows * 512 * 4]);
    await using file = await GgufFile.open(at("tall.Q8_0.gguf"));
    const bytes = await file.readBytes("w");
    const row = bytes.subarray(0, 16 * 34);
    for (const i of [1, 8191, 8192, rows - 1]) {
      expect(Buffer.compare(bytes.subarray(i * row.length, (i + 1) * row.length), row)).toBe(0);
    }
    expect(report!.rmse).toBeGreaterThan(0);
  });

  it("prints a table, or JSON", async () => {
    const table = await printed("quantize", at("model"), at("table.gguf"), "--type", "q6_k", "--threads", "1");
    expect(table).toMatch(/tensor +shape +type +size +RMSE +max error/);
    expect(table).toMatch(/matrix +\[4, 256\] +bf16 → Q6_K +840 B +\d\.\d\de-\d +\d\.\d\de-\d/);
    expect(table).toMatch(/7 tensors, .* → .*, written to .*table\.gguf/);
    const json = JSON.parse(await printed("quantize", at("model"), at("json.gguf"), "--type", "F16", "--json")) as {
      tensors: QuantizedTensorReport[];
      type: string;
    };
    expect(json.type).toBe("F16");
    expect(byName(json.tensors).get("matrix")!.to).toBe("F16");
  });

  it("never overwrites its input, by whatever name", async () => {
    const before = await readFile(at("model.gguf"));
    await symlink(at("model.gguf"), at("soft.gguf"));
    await link(at("model.gguf"), at("hard.gguf"));
    await mkdir(at("folder"));
    for (const output of [at("model.gguf"), at("model", "..", "model.gguf"), at("soft.gguf"), at("hard.gguf")]) {
      await expectError(
        quantizeFile(at("model.gguf"), output, { type: "Q8_0" }),
        "InvalidArgument",
        "which is read from; name another output",
      );
    }
    const shard = at("model", "model.safetensors");
    const index = at("model", "model.safetensors.index.json");
    for (const input of [at("model"), index]) {
      await expectError(quantizeFile(input, shard, { type: "Q8_0" }), "InvalidArgument", "which is read from");
    }
    await expectError(quantizeFile(shard, at("folder"), { type: "Q8_0" }), "InvalidArgument", "is not a file");
    expect(Buffer.compare(await readFile(at("model.gguf")), before)).toBe(0);
  });

  it("leaves no file behind where it fails or is stopped", async () => {
    await mkdir(at("out"));
    const output = at("out", "x.gguf");
    await saveSafetensors(at("bytes.safetensors"), {
      a: Tensor.zeros([2, 32]),
      b: Tensor.zeros([2, 32], { dtype: "u8" }),
    });
    await expectError(
      quantizeFile(at("bytes.safetensors"), output, { type: "Q8_0" }),
      "UnexpectedDType",
      'tensor "b" has dtype u8, which GGUF lacks',
    );
    await expectError(quantizeFile(at("model"), output, { type: "IQ4_NL" }), "InvalidArgument", 'to "IQ4_NL"; known');
    await expectError(quantizeFile(at("model"), output, { type: "Q9" }), "InvalidArgument", "known are F32, F16");
    const abort = new AbortController();
    const stopped = quantizeFile(at("model"), output, {
      type: "Q8_0",
      signal: abort.signal,
      onTensor: () => abort.abort(),
    });
    await expect(stopped).rejects.toThrow(/abort/i);
    expect(await readdir(at("out"))).toEqual([]);
  });

  it("ends with exit code 130 when it is interrupted", async () => {
    await mkdir(at("interrupted"));
    const listeners = process.listenerCount("SIGINT");
    const running = printed("quantize", at("tall.gguf"), at("interrupted", "x.gguf"), "--type", "Q8_0");
    await new Promise((done) => setTimeout(done, 5));
    process.emit("SIGINT");
    expect(await running).toBe("");
    expect(process.exitCode).toBe(130);
    expect(await readdir(at("interrupted"))).toEqual([]);
    expect(process.listenerCount("SIGINT")).toBe(listeners);
  });
});
