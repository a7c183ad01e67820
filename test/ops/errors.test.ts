import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../src/backend/cpu/backend.ts";
import { collect } from "../../src/backend/storage.ts";
import {
  Device,
  DeviceError,
  type DType,
  DTypeError,
  type ErrorCode,
  IndexError,
  MemoryError,
  ShapeError,
  Tensor,
  ValueError,
  WickError,
} from "../../src/index.ts";
import * as nn from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { expectTensor } from "../helpers/reference.ts";

type Bad = [what: string, run: () => unknown, code: ErrorCode, message: RegExp];

const classes: Partial<Record<ErrorCode, typeof WickError>> = {
  ShapeMismatch: ShapeError,
  BroadcastIncompatible: ShapeError,
  DimOutOfRange: ShapeError,
  DuplicateDim: ShapeError,
  UnexpectedNumberOfDims: ShapeError,
  NarrowInvalidArgs: ShapeError,
  ConvInvalidArgs: ShapeError,
  EmptyTensor: ShapeError,
  RaggedArray: ShapeError,
  InvalidShape: ShapeError,
  RequiresContiguous: ShapeError,
  UnexpectedDType: DTypeError,
  DTypeMismatch: DTypeError,
  UnsupportedDTypeForOp: DTypeError,
  DeviceMismatch: DeviceError,
  UnknownDevice: DeviceError,
  InvalidIndex: IndexError,
  OutOfMemory: MemoryError,
  Disposed: MemoryError,
  InvalidArgument: ValueError,
  ValueOutOfRange: ValueError,
};

function thrown(run: () => unknown): unknown {
  try {
    // A device that works asynchronously reports a bad id when the result is read.
    const result = run();
    if (result instanceof Tensor) {
      using read = result;
      read.dataSync();
    }
  } catch (error) {
    return error;
  }
  return "no error";
}

function expectError(run: () => unknown, code: ErrorCode, message: RegExp): void {
  const error = thrown(run);
  expect(error).toBeInstanceOf(classes[code]!);
  expect(error).toBeInstanceOf(WickError);
  expect(error).toMatchObject({ code, name: classes[code]!.name });
  expect((error as Error).message).toMatch(message);
}

