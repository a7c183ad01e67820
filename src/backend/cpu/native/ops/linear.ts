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
import { kernels } from "../catalogue.ts";
import { GATE_PIECE, gateArguments } from "../kernels/gates.ts";
import { mapArguments } from "../kernels/map.ts";
import { formulas } from "../kernels/math.ts";
import { mostRows } from "../kernels/quant-code.ts";
import { rowArguments } from "../kernels/rows.ts";
import { guarded } from "../memory.ts";
import type { Native } from "../native.ts";
import type { Job } from "../pool.ts";
import { type FloatType, isFloatType } from "../simd.ts";
import { type AroundProduct, hasProduct, type QuantRunner, quantProduct, rowsAtOnce } from "./qmatmul.ts";
import { turnedWeights } from "./turned-weights.ts";

/** Elements of a chunk of rows, and of a map. */
const CHUNK = 16384;

/** What lies between the jobs of a call: of few rows in memory that all calls share, since they run one after the other. */
const SHARED_BYTES = 2 ** 18;
let shared: number | undefined;

class Between implements Disposable {
  readonly #storage: Storage | undefined;
  readonly at: number;

  /** `place`: the first or the second of a call. */
  constructor(backend: Backend, dtype: FloatType, n: number, place: 0 | 1) {
    if (n * sizeOf(dtype) <= SHARED_BYTES) {
      shared ??= guarded(2 * SHARED_BYTES).address;
      this.at = shared + place * SHARED_BYTES;
      return;
    }
    this.#storage = Storage.alloc(backend, dtype, n);
    this.at = addressFor(this.#storage, n);
  }

  [Symbol.dispose](): void {
    this.#storage?.discard();
  }
}

const isDense = (view: View, dtype: FloatType, n: number): boolean =>
  view.storage.dtype === dtype && view.layout.numel === n && view.layout.isContiguous();

/** Null where not all that is asked for can be done here. */
export function linear(
  backend: Backend,
  runner: QuantRunner,
  x: View,
  w: View,
  type: QuantType,
  { norm, bias, glu, residual, activation: asked }: LinearParams,
): Storage | null {
  const { dtype } = x.storage;
  const { native } = runner;
  const activation = asked ?? null;
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
  const normed = norm && new Between(backend, dtype, rows * k, 0);
  const gates = glu && new Between(backend, dtype, rows * n, 1);
  try {
    const [xAt, out] = [addressInside(x), addressFor(storage, m * columns)];
    const around: AroundProduct = {
      before:
        normed &&
        ((first, count) => {
          const { at } = normed;
          return {
            x: at,
            job: normJob(native, dtype, xAt + first * k * es, at, count, k, addressInside(norm!.weight), norm!.eps),
          };
        }),
      behind: gates
        ? (first, count) => {
            const { at } = gates;
            return { out: at, job: gateJob(native, glu!, dtype, at, out + first * columns * es, count, columns) };
          }
        : activation &&
          ((first, count) => {
            const at = out + first * n * es;
            return { out: at, job: mapJob(native, unaryOf[activation], dtype, at, count * n) };
          }),
    };
    const added = addend && { at: addressInside(addend), line: bias ? 0 : n * es };
    const turned = m <= mostRows(native.isa) ? turnedWeights(runner, type, w, k) : undefined;
    const product = { type, dtype, m, n, k, x: xAt, w: addressInside(w), turned, out, addend: added ?? undefined };
    quantProduct(runner, product, around);
  } finally {
    normed?.[Symbol.dispose]();
    gates?.[Symbol.dispose]();
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
    kernel: native.kernel(kernels.norm(dtype, kind)),
    args: rowArguments.words({ x, out, cols, weight, bias: 0, eps: { double: eps }, isStreamed: 0 }),
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
    kernel: native.kernel(kernels.gates(act, dtype)),
    args: gateArguments.words({ x, out, columns, pieces }),
    total: rows * pieces,
    grain: Math.max(1, Math.floor(CHUNK / Math.min(columns, GATE_PIECE))),
  };
}

/** In place. */
function mapJob(native: Native, op: keyof typeof formulas, dtype: FloatType, at: number, n: number): Job {
  return {
    kernel: native.kernel(kernels.map(op, dtype, false)),
    args: mapArguments.words({ x: at, y: 0, out: at, mul: 0, add: 0, isStreamed: 0 }),
    total: n,
    grain: CHUNK,
  };
}
