/**
 * Einstein's notation, as NumPy and PyTorch have it: each letter names a dim, those not in the result are summed over, "…"
 * (three dots) stands for dims that broadcast. Operands are contracted from left to right, each by one matrix product.
 */
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, Layout } from "../core/layout.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import * as check from "./check.ts";

/** A tensor whose dims have names. */
interface Term {
  readonly x: Tensor;
  readonly labels: readonly string[];
}

export function einsum<D extends DType>(equation: string, tensors: readonly Tensor<D>[]): Tensor<D> {
  if (!Array.isArray(tensors) || tensors.length === 0) {
    fail("InvalidArgument", 'einsum takes an equation and an array of tensors: einsum("ij,jk->ik", [a, b])');
  }
  const [inputs, output] = String(equation).replaceAll(" ", "").split("->") as [string, string | undefined];
  const texts = inputs.split(",");
  if (texts.length !== tensors.length) {
    fail("InvalidArgument", `einsum "${equation}" names ${texts.length} operands, ${tensors.length} were given`);
  }
  return scope(() => {
    for (const x of tensors) check.compatible("einsum", tensors[0]!, x);
    const named = tensors.map((x, i) => ({ x, labels: labelsOf(equation, texts[i]!, x) }));
    const result = resultLabels(equation, named, output);
    const [first, ...rest] = named.map((term) => withoutRepeats(equation, term)) as [Term, ...Term[]];
    const last = rest.reduce((left, right, i) => {
      const later = new Set([...result, ...rest.slice(i + 1).flatMap(({ labels }) => labels)]);
      return contract(equation, left, right, later);
    }, first);
    return arrange(last, result) as Tensor<D>;
  });
}

/** "bi" as ["b", "i"]; the dims of "…" are called 0, 1, … from the last. */
function labelsOf(equation: string, text: string, x: Tensor): string[] {
  const [before, after, ...more] = text.split("...");
  const named = [...before!, ...(after ?? "")];
  const hidden = after === undefined ? 0 : x.rank - named.length;
  if (more.length > 0 || named.some((l) => !/[A-Za-z]/.test(l)) || named.length + hidden !== x.rank || hidden < 0) {
    fail("InvalidArgument", `einsum "${equation}": "${text}" does not name the dims of ${formatShape(x.shape)}`);
  }
  const dots = Array.from({ length: hidden }, (_, i) => String(hidden - 1 - i));
  return [...before!, ...dots, ...(after ?? "")];
}

/** A label that an operand has twice walks its diagonal. */
function withoutRepeats(equation: string, { x, labels }: Term): Term {
  const unique = [...new Set(labels)];
  if (unique.length === labels.length) return { x, labels };
  const places = unique.map((label) => labels.flatMap((l, i) => (l === label ? [i] : [])));
  for (const [first, ...others] of places) {
    if (others.some((i) => x.shape[i] !== x.shape[first!])) mismatch(equation, labels[first!]!);
  }
  const { shape, strides, offset } = x.layout;
  const layout = new Layout(
    places.map(([first]) => shape[first!]!),
    places.map((all) => all.reduce((sum, i) => sum + strides[i]!, 0)),
    offset,
  );
  return { x: x.view(layout), labels: unique };
}

/** Without an arrow: the dims of "…", then the letters that stand once, in the alphabet's order. */
function resultLabels(equation: string, terms: readonly Term[], output: string | undefined): string[] {
  const all = terms.flatMap(({ labels }) => labels);
  const dots = [...new Set(all.filter((l) => /\d/.test(l)))].sort((a, b) => Number(b) - Number(a));
  if (output === undefined) {
    const letters = all.filter((l) => !/\d/.test(l));
    const once = [...new Set(letters)].filter((l) => letters.indexOf(l) === letters.lastIndexOf(l));
    return [...dots, ...once.sort()];
  }
  const [before, after] = output.split("...");
  const labels = [...before!, ...(after === undefined ? [] : dots), ...(after ?? "")];
  if (new Set(labels).size !== labels.length || labels.some((l) => !all.includes(l))) {
    fail(
      "InvalidArgument",
      `einsum "${equation}": each dim of the result "${output}" must stand once, and on the left`,
    );
  }
  return labels;
}

const sizesOf = ({ x, labels }: Term): Map<string, number> => new Map(labels.map((l, i) => [l, x.shape[i]!]));

function mismatch(equation: string, label: string): never {
  return fail("ShapeMismatch", `einsum "${equation}": the sizes of dim ${label} differ`);
}

/** Sums over what nobody needs any more, then one product over the dims that both have. */
function contract(equation: string, a: Term, b: Term, needed: ReadonlySet<string>): Term {
  const left = arranged(a, (l) => needed.has(l) || b.labels.includes(l));
  const right = arranged(b, (l) => needed.has(l) || left.labels.includes(l));
  const [na, nb] = [sizesOf(left), sizesOf(right)];
  for (const [l, n] of na) {
    const other = nb.get(l) ?? n;
    if (n !== other && !(/\d/.test(l) && (n === 1 || other === 1))) mismatch(equation, l);
  }
  const shared = left.labels.filter((l) => nb.has(l));
  const batch = shared.filter((l) => needed.has(l));
  const summed = shared.filter((l) => !needed.has(l));
  const own = ({ labels }: Term, others: ReadonlyMap<string, number>) => labels.filter((l) => !others.has(l));
  const [rows, cols] = [own(left, nb), own(right, na)];
  const size = (l: string): number => [na.get(l), nb.get(l)].find((n) => n !== undefined && n !== 1) ?? 1;
  const count = (labels: readonly string[]): number => labels.reduce((n, l) => n * size(l), 1);
  const as = (term: Term, order: readonly string[], ...matrix: readonly number[]): Tensor =>
    permuted(term, order)
      .broadcastAs(order.map(size))
      .reshape([...batch.map(size), ...matrix]);
  const x = as(left, [...batch, ...rows, ...summed], count(rows), count(summed));
  const y = as(right, [...batch, ...summed, ...cols], count(summed), count(cols));
  const product = x.matmul(y);
  const labels = [...batch, ...rows, ...cols];
  return { x: product.reshape(labels.map(size)), labels };
}

/** Only the dims that are kept; the others are summed over. */
function arranged({ x, labels }: Term, keep: (label: string) => boolean): Term {
  const dropped = labels.flatMap((l, i) => (keep(l) ? [] : [i]));
  return dropped.length === 0 ? { x, labels } : { x: x.sum(dropped), labels: labels.filter(keep) };
}

const permuted = ({ x, labels }: Term, order: readonly string[]): Tensor =>
  x.permute(order.map((l) => labels.indexOf(l)));

function arrange(term: Term, result: readonly string[]): Tensor {
  return permuted(
    arranged(term, (l) => result.includes(l)),
    result,
  );
}
