import { type FileHandle, readdir, readFile, truncate, writeFile } from "node:fs/promises";
import { crc32, deflateRawSync } from "node:zlib";
import { describe, expect, it, vi } from "vitest";
import { type DType, dtypeNames, sizeOf } from "../../../src/core/dtype.ts";
import { WickError } from "../../../src/core/errors.ts";
import { numel } from "../../../src/core/layout.ts";
import { loadNpy, loadNpz, parseNpy, saveNpy, saveNpz } from "../../../src/formats/index.ts";
import { ZipWriter } from "../../../src/formats/npy/zip.ts";
import { Tensor } from "../../../src/ops/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const shapes = [[], [1], [7], [0], [3, 4], [2, 0, 3], [2, 3, 1, 2, 1, 1, 1, 2]];
const numpyDtypes = dtypeNames.filter((dtype) => dtype !== "bf16" && dtype !== "f8e4m3");

const pattern = (dtype: DType, shape: readonly number[]): Uint8Array =>
  Uint8Array.from({ length: numel(shape) * sizeOf(dtype) }, (_, i) => (i * 37 + 11) & 255);

/** An npy file whose header is any text. */
function npy(header: string, data: number | Uint8Array = 0, version = 1): Buffer {
  const prefix = Buffer.alloc(version === 1 ? 10 : 12);
  prefix.write("\x93NUMPY", "latin1");
  prefix[6] = version;
  if (version === 1) prefix.writeUInt16LE(Buffer.byteLength(header), 8);
  else prefix.writeUInt32LE(Buffer.byteLength(header), 8);
  return Buffer.concat([prefix, Buffer.from(header), typeof data === "number" ? Buffer.alloc(data) : data]);
}
const dict = (descr: string, shape: string, order = "False") =>
  `{'descr': '${descr}', 'fortran_order': ${order}, 'shape': ${shape}, }\n`;

async function expectError(run: () => unknown, code: string, message: RegExp): Promise<void> {
  let error: unknown = "no error";
  try {
    await run();
  } catch (e) {
    error = e;
  }
  expect(error).toBeInstanceOf(WickError);
  expect(error).toMatchObject({ code, message: expect.stringMatching(message) });
}

/** Files that NumPy wrote. */
const fixtures = {
  // np.asfortranarray(np.arange(24, dtype="<i2").reshape(2, 3, 4))
  fortran:
    "k05VTVBZAQB2AHsnZGVzY3InOiAnPGkyJywgJ2ZvcnRyYW5fb3JkZXInOiBUcnVlLCAnc2hhcGUnOiAoMiwgMywgNCksIH0gICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAwABAAQAAgAFAABAA0ABQARAAkAFQACAA4ABgASAAoAFgADAA8ABwATAAsAFwA=",
  // np.array([[1.5, -2.25], [3e10, np.inf]], dtype=">f8")
  bigEndian:
    "k05VTVBZAQB2AHsnZGVzY3InOiAnPmY4JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAo/+AAAAAAAAMACAAAAAAAAQhvwjrAAAAB/8AAAAAAAAA==",
  // np.arange(6, dtype="<f4").reshape(2, 3), version (2, 0)
  version2:
    "k05VTVBZAgB0AAAAeydkZXNjcic6ICc8ZjQnLCAnZm9ydHJhbl9vcmRlcic6IEZhbHNlLCAnc2hhcGUnOiAoMiwgMyksIH0gICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAAAACAPwAAAEAAAEBAAACAQAAAoEA=",
  // np.array([True, False, True])
  bool: "k05VTVBZAQB2AHsnZGVzY3InOiAnfGIxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDMsKSwgfSAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoBAAE=",
  // np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")])
  record:
    "k05VTVBZAQB2AHsnZGVzY3InOiBbKCdhJywgJzxmNCcpLCAoJ2InLCAnPGk0JyldLCAnZm9ydHJhbl9vcmRlcic6IEZhbHNlLCAnc2hhcGUnOiAoMiwpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAAAAAAAAAAAAAAAAAA",
  // np.savez_compressed(w=np.full((8, 8), 1.5, "<f4"), **{"b.c": np.arange(3, dtype="<i8")})
  compressed:
    "UEsDBC0AAAAIAAAAIQDeM7jj//////////8FABQAdy5ucHkBABAAgAEAAAAAAABNAAAAAAAAAJvsF+obEMnIUMZQrZ6SWpxcpG6loG6TZqKuo6Cell9UUpSYF59flJIKEndLzClOBYoXZyQWpAL5GhY6ChaaOgq1CmQDLgaGA/YjGQMAUEsDBC0AAAAIAAAAIQD3QBLq//////////8HABQAYi5jLm5weQEAEACYAAAAAAAAAEwAAAAAAAAAm+wX6hsQychQxlCtnpJanFykbqWgbpNpoa6joJ6WX1RSlJgXn1+UkgoSd0vMKU4FihdnJBakAvkaxjqaOgq1ChQALgYoYITSTFAaAFBLAQItAy0AAAAIAAAAIQDeM7jjTQAAAIABAAAFAAAAAAAAAAAAAACAAQAAAAB3Lm5weVBLAQItAy0AAAAIAAAAIQD3QBLqTAAAAJgAAAAHAAAAAAAAAAAAAACAAYQAAABiLmMubnB5UEsFBgAAAAACAAIAaAAAAAkBAAAAAA==",
  // np.savez(s=np.float16(2.5))
  stored:
    "UEsDBC0AAAAAAAAAIQDpFded//////////8FABQAcy5ucHkBABAAggAAAAAAAACCAAAAAAAAAJNOVU1QWQEAdgB7J2Rlc2NyJzogJzxmMicsICdmb3J0cmFuX29yZGVyJzogRmFsc2UsICdzaGFwZSc6ICgpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAKAEFQSwECLQMtAAAAAAAAACEA6RXXnYIAAACCAAAABQAAAAAAAAAAAAAAgAEAAAAAcy5ucHlQSwUGAAAAAAEAAQAzAAAAuQAAAAAA",
};
const fixture = (name: keyof typeof fixtures) => Buffer.from(fixtures[name], "base64");

