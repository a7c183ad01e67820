// What is measured: one entry per row of the table, with the shapes of its operands. `flops` or `bytes` is the work of
// one run and decides which ceiling the row is held against; bytes count each operand read once, the result written once.
const ROW = 1024;
const MiB = 2 ** 20;

const elements = (shape) => shape.reduce((product, d) => product * d, 1);
const pair = (a, b) => [a, b];

const matmul = (n) => ({ op: "matmul", label: `${n}³`, flops: 2 * n ** 3, shapes: pair([n, n], [n, n]) });
const matvec = (op, label, n) => ({ op, label, bytes: 4 * (n * n + 2 * n), shapes: pair([1, n], [n, n]) });

// Arrays read and written, and what is read besides the array itself.
const STREAMING = {
  add: { arrays: 3, extra: (shape) => [shape] },
  exp: { arrays: 2 },
  gelu: { arrays: 2 },
  softmax: { arrays: 2 },
  layerNorm: { arrays: 2, extra: () => pair([ROW], [ROW]), params: { epsilon: 1e-5 } },
  sum: { arrays: 1 },
};
const streaming = ([op, { arrays, extra = () => [], params }]) =>
  [1, 16].map((millions) => {
    const shape = [(millions * MiB) / ROW, ROW];
    const bytes = 4 * arrays * elements(shape);
    return { op, label: `${millions} M`, bytes, shapes: [shape, ...extra(shape)], params };
  });

function conv2d(x, w, padding, stride) {
  const out = x.slice(2).map((side, i) => Math.floor((side + 2 * padding - w[i + 2]) / stride) + 1);
  const label = `${x.join("×")}, ${w.join("×")} /${stride}`;
  const flops = 2 * x[0] * elements(w) * elements(out);
  return { op: "conv2d", label, flops, shapes: [x, w], params: { padding, stride } };
}

function sdpa(shape) {
  const [length, dim] = shape.slice(-2);
  const flops = 4 * elements(shape) * length;
  const shapes = [shape, shape, shape];
  return { op: "sdpa", label: shape.join("×"), flops, shapes, params: { scale: 1 / Math.sqrt(dim) } };
}

export const workloads = [
  ...[256, 512, 1024, 2048].map(matmul),
  matvec("matvec", "(1,k)·(k,n) 4096²", 4096),
  matvec("matvecT", "(1,k)·(n,k)ᵀ 4096²", 4096),
  ...Object.entries(STREAMING).flatMap(streaming),
  { op: "transpose", label: "copy 4096²", bytes: 8 * 4096 ** 2, shapes: [[4096, 4096]] },
  conv2d([1, 64, 56, 56], [64, 64, 3, 3], 1, 1),
  conv2d([8, 3, 224, 224], [32, 3, 3, 3], 1, 2),
  sdpa([1, 8, 512, 64]),
];

/** Normally distributed operands: a block of Box–Muller samples, repeated (drawing 16 M anew would take seconds). */
export function normals(shape, seed) {
  const values = new Float32Array(elements(shape));
  const block = values.subarray(0, 65536);
  let state = seed + 1;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 1) / 2 ** 32;
  };
  for (let i = 0; i < block.length; i++) {
    block[i] = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }
  for (let i = block.length; i < values.length; i *= 2) values.copyWithin(i, 0, i);
  return values;
}
