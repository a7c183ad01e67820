import { mkdir, open, readdir, readFile, writeFile } from "node:fs/promises";
import { gguf as otherReader } from "@huggingface/gguf";
import { describe, expect, it, vi } from "vitest";
import { memorySource, sample } from "../../../scripts/gguf-mutations.mjs";
import { collect } from "../../../src/backend/storage.ts";
import { type DType, sizeOf } from "../../../src/core/dtype.ts";
import { WickError } from "../../../src/core/errors.ts";
import { numel } from "../../../src/core/layout.ts";
import { BinaryFile } from "../../../src/formats/binary-file.ts";
import { type GgufHeader, parseGguf } from "../../../src/formats/gguf/header.ts";
import { GgufFile, type GgufInput, type GgufTyped, writeGguf } from "../../../src/formats/index.ts";
import { Device } from "../../../src/index.ts";
import { Tensor } from "../../../src/ops/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { quantTypeNames, quantTypes } from "../../../src/quantized/types.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();

const pattern = (length: number): Uint8Array => Uint8Array.from({ length }, (_, i) => (i * 37 + 11) & 255);

async function expectError(action: Promise<unknown>, code: string, message: RegExp | string): Promise<void> {
  const error = await action.then(
    () => "no error",
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(WickError);
  expect(error).toMatchObject({ code });
  if (typeof message === "string") expect((error as Error).message).toContain(message);
  else expect((error as Error).message).toMatch(message);
}

/** Writes these, and reads them again. */
async function trip(metadata: Record<string, GgufInput>): Promise<GgufFile> {
  const path = at("trip.gguf");
  await writeGguf(path, { metadata, tensors: [] });
  await using file = await GgufFile.open(path);
  return file;
}

const everyType: Record<string, GgufTyped> = {
  "least.u8": { type: "u8", value: 0 },
  "most.u8": { type: "u8", value: 255 },
  "least.i8": { type: "i8", value: -128 },
  "most.u16": { type: "u16", value: 65535 },
  "least.i16": { type: "i16", value: -32768 },
  "most.u32": { type: "u32", value: 2 ** 32 - 1 },
  "least.i32": { type: "i32", value: -(2 ** 31) },
  "some.f32": { type: "f32", value: Math.fround(0.1) },
  "nan.f32": { type: "f32", value: Number.NaN },
  "zero.f32": { type: "f32", value: -0 },
  "true.bool": { type: "bool", value: true },
  "false.bool": { type: "bool", value: false },
  "empty.string": { type: "string", value: "" },
  "some.string": { type: "string", value: "\ufeffcandle \u{1f56f} 日本\0\n" },
  "safe.u64": { type: "u64", value: Number.MAX_SAFE_INTEGER },
  "most.u64": { type: "u64", value: 2n ** 64n - 1n },
  "safe.i64": { type: "i64", value: Number.MIN_SAFE_INTEGER },
  "least.i64": { type: "i64", value: -(2n ** 63n) },
  "some.f64": { type: "f64", value: 0.1 },
  "infinite.f64": { type: "f64", value: Number.NEGATIVE_INFINITY },
  "array.u8": { type: "u8[]", value: Uint8Array.of(1, 255) },
  "array.i8": { type: "i8[]", value: Int8Array.of(-1, 127) },
  "array.u16": { type: "u16[]", value: Uint16Array.of(1, 65535) },
  "array.i16": { type: "i16[]", value: Int16Array.of(-1, 32767) },
  "array.u32": { type: "u32[]", value: Uint32Array.of(1, 2 ** 32 - 1) },
  "array.i32": { type: "i32[]", value: Int32Array.of(-1, 2 ** 31 - 1) },
  "array.f32": { type: "f32[]", value: Float32Array.of(0.1, Number.NaN) },
  "array.f64": { type: "f64[]", value: Float64Array.of(0.1, -0) },
  "array.u64": { type: "u64[]", value: BigUint64Array.of(1n, 2n ** 64n - 1n) },
  "array.i64": { type: "i64[]", value: BigInt64Array.of(-1n, -(2n ** 63n)) },
  "exact.u64": { type: "u64[]", value: [1, Number.MAX_SAFE_INTEGER] },
  "exact.i64": { type: "i64[]", value: [-1, Number.MIN_SAFE_INTEGER] },
  "array.bool": { type: "bool[]", value: [true, false] },
  "array.string": { type: "string[]", value: ["", "a", "日本"] },
  "array.empty": { type: "string[]", value: [] },
  "array.none": { type: "array[]", value: [] },
  "array.deep": {
    type: "array[]",
    value: [
      { type: "u8[]", value: Uint8Array.of(1) },
      { type: "array[]", value: [{ type: "string[]", value: ["x"] }] },
      { type: "i16[]", value: new Int16Array(0) },
    ],
  },
  ["__proto__"]: { type: "u8", value: 7 },
};

describe("metadata", () => {
  it("of every type comes back with its type", async () => {
    const metadata = new Map(Object.entries(everyType));
    await writeGguf(at("types.gguf"), { metadata, tensors: [] });
    await using file = await GgufFile.open(at("types.gguf"));
    expect(file.typedMetadata).toEqual(metadata);
    expect(file.metadata.get("most.u64")).toBe(2n ** 64n - 1n);
    expect(file.metadata.get("safe.u64")).toBe(Number.MAX_SAFE_INTEGER);
    expect(file.metadata.get("zero.f32")).toBe(-0);
    expect(file.metadata.get("array.deep")).toEqual([Uint8Array.of(1), [["x"]], new Int16Array(0)]);
    expect([...file.metadata.keys()]).toEqual([...metadata.keys()]);
  });

  it.each<[GgufInput, GgufTyped["type"]]>([
    [true, "bool"],
    ["text", "string"],
    [7, "u32"],
    [-7, "i32"],
    [2 ** 32, "u64"],
    [-(2 ** 40), "i64"],
    [2n ** 63n, "u64"],
    [0.5, "f32"],
    [-0, "f32"],
    [1e300, "f32"],
    [Number.NaN, "f32"],
    [[1, 2], "u32[]"],
    [[1, -2], "i32[]"],
    [[1, 2 ** 40], "u64[]"],
    [[-1, 2 ** 40], "i64[]"],
    [[1, 0.5], "f32[]"],
    [[1, 2n], "u32[]"],
    [["a"], "string[]"],
    [[true, false], "bool[]"],
    [Buffer.from([1]), "u8[]"],
    [Int8Array.of(1), "i8[]"],
    [Float64Array.of(1), "f64[]"],
    [BigUint64Array.of(1n), "u64[]"],
    [BigInt64Array.of(-1n), "i64[]"],
    [[[1], ["a"]], "array[]"],
  ])("without a type gets one: %o is %s", async (value, type) => {
    expect((await trip({ key: value })).typedMetadata.get("key")!.type).toBe(type);
  });

  it.each<[unknown, string, RegExp]>([
    [[], "InvalidArgument", /"key" is an empty array; say its type/],
    [{ type: "array", value: [1] } as never, "InvalidArgument", /"key" has the unknown type "array"; types are u8/],
    [[1, "a"], "InvalidArgument", /a mixture of number and string/],
    [[1, true], "InvalidArgument", /a mixture of number and boolean/],
    [[[1], 2], "InvalidArgument", /a mixture of object and number/],
    [null, "InvalidArgument", /is an object/],
    [undefined, "InvalidArgument", /is undefined/],
    [new Date(), "InvalidArgument", /is an object/],
    [new Uint8ClampedArray(1), "InvalidArgument", /is an object/],
    [2n ** 64n, "ValueOutOfRange", /no integer type holds all/],
    [[-1n, 2n ** 63n], "ValueOutOfRange", /no integer type holds all/],
    ["\ud800", "ValueOutOfRange", /not well-formed Unicode/],
    [{ type: "u8", value: 256 }, "ValueOutOfRange", /"256" is not a whole number from 0 to 255 \(type u8\)/],
    [{ type: "u8", value: 0.5 }, "ValueOutOfRange", /"0.5" is not a whole number/],
    [{ type: "i64[]", value: [2n ** 63n] }, "ValueOutOfRange", /is not a whole number/],
    [{ type: "f32", value: "1" }, "ValueOutOfRange", /"1" is not a number/],
    [{ type: "bool", value: 1 }, "ValueOutOfRange", /"1" is not a boolean/],
    [{ type: "string", value: 1 }, "ValueOutOfRange", /"1" is not a string/],
    [{ type: "u128", value: 1 }, "InvalidArgument", /unknown type "u128"/],
    [{ type: "u8[]", value: 1 }, "InvalidArgument", /no array \(type u8\[\]\)/],
    [{ type: "array[]", value: [{ type: "u8", value: 1 }] }, "InvalidArgument", /no array \(type u8\)/],
  ])("that no file can hold is refused: %o", async (value, code, message) => {
    await expectError(trip({ key: value as GgufInput }), code, message);
    await expectError(trip({ "\ud800": 1 }), "InvalidArgument", "not well-formed");
    await expectError(trip({ ["k".repeat(65536)]: 1 }), "InvalidArgument", "has a key of 65536 bytes");
  });

  it("keeps long arrays and strings that do not fit the reading window", async () => {
    const strings = Array.from({ length: 200_000 }, (_, i) => `token ${i}`);
    const long = "x".repeat(3 * 2 ** 20);
    const numbers = Float32Array.from({ length: 400_000 }, (_, i) => i / 3);
    const { metadata } = await trip({ strings, long, numbers, last: 7 });
    expect(metadata.get("strings")).toEqual(strings);
    expect(metadata.get("long")).toBe(long);
    expect(metadata.get("numbers")).toEqual(numbers);
    expect(metadata.get("last")).toBe(7);
  });

  it("with bytes that are not UTF-8 is read with replacement characters", async () => {
    const bytes = file3({ metadata: [kv("k", 8, u64(2), Buffer.from([0x61, 0xff]))] });
    expect((await parse(bytes)).metadata.get("k")).toEqual({ type: "string", value: "a\ufffd" });
  });
});

const dtypes: DType[] = ["f32", "f16", "bf16", "f64", "i16", "i32", "i64"];
const shapes = [[], [5], [3, 5], [2, 3, 4], [2, 1, 3, 2], [0], [2, 0, 3]];

describe("tensors", () => {
  it.each(dtypes)("of %s come back, whatever their shape", async (dtype) => {
    const path = at(`${dtype}.gguf`);
    const bytes = (shape: number[]) => pattern(numel(shape) * sizeOf(dtype));
    await writeGguf(path, {
      tensors: shapes.map((shape) => ({
        name: `t${shape.join("x")}`,
        tensor: Tensor.fromBytes(bytes(shape), shape, dtype),
      })),
    });
    await using file = await GgufFile.open(path);
    for (const shape of shapes) {
      const name = `t${shape.join("x")}`;
      const tensor = (await file.readTensor(name)) as Tensor;
      expect([tensor.dtype, tensor.shape]).toEqual([dtype, shape]);
      expect(Buffer.compare(await tensor.bytes(), bytes(shape))).toBe(0);
      expect(file.info(name)).toMatchObject({ typeName: dtype.toUpperCase(), shape, byteLength: bytes(shape).length });
      expect(file.info(name).offset % 32).toBe(0);
    }
  });

  it.each(quantTypeNames)("of %s come back byte for byte", async (type) => {
    const { size, bytes: blockBytes, id } = quantTypes[type];
    const shape = [3, 2 * size];
    const bytes = pattern(3 * 2 * blockBytes);
    await writeGguf(at("quant.gguf"), {
      tensors: [{ name: "w", tensor: QTensor.fromBytes(bytes, shape, type) }],
    });
    await using file = await GgufFile.open(at("quant.gguf"));
    expect(file.info("w")).toMatchObject({ type: id, typeName: type, shape, byteLength: bytes.length });
    const tensor = (await file.readTensor("w")) as QTensor;
    expect(tensor).toBeInstanceOf(QTensor);
    expect([tensor.type, tensor.shape]).toEqual([type, shape]);
    expect(Buffer.compare(await tensor.bytes(), bytes)).toBe(0);
  });

  it("that are views are written in row-major order, dims reversed", async () => {
    const turned = Tensor.arange(0, 6).reshape([2, 3]).t();
    await writeGguf(at("view.gguf"), { tensors: [{ name: "t", tensor: turned }] });
    await using file = await GgufFile.open(at("view.gguf"));
    expect(((await file.readTensor("t")) as Tensor).toArraySync()).toEqual(turned.toArraySync());
    const bytes = await readFile(at("view.gguf"));
    const dims = bytes.indexOf("t", 24) + 1 + 4;
    expect([bytes.readBigUInt64LE(dims), bytes.readBigUInt64LE(dims + 8)]).toEqual([2n, 3n]);
  });

  it.each([1, 8, 32, 256, 4096])("start at multiples of the alignment %i", async (alignment) => {
    const tensors = [1, 2, 3].map((n) => ({ name: `t${n}`, tensor: Tensor.arange(0, n) }));
    await writeGguf(at("aligned.gguf"), { tensors, alignment });
    await using file = await GgufFile.open(at("aligned.gguf"));
    expect(file.alignment).toBe(alignment);
    for (const [name, { offset }] of file.tensors) {
      expect(offset % alignment).toBe(0);
      expect(((await file.readTensor(name)) as Tensor).numel).toBe(Number(name[1]));
    }
    // The key in the metadata says the same as the option.
    await writeGguf(at("again.gguf"), { tensors, metadata: file.typedMetadata });
    expect(Buffer.compare(await readFile(at("again.gguf")), await readFile(at("aligned.gguf")))).toBe(0);
  });

  it("are read in part as bytes", async () => {
    await writeGguf(at("part.gguf"), { tensors: [{ name: "t", tensor: Tensor.arange(0, 4) }] });
    await using file = await GgufFile.open(at("part.gguf"));
    expect([...(await file.readBytes("t", undefined, { start: 4, end: 6 }))]).toEqual([0, 0]);
    await expectError(file.readBytes("t", undefined, { start: 4, end: 17 }), "InvalidArgument", "bytes 4 to 17");
    await expectError(file.readBytes("t", undefined, { start: 4, end: 3 }), "InvalidArgument", "bytes 4 to 3");
    await expectError(file.readTensor("u"), "MissingTensor", 'has no tensor "u"; it has "t"');
    await file.close();
    await expectError(file.readBytes("t"), "Disposed", "was closed");
  });

  it("beyond 4 GiB are read, and only they", async () => {
    const offset = 5 * 2 ** 30;
    const path = at("large.gguf");
    const head = file3({
      tensors: [
        ["huge", [2 ** 29 + 1], 28, 0n],
        ["small", [2, 2], 0, BigInt(offset)],
      ],
    });
    const handle = await open(path, "w");
    await handle.write(head);
    const start = Math.ceil(head.length / 32) * 32 + offset;
    await handle.write(new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer), 0, 16, start);
    await handle.close();
    await using file = await GgufFile.open(path);
    expect(((await file.readTensor("small")) as Tensor).toArraySync()).toEqual([
      [1, 2],
      [3, 4],
    ]);
    const end = file.info("huge").byteLength;
    expect(end).toBeGreaterThan(2 ** 32);
    expect([...(await file.readBytes("huge", undefined, { start: end - 2, end }))]).toEqual([0, 0]);
  });

  it("free their memory where reading is aborted or fails", async () => {
    await writeGguf(at("abort.gguf"), { tensors: [{ name: "t", tensor: Tensor.zeros([5 * 2 ** 20]) }] });
    await using file = await GgufFile.open(at("abort.gguf"));
    collect();
    const { storages } = Device.cpu().memory();
    const abort = new AbortController();
    const reading = file.readTensor("t", { signal: abort.signal });
    abort.abort();
    await expect(reading).rejects.toThrow(/abort/i);
    await file.close();
    await expectError(file.readTensor("t"), "Disposed", "was closed");
    expect(Device.cpu().memory().storages).toBe(storages);
  });
});

