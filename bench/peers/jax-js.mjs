// Completion: jax-js builds lazily; `blockUntilReady` compiles, runs and reads zero bytes. Operands are made ready first.
// Each op runs in the faster of its two modes: jit saves dispatch on single kernels, but is slower on layerNorm and ten
// times slower on a wide conv2d.
import { readFileSync } from "node:fs";
import { defaultDevice, init, jit, lax, nn, numpy as np } from "@jax-js/jax";
import { normals } from "../workloads.mjs";
import { eagerCases } from "./eager.mjs";

export const { version } = JSON.parse(
  readFileSync(new URL("../node_modules/@jax-js/jax/package.json", import.meta.url)),
);

// Its pool needs web workers, which Node lacks: one thread whatever is asked.
export async function threads() {
  await init("wasm");
  defaultDevice("wasm");
  return 1;
}

const ops = {
  matmul: jit((a, b) => np.matmul(a, b)),
  matvec: jit((x, w) => np.matmul(x, w)),
  matvecT: jit((x, w) => np.matmul(x, w.transpose())),
  add: jit((a, b) => np.add(a, b)),
  exp: (x) => np.exp(x),
  gelu: jit((x) => nn.gelu(x)), // tanh form
  softmax: (x) => nn.softmax(x, -1),
  layerNorm: (x, weight, bias, { epsilon }) => nn.standardize(x, -1, { epsilon }).mul(weight).add(bias),
  sum: jit((x) => np.sum(x)),
  // A transpose is a view until jit makes it a result.
  transpose: jit((x) => x.transpose()),
  conv2d: (x, w, { padding: p, stride: s }) => lax.convGeneralDilated(x, w, [s, s], Array(2).fill([p, p])),
  // Its dotProductAttention needs iterator helpers (Node 22).
  sdpa: (q, k, v, { scale }) => np.matmul(nn.softmax(np.matmul(q.mul(scale), np.swapaxes(k, -1, -2)), -1), v),
};
const operand = (shape, seed) => np.array(normals(shape, seed)).reshape(shape).blockUntilReady();

export const cases = eagerCases(ops, operand, async (op, inputs, params) => {
  const references = inputs.map((input) => input.ref);
  const result = await op(...references, ...(Object.keys(params).length ? [params] : [])).blockUntilReady();
  result.dispose();
});
