/** What the compiler promises to users; `tsc` checks these statements, the test run only loads them. */
import { describe, expect, expectTypeOf, it } from "vitest";
import {
  type Device,
  type DType,
  type ErrorCode,
  type NestedArray,
  type Operand,
  type Shape,
  ShapeError,
  scope,
  Tensor,
  type TypedArray,
  WickError,
} from "../../src/index.ts";
import {
  type Gru,
  type KvCache,
  type KvPair,
  type Linear,
  type Lstm,
  type LstmState,
  type Module,
  oneHot,
  rmsNorm,
  type SdpaOptions,
  sdpa,
} from "../../src/nn/index.ts";

describe("Types", () => {
  it("tensors are read-only in shape, dtype and device", () => {
    expectTypeOf<Tensor["shape"]>().toEqualTypeOf<Shape>();
    expectTypeOf<Shape>().toEqualTypeOf<readonly number[]>();
    expectTypeOf<Tensor["dtype"]>().toEqualTypeOf<DType>();
    expectTypeOf<Tensor["device"]>().toEqualTypeOf<Device>();
    expectTypeOf<DType>().toEqualTypeOf<
      "u8" | "u32" | "i16" | "i32" | "i64" | "bf16" | "f16" | "f32" | "f64" | "f8e4m3"
    >();
    expect(() => {
      // @ts-expect-error a shape cannot be assigned
      Tensor.zeros([1]).shape = [2];
    }).toThrow(TypeError);
  });

  it("reading waits or does not, by name", () => {
    expectTypeOf<Tensor["data"]>().returns.toEqualTypeOf<Promise<TypedArray>>();
    expectTypeOf<Tensor["dataSync"]>().returns.toEqualTypeOf<TypedArray>();
    expectTypeOf<Tensor["toArray"]>().returns.resolves.toEqualTypeOf<NestedArray>();
    expectTypeOf<Tensor["toScalarSync"]>().returns.toEqualTypeOf<number | bigint>();
    expectTypeOf<Tensor["bytes"]>().returns.resolves.toEqualTypeOf<Uint8Array>();
  });

  it("operations take tensors or numbers and give tensors", () => {
    expectTypeOf<Operand>().toEqualTypeOf<Tensor | number | bigint>();
    expectTypeOf<Tensor["add"]>().parameter(0).toEqualTypeOf<Operand>();
    expectTypeOf<Tensor["add"]>().returns.toEqualTypeOf<Tensor>();
    expectTypeOf<Tensor["exp"]>().parameters.toEqualTypeOf<[]>();
    expectTypeOf<Tensor["sum"]>().parameter(0).toEqualTypeOf<number | readonly number[] | undefined>();
    expectTypeOf<Tensor["argmax"]>().parameter(0).toEqualTypeOf<number | undefined>();
    expectTypeOf<Tensor["argmax"]>().returns.toEqualTypeOf<Tensor<"u32">>();
    expectTypeOf<Tensor["sortLastDim"]>().returns.toEqualTypeOf<[values: Tensor, order: Tensor<"u32">]>();
    expectTypeOf<Tensor["sliceSet"]>().returns.toEqualTypeOf<void>();
    expectTypeOf<Tensor["chunk"]>().returns.toEqualTypeOf<Tensor[]>();
  });

  it("creation knows its options", () => {
    expectTypeOf(Tensor.zeros).parameter(1).toExtend<{ dtype?: DType; device?: Device | string } | undefined>();
    expectTypeOf(Tensor.from).toBeCallableWith([[1, 2]], { dtype: "f16" });
    expectTypeOf(Tensor.from).toBeCallableWith(new BigInt64Array(1));
    // @ts-expect-error no such dtype
    expectTypeOf(Tensor.ones).toBeCallableWith([1], { dtype: "float32" });
    // @ts-expect-error strings are no values
    expectTypeOf(Tensor.from).toBeCallableWith(["1"]);
  });

  it("a dtype that is known says what is read", () => {
    const floats = Tensor.zeros([2]);
    expectTypeOf(floats.dataSync()).toEqualTypeOf<Float32Array>();
    expectTypeOf(floats.exp().sum().toScalarSync()).toEqualTypeOf<number>();
    expectTypeOf(floats.toDType("i64").toScalar).returns.resolves.toEqualTypeOf<bigint>();
    expectTypeOf(floats.argmax().dataSync()).toEqualTypeOf<Uint32Array>();
    expectTypeOf(floats.gt(0).dtype).toEqualTypeOf<"u8">();
    expectTypeOf(Tensor.from([1n, 2n]).dataSync()).toEqualTypeOf<BigInt64Array>();
    expectTypeOf(Tensor.from([[true], [false]]).dtype).toEqualTypeOf<"u8">();
    expectTypeOf(Tensor.from(new Float64Array(1)).sqrt().dtype).toEqualTypeOf<"f64">();
    expectTypeOf(floats.gt(0).whereCond(floats, floats).dtype).toEqualTypeOf<"f32">();
    expectTypeOf(Tensor.cat([floats, floats], 0).chunk(2, 0)).toEqualTypeOf<Tensor<"f32">[]>();
    expectTypeOf(floats).toExtend<Tensor>();
    expectTypeOf<Tensor>().not.toExtend<Tensor<"f32">>();
  });

  it("a scope gives what its function gives", () => {
    expectTypeOf(scope(() => 1)).toEqualTypeOf<number>();
    expectTypeOf(scope(async () => Tensor.zeros([1]))).resolves.toEqualTypeOf<Tensor<"f32">>();
    expectTypeOf(scope(() => [Tensor.zeros([1]), "x"] as const)).toEqualTypeOf<readonly [Tensor<"f32">, "x"]>();
  });

  it("errors have a code of a closed set", () => {
    expectTypeOf<WickError["code"]>().toEqualTypeOf<ErrorCode>();
    expectTypeOf<ShapeError>().toExtend<WickError>();
    expectTypeOf<"ShapeMismatch">().toExtend<ErrorCode>();
    expectTypeOf<"Whatever">().not.toExtend<ErrorCode>();
    const error = new ShapeError("ShapeMismatch", "no");
    expect([error instanceof WickError, error.name, error.code]).toEqual([true, "ShapeError", "ShapeMismatch"]);
  });

  it("nn says what may be left out", () => {
    expectTypeOf(rmsNorm).parameters.toEqualTypeOf<[x: Tensor, weight: Tensor | null, eps?: number | undefined]>();
    expectTypeOf(sdpa).parameter(3).toEqualTypeOf<SdpaOptions | undefined>();
    expectTypeOf<SdpaOptions>().toEqualTypeOf<{
      readonly scale?: number;
      readonly causal?: boolean;
      readonly mask?: Tensor;
      readonly softcap?: number;
      readonly window?: number;
      readonly sinks?: Tensor;
    }>();
    expectTypeOf<Linear>().toExtend<Module>();
    expectTypeOf<KvCache["append"]>().returns.toEqualTypeOf<KvPair>();
    expectTypeOf<KvCache>().toExtend<Disposable>();
    expectTypeOf<Lstm["step"]>().returns.toEqualTypeOf<LstmState>();
    expectTypeOf<Gru["sequence"]>().returns.toEqualTypeOf<{ output: Tensor; state: Tensor }>();
    // @ts-expect-error one-hot rows are not made of f8
    expectTypeOf(oneHot).toBeCallableWith(Tensor.zeros([1], { dtype: "u8" }), 2, "f8e4m3");
  });

  it("tensors can be declared with using", () => {
    expectTypeOf<Tensor>().toExtend<Disposable>();
    let kept: Tensor;
    {
      using t = Tensor.zeros([1]);
      kept = t;
    }
    expect(kept.disposed).toBe(true);
  });
});
