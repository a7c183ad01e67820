/** The checks that operations share. Each names the operation and what it was given. */
import { type DType, isFloat } from "../core/dtype.ts";
import { fail, shown } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import { Tensor } from "../tensor/tensor.ts";

/** What plain JavaScript may hand over in place of a tensor. */
export function tensor(op: string, x: unknown, what = "the argument"): asserts x is Tensor {
  if (!(x instanceof Tensor)) fail("InvalidArgument", `${op}: ${what} must be a Tensor, not ${shown(x)}`);
}

export function sameDType(op: string, a: Tensor, b: Tensor): void {
  if (a.dtype !== b.dtype) {
    fail("DTypeMismatch", `${op}: dtypes ${a.dtype} and ${b.dtype} differ; convert one with toDType()`);
  }
}

export function sameDevice(op: string, a: Tensor, b: Tensor): void {
  tensor(op, b);
  if (a.backend !== b.backend) {
    fail(
      "DeviceMismatch",
      `${op}: one tensor is on ${a.backend.name}, the other on ${b.backend.name}; move one with toDevice()`,
    );
  }
}

export function compatible(op: string, a: Tensor, b: Tensor): void {
  sameDevice(op, a, b);
  sameDType(op, a, b);
}

export function floating(op: string, x: Tensor): void {
  if (!isFloat(x.dtype)) {
    fail("UnsupportedDTypeForOp", `${op} needs a float dtype, not ${x.dtype}; convert with toDType("f32")`);
  }
}

export function hasRank(op: string, x: Tensor, rank: number, what = "the input"): void {
  if (x.rank !== rank) {
    fail("UnexpectedNumberOfDims", `${op}: ${what} must have ${rank} dims; its shape is ${formatShape(x.shape)}`);
  }
}

const idTypes: readonly DType[] = ["u8", "u32", "i64"];

export function ids(op: string, x: Tensor, ids: Tensor): void {
  sameDevice(op, x, ids);
  if (!idTypes.includes(ids.dtype)) {
    fail("UnsupportedDTypeForOp", `${op}: ids must be ${idTypes.join(", ")}, not ${ids.dtype}`);
  }
}

export function positiveInt(op: string, name: string, value: number, least = 1): void {
  if (!Number.isSafeInteger(value) || value < least) {
    fail("InvalidArgument", `${op}: ${name} must be a whole number from ${least} up, not ${value}`);
  }
}