describe("writing", () => {
  const promised = (pieces: number[], shape = [4]) => ({
    name: "p",
    type: "F32",
    shape,
    async *data() {
      for (const n of pieces) yield new Uint8Array(n).fill(n);
    },
  });

  it("asks for promised bytes one tensor after the other", async () => {
    const order: string[] = [];
    const entry = (name: string) => ({
      ...promised([10, 6]),
      name,
      async *data() {
        order.push(`${name} starts`);
        yield* promised([10, 6]).data();
        order.push(`${name} ends`);
      },
    });
    await writeGguf(at("promised.gguf"), { tensors: [entry("a"), entry("b")] });
    expect(order).toEqual(["a starts", "a ends", "b starts", "b ends"]);
    await using file = await GgufFile.open(at("promised.gguf"));
    expect([...(await file.readBytes("b"))]).toEqual([...Array(10).fill(10), ...Array(6).fill(6)]);
  });

  it("that fails leaves what was there, and nothing else", async () => {
    const path = at("kept", "x.gguf");
    await mkdir(at("kept"));
    await writeFile(path, "before");
    const failing = {
      ...promised([]),
      async *data() {
        yield new Uint8Array(8);
        throw new Error("the source broke");
      },
    };
    await expect(writeGguf(path, { tensors: [failing] })).rejects.toThrow("the source broke");
    await expectError(writeGguf(path, { tensors: [promised([10])] }), "InvalidArgument", "16 bytes, but only 10 came");
    await expectError(writeGguf(path, { tensors: [promised([10, 7])] }), "InvalidArgument", "16 bytes, but more came");
    const abort = new AbortController();
    const aborting = {
      ...promised([]),
      async *data() {
        yield new Uint8Array(8);
        abort.abort();
        yield new Uint8Array(8);
      },
    };
    await expect(writeGguf(path, { tensors: [aborting], signal: abort.signal })).rejects.toThrow(/abort/i);
    expect(await readdir(at("kept"))).toEqual(["x.gguf"]);
    expect(await readFile(path, "utf8")).toBe("before");
  });

  it.each<[string, Parameters<typeof writeGguf>[1], string, string]>([
    ["a long name", { tensors: [{ ...promised([16]), name: "é".repeat(33) }] }, "InvalidArgument", "name of 66 bytes"],
    [
      "five dims",
      { tensors: [{ name: "t", tensor: Tensor.zeros([1, 1, 1, 1, 1]) }] },
      "UnexpectedNumberOfDims",
      "the format allows 4 dims",
    ],
    ["one name twice", { tensors: [promised([16]), promised([16])] }, "InvalidArgument", 'two tensors are named "p"'],
    [
      "a dtype without a type",
      { tensors: [{ name: "t", tensor: Tensor.zeros([1], { dtype: "u8" }) }] },
      "UnexpectedDType",
      "has dtype u8, which GGUF lacks; convert it with toDType()",
    ],
    ["an unknown type", { tensors: [{ ...promised([16]), type: "Q9" }] }, "UnexpectedDType", 'unknown type "Q9"'],
    [
      "rows of part blocks",
      { tensors: [{ ...promised([16], [2, 48]), type: "Q4_0" }] },
      "InvalidShape",
      "[2, 48] of type Q4_0, but rows of 48 are not whole blocks of 32",
    ],
    ["a wrong shape", { tensors: [promised([16], [-1])] }, "InvalidShape", "-1 is not a size"],
    ["alignment 0", { tensors: [], alignment: 0 }, "InvalidArgument", "alignment 0 is not a power of two"],
    ["alignment 48", { tensors: [], alignment: 48 }, "InvalidArgument", "alignment 48 is not a power of two"],
    [
      "alignment of the metadata",
      { tensors: [], metadata: { "general.alignment": "x" } },
      "InvalidArgument",
      "alignment x is not a power of two",
    ],
  ])("refuses %s", async (_, options, code, message) => {
    await expectError(writeGguf(at("refused.gguf"), options), code, message);
    expect(await readdir(at())).not.toContain("refused.gguf");
  });
});

