import { mkdir, readdir, readFile, symlink, truncate, writeFile } from "node:fs/promises";
import { describe, expect, it, vi } from "vitest";
import { type DType, dtypeNames, sizeOf } from "../../../src/core/dtype.ts";
import { WickError } from "../../../src/core/errors.ts";
import { numel } from "../../../src/core/layout.ts";
import { loadSafetensors, openSafetensors, SafetensorsFile, saveSafetensors } from "../../../src/formats/index.ts";
import { Tensor } from "../../../src/ops/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();

/** Every bit pattern of the small dtypes, NaNs among them. */
const pattern = (dtype: DType, shape: number[]): Uint8Array =>
  Uint8Array.from({ length: numel(shape) * sizeOf(dtype) }, (_, i) => (i * 37 + 11) & 255);
const patterned = (dtype: DType, shape: number[]) => Tensor.fromBytes(pattern(dtype, shape), shape, dtype);

/** A file from a header, as text or as what JSON.stringify takes, and `data` bytes that follow it. */
async function fileOf(header: unknown, data: number | Uint8Array = 0, length?: bigint): Promise<string> {
  const json = Buffer.from(typeof header === "string" ? header : JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(length ?? BigInt(json.length));
  const path = at(`${counter++}.safetensors`);
  await writeFile(path, Buffer.concat([prefix, json, typeof data === "number" ? Buffer.alloc(data) : data]));
  return path;
}
let counter = 0;
const entry = (dtype: string, shape: unknown, data_offsets: unknown) => ({ dtype, shape, data_offsets });

async function expectError(promise: Promise<unknown>, code: string, message: RegExp | string): Promise<void> {
  const error = await promise.then(
    () => "no error",
    (e: unknown) => e,
  );
  expect(error).toBeInstanceOf(WickError);
  expect(error).toMatchObject({ code });
  if (typeof message === "string") expect((error as Error).message).toContain(message);
  else expect((error as Error).message).toMatch(message);
}

describe("saving and loading", () => {
  it.each(dtypeNames)("keeps every bit of %s, whatever the shape", async (dtype) => {
    const shapes = {
      scalar: [],
      vector: [256],
      matrix: [3, 5],
      empty: [0],
      hollow: [2, 0, 3],
      deep: [1, 2, 1, 3, 1, 2, 1, 2],
    };
    const path = at(`${dtype}.safetensors`);
    const saved = Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, patterned(dtype, shape)]));
    await saveSafetensors(path, saved);
    const loaded = await loadSafetensors(path);
    expect([...loaded.keys()].sort()).toEqual(Object.keys(shapes).sort());
    for (const [name, shape] of Object.entries(shapes)) {
      const tensor = loaded.get(name)!;
      expect(tensor.shape).toEqual(shape);
      expect(tensor.dtype).toBe(dtype);
      expect(Buffer.compare(await tensor.bytes(), pattern(dtype, shape))).toBe(0);
    }
  });

  it("writes views in row-major order", async () => {
    const path = at("view.safetensors");
    const matrix = Tensor.from([
      [1, 2, 3],
      [4, 5, 6],
    ]);
    await saveSafetensors(path, { turned: matrix.permute([1, 0]) });
    expect((await loadSafetensors(path)).get("turned")!.toArraySync()).toEqual([
      [1, 4],
      [2, 5],
      [3, 6],
    ]);
  });

  it("aligns the data to 8 bytes and puts wide elements first", async () => {
    const path = at("aligned.safetensors");
    await saveSafetensors(path, {
      a: patterned("u8", [3]),
      b: patterned("f64", [1]),
      c: patterned("i16", [1]),
      d: patterned("i16", [1]),
    });
    await using file = await SafetensorsFile.open(path);
    expect(file.names).toEqual(["b", "c", "d", "a"]);
    expect(file.info("b").offset % 8).toBe(0);
    expect(file.info("a")).toEqual({ dtype: "u8", shape: [3], byteLength: 3, offset: file.info("b").offset + 12 });
  });

  it("keeps metadata and names that are special in JavaScript", async () => {
    const path = at("names.safetensors");
    const names = ["__proto__", "constructor", "toString", "", "0", 'quo"te\\', "日本", "\u0000\n", "\u{1f56f}"];
    const tensors = new Map(names.map((name, i) => [name, Tensor.from([i], { dtype: "u8" })]));
    const metadata = new Map([
      ["__proto__", "x"],
      ["format", "pt"],
      ["empty", ""],
    ]);
    await saveSafetensors(path, tensors, { metadata });
    await using file = await SafetensorsFile.open(path);
    expect(new Set(file.names)).toEqual(new Set(names));
    expect(file.metadata).toEqual(metadata);
    for (const [i, name] of names.entries()) expect((await file.read(name)).toArraySync()).toEqual([i]);
    await expectError(
      file.read("hasOwnProperty"),
      "MissingTensor",
      /has no tensor "hasOwnProperty"; its 9 tensors start with/,
    );
  });

  it("takes metadata as an object and saves no tensors at all", async () => {
    const path = at("none.safetensors");
    await saveSafetensors(path, {}, { metadata: { a: "1" } });
    await using file = await SafetensorsFile.open(path);
    expect(file.names).toEqual([]);
    expect(file.metadata).toEqual(new Map([["a", "1"]]));
    await expectError(file.read("x"), "MissingTensor", "it has no tensors");
  });

  it("refuses names and metadata the format cannot hold", async () => {
    const x = Tensor.from([1]);
    await expectError(saveSafetensors(at("x"), { __metadata__: x }), "InvalidArgument", "__metadata__");
    await expectError(saveSafetensors(at("x"), { "\ud800": x }), "InvalidArgument", "well-formed");
    await expectError(
      saveSafetensors(at("x"), { x }, { metadata: { n: 1 as unknown as string } }),
      "InvalidArgument",
      '"n"',
    );
    await expectError(
      saveSafetensors(at("x"), { ["n".repeat(100_000_000)]: x }),
      "InvalidArgument",
      "use several files",
    );
  });

  it("reports progress that adds up", async () => {
    const path = at("progress.safetensors");
    await saveSafetensors(path, { a: patterned("f32", [4]), b: patterned("u8", [3]), c: patterned("u8", [0]) });
    const seen: [string, number, number][] = [];
    await loadSafetensors(path, { device: "cpu", onProgress: (p) => seen.push([p.name, p.bytesLoaded, p.bytesTotal]) });
    expect(seen).toHaveLength(3);
    expect(seen[0]).toEqual(["a", 16, 19]);
    expect(seen.at(-1)?.slice(1)).toEqual([19, 19]);
  });
});

