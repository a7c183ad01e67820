// What decoding is made of, in random shapes, types and options, against the same op by op: pairs of linear layers with quantized weights, of
// which the first knows what comes behind it, and steps of attention with their caches.
//   node bench/gpu/random-layers.mjs DEVICE [--dist DIR] [--runs N] [--seed S] [--seconds S]
// Exits 1 on a difference, with the seed that gives the case again.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { draws } from "./draws.mjs";

const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const dist = pathToFileURL(resolve(option("--dist", new URL("../../dist", import.meta.url).pathname))).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { rmsNorm, rope, ropeI, sdpa } = await import(`${dist}/nn/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { compute } = await import(`${dist}/ops/compute.js`);
const { result } = await import(`${dist}/tensor/tensor.js`);

const device = Device.from(args[0]?.startsWith("--") ? "cuda:0" : (args[0] ?? "cuda:0"));
const { backend } = device;
const first = Number(option("--seed", 1));
const runs = Number(option("--runs", 200));
const deadline = performance.now() + 1000 * Number(option("--seconds", 60));

const types = ["Q8_0", "Q4_0", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"];
/** Rows near those at which kernels change, or any up to 80. */
const rowsOf = (draw) => (draw.chance(2) ? draw.pick([1, 2, 4, 5, 8, 9, 15, 16, 17, 32, 64, 65]) : draw.int(1, 80));

const layerCase = (draw, type = draw.pick(types)) => ({
  kind: "layers",
  dtype: draw.pick(["f16", "f16", "bf16", "f32"]),
  rows: rowsOf(draw),
  type,
  otherType: draw.chance(4) ? draw.pick(types.slice(0, 7)) : null,
  k: 256 * draw.int(1, type.endsWith("_K") ? 6 : draw.chance(6) ? 60 : 18),
  /** Columns between the layers, and behind both. */
  between: 256 * draw.int(1, type.endsWith("_K") ? 4 : 20),
  n: draw.chance(2) ? 8 * draw.int(1, 200) : draw.int(1, 1000),
  glu: draw.chance(3) ? draw.pick(["silu", "silu", "gelu"]) : null,
  normed: draw.chance(2),
  biased: draw.chance(4),
  residual: draw.chance(2),
  /** A norm between both layers, of which the first is told. */
  normBetween: draw.chance(2),
});
const stepCase = (draw) => {
  const batch = draw.chance(2) ? draw.int(1, 3) : draw.int(1, 40);
  const most = batch <= 3 && draw.chance(3) ? 1500 : 300;
  const lengths = Array.from({ length: batch }, () =>
    draw.chance(3) ? 16 * draw.int(1, most >> 4) + draw.int(-1, 1) : draw.int(1, most),
  );
  return {
    ...{ kind: "step", dtype: draw.pick(["f16", "bf16"]), d: draw.pick([64, 128]), kvHeads: draw.int(1, 8) },
    ...{ group: draw.int(1, 8), lengths, interleaved: draw.chance(3), window: draw.chance(3) ? draw.int(1, 400) : 0 },
    padding: draw.chance(3) ? lengths.map((length) => draw.int(0, Math.min(9, length - 1))) : null,
    ...{ hasSinks: draw.chance(3), normed: draw.chance(2) },
  };
};

const wide = (x) => x.toDType("f32");
/** ‖a − b‖ / ‖b‖; where b is nothing, ‖a‖. */
function apart(a, b) {
  const [x, y] = [a, b].map((t) => wide(t).flatten());
  const size = Math.sqrt(y.sqr().sumAll().toScalarSync());
  return Math.sqrt(x.sub(y).sqr().sumAll().toScalarSync()) / (size || 1);
}

const layerBounds = { f32: 2e-4, f16: 3e-3, bf16: 2e-2 };
function checkLayers(c, seed) {
  const made = (shape, i) => Tensor.randn(shape, { device, seed: seed + i }).toDType(c.dtype);
  const weights = (rows, columns, type, i) => {
    // Devices quantize to types without superblocks, and faster than the CPU does.
    const where = type.endsWith("_K") ? undefined : device;
    const x = Tensor.randn([rows, columns], { device: where, seed: seed + i }).affine(1 / Math.sqrt(columns), 0);
    const q = QTensor.quantize(x, type).toDeviceSync(device);
    return { blocks: q.blocks, dense: q.dequantize(), type };
  };
  const layer = (x, w, columns, p) => compute(backend, "linear", [c.rows, columns], x, w.blocks, w.type, p);
  const wanted = (x, w, { norm, bias, glu, residual }) => {
    let y = wide(x);
    if (norm) y = rmsNorm(y, wide(norm.weight), norm.eps);
    y = y.matmul(w.dense.t());
    if (bias) y = y.add(wide(bias));
    if (glu) {
      const half = y.shape[1] / 2;
      const gate = y.narrow(1, 0, half);
      y = (glu === "silu" ? gate.silu() : gate.gelu()).mul(y.narrow(1, half, half));
    }
    return residual ? y.add(wide(residual)) : y;
  };
  const norm = (columns, i) => ({ weight: made([columns], i), eps: 1e-5 });
  const plain = { norm: null, bias: null, glu: null, residual: null };
  const behind = c.normBetween ? norm(c.between, 5) : null;
  const second = weights(c.n, c.between, c.otherType ?? c.type, 6);
  const one = {
    ...{ norm: c.normed ? norm(c.k, 2) : null, bias: c.biased ? made([c.glu ? 2 * c.between : c.between], 3) : null },
    ...{ glu: c.glu, residual: c.residual ? made([c.rows, c.between], 4) : null },
  };
  const x = made([c.rows, c.k], 0);
  const w = weights(c.glu ? 2 * c.between : c.between, c.k, c.type, 1);
  const middle = layer(x, w, c.between, { ...one, next: { type: second.type, norm: behind } });
  const y = layer(middle, second, c.n, { ...plain, norm: behind });
  const errors = [apart(middle, wanted(x, w, one)), apart(y, wanted(middle, second, { ...plain, norm: behind }))];
  const bound = layerBounds[c.dtype];
  // NaN is no less than anything.
  return errors.every((error) => error < bound) ? null : `errors ${errors.map((e) => e.toExponential(1))}`;
}

const stepBounds = { f16: 2e-3, bf16: 2e-2 };
function checkStep(c, seed) {
  const { dtype, d, kvHeads, lengths, interleaved, window, padding } = c;
  const [batch, heads, capacity] = [lengths.length, kvHeads * c.group, Math.max(...lengths) + 3];
  const made = (shape, i) => Tensor.randn(shape, { device, dtype, seed: seed + i });
  const side = made([batch, (heads + 2 * kvHeads) * d], 1);
  const part = (at, count) => side.narrow(1, at * d, count * d);
  const [q, k, v] = [part(0, heads), part(heads, kvHeads), part(heads + kvHeads, kvHeads)];
  const norms = c.normed ? { q: made([d], 5), k: made([d], 6), eps: 0.1 } : null;
  const angles = Tensor.randn([capacity, d / 2], { device, seed: seed + 2 });
  const [cos, sin] = [angles.cos().toDType(dtype), angles.sin().toDType(dtype)];
  const filled = (i) => made([batch, kvHeads, capacity, d], i);
  const [keys, values, oldKeys, oldValues] = [filled(3), filled(4), filled(3), filled(4)];
  const sinks = c.hasSinks ? made([heads], 7) : null;
  const counts = (from) => Tensor.from(BigInt64Array.from(from, BigInt), { device });
  const got = result(
    backend.cachedAttention.attend(q, k, v, {
      ...{ cos, sin, interleaved, k: keys, v: values, past: 0, window, softcap: 0, scale: 0.1, sinks, norms },
      ...{ lengths: counts(lengths), padding: padding ? counts(padding) : null, mask: null },
    }),
    [batch, heads, d],
  );
  for (const [b, length] of lengths.entries()) {
    const position = Math.max(length - 1 - (padding?.[b] ?? 0), 0);
    const [c1, s1] = [cos, sin].map((t) => t.narrow(0, position, 1));
    const shaped = (x, norm) => {
      const split = x.narrow(0, b, 1).reshape([1, -1, 1, d]);
      return (interleaved ? ropeI : rope)(norm ? rmsNorm(split, norm, norms.eps) : split, c1, s1);
    };
    const [wantK, wantV] = [oldKeys, oldValues].map((t) => t.narrow(0, b, 1).copy());
    wantK.sliceSet(shaped(k, norms?.k), 2, length - 1);
    wantV.sliceSet(v.narrow(0, b, 1).reshape([1, kvHeads, 1, d]), 2, length - 1);
    const seen = [shaped(q, norms?.q), wantK.narrow(2, 0, length), wantV.narrow(2, 0, length), sinks];
    const [query, key, value, sink] = seen.map((x) => x && wide(x.toDeviceSync("cpu")));
    const want = sdpa(query, key, value, { scale: 0.1, causal: true, window, ...(sink && { sinks: sink }) });
    const differs = (x, y) => wide(x).sub(wide(y)).abs().maxAll().toScalarSync();
    const own = {
      keys: differs(keys.narrow(0, b, 1), wantK),
      values: differs(values.narrow(0, b, 1), wantV),
      results: differs(got.narrow(0, b, 1).reshape([1, heads, 1, d]).toDeviceSync("cpu"), want),
    };
    // Values are only moved. NaN is neither equal to nothing nor below a bound.
    const isRight = own.values === 0 && own.keys < stepBounds[dtype] && own.results < stepBounds[dtype];
    if (!isRight)
      return `sequence ${b} differs by ${JSON.stringify(own, (_, x) => (typeof x === "number" ? String(x) : x))}`;
  }
  return null;
}

let failures = 0;
let done = 0;
const counts = {};
for (let seed = first; seed < first + runs && performance.now() < deadline; seed++, done++) {
  const draw = draws(seed);
  const c = draw.chance(2) ? layerCase(draw) : stepCase(draw);
  counts[c.kind] = (counts[c.kind] ?? 0) + 1;
  let problem;
  try {
    problem = scope(() => (c.kind === "step" ? checkStep : checkLayers)(c, 100 * seed));
  } catch (error) {
    problem = error.message;
  }
  if (problem) {
    failures++;
    console.log(`WRONG --seed ${seed} --runs 1: ${problem}\n  ${JSON.stringify(c)}`);
  }
  backend.trim();
}
const kinds = Object.entries(counts).map(([kind, n]) => `${kind} ${n}`);
console.log(`${device.name}: ${done} of ${runs} cases from seed ${first}, ${failures} wrong (${kinds.join(", ")})`);
process.exit(failures > 0 || done === 0 ? 1 : 0);
