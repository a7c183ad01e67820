// Completion: tfjs-wasm kernels run before the call returns, so nothing is read back. The SIMD build is used.
// Where an operator has a slow path and the same result can be had from a fast one, the fast one is measured.
import * as wasm from "@tensorflow/tfjs-backend-wasm";
import * as tf from "@tensorflow/tfjs-core";
import { normals } from "../workloads.mjs";
import { eagerCases } from "./eager.mjs";

export const version = wasm.version_wasm;

// Its threaded build starts workers from blob: URLs, which Node refuses: one thread whatever is asked.
export async function threads() {
  await tf.setBackend("wasm");
  if (!(await tf.env().getAsync("WASM_HAS_SIMD_SUPPORT"))) throw new Error("no SIMD build");
  return 1;
}

const ops = {
  matmul: (a, b) => tf.matMul(a, b),
  matvec: (x, w) => tf.matMul(x, w),
  // W·xᵀ: transposeB takes a slow path.
  matvecT: (x, w) => tf.matMul(w, tf.reshape(x, [-1, 1])),
  add: (a, b) => tf.add(a, b),
  exp: (x) => tf.exp(x),
  // Composed, with erf: the tanh form takes more passes and twice the time.
  gelu: (x) => tf.mul(tf.mul(x, 0.5), tf.add(tf.erf(tf.mul(x, Math.SQRT1_2)), 1)),
  softmax: (x) => tf.softmax(x),
  layerNorm: (x, weight, bias, { epsilon }) => {
    const centred = tf.sub(x, tf.mean(x, -1, true));
    const scale = tf.rsqrt(tf.add(tf.mean(tf.square(centred), -1, true), epsilon));
    return tf.add(tf.mul(tf.mul(centred, scale), weight), bias);
  },
  sum: (x) => tf.sum(x),
  transpose: (x) => tf.transpose(x),
  conv2d: (x, w, { padding, stride }) => tf.conv2d(x, w, stride, padding),
  // One head at a time: a batched matMul takes a slow path, seven times slower here.
  sdpa: (...args) => {
    const { scale } = args.pop();
    const [q, k, v] = args.map((t) => tf.unstack(tf.reshape(t, [-1, ...t.shape.slice(2)])));
    const head = (query, i) => tf.matMul(tf.softmax(tf.matMul(tf.mul(query, scale), tf.transpose(k[i]))), v[i]);
    return tf.reshape(tf.stack(q.map(head)), args[0].shape);
  },
};

const tensor = (shape, seed) => tf.tensor(normals(shape, seed), shape);

export const cases = eagerCases(ops, tensor, (op, inputs, params) => tf.tidy(() => op(...inputs, params)).dispose());

// Channels last is the only layout it has.
const nhwc = ([n, c, h, w]) => [n, h, w, c];
const hwio = ([o, i, h, w]) => [h, w, i, o];
const channelsLast = cases.conv2d;
cases.conv2d = ([x, w], params) => channelsLast([nhwc(x), hwio(w)], params);