describe("reading lazily", () => {
  it("lists dtypes that tensors lack, and gives their bytes", async () => {
    const others = ["BOOL", "I8", "U16", "U64", "F8_E5M2", "F8_E8M0", "C64"] as const;
    const size = { BOOL: 1, I8: 1, U16: 2, U64: 8, F8_E5M2: 1, F8_E8M0: 1, C64: 8 };
    let end = 0;
    const header: Record<string, unknown> = {};
    for (const dtype of others) {
      header[dtype] = entry(dtype, [2], [end, end + 2 * size[dtype]]);
      end += 2 * size[dtype];
    }
    header.F4 = entry("F4", [4], [end, end + 2]);
    await using file = await SafetensorsFile.open(
      await fileOf(
        header,
        Uint8Array.from({ length: end + 2 }, (_, i) => i),
      ),
    );
    expect(file.info("U16")).toMatchObject({ dtype: "U16", shape: [2], byteLength: 4 });
    expect([...(await file.readBytes("U16"))]).toEqual([4, 5, 6, 7]);
    for (const dtype of [...others, "F4"]) await expectError(file.read(dtype), "UnexpectedDType", `dtype ${dtype}`);
  });

  it("refuses to read after closing, and to read what was cut off since", async () => {
    const path = at("closed.safetensors");
    await saveSafetensors(path, { x: patterned("u8", [64]), y: patterned("u8", [64]) });
    const file = await SafetensorsFile.open(path);
    await truncate(path, file.info("y").offset + 10);
    await expectError(file.read("y"), "InvalidFile", /ended at byte \d+, but had \d+ bytes/);
    expect((await file.read("x")).shape).toEqual([64]);
    await file.close();
    await file.close();
    await expectError(file.read("x"), "Disposed", "was closed");
  });

  it("reads a tensor larger than one chunk", async () => {
    const path = at("large.safetensors");
    const n = 17 * 2 ** 20 + 3;
    const bytes = Uint8Array.from({ length: n }, (_, i) => (i * 31) & 255);
    await saveSafetensors(path, { large: Tensor.fromBytes(bytes, [n], "u8"), small: patterned("u8", [1]) });
    expect(Buffer.compare(await (await loadSafetensors(path)).get("large")!.bytes(), bytes)).toBe(0);
  });

  it("refuses ranks above the largest, but lists them", async () => {
    await using file = await SafetensorsFile.open(await fileOf({ x: entry("U8", Array(9).fill(1), [0, 1]) }, 1));
    expect(file.info("x").shape).toHaveLength(9);
    await expectError(file.read("x"), "InvalidShape", "rank 9");
  });

  it("accepts what the reference accepts: unknown fields, spaces, empty tensors anywhere, numbers as 1e1", async () => {
    const path = await fileOf(
      '{ "a" : {"dtype":"U8","shape":[1e1],"data_offsets":[0,10],"more":[{"x":null},true,-1.5e3,"\\u00e9"]},\n' +
        '"z":{"dtype":"F32","shape":[0,4],"data_offsets":[10,10]},"b":{"dtype":"U8","shape":[],"data_offsets":[10,11]}}   ',
      11,
    );
    await using file = await SafetensorsFile.open(path);
    expect(file.names).toEqual(["a", "z", "b"]);
  });
});

