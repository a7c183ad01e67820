/**
 * A device in plain TypeScript that has the core ops and nothing else: slow, obvious and unlike the others. It shows that
 * the core suffices, it is an oracle for the rest, and whoever brings a new device begins with a copy of it.
 */
import type {
  Available,
  Backend,
  BinaryOp,
  CompareOp,
  MemoryStats,
  ReadInto,
  ReduceOp,
  UnaryOp,
  View,
} from "../../src/backend/backend.ts";
import { calledOp } from "../../src/backend/call.ts";
import { Storage } from "../../src/backend/storage.ts";
import { Usage } from "../../src/backend/usage.ts";
import { type DType, dtypes, isInt, sizeOf } from "../../src/core/dtype.ts";
import { fail } from "../../src/core/errors.ts";
import { contiguousStrides, type Layout, numel } from "../../src/core/layout.ts";
import { type QuantType, quantTypes } from "../../src/core/quant-types.ts";
import { binary, binaryOfIntegers, compare, unary, unaryOfInteger } from "./arithmetic.ts";
import { dataOf, indices, numbersOf, places, type ReferenceBlock, stored, type Value, valuesOf } from "./elements.ts";
import { dequantized, quantizers } from "./quantized.ts";
import { draws } from "./random.ts";

export class ReferenceBackend implements Backend {
  readonly name = "ref";
  readonly #usage = new Usage();

  alloc(bytes: number): ReferenceBlock {
    this.#usage.add(bytes);
    return { bytes, data: new Uint8Array(bytes) };
  }

  free({ bytes }: ReferenceBlock): void {
    this.#usage.remove(bytes);
  }

  memory(): MemoryStats {
    return this.#usage.stats(0);
  }

  available(): Available {
    return { bytes: 2 ** 32, where: "JavaScript's own memory" };
  }

  trim(): void {}

  async synchronize(): Promise<void> {}