it("is understood by another reader", async () => {
  const path = at("other.gguf");
  const metadata = new Map(Object.entries(everyType));
  // That reader keeps its results in an object, knows of no arrays within arrays, and drops byte order marks.
  for (const key of ["__proto__", "array.deep", "array.none", "some.string"]) metadata.delete(key);
  metadata.set("plain.string", { type: "string", value: "candle \u{1f56f} 日本" });
  await writeGguf(path, {
    metadata,
    tensors: [
      { name: "a", tensor: Tensor.zeros([3, 5]) },
      { name: "b", tensor: QTensor.fromBytes(pattern(2 * 144), [2, 256], "Q4_K") },
      { name: "c", tensor: Tensor.zeros([2, 3, 4], { dtype: "bf16" }) },
    ],
  });
  const found = await otherReader(path, { allowLocalFile: true });
  for (const [key, { value }] of metadata) {
    const other = (found.metadata as Record<string, unknown>)[key];
    const flat = (x: unknown): string[] =>
      typeof x === "object" ? Array.from(x as ArrayLike<unknown>, String) : [String(x)];
    expect([key, flat(other)]).toEqual([key, flat(value)]);
  }
  expect(found.tensorInfos.map(({ name, shape, dtype, offset }) => [name, shape, dtype, offset])).toEqual([
    ["a", [5n, 3n], 0, 0n],
    ["b", [256n, 2n], 12, 64n],
    ["c", [4n, 3n, 2n], 30, 352n],
  ]);
  await using file = await GgufFile.open(path);
  expect(Number(found.tensorDataOffset)).toBe(file.info("a").offset);
});