describeInTurns("Errors", (device) => {
  const f = (...shape: number[]) => Tensor.ones(shape, { device });
  const of = (dtype: DType, ...shape: number[]) => Tensor.ones(shape, { dtype, device });
  const ids = (...values: number[]) => Tensor.from(values, { dtype: "u32", device });
  const table = (name: string, cases: () => Bad[]) =>
    describe(name, () => {
      it.each(cases().map((c) => [c[0], c] as const))("%s", (_, [, run, code, message]) => {
        expectError(run, code, message);
      });
    });

  table("creation", () => [
    ["a ragged array", () => Tensor.from([[1, 2], [3]], { device }), "RaggedArray", /ragged.*1.*2/],
    ["an array beside a number", () => Tensor.from([1, [2]], { device }), "RaggedArray", /ragged/],
    ["a number beside an array", () => Tensor.from([[1], 2], { device }), "RaggedArray", /2 at depth 1/],
    ["a longer row beside an empty one", () => Tensor.from([[], [1]], { device }), "RaggedArray", /1.*0/],
    ["an object", () => Tensor.from([{}] as unknown as number[], { device }), "RaggedArray", /object/],
    ["a string", () => Tensor.from(["1"] as unknown as number[], { device }), "RaggedArray", /1/],
    ["arrays nested nine deep", () => Tensor.from([[[[[[[[[1]]]]]]]]], { device }), "InvalidShape", /rank 9.*8/],
    ["a typed array of no dtype", () => Tensor.from(new Uint16Array(2), { device }), "UnexpectedDType", /Uint16Array/],
    ["too few values", () => Tensor.from([1, 2, 3], { shape: [2, 2], device }), "ShapeMismatch", /3 .*\[2, 2\].*4/],
    [
      "too few bytes",
      () => Tensor.fromBytes(new Uint8Array(7), [2], "f32", device),
      "ShapeMismatch",
      /\[2\].*f32.*8.*7/,
    ],
    ["a fraction in an integer", () => Tensor.from([1.5], { dtype: "i32", device }), "ValueOutOfRange", /1\.5.*i32/],
    ["NaN in an integer", () => Tensor.from([Number.NaN], { dtype: "u8", device }), "ValueOutOfRange", /NaN.*u8/],
    ["256 in u8", () => Tensor.from([256], { dtype: "u8", device }), "ValueOutOfRange", /256.*u8.*0 to 255/],
    ["−1 in u32", () => Tensor.full([1], -1, { dtype: "u32", device }), "ValueOutOfRange", /-1.*u32/],
    ["32768 in i16", () => Tensor.from([32768n], { dtype: "i16", device }), "ValueOutOfRange", /32768.*i16/],
    ["2⁶³ in i64", () => Tensor.from([2n ** 63n], { device }), "ValueOutOfRange", /9223372036854775808.*i64/],
    ["1e300 in i64", () => Tensor.from([1e300], { dtype: "i64", device }), "ValueOutOfRange", /1e\+300.*i64/],
    [
      "a bigint and a fraction",
      () => Tensor.from([1n, 0.5] as unknown as bigint[], { device }),
      "ValueOutOfRange",
      /0\.5/,
    ],
    ["a scalar operand that does not fit", () => of("u8", 2).add(300), "ValueOutOfRange", /300.*u8/],
    ["a fractional operand", () => of("i64", 2).mul(0.5), "ValueOutOfRange", /0\.5.*i64/],
    ["a fractional affine", () => of("i32", 2).affine(1.5, 0), "ValueOutOfRange", /1\.5.*i32/],
    ["a negative size", () => Tensor.zeros([2, -1], { device }), "InvalidShape", /\[2, -1\].*-1/],
    ["a fractional size", () => Tensor.ones([1.5], { device }), "InvalidShape", /1\.5/],
    ["a size that is no number", () => Tensor.empty([Number.NaN], { device }), "InvalidShape", /NaN/],
    ["an infinite size", () => Tensor.rand([Number.POSITIVE_INFINITY], { device }), "InvalidShape", /Infinity/],
    [
      "sizes whose product is no safe integer",
      () => Tensor.zeros([2 ** 30, 2 ** 30], { device }),
      "InvalidShape",
      /too many/,
    ],
    ["nine dims", () => Tensor.zeros(new Array(9).fill(1), { device }), "InvalidShape", /rank 9/],
    ["an unknown dtype", () => Tensor.zeros([2], { dtype: "float32" as DType, device }), "UnexpectedDType", /float32/],
    [
      "an unknown dtype for values",
      () => Tensor.from([2], { dtype: "int" as DType, device }),
      "UnexpectedDType",
      /int/,
    ],
    [
      "an unknown dtype for bytes",
      () => Tensor.fromBytes(new Uint8Array(4), [1], "i8" as DType, device),
      "UnexpectedDType",
      /i8/,
    ],
    ["an unknown dtype to convert to", () => f(1).toDType("bool" as DType), "UnexpectedDType", /bool.*f32/],
    ["an unknown device", () => Tensor.zeros([1], { device: "tpu:0" }), "UnknownDevice", /tpu:0.*cpu/],
    ["random integers", () => Tensor.rand([2], { dtype: "i32", device }), "UnsupportedDTypeForOp", /rand.*i32/],
    ["normal integers", () => Tensor.randn([2], { dtype: "u8", device }), "UnsupportedDTypeForOp", /randn.*u8/],
    ["low above high", () => Tensor.rand([2], { low: 2, high: 1, device }), "InvalidArgument", /2.*1/],
    [
      "an infinite interval",
      () => Tensor.rand([2], { high: Number.POSITIVE_INFINITY, device }),
      "InvalidArgument",
      /Infinity/,
    ],
    ["a negative deviation", () => Tensor.randn([2], { std: -1, device }), "InvalidArgument", /-1/],
    ["a mean that is no number", () => Tensor.randn([2], { mean: Number.NaN, device }), "InvalidArgument", /NaN/],
    ["a fractional seed", () => Tensor.rand([2], { seed: 1.5, device }), "InvalidArgument", /seed.*1\.5/],
    ["a fractional device seed", () => device.setSeed(0.5), "InvalidArgument", /seed.*0\.5/],
    ["a step of 0", () => Tensor.arange(0, 5, { step: 0, device }), "InvalidArgument", /step/],
    [
      "an endless range",
      () => Tensor.arange(Number.POSITIVE_INFINITY, undefined, { device }),
      "InvalidArgument",
      /Infinity/,
    ],
    [
      "a range past its dtype",
      () => Tensor.arange(300, undefined, { dtype: "u8", device }),
      "ValueOutOfRange",
      /256.*u8/,
    ],
    ["a negative eye", () => Tensor.eye(-1, { device }), "InvalidArgument", /eye.*-1/],
    ["a fractional triangle", () => Tensor.tril(1.5, { device }), "InvalidArgument", /tril.*1\.5/],
    ["a grid of one axis", () => Tensor.meshgrid([f(2)]), "InvalidArgument", /meshgrid.*1/],
    ["a grid of matrices", () => Tensor.meshgrid([f(2), f(2, 2)]), "UnexpectedNumberOfDims", /meshgrid.*\[2, 2\]/],
    ["a scalar of two elements", () => f(2).toScalarSync(), "ShapeMismatch", /\[2\].*2/],
  ]);

  it("toScalar of more than one element rejects", async () => {
    await expect(f(2, 2).toScalar()).rejects.toMatchObject({ code: "ShapeMismatch" });
  });

  table("elementwise", () => [
    ["shapes that do not broadcast", () => f(2, 3).add(f(2, 4)), "BroadcastIncompatible", /add.*\[2, 3\].*\[2, 4\]/],
    ["two dtypes", () => f(2).mul(of("f16", 2)), "DTypeMismatch", /mul.*f32.*f16.*toDType/],
    ["two dtypes to compare", () => of("u8", 2).lt(of("u32", 2)), "DTypeMismatch", /lt.*u8.*u32/],
    ["shapes to compare", () => f(2).eq(f(3)), "BroadcastIncompatible", /eq.*\[2\].*\[3\]/],
    ["a transcendental function of integers", () => of("i32", 2).exp(), "UnsupportedDTypeForOp", /exp.*i32.*toDType/],
    ["sigmoid of integers", () => of("u8", 2).sigmoid(), "UnsupportedDTypeForOp", /sigmoid.*u8/],
    ["round of integers", () => of("i64", 2).roundTo(1), "UnsupportedDTypeForOp", /round.*i64/],
    ["elu of integers", () => of("i16", 2).elu(), "UnsupportedDTypeForOp", /elu.*i16/],
    ["powf of integers", () => of("i32", 2).powf(2), "UnsupportedDTypeForOp", /powf.*i32/],
    ["limits of another dtype", () => f(2).clamp(of("f64", 2), 1), "DTypeMismatch", /f32.*f64/],
    ["a float condition", () => f(2).whereCond(f(2), f(2)), "UnsupportedDTypeForOp", /whereCond.*f32/],
    ["branches of two dtypes", () => of("u8", 2).whereCond(f(2), of("f64", 2)), "DTypeMismatch", /whereCond.*f32.*f64/],
    [
      "branches that do not broadcast",
      () => of("u8", 2).whereCond(f(2), f(3)),
      "BroadcastIncompatible",
      /\[2\].*\[3\]/,
    ],
    [
      "a condition that does not broadcast",
      () => of("u8", 4).whereCond(f(2), f(2)),
      "BroadcastIncompatible",
      /\[4\].*\[2\]/,
    ],
  ]);

  table("reductions", () => [
    ["a dim past the end", () => f(2, 3).sum(2), "DimOutOfRange", /sum.*2.*rank 2/],
    ["a dim before the start", () => f(2, 3).max(-3), "DimOutOfRange", /max.*-3/],
    ["a fractional dim", () => f(2, 3).mean(0.5), "DimOutOfRange", /mean.*0\.5/],
    ["a dim twice", () => f(2, 3).sum([0, -2]), "DuplicateDim", /sum.*\[0, -2\]/],
    ["the maximum of nothing", () => f(2, 0).max(1), "EmptyTensor", /max.*\[2, 0\]/],
    ["the minimum of nothing at all", () => f(0).minAll(), "EmptyTensor", /min.*\[0\]/],
    ["the index of nothing", () => f(0, 2).argmin(0), "EmptyTensor", /argmin.*\[0, 2\]/],
    ["the mean of integers", () => of("i32", 2).mean(0), "UnsupportedDTypeForOp", /mean.*i32/],
    ["the variance of integers", () => of("u8", 2).varAll(), "UnsupportedDTypeForOp", /var.*u8/],
    ["the norm of integers", () => of("u8", 2).norm(), "UnsupportedDTypeForOp", /norm.*u8/],
    ["logSumExp of integers", () => of("i64", 2).logSumExp(0), "UnsupportedDTypeForOp", /logSumExp.*i64/],
    ["softmax of integers", () => of("i64", 2).softmax(0), "UnsupportedDTypeForOp", /softmax.*i64/],
    ["logSoftmax of integers", () => of("u32", 2).logSoftmax(0), "UnsupportedDTypeForOp", /logSoftmax.*u32/],
    ["softmax of a scalar", () => f().softmax(0), "DimOutOfRange", /softmax.*rank 0/],
    ["cumsum past the end", () => f(2).cumsum(1), "DimOutOfRange", /cumsum.*1.*rank 1/],
    ["the dim of a scalar", () => f().sum(0), "DimOutOfRange", /sum.*rank 0/],
    ["var past the end", () => f(2).var(1), "DimOutOfRange", /var/],
    ["logSumExp twice", () => f(2, 2).logSumExp([0, 0]), "DuplicateDim", /logSumExp/],
  ]);

  table("linear algebra", () => [
    ["inner sizes that differ", () => f(2, 3).matmul(f(4, 5)), "ShapeMismatch", /matmul.*\[2, 3\].*\[4, 5\].*3.*4/],
    ["a vector", () => f(3).matmul(f(3, 2)), "UnexpectedNumberOfDims", /matmul.*\[3\].*\[3, 2\]/],
    ["a scalar", () => f(2, 3).matmul(f()), "UnexpectedNumberOfDims", /matmul/],
    [
      "batches that do not broadcast",
      () => f(2, 3, 4).matmul(f(3, 4, 5)),
      "BroadcastIncompatible",
      /matmul.*\[2\].*\[3\]/,
    ],
    ["two dtypes", () => f(2, 3).matmul(of("f64", 3, 2)), "DTypeMismatch", /matmul.*f32.*f64/],
    ["dot of matrices", () => f(2, 2).dot(f(2)), "UnexpectedNumberOfDims", /dot.*\[2, 2\]/],
    ["dot with a matrix", () => f(2).dot(f(2, 2)), "UnexpectedNumberOfDims", /dot.*\[2, 2\]/],
    ["vectors of two lengths", () => f(2).dot(f(3)), "ShapeMismatch", /dot.*2.*3/],
    ["mv of a vector", () => f(2).mv(f(2)), "UnexpectedNumberOfDims", /mv.*\[2\]/],
    ["mv with a matrix", () => f(2, 2).mv(f(2, 1)), "UnexpectedNumberOfDims", /mv.*\[2, 1\]/],
    ["mv of sizes that differ", () => f(2, 3).mv(f(2)), "ShapeMismatch", /\[2, 3\]/],
  ]);

  table("shapes", () => [
    ["another number of elements", () => f(2, 3).reshape([4]), "ShapeMismatch", /reshape.*\[2, 3\].*6.*\[4\].*4/],
    ["two holes", () => f(2, 3).reshape([-1, -1]), "ShapeMismatch", /reshape.*\[2, 3\]/],
    ["a hole that does not divide", () => f(2, 3).reshape([4, -1]), "ShapeMismatch", /\[4, -1\]/],
    ["a hole beside 0", () => f(0, 3).reshape([0, -1]), "ShapeMismatch", /\[0, -1\]/],
    ["a negative size", () => f(2, 3).reshape([-2, -3]), "InvalidShape", /-2/],
    ["nine dims", () => f(1).reshape(new Array(9).fill(1)), "InvalidShape", /rank 9/],
    ["a ninth dim", () => f(1, 1, 1, 1, 1, 1, 1, 1).unsqueeze(0), "InvalidShape", /rank 9/],
    ["nine dims by stacking", () => Tensor.stack([f(1, 1, 1, 1, 1, 1, 1, 1)], 0), "InvalidShape", /rank 9/],
    ["nine dims by broadcasting", () => f(1).broadcastAs(new Array(9).fill(1)), "InvalidShape", /rank 9/],
    ["nine dims by repeating", () => f(1).repeat(new Array(9).fill(1)), "InvalidShape", /rank 9/],
    ["nine dims by unfolding", () => f(1, 1, 1, 1, 1, 1, 1, 2).unfold(7, 1, 1), "InvalidShape", /rank 9/],
    ["squeezing past the end", () => f(1, 2).squeeze(2), "DimOutOfRange", /squeeze.*2/],
    ["squeezing a size that is not 1", () => f(1, 2).squeezeDims([1]), "ShapeMismatch", /squeezeDims.*1.*\[1, 2\]/],
    ["unsqueezing past the end", () => f(2).unsqueeze(2), "DimOutOfRange", /unsqueeze.*2/],
    ["transposing past the end", () => f(2, 3).transpose(0, 2), "DimOutOfRange", /transpose.*2/],
    ["t of a vector", () => f(2).t(), "UnexpectedNumberOfDims", /t .*\[2\]/],
    ["permuting too few dims", () => f(2, 3).permute([0]), "UnexpectedNumberOfDims", /permute.*\[0\].*\[2, 3\]/],
    ["permuting a dim twice", () => f(2, 3).permute([0, 0]), "DuplicateDim", /permute.*\[0, 0\]/],
    ["permuting past the end", () => f(2, 3).permute([0, 2]), "DimOutOfRange", /permute.*2/],
    ["flattening backwards", () => f(2, 3).flatten(1, 0), "InvalidArgument", /flatten.*1.*0/],
    ["broadcasting a size that is not 1", () => f(2).broadcastAs([3]), "BroadcastIncompatible", /\[2\].*\[3\]/],
    ["broadcasting to fewer dims", () => f(1, 2).broadcastAs([2]), "BroadcastIncompatible", /\[1, 2\].*\[2\]/],
    ["narrowing past the end", () => f(3).narrow(0, 2, 2), "NarrowInvalidArgs", /2.*2.*\[3\]/],
    ["narrowing from before the start", () => f(3).narrow(0, -4, 1), "NarrowInvalidArgs", /-4.*\[3\]/],
    ["narrowing by a negative length", () => f(3).narrow(0, 1, -1), "NarrowInvalidArgs", /-1/],
    ["narrowing by a fraction", () => f(3).narrow(0, 0.5, 1), "NarrowInvalidArgs", /0\.5/],
    ["narrowing a dim that is not there", () => f(3).narrow(1, 0, 1), "DimOutOfRange", /narrow/],
    ["no chunks", () => f(3).chunk(0, 0), "InvalidArgument", /chunk.*0/],
    ["chunks of a dim that is not there", () => f(3).chunk(2, 1), "DimOutOfRange", /chunk/],
    ["get of a scalar", () => f().get(0), "UnexpectedNumberOfDims", /index/],
    ["get past the end", () => f(2).get(2), "InvalidIndex", /2.*\[2\]/],
    ["get before the start", () => f(2).get(-3), "InvalidIndex", /-3.*\[2\]/],
    ["a fractional position", () => f(2).get(0.5), "InvalidIndex", /0\.5/],
    ["too many positions", () => f(2).index(0, 0), "UnexpectedNumberOfDims", /index.*2.*\[2\]/],
    ["a range past the end", () => f(2).index([0, 3]), "NarrowInvalidArgs", /3.*\[2\]/],
    ["a range backwards", () => f(4).index([3, 1]), "NarrowInvalidArgs", /-2/],
    ["a negative count", () => f(2).repeat([-1]), "InvalidShape", /-1/],
    ["a fractional shift", () => f(2).roll(0.5, 0), "InvalidArgument", /roll.*0\.5/],
    ["rolling a dim that is not there", () => f(2).roll(1, 1), "DimOutOfRange", /roll/],
    ["flipping a dim twice", () => f(2, 2).flip([0, -2]), "DuplicateDim", /flip/],
    ["windows past the end", () => f(3).unfold(0, 4, 1), "InvalidArgument", /unfold.*4.*\[3\]/],
    ["windows of nothing", () => f(3).unfold(0, 0, 1), "InvalidArgument", /unfold.*0/],
    ["windows that do not move", () => f(3).unfold(0, 1, 0), "InvalidArgument", /unfold.*0/],
    ["negative padding", () => f(2).padWithZeros(0, -1, 0), "InvalidArgument", /padWithZeros.*-1/],
    ["negative padding on the right", () => f(2).padWithSame(0, 0, -1), "InvalidArgument", /padWithSame.*-1/],
    ["repeating the end of nothing", () => f(0).padWithSame(0, 1, 0), "EmptyTensor", /padWithSame.*\[0\]/],
    ["cat of nothing", () => Tensor.cat([], 0), "InvalidArgument", /cat/],
    ["stack of nothing", () => Tensor.stack([], 0), "InvalidArgument", /at least one/],
    ["cat of scalars", () => Tensor.cat([f()], 0), "DimOutOfRange", /cat/],
    [
      "cat of shapes that differ elsewhere",
      () => Tensor.cat([f(2, 3), f(2, 4)], 0),
      "ShapeMismatch",
      /cat.*\[2, 3\].*\[2, 4\]/,
    ],
    ["cat of two ranks", () => Tensor.cat([f(2), f(2, 1)], 0), "ShapeMismatch", /cat.*\[2\].*\[2, 1\]/],
    ["cat of two dtypes", () => Tensor.cat([f(2), of("f16", 2)], 0), "DTypeMismatch", /cat.*f32.*f16/],
    ["stack of two shapes", () => Tensor.stack([f(2), f(3)], 0), "ShapeMismatch", /2\].*3\]/],
  ]);

  table("indexing", () => [
    [
      "an id out of range",
      () => f(3).indexSelect(ids(0, 3), 0),
      "InvalidIndex",
      /id 3 at position 1\b.*dim 0 of size 3/,
    ],
    ["float ids", () => f(3).indexSelect(f(1), 0), "UnsupportedDTypeForOp", /indexSelect.*f32/],
    ["i32 ids", () => f(3).gather(of("i32", 1), 0), "UnsupportedDTypeForOp", /gather.*u8, u32, i64.*i32/],
    ["ids of two dims", () => f(3).indexSelect(of("u32", 1, 1), 0), "UnexpectedNumberOfDims", /indexSelect.*\[1, 1\]/],
    ["a dim that is not there", () => f(3).indexSelect(ids(0), 1), "DimOutOfRange", /indexSelect/],
    ["gather of another rank", () => f(3, 3).gather(ids(0), 0), "ShapeMismatch", /gather.*\[1\].*\[3, 3\]/],
    ["gather of larger ids", () => f(2, 2).gather(of("u32", 3, 2), 1), "ShapeMismatch", /gather.*\[3, 2\].*\[2, 2\]/],
    ["a bad id in gather", () => f(2).gather(ids(0, 5), 0), "InvalidIndex", /id 5 at position 1/],
    ["a bad id in scatter", () => f(2).scatter(ids(9), f(1), 0), "InvalidIndex", /id 9 at position 0/],
    ["a bad id in a sum of halves", () => of("f16", 2).scatterAdd(ids(9), of("f16", 1), 0), "InvalidIndex", /id 9/],
    [
      "scatter of another shape",
      () => f(3).scatter(ids(0, 1), f(1), 0),
      "ShapeMismatch",
      /scatter.*\[2\].*\[1\].*\[3\]/,
    ],
    [
      "scatter past the other dims",
      () => f(1, 3).scatter(of("u8", 2, 1), f(2, 1), 1),
      "ShapeMismatch",
      /\[2, 1\].*\[1, 3\]/,
    ],
    [
      "scatter of another dtype",
      () => f(2).scatterAdd(ids(0), of("f64", 1), 0),
      "DTypeMismatch",
      /scatterAdd.*f32.*f64/,
    ],
    [
      "indexAdd of another shape",
      () => f(3, 2).indexAdd(ids(0), f(2, 2), 0),
      "ShapeMismatch",
      /indexAdd.*\[1, 2\].*\[2, 2\]/,
    ],
    ["indexAdd by a matrix of ids", () => f(3).indexAdd(of("u8", 1, 1), f(1), 0), "UnexpectedNumberOfDims", /indexAdd/],
    ["embedding in a vector", () => f(3).embedding(ids(0)), "UnexpectedNumberOfDims", /embedding.*\[3\]/],
    ["embedding by floats", () => f(3, 2).embedding(f(1)), "UnsupportedDTypeForOp", /f32/],
    ["an unknown word", () => f(3, 2).embedding(ids(1, 7)), "InvalidIndex", /id 7 at position 1.*size 3/],
    [
      "sliceSet of another shape",
      () => f(3, 2).sliceSet(f(1, 3), 0, 0),
      "ShapeMismatch",
      /sliceSet.*\[1, 3\].*\[3, 2\]/,
    ],
    ["sliceSet of another rank", () => f(3, 2).sliceSet(f(2), 0, 0), "ShapeMismatch", /sliceSet.*\[2\].*\[3, 2\]/],
    ["sliceSet past the end", () => f(3).sliceSet(f(2), 0, 2), "NarrowInvalidArgs", /\[3\]/],
    ["sliceSet of another dtype", () => f(3).sliceSet(of("f16", 1), 0, 0), "DTypeMismatch", /sliceSet.*f32.*f16/],
    [
      "sliceSet into a broadcast",
      () => f(1).broadcastAs([3]).sliceSet(f(1), 0, 0),
      "RequiresContiguous",
      /sliceSet.*copy/,
    ],
    [
      "sliceSet of itself",
      () => {
        const t = f(4);
        t.sliceSet(t.narrow(0, 0, 2), 0, 2);
      },
      "InvalidArgument",
      /sliceSet.*share/,
    ],
    ["sliceScatter past the end", () => f(3).sliceScatter(f(2), 0, 2), "NarrowInvalidArgs", /\[3\]/],
    [
      "too few ranges",
      () => f(3, 2).sliceAssign([[0, 1]], f(1, 2)),
      "UnexpectedNumberOfDims",
      /sliceAssign.*1.*\[3, 2\]/,
    ],
    ["ranges of another shape", () => f(3).sliceAssign([[0, 2]], f(3)), "ShapeMismatch", /sliceAssign.*\[2\].*\[3\]/],
    ["a range past the end", () => f(3).sliceAssign([[2, 4]], f(2)), "NarrowInvalidArgs", /\[3\]/],
    ["sorting a scalar", () => f().argSortLastDim(), "UnexpectedNumberOfDims", /argSortLastDim/],
    ["sorting a scalar's values", () => f().sortLastDim(), "UnexpectedNumberOfDims", /argSortLastDim/],
  ]);

  table("convolution", () => [
    [
      "an image without batch",
      () => f(1, 4, 4).conv2d(f(1, 1, 2, 2)),
      "UnexpectedNumberOfDims",
      /conv2d.*4 dims.*\[1, 4, 4\]/,
    ],
    [
      "a kernel of another rank",
      () => f(1, 1, 4).conv1d(f(1, 1, 2, 2)),
      "UnexpectedNumberOfDims",
      /conv1d.*kernel.*\[1, 1, 2, 2\]/,
    ],
    [
      "other channels",
      () => f(1, 3, 4, 4).conv2d(f(2, 2, 3, 3)),
      "ConvInvalidArgs",
      /conv2d.*\[1, 3, 4, 4\].*\[2, 2, 3, 3\]/,
    ],
    ["channels of conv1d", () => f(1, 3, 4).conv1d(f(2, 2, 3)), "ConvInvalidArgs", /conv1d.*3 channels/],
    [
      "outputs that do not divide",
      () => f(1, 4, 4, 4).conv2d(f(3, 2, 1, 1), { groups: 2 }),
      "ConvInvalidArgs",
      /3 outputs/,
    ],
    ["no groups", () => f(1, 1, 4, 4).conv2d(f(1, 1, 1, 1), { groups: 0 }), "InvalidArgument", /groups.*0/],
    ["a stride of 0", () => f(1, 1, 4, 4).conv2d(f(1, 1, 1, 1), { stride: 0 }), "InvalidArgument", /stride.*0/],
    [
      "a negative padding",
      () => f(1, 1, 4, 4).conv2d(f(1, 1, 1, 1), { padding: [0, -1] }),
      "InvalidArgument",
      /padding.*-1/,
    ],
    [
      "a fractional dilation",
      () => f(1, 1, 4).conv1d(f(1, 1, 1), { dilation: 1.5 }),
      "InvalidArgument",
      /dilation.*1\.5/,
    ],
    ["a kernel past the input", () => f(1, 1, 2, 9).conv2d(f(1, 1, 3, 3)), "ConvInvalidArgs", /reaches over 3.*2/],
    [
      "a dilated kernel past the input",
      () => f(1, 1, 4).conv1d(f(1, 1, 3), { dilation: 2 }),
      "ConvInvalidArgs",
      /dilation 2.*5.*4/,
    ],
    ["another dtype", () => f(1, 1, 4, 4).conv2d(of("f16", 1, 1, 2, 2)), "DTypeMismatch", /conv2d.*f32.*f16/],
    [
      "transposed channels",
      () => f(1, 3, 4, 4).convTranspose2d(f(2, 3, 1, 1)),
      "ConvInvalidArgs",
      /3 channels.*\[2, 3, 1, 1\]/,
    ],
    ["transposed groups", () => f(1, 3, 4).convTranspose1d(f(3, 1, 1), { groups: 2 }), "ConvInvalidArgs", /2 groups/],
    [
      "output padding as large as the stride",
      () => f(1, 1, 2, 2).convTranspose2d(f(1, 1, 2, 2), { outputPadding: 1 }),
      "ConvInvalidArgs",
      /output padding 1/,
    ],
    [
      "negative output padding",
      () => f(1, 1, 2).convTranspose1d(f(1, 1, 2), { outputPadding: -1 }),
      "InvalidArgument",
      /output padding.*-1/,
    ],
    [
      "padding that eats the output",
      () => f(1, 1, 1, 1).convTranspose2d(f(1, 1, 1, 1), { padding: 2 }),
      "ConvInvalidArgs",
      /padding 2/,
    ],
    ["a kernel without extent", () => f(1, 1, 4, 4).conv2d(f(1, 1, 0, 2)), "ConvInvalidArgs", /\[1, 1, 0, 2\]/],
    [
      "a transposed kernel without extent",
      () => f(1, 1, 4, 4).convTranspose2d(f(1, 1, 2, 0)),
      "ConvInvalidArgs",
      /\[1, 1, 2, 0\]/,
    ],
    [
      "a pool past the input",
      () => f(1, 1, 2, 4).maxPool2d(3),
      "ConvInvalidArgs",
      /maxPool2d.*\[3, 3\].*\[1, 1, 2, 4\]/,
    ],
    ["a pool of nothing", () => f(1, 1, 4, 4).avgPool2d(0), "InvalidArgument", /avgPool2d.*0/],
    ["a pool that does not move", () => f(1, 1, 4, 4).avgPool2d(2, [1, 0]), "InvalidArgument", /avgPool2d.*0/],
    ["a pool without batch", () => f(1, 4, 4).maxPool2d(2), "UnexpectedNumberOfDims", /maxPool2d.*\[1, 4, 4\]/],
    ["upsampling to nothing", () => f(1, 1, 2, 2).upsampleNearest2d(0, 2), "InvalidArgument", /height.*0/],
    ["upsampling to a fraction", () => f(1, 1, 2, 2).upsampleBilinear2d(2, 2.5), "InvalidArgument", /width.*2\.5/],
    ["upsampling nothing", () => f(1, 1, 0, 2).upsampleNearest2d(2, 2), "EmptyTensor", /\[1, 1, 0, 2\]/],
    ["upsampling without batch", () => f(1, 2, 2).upsampleBilinear2d(4, 4), "UnexpectedNumberOfDims", /\[1, 2, 2\]/],
    ["a line in two dims", () => f(1, 1, 2, 2).upsampleNearest1d(4), "UnexpectedNumberOfDims", /upsampleNearest1d/],
    [
      "bilinear integers",
      () => of("u8", 1, 1, 2, 2).upsampleBilinear2d(4, 4),
      "UnsupportedDTypeForOp",
      /upsampleBilinear2d.*u8/,
    ],
    ["a factor of 0", () => f(1, 1, 2, 2).upsampleBilinear2dWithScale(0, 1), "InvalidArgument", /height.*0/],
    [
      "a factor that is no number",
      () => f(1, 1, 2, 2).upsampleBilinear2dWithScale(1, Number.NaN),
      "InvalidArgument",
      /width.*NaN/,
    ],
    ["scaled integers", () => of("i32", 1, 1, 2, 2).upsampleBilinear2dWithScale(2, 2), "UnsupportedDTypeForOp", /i32/],
  ]);

  table("nn", () => [
    ["rmsNorm of a scalar", () => nn.rmsNorm(f(), null), "UnexpectedNumberOfDims", /rmsNorm/],
    ["rmsNorm of integers", () => nn.rmsNorm(of("i32", 2), null), "UnsupportedDTypeForOp", /rmsNorm.*i32/],
    [
      "a weight of another size",
      () => nn.rmsNorm(f(2, 3), f(2)),
      "ShapeMismatch",
      /rmsNorm.*weight.*\[3\].*\[2, 3\].*\[2\]/,
    ],
    ["a weight of two dims", () => nn.layerNorm(f(2, 3), f(1, 3), null), "ShapeMismatch", /layerNorm.*\[1, 3\]/],
    ["a bias of another size", () => nn.layerNorm(f(2, 3), null, f(4)), "ShapeMismatch", /layerNorm.*bias.*\[4\]/],
    [
      "a weight of another dtype",
      () => nn.layerNorm(f(2, 3), of("f16", 3), null),
      "DTypeMismatch",
      /layerNorm.*f32.*f16/,
    ],
    ["a negative eps", () => nn.rmsNorm(f(2), null, -1), "InvalidArgument", /eps.*-1/],
    ["an eps that is no number", () => nn.layerNorm(f(2), null, null, Number.NaN), "InvalidArgument", /eps.*NaN/],
    ["groups that do not divide", () => nn.groupNorm(f(1, 4, 2), 3, null, null), "ShapeMismatch", /groupNorm.*4.*3/],
    ["no groups", () => nn.groupNorm(f(1, 4), 0, null, null), "InvalidArgument", /groups.*0/],
    ["groupNorm of a vector", () => nn.groupNorm(f(4), 2, null, null), "UnexpectedNumberOfDims", /groupNorm.*\[4\]/],
    ["a group weight of another size", () => nn.groupNorm(f(1, 4), 2, f(2), null), "ShapeMismatch", /groupNorm.*\[2\]/],
    [
      "groupNorm of integers",
      () => nn.groupNorm(of("u8", 1, 4), 2, null, null),
      "UnsupportedDTypeForOp",
      /groupNorm.*u8/,
    ],
    [
      "batchNorm of a vector",
      () => nn.batchNorm(f(4), { mean: f(4), variance: f(4) }, null, null),
      "UnexpectedNumberOfDims",
      /batchNorm.*\[4\]/,
    ],
    [
      "statistics of another size",
      () => nn.batchNorm(f(1, 4), { mean: f(3), variance: f(4) }, null, null),
      "ShapeMismatch",
      /mean.*\[4\].*\[3\]/,
    ],
    [
      "batchNorm of integers",
      () => nn.batchNorm(of("u8", 1, 4), { mean: f(4), variance: f(4) }, null, null),
      "UnsupportedDTypeForOp",
      /batchNorm.*u8/,
    ],
    ["rope of rank 3", () => nn.rope(f(2, 3, 4), f(3, 2), f(3, 2)), "UnexpectedNumberOfDims", /rope.*\[2, 3, 4\]/],
    ["an odd head size", () => nn.rope(f(1, 1, 3, 5), f(3, 2), f(3, 2)), "ShapeMismatch", /rope.*5.*even/],
    [
      "cos and sin that differ",
      () => nn.ropeI(f(1, 1, 3, 4), f(3, 2), f(4, 2)),
      "ShapeMismatch",
      /ropeI.*\[3, 2\].*\[4, 2\]/,
    ],
    ["a short table", () => nn.rope(f(1, 1, 3, 4), f(2, 2), f(2, 2)), "ShapeMismatch", /rope.*t ≥ 3.*\[2, 2\]/],
    ["a wide table", () => nn.rope(f(1, 1, 3, 4), f(3, 4), f(3, 4)), "ShapeMismatch", /rope.*\[3, 4\]/],
    [
      "a table of another batch",
      () => nn.ropeThd(f(2, 3, 1, 4), f(3, 3, 2), f(3, 3, 2)),
      "ShapeMismatch",
      /ropeThd.*\[3, 3, 2\]/,
    ],
    [
      "a table of four dims",
      () => nn.rope(f(1, 1, 3, 4), f(1, 1, 3, 2), f(1, 1, 3, 2)),
      "ShapeMismatch",
      /\[1, 1, 3, 2\]/,
    ],
    [
      "rope of integers",
      () => nn.rope(of("i32", 1, 1, 1, 2), of("i32", 1, 1), of("i32", 1, 1)),
      "UnsupportedDTypeForOp",
      /rope.*i32/,
    ],
    [
      "a table of another dtype",
      () => nn.rope(f(1, 1, 1, 2), of("f16", 1, 1), of("f16", 1, 1)),
      "DTypeMismatch",
      /rope.*f32.*f16/,
    ],
    [
      "sdpa of rank 3",
      () => nn.sdpa(f(1, 2, 3), f(1, 1, 2, 3), f(1, 1, 2, 3)),
      "UnexpectedNumberOfDims",
      /sdpa: q.*\[1, 2, 3\]/,
    ],
    [
      "keys of another width",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 3), f(1, 1, 2, 4)),
      "ShapeMismatch",
      /sdpa.*\[1, 1, 2, 4\].*\[1, 1, 2, 3\]/,
    ],
    [
      "values of another length",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 3, 4)),
      "ShapeMismatch",
      /v \[1, 1, 3, 4\]/,
    ],
    ["another batch", () => nn.sdpa(f(2, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4)), "ShapeMismatch", /q \[2, 1, 2, 4\]/],
    [
      "heads that do not divide",
      () => nn.sdpa(f(1, 3, 2, 4), f(1, 2, 2, 4), f(1, 2, 2, 4)),
      "ShapeMismatch",
      /3 query heads.*2 key heads/,
    ],
    [
      "no key heads",
      () => nn.sdpa(f(1, 3, 2, 4), f(1, 0, 2, 4), f(1, 0, 2, 4)),
      "ShapeMismatch",
      /3 query heads.*0 key heads/,
    ],
    [
      "more causal queries than keys",
      () => nn.sdpa(f(1, 1, 3, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { causal: true }),
      "ShapeMismatch",
      /tq is 3.*tk is 2/,
    ],
    [
      "a negative cap",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { softcap: -1 }),
      "InvalidArgument",
      /softcap.*-1/,
    ],
    [
      "an infinite scale",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { scale: Number.POSITIVE_INFINITY }),
      "InvalidArgument",
      /scale.*Infinity/,
    ],
    [
      "a window over fewer keys than queries",
      () => nn.sdpa(f(1, 1, 3, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { window: 2 }),
      "ShapeMismatch",
      /window.*tq is 3 and tk is 2/,
    ],
    [
      "sinks of another number of heads",
      () => nn.sdpa(f(1, 2, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { sinks: f(1) }),
      "ShapeMismatch",
      /sinks must be \(2\).*\[1\]/,
    ],
    [
      "sequences of another number of rows",
      () => nn.sdpaVarlen(f(3, 1, 4), f(2, 1, 4), f(3, 1, 4), ids(0, 3)),
      "ShapeMismatch",
      /sdpaVarlen takes q \(rows, hq, d\).*\[3, 1, 4\].*\[2, 1, 4\]/,
    ],
    [
      "sequences without an end",
      () => nn.sdpaVarlen(f(3, 1, 4), f(3, 1, 4), f(3, 1, 4), ids(0)),
      "ShapeMismatch",
      /offsets must be 0 and the end of each sequence.*\[1\]/,
    ],
    [
      "offsets that are no whole numbers",
      () => nn.sdpaVarlen(f(3, 1, 4), f(3, 1, 4), f(3, 1, 4), f(2)),
      "UnsupportedDTypeForOp",
      /offsets must be i64 or u32, not f32/,
    ],
    [
      "offsets that do not end with the rows, where sequences go one by one",
      () => nn.sdpaVarlen(f(3, 1, 4), f(3, 1, 4), f(3, 1, 4), ids(0, 2)),
      "ValueOutOfRange",
      /offsets must ascend from 0 to the 3 rows, but are 0, 2/,
    ],
    [
      "a fractional window",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { causal: true, window: 1.5 }),
      "InvalidArgument",
      /window.*1\.5/,
    ],
    [
      "a mask that does not broadcast",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { mask: f(3) }),
      "BroadcastIncompatible",
      /mask.*\[3\].*\[1, 1, 2, 2\]/,
    ],
    [
      "a mask of another dtype",
      () => nn.sdpa(f(1, 1, 2, 4), f(1, 1, 2, 4), f(1, 1, 2, 4), { mask: of("u8", 2) }),
      "DTypeMismatch",
      /sdpa.*f32.*u8/,
    ],
    [
      "attention of integers",
      () => nn.sdpa(of("i32", 1, 1, 1, 1), of("i32", 1, 1, 1, 1), of("i32", 1, 1, 1, 1)),
      "UnsupportedDTypeForOp",
      /sdpa.*i32/,
    ],
    [
      "attention of two dtypes",
      () => nn.sdpa(f(1, 1, 1, 1), of("f16", 1, 1, 1, 1), f(1, 1, 1, 1)),
      "DTypeMismatch",
      /sdpa.*f32.*f16/,
    ],
    ["an odd swiglu", () => nn.swiglu(f(2, 3)), "ShapeMismatch", /swiglu.*\[2, 3\]/],
    ["swiglu of a scalar", () => nn.swiglu(f()), "ShapeMismatch", /swiglu/],
    ["hardSigmoid of integers", () => nn.hardSigmoid(of("u8", 2)), "UnsupportedDTypeForOp", /hardSigmoid.*u8/],
    ["leakyRelu of integers", () => nn.leakyRelu(of("i32", 2)), "UnsupportedDTypeForOp", /leakyRelu.*i32/],
    ["mish of integers", () => nn.mish(of("i32", 2)), "UnsupportedDTypeForOp", /i32/],
    ["dropping everything", () => nn.dropout(f(2), 1), "InvalidArgument", /dropout.*1/],
    ["a negative probability", () => nn.dropout(f(2), -0.1), "InvalidArgument", /dropout.*-0\.1/],
    ["dropout of integers", () => nn.dropout(of("i32", 2), 0.5), "UnsupportedDTypeForOp", /dropout.*i32/],
    ["channels that do not shuffle", () => nn.pixelShuffle(f(1, 3, 2, 2), 2), "ShapeMismatch", /pixelShuffle.*3.*2/],
    [
      "pixels that do not unshuffle",
      () => nn.pixelUnshuffle(f(1, 1, 3, 4), 2),
      "ShapeMismatch",
      /pixelUnshuffle.*3.*4.*2/,
    ],
    ["a shuffle by 0", () => nn.pixelShuffle(f(1, 4, 2, 2), 0), "InvalidArgument", /factor.*0/],
    ["a shuffle without batch", () => nn.pixelUnshuffle(f(4, 2, 2), 2), "UnexpectedNumberOfDims", /pixelUnshuffle/],
    ["no depth", () => nn.oneHot(ids(0), 0), "InvalidArgument", /depth.*0/],
    ["one-hot floats", () => nn.oneHot(f(1), 2), "UnsupportedDTypeForOp", /oneHot.*f32/],
    ["a Linear of a vector", () => new nn.Linear(f(2)), "UnexpectedNumberOfDims", /Linear.*\[2\]/],
    [
      "a Linear input of another width",
      () => new nn.Linear(f(2, 3)).forward(f(4)),
      "ShapeMismatch",
      /Linear.*\[4\].*\[2, 3\]/,
    ],
    ["a Linear of a scalar", () => new nn.Linear(f(2, 3)).forward(f()), "ShapeMismatch", /Linear.*\[\].*\[2, 3\]/],
    [
      "an Lstm of three gates",
      () => new nn.Lstm({ inputWeight: f(6, 2), hiddenWeight: f(6, 2) }),
      "ShapeMismatch",
      /4 gates.*\[6, 2\]/,
    ],
    [
      "Gru weights that differ",
      () => new nn.Gru({ inputWeight: f(3, 2), hiddenWeight: f(6, 2) }),
      "ShapeMismatch",
      /3 gates.*\[3, 2\].*\[6, 2\]/,
    ],
    ["targets of another length", () => nn.nll(f(2, 3), ids(0)), "ShapeMismatch", /nll.*1.*\[2, 3\]/],
    ["targets of two dims", () => nn.nll(f(2, 3), of("u8", 2, 1)), "UnexpectedNumberOfDims", /nll.*\[2, 1\]/],
    ["logits of one dim", () => nn.crossEntropy(f(3), ids(0)), "UnexpectedNumberOfDims", /crossEntropy.*\[3\]/],
    ["a target past the classes", () => nn.crossEntropy(f(1, 3), ids(3)), "InvalidIndex", /id 3/],
    ["targets of floats", () => nn.nll(f(1, 3), f(1)), "UnsupportedDTypeForOp", /f32/],
    ["a delta of 0", () => nn.huber(f(2), f(2), 0), "InvalidArgument", /delta.*0/],
    ["mse of shapes that do not fit", () => nn.mse(f(2), f(3)), "BroadcastIncompatible", /\[2\].*\[3\]/],
    ["a rotating cache of nothing", () => new nn.RotatingKvCache(0), "InvalidArgument", /RotatingKvCache.*0/],
    [
      "keys and values of two lengths",
      () => new nn.RotatingKvCache(4).append(f(1, 1, 2, 1), f(1, 1, 3, 1)),
      "ShapeMismatch",
      /\[1, 1, 2, 1\].*\[1, 1, 3, 1\]/,
    ],
    [
      "the same in a plain cache",
      () => new nn.KvCache().append(f(1, 1, 2, 1), f(1, 1, 3, 1)),
      "ShapeMismatch",
      /\[1, 1, 2, 1\].*\[1, 1, 3, 1\]/,
    ],
    [
      "a cache along a dim that is not there",
      () => new nn.KvCache(4).append(f(1, 1, 2, 1), f(1, 1, 2, 1)),
      "DimOutOfRange",
      /KvCache.*4/,
    ],
    [
      "keeping more than there is",
      () => {
        const cache = new nn.KvCache();
        cache.append(f(1, 1, 2, 1), f(1, 1, 2, 1));
        cache.truncate(3);
      },
      "InvalidArgument",
      /KvCache.*3.*2/,
    ],
    [
      "keys of another shape",
      () => {
        const cache = new nn.KvCache();
        cache.append(f(1, 1, 2, 1), f(1, 1, 2, 1));
        cache.append(f(1, 2, 2, 1), f(1, 2, 2, 1));
      },
      "ShapeMismatch",
      /\[1, 2, 2, 1\]/,
    ],
  ]);

  describe("a disposed tensor", () => {
    const gone = () => {
      const t = f(2, 3);
      t.dispose();
      return t;
    };
    table("says so whatever is asked of it", () => [
      ["reading", () => gone().dataSync(), "Disposed", /\[2, 3\] f32.*disposed/],
      ["unary", () => gone().exp(), "Disposed", /disposed/],
      ["binary", () => gone().add(1), "Disposed", /disposed/],
      ["on the right", () => f(2, 3).add(gone()), "Disposed", /disposed/],
      ["viewing", () => gone().t(), "Disposed", /disposed/],
      ["reshaping", () => gone().reshape([6]), "Disposed", /disposed/],
      ["reducing", () => gone().sumAll(), "Disposed", /disposed/],
      ["multiplying", () => f(2, 2).matmul(gone()), "Disposed", /disposed/],
      ["joining", () => Tensor.cat([f(2, 3), gone()], 0), "Disposed", /disposed/],
      ["writing to", () => gone().sliceSet(f(1, 3), 0, 0), "Disposed", /disposed/],
      ["writing from", () => f(2, 3).sliceSet(gone(), 0, 0), "Disposed", /disposed/],
      ["selecting", () => gone().indexSelect(ids(0), 0), "Disposed", /disposed/],
      ["moving", () => gone().toDeviceSync(device), "Disposed", /disposed/],
      ["normalising", () => nn.rmsNorm(gone(), null), "Disposed", /disposed/],
    ]);

    it("still tells its shape, dtype and device, and may be disposed again", () => {
      const t = gone();
      t.dispose();
      expect([t.shape, t.dtype, t.device, t.disposed]).toEqual([[2, 3], "f32", device, true]);
    });

    it("rejects a read that begins afterwards", async () => {
      await expect(gone().data()).rejects.toMatchObject({ code: "Disposed" });
    });

    it("leaves its other views alone", () => {
      const t = f(2, 3);
      const view = t.t();
      t.dispose();
      expect(view.toArraySync()).toEqual([
        [1, 1],
        [1, 1],
        [1, 1],
      ]);
    });
  });

  describe("after an error everything goes on", () => {
    it("a bad id leaves its tensors, and no memory behind", () => {
      const x = Tensor.arange(6, undefined, { device }).reshape([3, 2]);
      const [bad, src] = [ids(0, 3), f(2, 2)];
      collect();
      const before = device.memory().storages;
      for (let i = 0; i < 3; i++) {
        expectError(() => x.indexSelect(bad, 0), "InvalidIndex", /id 3/);
        expectError(() => x.indexAdd(bad, src, 0), "InvalidIndex", /id 3/);
      }
      expect(device.memory().storages).toBe(before);
      expectTensor(x, { shape: [3, 2], values: [0, 1, 2, 3, 4, 5] });
      expectTensor(x.indexSelect(ids(2), 0), { shape: [1, 2], values: [4, 5] });
    });

    it("more memory than there is can be asked for", () => {
      const x = f(1000);
      for (const shape of [[2 ** 40], [2 ** 36], [2 ** 38, 2], [2 ** 47]]) {
        expectError(() => Tensor.zeros(shape, { device }), "OutOfMemory", /allocate.*[KMGT]iB/);
      }
      expectError(
        () =>
          x
            .reshape([1000, 1])
            .broadcastAs([1000, 2 ** 36])
            .copy(),
        "OutOfMemory",
        /allocate/,
      );
      expectError(() => f(2 ** 20, 1).add(f(1, 2 ** 20)), "OutOfMemory", /allocate/);
      expect(x.sumAll().toScalarSync()).toBe(1000);
    });

    it("also by ranges and patterns", () => {
      expectError(() => Tensor.arange(1e13, undefined, { device }), "OutOfMemory", /allocate|memory/);
      expectError(() => Tensor.eye(2 ** 23, { device }), "OutOfMemory", /allocate|memory/);
    });
  });
});

