/** Whatever is saved comes back; whatever is read either loads or is refused by a `WickError`. */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, sizeOf } from "../../src/core/dtype.ts";
import { WickError } from "../../src/core/errors.ts";
import { numel } from "../../src/core/layout.ts";
import { loadNpz, loadSafetensors, parseNpy, saveNpz, saveSafetensors } from "../../src/formats/index.ts";
import { Tensor } from "../../src/ops/index.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();
const numpyDtypes = dtypeNames.filter((dtype) => dtype !== "bf16" && dtype !== "f8e4m3");

interface Value {
  dtype: DType;
  shape: number[];
  bytes: Uint8Array;
}
const value = (dtypes: DType[]): fc.Arbitrary<Value> =>
  fc
    .tuple(fc.constantFrom(...dtypes), fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 5 }))
    .chain(([dtype, shape]) => {
      const length = numel(shape) * sizeOf(dtype);
      return fc.uint8Array({ minLength: length, maxLength: length }).map((bytes) => ({ dtype, shape, bytes }));
    });
const name = fc.oneof(
  fc.string({ unit: "grapheme", maxLength: 12 }),
  fc.constantFrom("__proto__", "constructor", "length", "0"),
);
const named = (dtypes: DType[]) =>
  fc
    .uniqueArray(fc.tuple(name, value(dtypes)), { selector: ([key]) => key, maxLength: 6 })
    .map((entries) => new Map(entries));
const tensors = (values: Map<string, Value>) =>
  new Map([...values].map(([key, { bytes, shape, dtype }]) => [key, Tensor.fromBytes(bytes, shape, dtype)]));

async function expectSame(loaded: Map<string, Tensor>, values: Map<string, Value>): Promise<void> {
  expect([...loaded.keys()].sort()).toEqual([...values.keys()].sort());
  for (const [key, { dtype, shape, bytes }] of values) {
    const tensor = loaded.get(key)!;
    expect([tensor.dtype, tensor.shape]).toEqual([dtype, shape]);
    expect(Buffer.compare(await tensor.bytes(), bytes)).toBe(0);
  }
}

describe("round trips", () => {
  it("safetensors", async () => {
    const metadata = fc
      .uniqueArray(fc.tuple(name, fc.string({ unit: "grapheme" })), { selector: ([key]) => key })
      .map((m) => new Map(m));
    await fc.assert(
      fc.asyncProperty(named(dtypeNames), metadata, async (values, metadata) => {
        await saveSafetensors(at("trip.safetensors"), tensors(values), { metadata });
        await expectSame(await loadSafetensors(at("trip.safetensors")), values);
      }),
    );
  });

  it("npz, and npy within it", async () => {
    await fc.assert(
      fc.asyncProperty(named(numpyDtypes), fc.boolean(), async (values, compress) => {
        fc.pre([...values.keys()].every((key) => !key.includes("\0")));
        await saveNpz(at("trip.npz"), tensors(values), { compress });
        await expectSame(await loadNpz(at("trip.npz")), values);
      }),
    );
  });
});

/** Replaces, inserts, drops and repeats bytes; the values are those that headers and text are sensitive to. */
interface Mutation {
  kind: "set" | "insert" | "delete" | "copy" | "cut";
  at: number;
  byte: number;
  length: number;
}
const mutation: fc.Arbitrary<Mutation> = fc.record({
  kind: fc.constantFrom("set", "set", "insert", "delete", "copy", "cut"),
  at: fc.double({ min: 0, max: 1, noNaN: true, maxExcluded: true }),
  byte: fc.oneof(
    fc.constantFrom(0, 1, 0x7f, 0x80, 0xff, ...Buffer.from('{}[]()",:-019eE\\')),
    fc.integer({ min: 0, max: 255 }),
  ),
  length: fc.integer({ min: 1, max: 9 }),
});
function mutate(bytes: Uint8Array, mutations: Mutation[]): Uint8Array {
  let out = Buffer.from(bytes);
  for (const { kind, at, byte, length } of mutations) {
    const i = Math.floor(at * out.length);
    const [head, tail] = [out.subarray(0, i), out.subarray(i)];
    if (kind === "set") out = Buffer.concat([head, Buffer.from([byte]), tail.subarray(1)]);
    else if (kind === "insert") out = Buffer.concat([head, Buffer.alloc(length, byte), tail]);
    else if (kind === "delete") out = Buffer.concat([head, tail.subarray(length)]);
    else if (kind === "copy") out = Buffer.concat([head, tail.subarray(0, length), tail]);
    else out = Buffer.from(head);
  }
  return out;
}