describe("files that lie", () => {
  const valid = entry("U8", [4], [0, 4]);
  const cases: [string, unknown, number, RegExp][] = [
    ["the header is no JSON", "{nonsense", 0, /expected a string, found "nonsense"/],
    ["the header is empty", "", 0, /does not start with "\{"/],
    ["the header is an array", "[]", 0, /does not start with "\{"/],
    ["the header starts with a space", " {}", 0, /does not start with "\{"/],
    ["text follows the header's object", "{} x", 0, /expected the end/],
    ["the object does not end", '{"a":', 0, /expected an object, found the end/],
    ["a string does not end", '{"a', 0, /not valid/],
    ["a string has a bad escape", '{"\\q":1}', 0, /not valid/],
    ["a name is half a surrogate pair", '{"\\ud800":{}}', 0, /well-formed/],
    ["a colon is missing", '{"a" {}}', 0, /expected ":"/],
    ["a comma is missing", '{"a":{"x":1 "y":2}}', 0, /expected "," or "\}"/],
    ["a comma is left over", '{"__metadata__":{},}', 0, /expected a string/],
    ["an entry is no object", { a: 1 }, 0, /expected an object/],
    ["an entry is null", { a: null }, 0, /expected an object/],
    ["the dtype is missing", { a: { shape: [4], data_offsets: [0, 4] } }, 4, /"a" lacks one of/],
    ["the shape is missing", { a: { dtype: "U8", data_offsets: [0, 4] } }, 4, /lacks one of/],
    ["the offsets are missing", { a: { dtype: "U8", shape: [4] } }, 4, /lacks one of/],
    ["the dtype is unknown", { a: entry("F7", [4], [0, 4]) }, 4, /"a" has the unknown dtype "F7"/],
    ["the dtype is a property of objects", { a: entry("constructor", [4], [0, 4]) }, 4, /unknown dtype "constructor"/],
    ["the dtype is no string", { a: { ...valid, dtype: 1 } }, 4, /expected a string/],
    ["the shape is no array", { a: entry("U8", 4, [0, 4]) }, 4, /expected an array/],
    ["a dim is negative", { a: entry("U8", [-4], [0, 4]) }, 4, /-4 is not a whole number/],
    ["a dim is minus zero", '{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', 0, /not a whole number/],
    ["a dim is a fraction", { a: entry("U8", [1.5], [0, 4]) }, 4, /1\.5 is not a whole number/],
    ["a dim is text", { a: entry("U8", ["4"], [0, 4]) }, 4, /expected a number/],
    ["a dim has a leading zero", '{"a":{"dtype":"U8","shape":[04],"data_offsets":[0,4]}}', 4, /expected a number/],
    ["a number never ends", `{"a":{"shape":[${"1".repeat(1000)}]}}`, 4, /expected a number/],
    ["a dim is 2^53", '{"a":{"dtype":"U8","shape":[9007199254740992],"data_offsets":[0,4]}}', 4, /not a whole number/],
    ["the dims overflow to a matching product", { a: entry("U8", [2 ** 32, 2 ** 32, 4], [0, 4]) }, 4, /is too large/],
    ["the dims overflow beside a zero", { a: entry("U8", [2 ** 52, 2 ** 52, 0], [0, 0]) }, 0, /is too large/],
    ["there are very many dims", { a: entry("U8", Array(65).fill(1), [0, 1]) }, 1, /more than 64 dims/],
    [
      "the shape needs other bytes",
      { a: entry("F32", [2], [0, 4]) },
      4,
      /has 4 bytes of data, but shape \[2\] of F32 needs 8 bytes/,
    ],
    ["bits are left over", { a: entry("F4", [3], [0, 1]) }, 1, /needs 1\.5 bytes/],
    ["offsets run backwards", { a: entry("U8", [0], [4, 0]) }, 4, /\[4, 0\], which are no range/],
    ["offsets are one", { a: entry("U8", [4], [4]) }, 4, /are no range/],
    ["offsets are three", { a: entry("U8", [4], [0, 4, 8]) }, 4, /more than 2 data_offsets/],
    ["offsets leave the file", { a: entry("U8", [5], [0, 5]) }, 4, /\[0, 5\], which are no range of the 4 bytes/],
    ["offsets leave the file by far", { a: entry("U8", [2 ** 52], [0, 2 ** 52]) }, 4, /are no range/],
    ["tensors overlap", { a: entry("U8", [3], [0, 3]), b: entry("U8", [2], [2, 4]) }, 4, /"a" and "b" overlap/],
    ["tensors share bytes", { a: valid, b: valid }, 4, /overlap/],
    [
      "there is a hole",
      { a: entry("U8", [1], [0, 1]), b: entry("U8", [2], [2, 4]) },
      4,
      /1 bytes before tensor "b" belong to no/,
    ],
    ["there is a hole at the start", { a: entry("U8", [2], [2, 4]) }, 4, /2 bytes before tensor "a"/],
    ["bytes are left over", { a: valid }, 6, /the last 2 bytes belong to no tensor/],
    [
      "a name appears twice",
      `{"a":${JSON.stringify(valid)},"\\u0061":${JSON.stringify(valid)}}`,
      4,
      /"a" appears twice/,
    ],
    ["a field appears twice", '{"a":{"dtype":"U8","dtype":"U8"}}', 0, /"dtype" appears twice/],
    ["metadata appears twice", '{"__metadata__":{},"__metadata__":{}}', 0, /appears twice/],
    ["metadata is no object", { __metadata__: "x" }, 0, /expected an object/],
    ["metadata holds a number", { __metadata__: { a: 1 } }, 0, /expected a string/],
    ["an unknown field is nested deeply", `{"a":{"x":${"[".repeat(1e5)}`, 0, /nested deeper/],
    ["an unknown field is no JSON", '{"a":{"x":nul}}', 0, /expected a number/],
  ];
  it.each(cases)("is refused where %s", async (_, header, data, message) => {
    await expectError(SafetensorsFile.open(await fileOf(header, data)), "InvalidFile", message);
  });

  it("is refused where the header is longer than the file, or than the format allows", async () => {
    await expectError(
      SafetensorsFile.open(await fileOf("{}", 0, 3n)),
      "InvalidFile",
      /header of 3 bytes, but the file has only 2/,
    );
    await expectError(
      SafetensorsFile.open(await fileOf("{}", 0, 2n ** 64n - 1n)),
      "InvalidFile",
      "18446744073709551615",
    );
    const huge = await fileOf("{}", 0, 100_000_001n);
    await truncate(huge, 200_000_000);
    await expectError(SafetensorsFile.open(huge), "InvalidFile", "the format allows 100000000");
  });

  it("is refused where the header is not UTF-8, or starts with a byte order mark", async () => {
    const prefix = Buffer.from([3, 0, 0, 0, 0, 0, 0, 0]);
    await writeFile(at("latin1"), Buffer.concat([prefix, Buffer.from([0x7b, 0xe9, 0x7d])]));
    await expectError(SafetensorsFile.open(at("latin1")), "InvalidFile", "not UTF-8");
    await expectError(SafetensorsFile.open(await fileOf("\ufeff{}")), "InvalidFile", "does not start with");
  });

  it("is refused at every length it may be cut to", async () => {
    const path = at("whole.safetensors");
    await saveSafetensors(path, { a: patterned("f32", [2, 2]), b: patterned("u8", [3]) });
    const whole = await readFile(path);
    for (let length = 0; length < whole.length; length++) {
      await writeFile(at("cut"), whole.subarray(0, length));
      await expectError(SafetensorsFile.open(at("cut")), "InvalidFile", at("cut"));
    }
  });

  it("is refused where it does not exist or is no file", async () => {
    await expectError(SafetensorsFile.open(at("nowhere")), "InvalidFile", /nowhere cannot be opened: ENOENT/);
    await expectError(SafetensorsFile.open(at("nul\0")), "InvalidFile", "cannot be opened");
    await mkdir(at("folder"));
    await expectError(SafetensorsFile.open(at("folder")), "InvalidFile", "is not a regular file");
  });
});