describe("npy", () => {
  it.each(numpyDtypes)("keeps every bit of %s, whatever the shape", async (dtype) => {
    for (const shape of shapes) {
      await saveNpy(at("x.npy"), Tensor.fromBytes(pattern(dtype, shape), shape, dtype));
      const loaded = await loadNpy(at("x.npy"));
      expect([loaded.dtype, loaded.shape]).toEqual([dtype, shape]);
      expect(Buffer.compare(await loaded.bytes(), pattern(dtype, shape))).toBe(0);
    }
  });

  it("writes the header as NumPy does", async () => {
    await saveNpy(at("same.npy"), parseNpy(fixture("bool")));
    const expected = fixture("bool");
    expected.write("|u1", expected.indexOf("|b1"));
    expect(await readFile(at("same.npy"))).toEqual(expected);
  });

  it("reads what NumPy wrote", () => {
    const fortran = parseNpy(fixture("fortran"));
    expect(fortran.shape).toEqual([2, 3, 4]);
    expect([...fortran.dataSync()]).toEqual(Array.from({ length: 24 }, (_, i) => i));
    expect(parseNpy(fixture("bigEndian")).toArraySync()).toEqual([
      [1.5, -2.25],
      [3e10, Number.POSITIVE_INFINITY],
    ]);
    expect(parseNpy(fixture("version2")).toArraySync()).toEqual([
      [0, 1, 2],
      [3, 4, 5],
    ]);
    const bool = parseNpy(fixture("bool"), { device: "cpu" });
    expect([bool.dtype, bool.toArraySync()]).toEqual(["u8", [1, 0, 1]]);
  });

  it("reads big-endian elements of every size, in Fortran order, too", () => {
    expect(parseNpy(npy(dict(">i2", "(2,)"), Buffer.from([1, 2, 255, 254]))).toArraySync()).toEqual([258, -2]);
    expect(parseNpy(npy(dict(">u4", "()"), Buffer.from([1, 2, 3, 4]))).toArraySync()).toBe(0x01020304);
    expect(parseNpy(npy(dict(">i8", "(1,)"), Buffer.from([0, 0, 0, 0, 0, 0, 1, 0]))).toArraySync()).toEqual([256n]);
    expect(parseNpy(npy(dict(">u1", "(2,)"), Buffer.from([1, 2]))).toArraySync()).toEqual([1, 2]);
    const fortran = npy(dict(">i2", "(2, 3)", "True"), Buffer.from([0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5]));
    expect(parseNpy(fortran).toArraySync()).toEqual([
      [0, 1, 2],
      [3, 4, 5],
    ]);
    expect(parseNpy(npy(dict("<f4", "(2, 0)", "True"))).shape).toEqual([2, 0]);
    expect(parseNpy(npy(dict("<f4", "(1,)", "True"), 4)).shape).toEqual([1]);
  });

  it("leaves the caller's bytes as they are", () => {
    const bytes = npy(dict(">i2", "(1,)"), Buffer.from([1, 2]));
    const before = Buffer.from(bytes);
    parseNpy(bytes);
    expect(bytes).toEqual(before);
  });

  it.each([
    "{'shape': (2,), 'fortran_order': False, 'descr': '|u1'}",
    "{'descr':'|u1','fortran_order':False,'shape':(2,)}",
    '{"descr": "|u1", "fortran_order": False, "shape": (2L,), }',
    " {'descr' : '|u1' , 'fortran_order' : False , 'shape' : ( 2 , 1 , ) , } \n",
  ])("takes the header %s", (header) => {
    for (const version of [1, 2, 3]) expect([...parseNpy(npy(header, 2, version)).dataSync()]).toEqual([0, 0]);
  });

  const bad: [string, Buffer, RegExp][] = [
    ["nothing", Buffer.alloc(0), /npy data: does not start with NumPy's magic/],
    ["another magic number", Buffer.from("\x93NUMPX\x01\x00\x00\x00", "latin1"), /magic/],
    ["version 4", npy("{}", 0, 4), /version 4\.0 is unknown/],
    ["version 1.1", Buffer.from("\x93NUMPY\x01\x01\x00\x00", "latin1"), /version 1\.1/],
    ["only the magic number", Buffer.from("\x93NUMPY", "latin1"), /version 0\.\?/],
    ["no length", Buffer.from("\x93NUMPY\x02\x00\x00", "latin1"), /ends after 9 bytes/],
    ["a header beyond the file", npy(dict("<f4", "()")).subarray(0, 40), /only 30 follow/],
    ["a header of 4 GiB", Buffer.from("\x93NUMPY\x02\x00\xff\xff\xff\xff", "latin1"), /header of 4294967295 bytes/],
    ["no dict", npy("[]"), /expected "\{"/],
    ["an empty dict", npy("{}"), /missing/],
    ["a missing key", npy("{'descr': '<f4', 'shape': ()}"), /missing/],
    ["an unknown key", npy("{'descr': '<f4', 'x': 1}"), /"x" is unknown or appears twice/],
    ["a key twice", npy("{'descr': '<f4', 'descr': '<f4'}"), /"descr" is unknown or appears twice/],
    ["a call", npy("{'descr': '<f4', 'fortran_order': exit(), 'shape': ()}"), /expected True or False/],
    ["a missing colon", npy("{'descr' '<f4'}"), /expected ":"/],
    ["a missing comma", npy("{'descr': '<f4' 'shape': ()}"), /expected "," or "\}"/],
    ["text after the dict", npy(`${dict("<f4", "()")}; 1`), /expected the end/],
    ["no end of a string", npy("{'descr"), /expected a key/],
    ["an escape", npy("{'descr\\x41': 1}"), /expected a key/],
    ["a negative size", npy(dict("<f4", "(-1,)")), /expected a size, found "-1/],
    ["a fraction as size", npy(dict("<f4", "(1.5,)")), /expected "," or "\)"|tuple of one/],
    ["a number as shape", npy(dict("<f4", "3"), 12), /expected a tuple/],
    ["a number in parentheses", npy(dict("<f4", "(3)"), 12), /\(n,\)/],
    ["a list as shape", npy(dict("<f4", "[3]"), 12), /expected a tuple/],
    ["an unclosed shape", npy("{'shape': (1, 2"), /expected "," or "\)"/],
    ["a leading zero", npy(dict("|u1", "(01, 2)"), 2), /tuple of one|expected/],
    ["a size of 2^53", npy(dict("|u1", "(9007199254740992,)")), /too large/],
    ["sizes that overflow", npy(dict("|u1", "(4294967296, 4294967296, 4)"), 4), /is too large/],
    ["sizes that overflow beside a zero", npy(dict("|u1", "(4503599627370496, 4503599627370496, 0)")), /is too large/],
    ["too little data", npy(dict("<f4", "(2,)"), 7), /7 bytes follow the npy header, but shape \[2\] of f32 needs 8/],
    ["too much data", npy(dict("<f4", "(2,)"), 9), /9 bytes follow/],
    ["a huge claim", npy(dict("<f4", "(1000000000000,)"), 8), /needs 4000000000000/],
  ];
  it.each(bad)("refuses %s", async (_, bytes, message) => {
    await expectError(() => parseNpy(bytes), "InvalidFile", message);
  });

  it.each(["<c8", "<U4", "|O", "<i1", "<u2", "<u8", "=f4", "f4", "|f4", "", "<f16", "|S3", "<M8[ns]"])(
    "names the dtype %j it lacks",
    async (descr) => {
      await expectError(
        () => parseNpy(npy(dict(descr, "()"), 8)),
        "UnexpectedDType",
        /NumPy dtype ".*" is not supported/,
      );
    },
  );

  it("names record dtypes and refuses ranks above the largest", async () => {
    await expectError(() => parseNpy(fixture("record")), "UnexpectedDType", /record dtype "\[\('a', '<f4'\)/);
    await expectError(() => parseNpy(npy(dict("|u1", "(1,1,1,1,1,1,1,1,1)"), 1)), "InvalidShape", /rank 9/);
  });

  it.each(["bf16", "f8e4m3"] as const)("says to cast %s, which NumPy lacks", async (dtype) => {
    const x = Tensor.fromBytes(new Uint8Array(sizeOf(dtype)), [1], dtype);
    await expectError(() => saveNpy(at("no.npy"), x), "UnsupportedDTypeForOp", /no dtype for .*; cast the tensor/);
    await expectError(() => saveNpz(at("no.npz"), { x }), "UnsupportedDTypeForOp", /cast/);
    expect((await readdir(at())).filter((name) => name.includes("no.np"))).toEqual([]);
  });

  it("says so where the file does not fit into memory", async () => {
    await writeFile(at("sparse.npy"), "");
    await truncate(at("sparse.npy"), 2 ** 40);
    await expectError(() => loadNpy(at("sparse.npy")), "OutOfMemory", /sparse\.npy: no memory for 1099511627776 bytes/);
  });

  it("names the file in its errors and stops when told", async () => {
    await writeFile(at("bad.npy"), "junk");
    await expectError(() => loadNpy(at("bad.npy")), "InvalidFile", /bad\.npy: does not start/);
    await expectError(() => loadNpy(at("nowhere.npy")), "InvalidFile", /nowhere\.npy cannot be opened/);
    await expect(loadNpy(at("bad.npy"), { signal: AbortSignal.abort(new Error("stop")) })).rejects.toThrow("stop");
  });
});

/** A zip file by hand, with whatever its fields should claim. */
interface Part {
  name: string;
  data: Uint8Array;
  method?: number;
  size?: number;
  crc?: number;
  packed?: Uint8Array;
  packedSize?: number;
  offset?: number;
  flags?: number;
  localMethod?: number;
}
function zip(
  parts: Part[],
  end: { count?: number; size?: number; offset?: number; disk?: number; comment?: string } = {},
): Buffer {
  const locals: Buffer[] = [];
  const centrals: Buffer[] = [];
  let at = 0;
  for (const part of parts) {
    const { name, data, method = 0, flags = 0 } = part;
    const packed = part.packed ?? (method === 8 ? deflateRawSync(data) : data);
    const fields = Buffer.alloc(26);
    fields.writeUInt16LE(flags, 2);
    fields.writeUInt16LE(method, 4);
    fields.writeUInt32LE(part.crc ?? crc32(data), 10);
    fields.writeUInt32LE(part.packedSize ?? packed.length, 14);
    fields.writeUInt32LE(part.size ?? data.length, 18);
    fields.writeUInt16LE(Buffer.byteLength(name), 22);
    const local = Buffer.concat([Buffer.from("PK\x03\x04"), fields, Buffer.from(name), packed]);
    local.writeUInt16LE(part.localMethod ?? method, 8);
    const central = Buffer.concat([Buffer.from("PK\x01\x02\0\0"), fields, Buffer.alloc(14), Buffer.from(name)]);
    central.writeUInt32LE(part.offset ?? at, 42);
    locals.push(local);
    centrals.push(central);
    at += local.length;
  }
  const directory = Buffer.concat(centrals);
  const record = Buffer.alloc(22);
  record.write("PK\x05\x06");
  record.writeUInt16LE(end.disk ?? 0, 4);
  record.writeUInt16LE(end.count ?? parts.length, 8);
  record.writeUInt16LE(end.count ?? parts.length, 10);
  record.writeUInt32LE(end.size ?? directory.length, 12);
  record.writeUInt32LE(end.offset ?? at, 16);
  const comment = Buffer.from(end.comment ?? "");
  record.writeUInt16LE(comment.length, 20);
  return Buffer.concat([...locals, directory, record, comment]);
}

describe("npz", () => {
  const array = npy(dict("|u1", "(3,)"), Buffer.from([1, 2, 3]));

  it.each([true, false])("keeps every tensor (compress: %s)", async (compress) => {
    const tensors = new Map<string, Tensor>();
    for (const dtype of numpyDtypes) {
      for (const shape of shapes)
        tensors.set(`${dtype}/${shape}`, Tensor.fromBytes(pattern(dtype, shape), shape, dtype));
    }
    for (const name of ["__proto__", "constructor", "", "日本", "a.npy"]) tensors.set(name, Tensor.from([name.length]));
    await saveNpz(at("all.npz"), tensors, { compress });
    const loaded = await loadNpz(at("all.npz"));
    expect([...loaded.keys()]).toEqual([...tensors.keys()]);
    for (const [name, tensor] of tensors) {
      const back = loaded.get(name)!;
      expect([back.dtype, back.shape]).toEqual([tensor.dtype, tensor.shape]);
      expect(Buffer.compare(await back.bytes(), await tensor.bytes())).toBe(0);
    }
  });

  it("compresses when asked and writes equal files for equal tensors", async () => {
    const zeros = { x: Tensor.fromBytes(new Uint8Array(10_000), [10_000], "u8") };
    await saveNpz(at("plain.npz"), zeros);
    await saveNpz(at("small.npz"), zeros, { compress: true });
    await saveNpz(at("again.npz"), zeros, { compress: true });
    const [plain, small, again] = await Promise.all(
      ["plain.npz", "small.npz", "again.npz"].map((name) => readFile(at(name))),
    );
    expect(plain!.length).toBeGreaterThan(10_000);
    expect(small!.length).toBeLessThan(1000);
    expect(again).toEqual(small);
    await saveNpz(at("empty.npz"), {});
    expect((await loadNpz(at("empty.npz"))).size).toBe(0);
  });

  it("reads what NumPy wrote, stored and compressed", async () => {
    await writeFile(at("numpy.npz"), fixture("compressed"));
    const compressed = await loadNpz(at("numpy.npz"));
    expect([...compressed.keys()]).toEqual(["w", "b.c"]);
    expect(compressed.get("w")!.toArraySync()).toEqual(Array(8).fill(Array(8).fill(1.5)));
    expect(compressed.get("b.c")!.toArraySync()).toEqual([0n, 1n, 2n]);
    await writeFile(at("numpy.npz"), fixture("stored"));
    const stored = (await loadNpz(at("numpy.npz"), { device: "cpu" })).get("s")!;
    expect([stored.dtype, stored.toArraySync()]).toEqual(["f16", 2.5]);
  });

  it("takes a comment, names in UTF-8 or Latin-1, and the other order of entries", async () => {
    const parts = [
      { name: "é.npy", data: array, flags: 0x800 },
      { name: "a.npy", data: array, method: 8 },
    ];
    await writeFile(at("by-hand.npz"), zip(parts, { comment: "PK\x05\x06 is not the end" }));
    expect([...(await loadNpz(at("by-hand.npz"))).keys()]).toEqual(["é", "a"]);
  });

  const one = (part: Partial<Part>, end?: Parameters<typeof zip>[1]) =>
    zip([{ name: "a.npy", data: array, ...part }], end);
  const two = (part: Partial<Part>) =>
    zip([
      { name: "a.npy", data: array },
      { name: "b.npy", data: array, ...part },
    ]);
  const bomb = Buffer.alloc(2 ** 20);
  const bad: [string, Buffer, RegExp][] = [
    ["no zip", Buffer.from("junk"), /has no zip directory/],
    ["an empty file", Buffer.alloc(0), /has no zip directory/],
    ["a file cut short", one({}).subarray(0, -1), /has no zip directory/],
    ["a part of several", one({}, { disk: 1 }), /split over several/],
    ["zip64 by count", one({}, { count: 0xffff }), /zip64/],
    ["zip64 by size", one({ size: 0xffffffff }), /zip64/],
    [
      "more entries than claimed",
      zip(
        [
          { name: "a.npy", data: array },
          { name: "b.npy", data: array },
        ],
        { count: 1 },
      ),
      /has 51 bytes after its last entry/,
    ],
    ["fewer entries than claimed", one({}, { count: 2 }), /claims 2 entries, but ends or breaks after 1/],
    ["a directory elsewhere", one({}, { offset: 0 }), /does not lie right before/],
    ["a directory of another size", one({}, { size: 10 }), /does not lie right before/],
    [
      "a name beyond the directory",
      ((z) => z.fill(255, z.length - 22 - 51 + 28, z.length - 22 - 51 + 29))(one({})),
      /ends outside of it/,
    ],
    ["an encrypted entry", one({ flags: 1 }), /"a\.npy" is encrypted/],
    ["a name twice", two({ name: "a.npy" }), /"a\.npy" appears twice/],
    ["another file inside", one({ name: "readme.txt" }), /"readme\.txt" is not an array/],
    ["another compression", one({ method: 12 }), /method 12; only stored/],
    ["headers that disagree", one({ localMethod: 8 }), /local header/],
    ["an entry without a header", one({ offset: 4 }), /local header|overlaps/],
    ["an entry beyond the file", one({ offset: 1e9 }), /lies outside/],
    ["entries that share bytes", two({ offset: 0 }), /start at the same byte/],
    [
      "an entry that reaches into the next",
      zip([
        { name: "a.npy", data: array, packedSize: 200, size: 200 },
        { name: "b.npy", data: array },
      ]),
      /"a\.npy" overlaps/,
    ],
    ["stored sizes that differ", one({ size: 1000 }), /claims 1000 bytes, which \d+ bytes in the file cannot hold/],
    ["an impossible ratio", one({ method: 8, size: 4e9 }), /claims 4000000000 bytes/],
    [
      "a deflate stream longer than claimed",
      one({ method: 8, packed: deflateRawSync(bomb), size: 100 }),
      /does not inflate to the 100 bytes/,
    ],
    [
      "a deflate stream shorter than claimed",
      one({ method: 8, size: array.length + 1 }),
      /inflates to \d+ bytes, but claims/,
    ],
    [
      "a deflate stream for no bytes",
      one({ method: 8, data: Buffer.from("x"), size: 0 }),
      /inflates to 1 bytes, but claims 0/,
    ],
    ["a broken deflate stream", one({ method: 8, packed: Buffer.alloc(50, 255) }), /does not inflate/],
    ["a wrong checksum", one({ crc: 1 }), /CRC-32 does not match/],
    ["an entry that is no array", one({ data: Buffer.from("junk") }), /"a\.npy": does not start with NumPy's magic/],
    ["an array shorter than its header says", one({ data: array.subarray(0, -1) }), /2 bytes follow the npy header/],
  ];
  it.each(bad)("refuses %s", async (_, bytes, message) => {
    await writeFile(at("bad.npz"), bytes);
    await expectError(() => loadNpz(at("bad.npz")), "InvalidFile", message);
  });

  it("refuses names a zip file cannot hold, and more entries than it can", async () => {
    const x = Tensor.from([1]);
    await expectError(() => saveNpz(at("never.npz"), { "a\0b": x }), "InvalidArgument", /NUL/);
    await expectError(() => saveNpz(at("never.npz"), { ["n".repeat(65_535)]: x }), "InvalidArgument", /longer than/);
    expect((await readdir(at())).filter((name) => name.includes("never"))).toEqual([]);
    const nowhere = { writeFile: async () => {} } as unknown as FileHandle;
    const writer = new ZipWriter(nowhere, "many.npz");
    for (let i = 0; i < 65_534; i++) await writer.add(`${i}`, new Uint8Array(0), false);
    await expectError(() => writer.add("last", new Uint8Array(0), false), "InvalidFile", /many\.npz: zip64/);
  });

  it("frees what was loaded before an entry that is refused", async () => {
    await writeFile(at("half.npz"), two({ crc: 1 }));
    const made = vi.spyOn(Tensor, "fromBytes");
    await expectError(() => loadNpz(at("half.npz")), "InvalidFile", /"b\.npy" is damaged/);
    expect(made.mock.results.map(({ value }) => (value as Tensor).disposed)).toEqual([true]);
    made.mockRestore();
  });

  it("stops when told, and leaves no file behind", async () => {
    const signal = AbortSignal.abort(new Error("stop"));
    await saveNpz(at("stop.npz"), { x: Tensor.from([1]) });
    await expect(loadNpz(at("stop.npz"), { signal })).rejects.toThrow("stop");
    await expect(saveNpz(at("stopped.npz"), { x: Tensor.from([1]) }, { signal })).rejects.toThrow("stop");
    const disposed = Tensor.from([1]);
    disposed.dispose();
    await expectError(() => saveNpz(at("stopped.npz"), { disposed }), "Disposed", /disposed/);
    expect((await readdir(at())).filter((name) => name.includes("stopped"))).toEqual([]);
  });
});