// ── Files made by hand ──────────────────────────────────────────────────────────────────────────────────────────────

const u32 = (value: number): Buffer => {
  const out = Buffer.alloc(4);
  out.writeUInt32LE(value);
  return out;
};
const u64 = (value: number | bigint): Buffer => {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt(value));
  return out;
};
const text = (value: string): Buffer => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const kv = (key: string, type: number, ...value: Buffer[]): Buffer => Buffer.concat([text(key), u32(type), ...value]);
type Claim = [name: string, dims: (number | bigint)[], type: number, offset: bigint];

interface Parts {
  version?: number;
  tensorCount?: number | bigint;
  metadataCount?: number | bigint;
  metadata?: Buffer[];
  tensors?: Claim[];
  data?: number;
}
function file3({ version = 3, metadata = [], tensors = [], data = 0, ...counts }: Parts): Buffer {
  const head = Buffer.concat([
    Buffer.from("GGUF"),
    u32(version),
    u64(counts.tensorCount ?? tensors.length),
    u64(counts.metadataCount ?? metadata.length),
    ...metadata,
    ...tensors.flatMap(([name, dims, type, offset]) => [
      text(name),
      u32(dims.length),
      ...dims.map(u64),
      u32(type),
      u64(offset),
    ]),
  ]);
  return data === 0 ? head : Buffer.concat([head, Buffer.alloc((-head.length & 31) + data)]);
}
const parse = (bytes: Uint8Array, window?: number): Promise<GgufHeader> =>
  parseGguf(memorySource(bytes, "f.gguf"), undefined, window);