describe("several files", () => {
  const index = (folder: string, content: unknown, name = "model.safetensors.index.json") =>
    writeFile(at(folder, name), typeof content === "string" ? content : JSON.stringify(content));

  it("reads tensors from their shards, opening each when needed", async () => {
    await mkdir(at("shards"));
    await saveSafetensors(at("shards", "one.safetensors"), { a: Tensor.from([1, 2]), __proto__x: Tensor.from([3]) });
    const weight_map = { a: "one.safetensors", b: "two.safetensors", c: "one.safetensors" };
    await index("shards", { metadata: { total_size: 12, note: "hi" }, weight_map, version: [1] });
    const source = await openSafetensors(at("shards"));
    expect(source.names).toEqual(["a", "b", "c"]);
    expect(source.metadata).toEqual(
      new Map([
        ["total_size", "12"],
        ["note", "hi"],
      ]),
    );
    expect((await source.read("a")).toArraySync()).toEqual([1, 2]);
    expect(await source.info("a")).toMatchObject({ dtype: "f32", shape: [2], byteLength: 8 });
    await expectError(source.read("b"), "MissingTensor", /tensor "b" is in .*two\.safetensors .* does not exist/);
    await expectError(source.read("c"), "MissingTensor", /tensor "c" is in .*one\.safetensors .* lacks it/);
    await expectError(source.read("d"), "MissingTensor", /has no tensor "d"; it has "a", "b", "c"/);
    await expectError(loadSafetensors(at("shards")), "MissingTensor", "two.safetensors");

    await saveSafetensors(at("shards", "two.safetensors"), { b: Tensor.from([7], { dtype: "i64" }) });
    expect((await source.read("b")).toArraySync()).toEqual([7n]);
    expect([...(await source.readBytes("b"))]).toEqual([7, 0, 0, 0, 0, 0, 0, 0]);
    await source.close();
    await expectError(source.read("a"), "Disposed", "was closed");
  });

  it("loads all shards through the index's own path", async () => {
    await mkdir(at("all", "sub"), { recursive: true });
    await saveSafetensors(at("all", "sub", "x.safetensors"), { x: Tensor.from([1]) });
    await saveSafetensors(at("all", "y.safetensors"), { y: Tensor.from([2]) });
    await index("all", { weight_map: { x: "sub/x.safetensors", y: "y.safetensors" } }, "m.safetensors.index.json");
    for (const path of [at("all"), at("all", "m.safetensors.index.json")]) {
      const loaded = await loadSafetensors(path);
      expect([...loaded].map(([name, t]) => [name, t.toArraySync()])).toEqual([
        ["x", [1]],
        ["y", [2]],
      ]);
    }
  });

  it("passes on what is wrong with a shard", async () => {
    await mkdir(at("broken"));
    await writeFile(at("broken", "s.safetensors"), "junk");
    await index("broken", { weight_map: { a: "s.safetensors" } });
    await using source = await openSafetensors(at("broken"));
    await expectError(source.read("a"), "InvalidFile", "s.safetensors has 4 bytes");
  });

  it.each(["../one.safetensors", "/etc/passwd", "a/../../b", "", "a\0b", "..\\b"])(
    "refuses the shard %j",
    async (shard) => {
      await mkdir(at("outside"), { recursive: true });
      await index("outside", { weight_map: { a: shard } });
      await expectError(openSafetensors(at("outside")), "InvalidFile", "not a file inside its folder");
    },
  );

  it.each([
    ["{}", 'no "weight_map"'],
    ["[]", "expected an object"],
    ['{"weight_map":{"a":1}}', "expected a string"],
    ['{"weight_map":{"a":"x","a":"y"}}', '"a" appears twice'],
    ['{"weight_map":{}} {}', "expected the end"],
  ])("refuses the index %j", async (text, message) => {
    await mkdir(at("indices"), { recursive: true });
    await index("indices", text);
    await expectError(openSafetensors(at("indices")), "InvalidFile", message);
  });

  it("finds the file in a folder, and says so where it cannot", async () => {
    await mkdir(at("search"));
    await expectError(openSafetensors(at("search")), "InvalidFile", "holds no *.safetensors");
    await saveSafetensors(at("search", "a.safetensors"), { a: Tensor.from([1]) });
    expect((await loadSafetensors(at("search"))).has("a")).toBe(true);
    await saveSafetensors(at("search", "b.safetensors"), { b: Tensor.from([1]) });
    await expectError(openSafetensors(at("search")), "InvalidFile", "holds a.safetensors, b.safetensors: name the one");
    await saveSafetensors(at("search", "model.safetensors"), { m: Tensor.from([1]) });
    expect((await loadSafetensors(at("search"))).has("m")).toBe(true);
    await expectError(openSafetensors(at("nowhere")), "InvalidFile", "nowhere cannot be opened");
  });
});