  write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    (dst.block as ReferenceBlock).data.set(data, byteOffset);
  }

  receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    return read((dst.block as ReferenceBlock).data.subarray(byteOffset, byteOffset + byteLength));
  }

  async read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array> {
    return this.readSync(src, byteOffset, byteLength);
  }

  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    return (src.block as ReferenceBlock).data.slice(byteOffset, byteOffset + byteLength);
  }

  fill(dtype: DType, n: number, value: Value): Storage {
    return this.#made(dtype, new Array<Value>(n).fill(value));
  }

  random(kind: "uniform" | "normal", dtype: DType, n: number, seed: bigint, a: number, b: number): Storage {
    return this.#made(dtype, draws(kind, n, seed, a, b));
  }

  unary(op: UnaryOp, x: View, param: number): Storage {
    const { dtype } = x.storage;
    if (isInt(dtype))
      return this.#made(
        dtype,
        valuesOf(x).map((v) => unaryOfInteger[op]!(BigInt(v))),
      );
    return this.#made(
      dtype,
      numbersOf(x).map((v) => unary[op](v, param)),
    );
  }

  binary(op: BinaryOp, a: View, b: View): Storage {
    const { dtype } = a.storage;
    const [left, right] = [valuesOf(a), valuesOf(b)];
    const whole = isInt(dtype);
    return this.#made(
      dtype,
      left.map((v, i) =>
        whole ? binaryOfIntegers[op](BigInt(v), BigInt(right[i]!)) : binary[op](Number(v), Number(right[i])),
      ),
    );
  }

  compare(op: CompareOp, a: View, b: View): Storage {
    const right = valuesOf(b);
    return this.#made(
      "u8",
      valuesOf(a).map((v, i) => Number(compare[op](v, right[i]!))),
    );
  }

  where(cond: View, onTrue: View, onFalse: View): Storage {
    const [t, f] = [valuesOf(onTrue), valuesOf(onFalse)];
    return this.#made(
      onTrue.storage.dtype,
      numbersOf(cond).map((c, i) => (c === 0 ? f[i]! : t[i]!)),
    );
  }

  cast(x: View, to: DType): Storage {
    const { range } = dtypes[to];
    const saturated = (v: number): Value => {
      if (Number.isNaN(v)) return 0;
      const [least, most] = range!;
      return v <= Number(least) ? least : v >= Number(most) ? most : BigInt(Math.trunc(v));
    };
    const values = valuesOf(x);
    const truncates = range !== null && !isInt(x.storage.dtype);
    return this.#made(to, truncates ? values.map((v) => saturated(Number(v))) : values);
  }

  copy(src: View, dst: View): void {
    const size = sizeOf(src.storage.dtype);
    const [from, to] = [dataOf(src), dataOf(dst)];
    const targets = places(dst.layout);
    for (const [i, at] of places(src.layout).entries()) {
      to.set(from.subarray(at * size, (at + 1) * size), targets[i]! * size);
    }
  }

  reduce(op: ReduceOp, x: View, dims: number): Storage {
    const { dtype } = x.storage;
    const length = numel(x.layout.shape.slice(x.layout.rank - dims));
    const rows = numel(x.layout.shape.slice(0, x.layout.rank - dims));
    const values = valuesOf(x);
    const results = Array.from({ length: rows }, (_, r) => {
      const row = values.slice(r * length, (r + 1) * length);
      if (op === "sum") return isInt(dtype) ? row.reduce<bigint>((s, v) => s + BigInt(v), 0n) : sum(row.map(Number));
      const better = op.endsWith("min") ? less : (a: Value, b: Value) => less(b, a);
      const at = row.reduce<number>((best, v, i) => (beats(v, row[best]!, better) ? i : best), 0);
      return op.startsWith("arg") ? at : row[at]!;
    });
    return this.#made(op.startsWith("arg") ? "u32" : dtype, results);
  }

  cumsum(x: View): Storage {
    const { dtype } = x.storage;
    const length = x.layout.shape.at(-1)!;
    let total: Value = 0;
    const running = valuesOf(x).map((v, i) => {
      if (i % length === 0) total = isInt(dtype) ? 0n : 0;
      total = typeof total === "bigint" ? total + BigInt(v) : total + Number(v);
      return total;
    });
    return this.#made(dtype, running);
  }

  argsort(x: View, descending: boolean): Storage {
    const length = x.layout.shape.at(-1)!;
    const values = valuesOf(x);
    const rows = length === 0 ? 0 : values.length / length;
    const orders = Array.from({ length: rows }, (_, r) => {
      const row = values.slice(r * length, (r + 1) * length);
      const last = (v: Value): number => Number(isNan(v));
      const order = (a: Value, b: Value): number =>
        last(a) - last(b) || (a === b || isNan(a) ? 0 : a < b === descending ? 1 : -1);
      return row.map((_, i) => i).sort((i, j) => order(row[i]!, row[j]!));
    });
    return this.#made("u32", orders.flat());
  }

  gather(x: View, ids: View, dim: number): Storage {
    const values = valuesOf(x);
    const steps = contiguousStrides(x.layout.shape);
    const chosen = idsOf("gather", ids, x.layout, dim);
    const out = [...indices(ids.layout.shape)].map((index, i) => {
      const id = chosen[i]!;
      return id === null ? 0 : values[index.with(dim, id).reduce((at, k, d) => at + k * steps[d]!, 0)]!;
    });
    return this.#made(x.storage.dtype, out);
  }

  scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    const { dtype } = dst.storage;
    const out = valuesOf(dst);
    const values = valuesOf(src);
    const steps = contiguousStrides(dst.layout.shape);
    const chosen = idsOf(add ? "scatterAdd" : "scatter", ids, dst.layout, dim);
    for (const [i, index] of [...indices(src.layout.shape)].entries()) {
      const id = chosen[i]!;
      if (id === null) continue;
      const at = index.with(dim, id).reduce((sum, k, d) => sum + k * steps[d]!, 0);
      const before = out[at]!;
      out[at] = !add
        ? values[i]!
        : isInt(dtype)
          ? BigInt(before) + BigInt(values[i]!)
          : Number(before) + Number(values[i]);
    }
    dataOf(dst).set(stored(out, dtype), dst.layout.offset * sizeOf(dtype));
  }

  matmul(a: View, b: View): Storage {
    const { dtype } = a.storage;
    const [m, k] = a.layout.shape.slice(-2) as [number, number];
    const n = b.layout.shape.at(-1)!;
    const batch = numel(a.layout.shape.slice(0, -2));
    const row = (i: number): number => i * k;
    const column = (i: number, j: number): number => Math.floor(i / m) * k * n + j;
    const all = <T>(dot: (i: number, j: number) => T): T[] =>
      Array.from({ length: batch * m * n }, (_, at) => dot(Math.floor(at / n), at % n));
    if (isInt(dtype)) {
      const [left, right] = [a, b].map((v) => valuesOf(v).map(BigInt)) as [bigint[], bigint[]];
      return this.#made(
        dtype,
        all((i, j) => {
          let total = 0n;
          for (let l = 0; l < k; l++) total += left[row(i) + l]! * right[column(i, j) + l * n]!;
          return total;
        }),
      );
    }
    const [left, right] = [a, b].map((v) => Float64Array.from(numbersOf(v))) as [Float64Array, Float64Array];
    return this.#made(
      dtype,
      all((i, j) => {
        const [x, y] = [row(i), column(i, j)];
        let total = 0;
        for (let l = 0; l < k; l++) total += left[x + l]! * right[y + l * n]!;
        return total;
      }),
    );
  }

  dequantize(type: QuantType, blocks: View, to: DType): Storage {
    return this.#made(to, dequantized(type, Uint8Array.from(numbersOf(blocks))));
  }

  quantize(type: QuantType, x: View): Storage {
    const quantizer =
      quantizers[type] ?? fail("UnsupportedOp", `quantize: ref does not quantize to ${type}; quantize on "cpu"`);
    const values = numbersOf(x);
    const { size } = quantTypes[type];
    const blocks = Array.from({ length: values.length / size }, (_, i) =>
      quantizer(values.slice(i * size, (i + 1) * size)),
    );
    return this.#made("u8", blocks.flat());
  }

  #made(dtype: DType, values: readonly Value[]): Storage {
    const storage = Storage.alloc(this, dtype, values.length);
    (storage.block as ReferenceBlock).data.set(stored(values, dtype));
    return storage;
  }
}

const sum = (values: readonly number[]): number => values.reduce((s, v) => s + v, 0);
const isNan = (v: Value): boolean => Number.isNaN(v);
const less = (a: Value, b: Value): boolean => a < b;
/** NaN beats everything, the first of several stays. */
const beats = (v: Value, best: Value, better: (a: Value, b: Value) => boolean): boolean =>
  !isNan(best) && (isNan(v) || better(v, best));

/** The ids in row-major order; null where they say "nothing". */
function idsOf(op: string, ids: View, { shape }: Layout, dim: number): (number | null)[] {
  const nothing = dtypes[ids.storage.dtype].range![1];
  const size = shape[dim]!;
  return valuesOf(ids).map((id, i) => {
    if (BigInt(id) === nothing) return null;
    if (id < 0 || id >= size) {
      fail("InvalidIndex", `${calledOp(op)}: id ${id} at position ${i} is out of range for dim ${dim} of size ${size}`);
    }
    return Number(id);
  });
}