describe("Errors between devices", () => {
  /** A second CPU with memory of its own. */
  const second = Device.open("second", () => Object.defineProperty(new CpuBackend(), "name", { value: "second" }));
  const [here, there] = [Tensor.ones([2, 2]), Tensor.ones([2, 2], { device: second })];
  const idsThere = Tensor.zeros([2], { dtype: "u32", device: second });

  const cases: [string, () => unknown][] = [
    ["add", () => here.add(there)],
    ["eq", () => there.eq(here)],
    ["matmul", () => here.matmul(there)],
    ["cat", () => Tensor.cat([here, there], 0)],
    ["indexSelect", () => here.indexSelect(idsThere, 0)],
    ["sliceSet", () => here.sliceSet(there, 0, 0)],
    ["whereCond", () => Tensor.zeros([2], { dtype: "u8" }).whereCond(there, there)],
    ["rmsNorm", () => nn.rmsNorm(here, Tensor.ones([2], { device: second }))],
    ["scatter", () => here.scatter(Tensor.zeros([1, 2], { dtype: "u32" }), there, 0)],
  ];
  it.each(cases)("%s names both and the way out", (_, run) => {
    expectError(run, "DeviceMismatch", /(cpu.*second|second.*cpu).*toDevice/);
  });

  it("toDevice is the way out, with and without waiting", async () => {
    const t = Tensor.from([[1, 2, 3]], { dtype: "i16" }).t();
    for (const moved of [await t.toDevice(second), t.toDeviceSync(second)]) {
      expect(moved.device.name).toBe("second");
      expectTensor(moved, { shape: [3, 1], dtype: "i16", values: [1, 2, 3] });
      expect(moved.device.memory().storages).toBeGreaterThan(0);
    }
  });

  it("devices count their memory apart", () => {
    collect();
    const before = second.memory().live;
    Tensor.zeros([1000]);
    expect(second.memory().live).toBe(before);
  });
});

describe("CPU threads", () => {
  it.each([0, -1, 1.5, 65, Number.NaN, Number.POSITIVE_INFINITY])("cannot be %d", (threads) => {
    expectError(() => Device.cpu({ threads }), "InvalidArgument", /threads.*1 to 64/);
  });

  it("may change between operations", () => {
    const { backend } = Device.cpu();
    if (!(backend instanceof CpuBackend)) throw new TypeError("cpu is not a CpuBackend");
    const before = backend.threads;
    const x = Tensor.arange(1 << 18);
    const sums = [1, 3, 2, 1].map((threads) => {
      Device.cpu({ threads });
      expect(backend.threads).toBe(threads);
      return x.affine(2, 1).sumAll().toScalarSync();
    });
    expect(new Set(sums).size).toBe(1);
    Device.cpu({ threads: before });
  });
});