describe("aborting", () => {
  const aborted = AbortSignal.abort(new Error("stop"));

  it("ends reading, loading and saving with the signal's reason", async () => {
    const path = at("abort.safetensors");
    await saveSafetensors(path, { a: patterned("u8", [4]), b: patterned("u8", [4]) });
    await using file = await SafetensorsFile.open(path);
    await expect(file.read("a", { signal: aborted })).rejects.toThrow("stop");
    await expect(file.readBytes("a", aborted)).rejects.toThrow("stop");
    await expect(loadSafetensors(path, { signal: aborted })).rejects.toThrow("stop");
    await expect(saveSafetensors(at("never"), {}, { signal: aborted })).rejects.toThrow("stop");
    expect(await readdir(at())).not.toContain("never");
  });

  it("frees what was loaded when it stops half-way", async () => {
    const path = at("half.safetensors");
    await saveSafetensors(path, { a: patterned("u8", [4]), b: patterned("u8", [4]) });
    const abort = new AbortController();
    let steps = 0;
    const onProgress = () => {
      steps++;
      abort.abort(new Error("half-way"));
    };
    // The second was there when its bytes were refused.
    const made = vi.spyOn(Tensor, "empty");
    await expect(loadSafetensors(path, { signal: abort.signal, onProgress })).rejects.toThrow("half-way");
    expect(steps).toBe(1);
    expect(made.mock.results.map(({ value }) => (value as Tensor).disposed)).toEqual([true, true]);
    made.mockRestore();
  });
});

