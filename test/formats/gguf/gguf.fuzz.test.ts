/** Whatever is written comes back; whatever is read parses or is refused by a `WickError`. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { memorySource, mutated } from "../../../scripts/gguf-mutations.mjs";
import { type DType, sizeOf } from "../../../src/core/dtype.ts";
import { WickError } from "../../../src/core/errors.ts";
import { numel } from "../../../src/core/layout.ts";
import { type GgufHeader, parseGguf } from "../../../src/formats/gguf/header.ts";
import {
  GgufFile,
  type GgufScalarType,
  type GgufTyped,
  type GgufTypedArray,
  writeGguf,
} from "../../../src/formats/index.ts";
import { Tensor } from "../../../src/ops/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();

const whole = (least: number, most: number) => fc.integer({ min: least, max: most });
const narrow = (big: bigint): number | bigint => (Number.isSafeInteger(Number(big)) ? Number(big) : big);
const string = fc.string({ unit: "grapheme", maxLength: 20 });
const scalars: Record<GgufScalarType, fc.Arbitrary<number | bigint | boolean | string>> = {
  u8: whole(0, 255),
  i8: whole(-128, 127),
  u16: whole(0, 65535),
  i16: whole(-32768, 32767),
  u32: whole(0, 2 ** 32 - 1),
  i32: whole(-(2 ** 31), 2 ** 31 - 1),
  f32: fc.float(),
  bool: fc.boolean(),
  string,
  u64: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map(narrow),
  i64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(narrow),
  f64: fc.double(),
};
const typedArrays: Partial<Record<GgufScalarType, { from(values: number[]): unknown }>> = {
  u8: Uint8Array,
  i8: Int8Array,
  u16: Uint16Array,
  i16: Int16Array,
  u32: Uint32Array,
  i32: Int32Array,
  f32: Float32Array,
  f64: Float64Array,
  u64: { from: (values) => exactOr(BigUint64Array, values) },
  i64: { from: (values) => exactOr(BigInt64Array, values) },
};
const exactOr = (big: { from(values: bigint[]): unknown }, values: (number | bigint)[]): unknown =>
  values.every((v) => typeof v === "number") ? values : big.from(values.map(BigInt));
const type = fc.constantFrom(...(Object.keys(scalars) as GgufScalarType[]));
const scalar = type.chain((t) => scalars[t].map((value): GgufTyped => ({ type: t, value })));
const flatArray = type.chain((t) =>
  fc
    .array(scalars[t], { maxLength: 20 })
    .map((values) => ({ type: `${t}[]`, value: typedArrays[t]?.from(values as number[]) ?? values }) as GgufTypedArray),
);
const { array } = fc.letrec<{ array: GgufTypedArray }>((tie) => ({
  array: fc.oneof(
    { maxDepth: 4 },
    flatArray,
    fc.array(tie("array"), { maxLength: 3 }).map((value): GgufTypedArray => ({ type: "array[]", value })),
  ),
}));
const metadata = fc
  .uniqueArray(fc.tuple(string, fc.oneof(scalar, array)), { selector: ([key]) => key, maxLength: 12 })
  .map((entries) => new Map<string, GgufTyped>(entries.filter(([key]) => key !== "general.alignment")));
const tensor = fc
  .tuple(
    fc.constantFrom<DType>("f32", "f16", "bf16", "f64", "i16", "i32", "i64"),
    fc.array(whole(0, 4), { maxLength: 4 }),
  )
  .chain(([dtype, shape]) => {
    const length = numel(shape) * sizeOf(dtype);
    return fc.uint8Array({ minLength: length, maxLength: length }).map((bytes) => ({ dtype, shape, bytes }));
  });
const tensors = fc.uniqueArray(fc.tuple(fc.string({ maxLength: 20 }), tensor), {
  selector: ([name]) => name,
  maxLength: 6,
});

it("round trips: any metadata and tensors, at any alignment", async () => {
  await fc.assert(
    fc.asyncProperty(metadata, tensors, whole(0, 9), async (metadata, tensors, power) => {
      const path = at("trip.gguf");
      await writeGguf(path, {
        metadata,
        alignment: 2 ** power,
        tensors: tensors.map(([name, { bytes, shape, dtype }]) => ({
          name,
          tensor: Tensor.fromBytes(bytes, shape, dtype),
        })),
      });
      await using file = await GgufFile.open(path);
      const found = new Map(file.typedMetadata);
      if (power !== 5) expect(found.get("general.alignment")).toEqual({ type: "u32", value: 2 ** power });
      found.delete("general.alignment");
      expect(found).toEqual(metadata);
      expect([...file.tensors.keys()]).toEqual(tensors.map(([name]) => name));
      for (const [name, { dtype, shape, bytes }] of tensors) {
        const tensor = (await file.readTensor(name)) as Tensor;
        expect([tensor.dtype, tensor.shape]).toEqual([dtype, shape]);
        expect(Buffer.compare(await tensor.bytes(), bytes)).toBe(0);
      }
    }),
    { numRuns: 200 },
  );
});

/** Whatever the file said, every tensor of a parsed one lies in it, apart from the others. */
function expectPlaced({ tensors, alignment }: GgufHeader, size: number): void {
  const spans = [...tensors.values()].filter(({ byteLength }) => byteLength > 0).sort((a, b) => a.offset - b.offset);
  let end = 0;
  for (const { offset, byteLength } of spans) {
    if (offset < end || offset % alignment !== 0 || offset + byteLength > size) {
      expect.fail(`${byteLength} bytes at ${offset} of ${size}, after ${end}`);
    }
    end = offset + byteLength;
  }
}

describe("damaged files", () => {
  it("parse or are refused by a WickError, 20,000 of them, and read no byte twice", async () => {
    let refused = 0;
    const count = 20_000;
    for (let seed = 1; seed <= count; seed++) {
      const bytes = mutated(seed);
      const source = memorySource(bytes);
      // Every other file is read a few bytes at a time, so that fields lie across the ends of what is held.
      const window = seed % 2 === 0 ? undefined : 1 + (seed % 40);
      try {
        expectPlaced(await parseGguf(source, undefined, window), bytes.length);
      } catch (error) {
        if (!(error instanceof WickError)) throw new Error(`seed ${seed}`, { cause: error });
        refused++;
      }
      if (window === undefined && source.bytesRead > bytes.length)
        expect.fail(`seed ${seed}: ${source.bytesRead} bytes`);
    }
    expect(refused).toBeGreaterThan(count / 2);
    expect(refused).toBeLessThan(count);
  });

  it("that are random bytes are refused", async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 300 }), fc.boolean(), async (bytes, magic) => {
        const file = magic ? Buffer.concat([Buffer.from("GGUF\x03\0\0\0", "latin1"), bytes]) : bytes;
        const error = await parseGguf(memorySource(file)).then(
          ({ tensors, metadata }) => (tensors.size + metadata.size === 0 ? "empty" : "parsed"),
          (e: unknown) => e,
        );
        if (error !== "empty") expect(error).toBeInstanceOf(WickError);
      }),
      { numRuns: 1000 },
    );
  });
});