describe("reading", () => {
  it.each([1, 2, 3] as const)("takes version %i, in windows of any size", async (version) => {
    const { bytes } = sample(version);
    const whole = await parse(bytes);
    expect(whole.version).toBe(version);
    expect(whole.metadata.get("scalar.u64")).toEqual({ type: "u64", value: 2n ** 60n });
    expect(whole.metadata.get("scalar.f64")).toEqual({ type: "f64", value: 1 });
    expect(whole.metadata.get("strings")!.value).toEqual(["", "a", "日本", "<0x0A>"]);
    expect(whole.tensors.get("b.weight")).toMatchObject({ typeName: "Q4_0", shape: [3, 32], byteLength: 54 });
    expect(whole.tensors.get("e")).toMatchObject({ shape: [7, 0], byteLength: 0 });
    expect(whole.tensors.get("g")!.shape).toEqual([2, 1, 1, 2]);
    for (let window = 1; window < 100; window++) expect(await parse(bytes, window)).toEqual(whole);
  });

  it("refuses a file that ends anywhere before its time", async () => {
    for (const version of [1, 2, 3] as const) {
      const { bytes } = sample(version);
      // What follows the last tensor is padding.
      const { offset, byteLength } = (await parse(bytes)).tensors.get("h")!;
      for (let end = 0; end < offset + byteLength; end++) {
        await expectError(parse(bytes.subarray(0, end)), "InvalidFile", "f.gguf: ");
      }
      await parse(bytes.subarray(0, offset + byteLength));
    }
  });

  const array = (type: number, count: number | bigint, ...rest: Buffer[]): Buffer =>
    Buffer.concat([u32(type), u64(count), ...rest]);
  const nested = (depth: number): Buffer => (depth === 1 ? array(0, 1, Buffer.of(7)) : array(9, 1, nested(depth - 1)));
  const F32x8: Claim = ["a", [8], 0, 0n];
  it.each<[string, Parts, string]>([
    ["magic", { version: 3, metadata: [] }, 'the header does not start with "GGUF"'],
    ["version 0", { version: 0 }, "the header has version 0; 1, 2 and 3 are known"],
    ["version 4", { version: 4 }, "the header has version 4"],
    ["big-endian", { version: 0x03000000 }, "the file is big-endian"],
    [
      "tensor count",
      { tensorCount: 100 },
      "the header has tensor count 100, which take 24 bytes each or more, but only 8 are left",
    ],
    ["tensor count 2^64", { tensorCount: 2n ** 64n - 1n }, "tensor count 18446744073709551615; 2^53 - 1 is the most"],
    ["tensor cap", { tensorCount: 2 ** 18 + 1 }, "no more than 262144 are read"],
    ["metadata count", { metadataCount: 1 }, "metadata count 1, which take 13 bytes each or more, but only 0 are left"],
    [
      "key length",
      { metadata: [Buffer.concat([u64(2 ** 40), Buffer.alloc(9)])] },
      "metadata entry 0 has key length 1099511627776; no more than 65535",
    ],
    [
      "key bytes",
      { metadata: [Buffer.concat([u64(30), Buffer.alloc(9)])] },
      "metadata entry 0 needs 30 bytes for its key at byte 32, but the file ends 9 on",
    ],
    [
      "key text",
      { metadata: [Buffer.concat([u64(1), Buffer.of(0xff), u32(0), Buffer.of(1)])] },
      "metadata entry 0 has a key that is not UTF-8",
    ],
    ["same key", { metadata: [kv("k", 0, Buffer.of(1)), kv("k", 0, Buffer.of(2))] }, 'metadata "k" appears twice'],
    ["value type", { metadata: [kv("k", 13, u64(0))] }, 'metadata "k" has value type 13; 0 to 12 are known'],
    ["element type", { metadata: [kv("k", 9, u32(99), u64(0))] }, 'metadata "k" has element type 99'],
    ["boolean", { metadata: [kv("k", 7, Buffer.of(2))] }, 'metadata "k" has the boolean 2'],
    ["booleans", { metadata: [kv("k", 9, array(7, 2, Buffer.of(1, 255)))] }, 'metadata "k" has the boolean 255'],
    [
      "boolean cap",
      { metadata: [kv("k", 9, array(7, 2 ** 20 + 1, Buffer.alloc(2 ** 20 + 1)))] },
      "is one boolean too many; 1048576 are read",
    ],
    [
      "string length",
      { metadata: [kv("k", 8, u64(2 ** 29), u64(0))] },
      'metadata "k" has string length 536870912; no more than 268435456',
    ],
    ["string bytes", { metadata: [kv("k", 8, u64(9), u64(0))] }, 'metadata "k" needs 9 bytes for its string'],
    [
      "element count",
      { metadata: [kv("k", 9, array(12, 2 ** 50, u64(0)))] },
      'metadata "k" has element count 1125899906842624, which take 8 bytes each',
    ],
    [
      "element count of strings",
      { metadata: [kv("k", 9, array(8, 3, text("ab")))] },
      "has element count 3, which take 8 bytes each",
    ],
    [
      "element string",
      { metadata: [kv("k", 9, array(8, 1, u64(2n ** 63n)))] },
      "has string length 9223372036854775808",
    ],
    ["depth", { metadata: [kv("k", 9, nested(9))] }, 'metadata "k" has arrays nested deeper than 8 levels'],
    [
      "nested cap",
      { metadata: ["a", "b"].map((k) => kv(k, 9, array(9, 40_000, Buffer.alloc(12 * 40_000)))) },
      'metadata "b" has too many nested arrays; 65536 are the most',
    ],
    [
      "nested count",
      { metadata: [kv("k", 9, array(9, 65_537, Buffer.alloc(12 * 65_537)))] },
      "no more than 65536 are read",
    ],
    [
      "alignment 0",
      { metadata: [kv("general.alignment", 4, u32(0))] },
      'metadata "general.alignment" is 0 (u32); it must be a power of two',
    ],
    ["alignment 24", { metadata: [kv("general.alignment", 4, u32(24))] }, "is 24 (u32)"],
    ["alignment -8", { metadata: [kv("general.alignment", 5, u32(2 ** 32 - 8))] }, "is -8 (i32)"],
    ["alignment text", { metadata: [kv("general.alignment", 8, text("32"))] }, 'is "32" (string)'],
    ["alignment array", { metadata: [kv("general.alignment", 9, array(4, 1, u32(32)))] }, "is an array (u32[])"],
    ["alignment float", { metadata: [kv("general.alignment", 6, u32(0x42000000))] }, "is 32 (f32)"],
    [
      "name length",
      { tensors: [["n".repeat(65536), [], 0, 0n]] },
      "tensor entry 0 has name length 65536; no more than 65535",
    ],
    ["same name", { tensors: [F32x8, F32x8], data: 64 }, 'tensor "a" appears twice'],
    ["dims", { tensors: [["a", [1, 1, 1, 1, 1], 0, 0n]], data: 32 }, 'tensor "a" has 5 dims; 4 are the most'],
    [
      "dim",
      { tensors: [["a", [2n ** 60n], 0, 0n]], data: 32 },
      'tensor "a" has dim 1152921504606846976; 2^53 - 1 is the most',
    ],
    ["shape", { tensors: [["a", [2 ** 40, 2 ** 40], 0, 0n]], data: 32 }, "which is too large"],
    ["empty shape", { tensors: [["a", [2 ** 52, 2 ** 52, 0], 0, 0n]], data: 32 }, "which is too large"],
    [
      "row",
      { tensors: [["a", [33, 2], 2, 0n]], data: 64 },
      'tensor "a" has shape [2, 33] of type Q4_0, but rows of 33 are not whole blocks of 32',
    ],
    [
      "size",
      { tensors: [["a", [9], 0, 0n]], data: 32 },
      'tensor "a" has 36 bytes from byte 64 on, but the file has only 96 bytes',
    ],
    [
      "offset",
      { tensors: [["a", [1], 0, 64n]], data: 32 },
      "has 4 bytes from byte 128 on, but the file has only 96 bytes",
    ],
    ["offset 2^64", { tensors: [["a", [1], 0, 2n ** 64n - 1n]], data: 32 }, "has offset 18446744073709551615"],
    ["offset 2^53 - 32", { tensors: [["a", [1], 0, 2n ** 53n - 32n]], data: 32 }, "has 4 bytes from byte"],
    ["misaligned", { tensors: [["a", [1], 0, 4n]], data: 32 }, 'tensor "a" has offset 4; the alignment is 32'],
    [
      "overlap",
      {
        tensors: [
          ["a", [9], 0, 0n],
          ["b", [8], 0, 32n],
        ],
        data: 64,
      },
      'tensor "a" has bytes 96 to 132, which overlap those of "b"',
    ],
    ["same bytes", { tensors: [F32x8, ["b", [8], 0, 0n]], data: 64 }, "which overlap those of"],
    ["same bytes of an unknown type", { tensors: [["u", [8], 99, 0n], F32x8], data: 64 }, "which overlap those of"],
    [
      "unknown type beyond the end",
      { tensors: [["u", [8], 99, 96n]], data: 64 },
      "from byte 160 on, but the file has only 128 bytes",
    ],
  ])("refuses a file that lies about itself: %s", async (what, parts, message) => {
    const bytes = file3(parts);
    if (what === "magic") bytes.write("GGML");
    await expectError(parse(bytes), "InvalidFile", message);
    await expectError(parse(bytes), "InvalidFile", /^f\.gguf: /);
    await expectError(parse(bytes, 5), "InvalidFile", message);
  });

  it("lists types that it cannot compute with, and gives their bytes", async () => {
    const path = at("foreign.gguf");
    const tensors: Claim[] = [
      ["unknown", [7], 99, 0n],
      ["eights", [3], 24, 64n],
      ["iq", [256], 19, 96n],
      ["last", [1], 77, 160n],
      ["empty", [0], 0, 96n],
    ];
    await writeFile(path, file3({ tensors, data: 170 }));
    await using file = await GgufFile.open(path);
    expect([...file.tensors].map(([name, t]) => [name, t.type, t.typeName, t.byteLength])).toEqual([
      ["unknown", 99, "type 99", 64],
      ["eights", 24, "I8", 3],
      ["iq", 19, "IQ1_S", 50],
      ["last", 77, "type 77", 10],
      ["empty", 0, "F32", 0],
    ]);
    expect((await file.readBytes("last")).length).toBe(10);
    await expectError(file.readTensor("unknown"), "UnexpectedDType", 'tensor "unknown" has the unknown type number 99');
    await expectError(file.readTensor("iq"), "UnexpectedDType", 'tensor "iq" has type IQ1_S (number 19)');
    await expectError(file.readTensor("eights"), "UnexpectedDType", 'tensor "eights" has type I8 (number 24)');
  });

  it("closes the file that it refuses", async () => {
    await writeFile(at("refused.gguf"), "GGUF");
    const close = vi.spyOn(BinaryFile.prototype, "close");
    await expectError(GgufFile.open(at("refused.gguf")), "InvalidFile", "needs 4 bytes for its version at byte 4");
    expect(close).toHaveBeenCalledOnce();
    close.mockRestore();
    await expectError(GgufFile.open(at("missing.gguf")), "InvalidFile", "cannot be opened");
    const abort = AbortSignal.abort();
    await expect(GgufFile.open(at("types.gguf"), abort)).rejects.toThrow(/abort/i);
  });
});