describe("atomic writes", () => {
  it("leaves the old file and nothing else where saving fails", async () => {
    await mkdir(at("atomic"));
    const path = at("atomic", "x.safetensors");
    await saveSafetensors(path, { x: Tensor.from([1]) });
    const before = await readFile(path);
    const disposed = Tensor.from([3]);
    disposed.dispose();
    await expectError(saveSafetensors(path, { a: patterned("f64", [1000]), disposed }), "Disposed", "disposed");
    const abort = new AbortController();
    const last = Tensor.from([1, 2]);
    const bytes = last.bytes.bind(last);
    last.bytes = () => {
      abort.abort(new Error("late"));
      return bytes();
    };
    await expect(saveSafetensors(path, { last }, { signal: abort.signal })).rejects.toThrow("late");
    expect(await readFile(path)).toEqual(before);
    expect(await readdir(at("atomic"))).toEqual(["x.safetensors"]);
  });

  it("says where it could not write, and cleans up", async () => {
    await expectError(saveSafetensors(at("no", "such", "x"), {}), "InvalidFile", /x cannot be written: ENOENT/);
    await mkdir(at("target", "is-a-folder"), { recursive: true });
    await expectError(saveSafetensors(at("target", "is-a-folder"), {}), "InvalidFile", "cannot be written");
    expect(await readdir(at("target"))).toEqual(["is-a-folder"]);
  });

  it("replaces a link, not the file it points to", async () => {
    await writeFile(at("original"), "precious");
    await symlink(at("original"), at("link.safetensors"));
    await saveSafetensors(at("link.safetensors"), { x: Tensor.from([1]) });
    expect(await readFile(at("original"), "utf8")).toBe("precious");
    expect((await loadSafetensors(at("link.safetensors"))).get("x")!.toArraySync()).toEqual([1]);
  });
});
