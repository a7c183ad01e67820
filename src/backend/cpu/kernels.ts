/** The exports of the WebAssembly module, as declared in wasm/. Pointers and sizes are numbers of bytes or elements. */
type N = number;

export interface Kernels {
  enter(thread: N, scratch: N): void;
  work(thread: N, scratch: N): void;
  scratchBytes(): N;
  heapBase(): N;
  setThreads(n: N): void;

  unary(op: N, dtype: N, n: N, info: N, x: N, out: N, param: N): void;
  affine(dtype: N, n: N, info: N, x: N, out: N, mul: N, add: N): void;
  binary(op: N, dtype: N, n: N, info: N, a: N, b: N, out: N): void;
  compare(op: N, dtype: N, n: N, info: N, a: N, b: N, out: N): void;
  whereCond(condDtype: N, dtype: N, n: N, info: N, cond: N, onTrue: N, onFalse: N, out: N): void;
  cast(from: N, to: N, n: N, info: N, x: N, out: N): void;
  copy(shift: N, n: N, info: N, src: N, dst: N): void;
  fill(shift: N, n: N, out: N, pattern: bigint): void;
  random(kind: N, dtype: N, n: N, out: N, seed: bigint, a: N, b: N): void;

  reduce(op: N, dtype: N, rows: N, cols: N, info: N, x: N, out: N): void;
  cumsum(dtype: N, rows: N, cols: N, info: N, x: N, out: N): void;
  argsortTmp(dtype: N, rows: N, cols: N): N;
  argsort(dtype: N, descending: N, rows: N, cols: N, x: N, out: N, tmp: N): void;
  gather(shift: N, idDtype: N, n: N, dim: N, info: N, srcDim: N, x: N, ids: N, out: N): void;
  scatter(dtype: N, idDtype: N, add: N, n: N, dim: N, info: N, dstDim: N, dst: N, ids: N, src: N): void;

  matmulTmp(dtype: N, batch: N, m: N, n: N, k: N): N;
  matmul(
    dtype: N,
    batch: N,
    m: N,
    n: N,
    k: N,
    info: N,
    a: N,
    aRow: N,
    aCol: N,
    b: N,
    bRow: N,
    bCol: N,
    out: N,
    tmp: N,
  ): void;
  conv2dTmp(dtype: N, params: N): N;
  conv2d(dtype: N, params: N, x: N, w: N, out: N, tmp: N): void;
  convTranspose2dTmp(dtype: N, params: N): N;
  convTranspose2d(dtype: N, params: N, x: N, w: N, out: N, tmp: N): void;
  pool2d(kind: N, dtype: N, params: N, x: N, out: N): void;
  upsampleNearest2d(dtype: N, params: N, x: N, out: N): void;
  upsampleBilinear2d(dtype: N, params: N, x: N, out: N, alignCorners: N, scaleH: N, scaleW: N): void;

  softmax(dtype: N, log: N, rows: N, cols: N, info: N, x: N, out: N): void;
  rmsNorm(dtype: N, rows: N, cols: N, info: N, x: N, weight: N, out: N, eps: N): void;
  layerNorm(dtype: N, rows: N, cols: N, info: N, x: N, weight: N, bias: N, out: N, eps: N): void;
  rope(kind: N, dtype: N, b: N, h: N, t: N, d: N, info: N, x: N, cos: N, sin: N, tableBatchStride: N, out: N): void;
  /** `size` and `bytes` are those of a block. */
  dequantize(type: N, size: N, bytes: N, dtype: N, n: N, w: N, out: N): void;
  quantizedRows(
    type: N,
    size: N,
    bytes: N,
    dtype: N,
    idDtype: N,
    count: N,
    idStride: N,
    rows: N,
    k: N,
    w: N,
    ids: N,
    out: N,
  ): void;
  quantize(type: N, size: N, bytes: N, dtype: N, n: N, info: N, x: N, out: N): void;
  qmatmulTmp(size: N, m: N, k: N): N;
  qmatmul(type: N, size: N, bytes: N, dtype: N, m: N, n: N, k: N, x: N, w: N, out: N, tmp: N): void;
  sdpa(dtype: N, params: N, q: N, k: N, v: N, mask: N, out: N, scale: N, softcap: N): void;
}
