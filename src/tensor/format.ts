/** How a tensor looks when printed: NumPy's brackets, aligned columns, the middle of large dims elided. */
import { call } from "../backend/call.ts";
import { Storage } from "../backend/storage.ts";
import { formatShape, numel } from "../core/layout.ts";
import { type NestedArray, result, type Tensor } from "./tensor.ts";

const EDGE = 3;
const THRESHOLD = 1000;

export const summary = (t: Tensor): string => `${formatShape(t.shape)}, ${t.dtype}, ${t.backend.name}`;

export function format(t: Tensor): string {
  const elide = t.numel > THRESHOLD;
  using shown = elide ? edges(t) : t.view(t.layout);
  const cells = new Map<number | bigint, string>();
  const values = shown.dataSync();
  const text = cellText(Array.from(values as ArrayLike<number | bigint>));
  for (const v of values) cells.set(v, text(v));
  const width = Math.max(0, ...Array.from(cells.values(), (c) => c.length));
  const cell = (v: number | bigint) => text(v).padStart(width);
  return `${render(shown.toArraySync(), t, elide, 0, cell)}\nTensor(${summary(t)})`;
}

/** The first and last elements of every long dim; only these are read. */
function edges(t: Tensor): Tensor {
  let shown = t.view(t.layout);
  for (const [d, size] of t.shape.entries()) {
    if (size <= 2 * EDGE) continue;
    using whole = shown;
    const shape = whole.shape.with(d, 2 * EDGE);
    shown = result(Storage.alloc(t.backend, t.dtype, numel(shape)), shape);
    for (const [from, to] of [
      [0, 0],
      [size - EDGE, EDGE],
    ] as const) {
      using source = whole.view(whole.layout.narrow(d, from, EDGE));
      using target = shown.view(shown.layout.narrow(d, to, EDGE));
      call(t.backend, "copy", source, target);
    }
  }
  return shown;
}

function render(
  v: NestedArray,
  t: Tensor,
  elide: boolean,
  depth: number,
  cell: (v: number | bigint) => string,
): string {
  if (!Array.isArray(v)) return cell(v);
  const parts = v.map((inner) => render(inner, t, elide, depth + 1, cell));
  if (elide && t.shape[depth]! > 2 * EDGE) parts.splice(EDGE, 0, "…");
  const innermost = depth === t.rank - 1;
  return `[${parts.join(innermost ? ", " : `,${"\n".repeat(t.rank - depth - 1)}${" ".repeat(depth + 1)}`)}]`;
}

/** Fixed point where all magnitudes are moderate, scientific otherwise; whole numbers as such. */
function cellText(values: (number | bigint)[]): (v: number | bigint) => string {
  const finite = values
    .filter((v): v is number => typeof v === "number" && Number.isFinite(v) && v !== 0)
    .map(Math.abs);
  const whole = finite.every(Number.isInteger);
  const largest = finite.reduce((a, b) => Math.max(a, b), 0);
  const smallest = finite.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  const scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e6;
  return (v) => {
    if (typeof v === "bigint" || !Number.isFinite(v)) return String(v).replace("Infinity", "inf");
    if (whole && largest < 1e8) return String(v);
    return scientific ? v.toExponential(4) : v.toFixed(4);
  };
}
