/**
 * Linear layers with quantized weights in one call: the norm before, the product with what is added to it, and the gate or
 * the activation behind. What is left out here is composed of the ops.
 */
import { sizeOf } from "../../../../core/dtype.ts";
import type { QuantType } from "../../../../core/quant-types.ts";
import type { Backend, UnaryOp, View } from "../../../backend.ts";
import type { LinearParams } from "../../../fused-ops.ts";
import { Storage } from "../../../storage.ts";
import { addressFor, addressInside } from "../bounds.ts";
import { emitGates, GATE_PIECE, gateArguments } from "../kernels/gates.ts";
import { emitMap, mapArguments } from "../kernels/map.ts";
import { formulas } from "../kernels/math.ts";
import { emitNorm, rowArguments } from "../kernels/rows.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";
import { type AroundProduct, hasProduct, type QuantRunner, quantProduct, rowsAtOnce } from "./qmatmul.ts";

/** Elements of a chunk of rows, and of a map. */
const CHUNK = 16384;

const isDense = (view: View, dtype: FloatType, n: number): boolean =>
  view.storage.dtype === dtype && view.layout.numel === n && view.layout.isContiguous();

/** Null where not all that is asked for can be done here. */
export function linear(
  backend: Backend,
  runner: QuantRunner,
  x: View,
  w: View,
  type: QuantType,
  { norm, bias, glu, residual, ...p }: LinearParams,
): Storage | null {
  const { dtype } = x.storage;
  const { native } = runner;
  const activation = p.activation ?? null;
  const [m, k] = x.layout.shape as [number, number];
  const n = w.layout.shape[0]!;
  if (!isFloatType(dtype) || !hasProduct(native.isa, type, dtype, k, w) || m === 0 || !x.layout.isContiguous())
    return null;
  if (glu === "clampedSwiglu" || (activation && !(unaryOf[activation] in formulas))) return null;
  // One thing is added in the product itself, and nothing behind what follows it.
  if (residual && (bias || glu || activation)) return null;
  const addend = bias ?? residual;
  if (norm && !isDense(norm.weight, dtype, k)) return null;
  if (addend && !isDense(addend, dtype, bias ? n : m * n)) return null;

  const es = sizeOf(dtype);
  const columns = glu ? n / 2 : n;
  const rows = Math.min(m, rowsAtOnce(native.isa, k));
  const storage = Storage.alloc(backend, dtype, m * columns);
  const normed = norm && Storage.alloc(backend, dtype, rows * k);
  const gates = glu && Storage.alloc(backend, dtype, rows * n);
  try {
    const [xAt, out] = [addressInside(x), addressFor(storage, m * columns)];
    const around: AroundProduct = {
      before:
        normed &&
        ((first, count) => {
          const at = addressFor(normed, count * k);
          return {
            x: at,
            job: normJob(native, dtype, xAt + first * k * es, at, count, k, addressInside(norm!.weight), norm!.eps),
          };
        }),
      behind: gates
        ? (first, count) => {
            const at = addressFor(gates, count * n);
            return { out: at, job: gateJob(native, glu!, dtype, at, out + first * columns * es, count, columns) };
          }
        : activation &&
          ((first, count) => {
            const at = out + first * n * es;
            return { out: at, job: mapJob(native, unaryOf[activation], dtype, at, count * n) };
          }),
    };
    const added = addend && { at: addressInside(addend), line: bias ? 0 : n * es };
    const product = { type, dtype, m, n, k, x: xAt, w: addressInside(w), out, addend: added ?? undefined };
    quantProduct(runner, product, around);
  } finally {
    normed?.discard();
    gates?.discard();
  }
  return storage;
}

const unaryOf = { silu: "silu", gelu: "gelu", geluErf: "gelu_erf", relu: "relu" } as const satisfies Record<
  string,
  UnaryOp
>;

function normJob(
  native: Native,
  dtype: FloatType,
  x: number,
  out: number,
  rows: number,
  cols: number,
  weight: number,
  eps: number,
): Job {
  const kind = { isCentred: false, hasWeight: true, hasBias: false };
  return {
    kernel: native.kernel(`norm ${dtype} 010`, emitNorm(dtype, kind)),
    args: rowArguments.words({ x, out, cols, weight, bias: 0, eps: { double: eps } }),
    total: rows,
    grain: Math.max(1, Math.floor(CHUNK / cols)),
  };
}

function gateJob(
  native: Native,
  act: "silu" | "gelu",
  dtype: FloatType,
  x: number,
  out: number,
  rows: number,
  columns: number,
): Job {
  const pieces = Math.ceil(columns / GATE_PIECE);
  return {
    kernel: native.kernel(`gates ${act} ${dtype}`, emitGates(act, dtype)),
    args: gateArguments.words({ x, out, columns, pieces }),
    total: rows * pieces,
    grain: Math.max(1, Math.floor(CHUNK / Math.min(columns, GATE_PIECE))),
  };
}

/** In place. */
function mapJob(native: Native, op: keyof typeof formulas, dtype: FloatType, at: number, n: number): Job {
  return {
    kernel: native.kernel(`${op} ${dtype}`, emitMap(op, dtype)),
    args: mapArguments.words({ x: at, y: 0, out: at, mul: 0, add: 0, isStreamed: 0 }),
    total: n,
    grain: CHUNK,
  };
}
