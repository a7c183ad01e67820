// Completion: ops on the CPU device finish before they return, so nothing is read back.
import { readFileSync } from "node:fs";
import { eagerCases } from "./eager.mjs";

export const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url)));

let Tensor;
let nn;

// WICK_THREADS is read when the library loads, hence the late import.
export async function threads(n) {
  process.env.WICK_THREADS = String(n);
  ({ Tensor } = await import("../../dist/index.js"));
  nn = await import("../../dist/nn/index.js");
  return n;
}

/** Applies an op to a view and lets the view go, so that it does not keep its storage alive. */
function through(view, op) {
  const result = op(view);
  view.dispose();
  return result;
}

const ops = {
  matmul: (a, b) => a.matmul(b),
  matvec: (x, w) => x.matmul(w),
  matvecT: (x, w) => through(w.t(), (wt) => x.matmul(wt)),
  add: (a, b) => a.add(b),
  exp: (x) => x.exp(),
  gelu: (x) => x.gelu(), // tanh form
  softmax: (x) => nn.softmax(x, -1),
  layerNorm: (x, weight, bias, { epsilon }) => nn.layerNorm(x, weight, bias, epsilon),
  sum: (x) => x.sumAll(),
  transpose: (x) => through(x.transpose(0, 1), (xt) => xt.contiguous()),
  conv2d: (x, w, { padding, stride }) => x.conv2d(w, { padding, stride }),
  sdpa: (q, k, v, { scale }) => nn.sdpa(q, k, v, { scale, causal: false }),
};
const operand = (shape, seed) => Tensor.randn(shape, { seed });

export const cases = eagerCases(ops, operand, (op, inputs, params) => op(...inputs, params).dispose());