/** The readers under test: each loads all of what the bytes hold. */
const readers: Record<string, (bytes: Uint8Array) => Promise<unknown>> = {
  safetensors: async (bytes) => {
    await writeFile(at("fuzz.safetensors"), bytes);
    return loadSafetensors(at("fuzz.safetensors"));
  },
  "an index of shards": async (bytes) => {
    await mkdir(at("index"), { recursive: true });
    await writeFile(at("index", "m.safetensors.index.json"), bytes);
    return loadSafetensors(at("index"));
  },
  npy: async (bytes) => parseNpy(bytes),
  npz: async (bytes) => {
    await writeFile(at("fuzz.npz"), bytes);
    return loadNpz(at("fuzz.npz"));
  },
};

/** Whether the bytes were taken; anything but a `WickError` fails the property. */
async function takes(read: (bytes: Uint8Array) => Promise<unknown>, bytes: Uint8Array): Promise<boolean> {
  try {
    await read(bytes);
    return true;
  } catch (error) {
    if (error instanceof WickError) return false;
    throw error;
  }
}

async function samples(): Promise<Record<keyof typeof readers, Uint8Array[]>> {
  const some = {
    a: Tensor.from([
      [1, 2],
      [3, 4],
    ]),
    b: Tensor.from([5], { dtype: "i64" }),
    c: Tensor.from([], { dtype: "u8" }),
  };
  await saveSafetensors(at("sample.safetensors"), some, { metadata: { format: "pt" } });
  await saveNpz(at("stored.npz"), some);
  await saveNpz(at("deflated.npz"), some, { compress: true });
  const header = "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }\n";
  return {
    safetensors: [await readFile(at("sample.safetensors"))],
    "an index of shards": [
      Buffer.from('{"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}}'),
    ],
    npy: [
      Buffer.concat([
        Buffer.from("\x93NUMPY\x01\0", "latin1"),
        Buffer.from([header.length, 0]),
        Buffer.from(header),
        Buffer.alloc(24),
      ]),
    ],
    npz: [await readFile(at("stored.npz")), await readFile(at("deflated.npz"))],
  };
}

describe.each(Object.keys(readers))("hostile bytes given to the reader of %s", (format) => {
  const read = readers[format]!;

  it("are refused by a WickError when they are random", async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 200 }), async (bytes) => {
        expect(await takes(read, bytes)).toBe(false);
      }),
    );
  });

  it("load or are refused by a WickError when they are a damaged file", async () => {
    const files = (await samples())[format]!;
    let refused = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...files),
        fc.array(mutation, { minLength: 1, maxLength: 4 }),
        async (file, mutations) => {
          if (!(await takes(read, mutate(file, mutations)))) refused++;
        },
      ),
      { numRuns: 500 },
    );
    expect(refused).toBeGreaterThan(0);
  });
});

describe("no damage goes unseen", () => {
  it("in an npz file: a flipped byte of an array is refused", async () => {
    const x = Tensor.fromBytes(new Uint8Array(64).fill(7), [64], "u8");
    await saveNpz(at("crc.npz"), { x });
    const file = await readFile(at("crc.npz"));
    const start = file.indexOf(Buffer.alloc(64, 7));
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 0, max: 63 }), fc.integer({ min: 1, max: 255 }), async (i, flip) => {
        const damaged = Buffer.from(file);
        damaged[start + i]! ^= flip;
        await writeFile(at("crc.npz"), damaged);
        expect(await takes(() => loadNpz(at("crc.npz")), damaged)).toBe(false);
      }),
    );
  });
});
