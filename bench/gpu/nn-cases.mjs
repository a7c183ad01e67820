/**
 * Random problems for the fused NN kernels and their check against the formulas, op by op on the same device. Plain
 * JavaScript, so that the tests run it over the sources and bench/gpu/random-nn.mjs over the built package.
 */

/** What a case may be at most. Scores: elements of the reference's (b, hq, tq, tk), which it holds several times. */
export const sizes = {
  small: { rows: 6, columns: 400, elements: 2e3, positions: 40, heads: 3, scores: 8e3 },
  large: { rows: 5000, columns: 140_000, elements: 2 ** 24, positions: 4096, heads: 16, scores: 2 ** 28 },
};

const floats = ["bf16", "f16", "f32", "f64"];
const layouts = ["packed", "padded by 3", "padded by 8", "transposed", "heads inside", "flipped", "broadcast"];
const kinds = ["softmax", "logSoftmax", "rmsNorm", "layerNorm", "addRmsNorm", "rope", "glu", "sdpa", "sdpa", "sdpa"];

/** `draw` has int(least, most) and pick(list). */
export function drawCase(draw, size) {
  const kind = draw.pick(kinds);
  const common = { kind, seed: draw.int(1, 2 ** 30) };
  const layout = () => draw.pick(layouts);
  const chance = (n) => draw.int(1, n) === 1;
  // Sizes near those at which kernels change their ways, or any.
  const near = (most) =>
    Math.max(1, Math.min(most, chance(2) ? 2 ** draw.int(0, 17) + draw.int(-1, 1) : draw.int(1, most)));
  if (kind === "sdpa") {
    const hk = draw.int(1, size.heads);
    const hq = hk * draw.int(1, Math.max(1, Math.floor(size.heads / hk)));
    const d = 8 * draw.int(1, 32);
    const tk = near(size.positions);
    // Half of them few queries, which take another kernel.
    const tq = chance(2) ? draw.int(1, 8) : near(size.positions);
    const causal = tq <= tk && chance(2);
    if (chance(4)) {
      // Sequences one behind the other, some of them empty.
      const ends = Array.from({ length: draw.int(1, 6) }, () => draw.int(0, tk)).toSorted((x, y) => x - y);
      const options = { scale: 1 / Math.sqrt(d), softcap: chance(4) ? 5 : 0, window: chance(2) ? draw.int(1, tk) : 0 };
      const shape = { hq, hk, rows: tk, d, ends: [0, ...ends, tk], causal: chance(2), hasSinks: chance(3) };
      const dtype = draw.pick(["bf16", "f16", "f32"]);
      return { ...common, kind: "sdpaVarlen", dtype, ...shape, ...options, layouts: [layout(), layout(), layout()] };
    }
    const b = Math.max(1, Math.min(draw.int(1, 3), Math.floor(size.scores / (hq * tq * tk))));
    return {
      ...common,
      ...{
        dtype: draw.pick(["bf16", "f16", "f32"]),
        b,
        hq,
        hk,
        tq,
        tk,
        d,
      },
      ...{ causal, window: tq <= tk && chance(3) ? draw.int(1, tk) : 0, softcap: chance(4) ? draw.int(1, 30) : 0 },
      hasSinks: chance(4),
      scale: chance(6) ? draw.pick([0, -0.3, 1]) : 1 / Math.sqrt(d),
      mask: chance(3) ? draw.pick(["keys", "queries", "heads", "all"]) : null,
      special: chance(4) ? draw.pick(["hidden row", "NaN"]) : null,
      layouts: [layout(), layout(), layout()],
    };
  }
  const dtype = draw.pick(floats);
  if (kind === "rope") {
    const [b, h, t, d] = [draw.int(1, 3), draw.int(1, size.heads), near(size.positions), 2 * draw.int(1, 128)];
    const form = draw.pick(["rope", "ropeI", "ropeThd"]);
    const shape = form === "ropeThd" ? [b, t, h, d] : [b, h, t, d];
    const table = [...(chance(2) ? [b] : []), t + draw.int(0, 5), d / 2];
    return { ...common, form, dtype, shape, table, layouts: [layout(), layout()] };
  }
  const columns = near(size.columns);
  const rows = Math.max(1, Math.min(near(size.rows), Math.floor(size.elements / columns)));
  const shape = chance(3) ? [2, rows, columns] : [rows, columns];
  const special = chance(4) ? draw.pick(kind.endsWith("oftmax") ? ["hidden row", "hidden", "NaN"] : ["NaN"]) : null;
  return {
    ...common,
    ...{ dtype, shape, special, layouts: [layout(), layout()] },
    ...{ weighted: chance(2), biased: chance(2), eps: draw.pick([1e-6, 1e-5, 1e-3]), act: draw.pick(["silu", "gelu"]) },
  };
}

/** Normal values seen through a layout. */
function make(Tensor, shape, layout, { dtype, device, seed, special = null }) {
  const normal = (s) => {
    const x = Tensor.randn(s, { dtype, device, seed });
    if (!special) return x;
    const at = special === "hidden row" ? [...s.slice(0, -1), 1] : s;
    const chosen = Tensor.rand(at, { device, seed: seed + 1 }).lt(special === "NaN" ? 0.01 : 0.3);
    const value = special === "NaN" ? Number.NaN : Number.NEGATIVE_INFINITY;
    return chosen.whereCond(Tensor.full([], value, { dtype, device }), x);
  };
  const rank = shape.length;
  const swapped = (i, j) => shape.with(i, shape[j]).with(j, shape[i]);
  const padding = { "padded by 3": [3, 1], "padded by 8": [16, 8] }[layout];
  if (padding) {
    const [more, first] = padding;
    return normal(shape.with(rank - 1, shape[rank - 1] + more)).narrow(rank - 1, first, shape[rank - 1]);
  }
  if (layout === "transposed" && rank > 1) return normal(swapped(rank - 1, rank - 2)).transpose(rank - 1, rank - 2);
  if (layout === "heads inside" && rank > 2) return normal(swapped(rank - 2, rank - 3)).transpose(rank - 2, rank - 3);
  if (layout === "flipped") return normal(shape).flip([0]);
  if (layout === "broadcast") return normal(shape.with(0, 1)).broadcastAs(shape);
  return normal(shape);
}

const wide = (x) => x.toDType(x.dtype === "f64" ? "f64" : "f32");
const rmsReference = (x, w, eps) => {
  const y = wide(x).div(wide(x).sqr().meanKeepdim(-1).add(eps).sqrt());
  return (w ? y.mul(wide(w)) : y).toDType(x.dtype);
};
function softmaxReference(x, log) {
  const below = wide(x).sub(wide(x).maxKeepdim(-1));
  const total = below.exp().sumKeepdim(-1);
  return (log ? below.sub(total.log()) : below.exp().div(total)).toDType(x.dtype);
}
function layerReference(x, w, b, eps) {
  const centred = wide(x).sub(wide(x).meanKeepdim(-1));
  let y = centred.div(centred.sqr().meanKeepdim(-1).add(eps).sqrt());
  if (w) y = y.mul(wide(w));
  if (b) y = y.add(wide(b));
  return y.toDType(x.dtype);
}
function ropeReference(Tensor, form, x, cos, sin) {
  const [d, t] = [x.shape[3], x.shape[form === "ropeThd" ? 1 : 2]];
  const table = (y) => {
    const rows = wide(y).narrow(y.rank - 2, 0, t);
    const batched = rows.rank === 3 ? rows : rows.unsqueeze(0);
    return batched.unsqueeze(form === "ropeThd" ? 2 : 1);
  };
  const [c, s, w] = [table(cos), table(sin), wide(x)];
  const pairs = form === "ropeI" ? w.reshape([...x.shape.slice(0, 3), d / 2, 2]).transpose(3, 4) : null;
  const side = (i) => (pairs ? pairs.narrow(3, i, 1).squeeze(3) : w.narrow(3, (i * d) / 2, d / 2));
  const [p, q] = [side(0), side(1)];
  const [y, z] = [p.mul(c).sub(q.mul(s)), p.mul(s).add(q.mul(c))];
  const joined = pairs ? Tensor.stack([y, z], 4).reshape(x.shape) : Tensor.cat([y, z], 3);
  return joined.toDType(x.dtype);
}

/** Inputs, the op under test and its reference, each giving a list of results. */
function problem({ Tensor, nn, sdpaReference }, device, c) {
  const options = { dtype: c.dtype, device, special: c.special };
  const input = (shape, i, more = {}) =>
    make(Tensor, shape, c.layouts[i % c.layouts.length], { ...options, seed: c.seed + 10 * i, ...more });
  const plain = { special: null };
  if (c.kind === "sdpa") {
    const { b, hq, hk, tq, tk, d, scale, causal, window, softcap } = c;
    const qkv = [input([b, hq, tq, d], 0, plain), input([b, hk, tk, d], 1, plain), input([b, hk, tk, d], 2, plain)];
    const shape = { keys: [tk], queries: [tq, tk], heads: [1, hq, 1, tk], all: [b, hq, tq, tk] }[c.mask ?? "none"];
    const mask = shape && make(Tensor, shape, "packed", { ...options, seed: c.seed + 50 });
    const params = { scale, causal, window, softcap };
    const whole = (m) => (m ? m.broadcastAs([b, hq, tq, tk]) : null);
    return {
      inputs: [...qkv, mask, c.hasSinks ? input([hq], 3, plain) : undefined],
      run: ([q, k, v, m, sinks]) => [nn.sdpa(q, k, v, { ...params, ...(sinks && { sinks }), ...(m && { mask: m }) })],
      reference: ([q, k, v, m, sinks]) => [sdpaReference(q, k, v, whole(m), { ...params, sinks: sinks ?? null })],
    };
  }
  if (c.kind === "sdpaVarlen") {
    const { hq, hk, rows, d, ends, scale, causal, window, softcap } = c;
    const params = { scale, causal, window, softcap };
    const offsets = Tensor.from(ends, { dtype: "u32", device });
    const one = (q, k, v, from, to, sinks) => {
      const [x, y, z] = [q, k, v].map((t) =>
        t
          .narrow(0, from, to - from)
          .transpose(0, 1)
          .unsqueeze(0),
      );
      return sdpaReference(x, y, z, null, { ...params, sinks: sinks ?? null })
        .squeeze(0)
        .transpose(0, 1);
    };
    return {
      inputs: [
        input([rows, hq, d], 0),
        input([rows, hk, d], 1),
        input([rows, hk, d], 2),
        offsets,
        c.hasSinks ? input([hq], 3) : undefined,
      ],
      run: ([q, k, v, o, sinks]) => [nn.sdpaVarlen(q, k, v, o, { ...params, ...(sinks && { sinks }) })],
      reference: ([q, k, v, , sinks]) => [
        Tensor.cat(
          ends.slice(1).map((end, i) => one(q, k, v, ends[i], end, sinks)),
          0,
        ),
      ],
    };
  }
  if (c.kind === "rope") {
    return {
      inputs: [input(c.shape, 0), input(c.table, 1), input(c.table, 1, { seed: c.seed + 20 })],
      run: (x) => [nn[c.form](...x)],
      reference: (x) => [ropeReference(Tensor, c.form, ...x)],
    };
  }
  const columns = c.shape.at(-1);
  const vector = (i) => make(Tensor, [columns], "packed", { ...options, ...plain, seed: c.seed + 10 * i });
  const x = input(c.shape, 0);
  switch (c.kind) {
    case "softmax":
    case "logSoftmax":
      return {
        inputs: [x],
        run: ([y]) => [nn[c.kind](y, -1)],
        reference: ([y]) => [softmaxReference(y, c.kind === "logSoftmax")],
      };
    case "rmsNorm":
      return {
        inputs: c.weighted ? [x, vector(2)] : [x],
        run: ([y, w = null]) => [nn.rmsNorm(y, w, c.eps)],
        reference: ([y, w = null]) => [rmsReference(y, w, c.eps)],
      };
    case "layerNorm":
      return {
        inputs: [x, vector(2), vector(3)],
        run: ([y, w, b]) => [nn.layerNorm(y, c.weighted ? w : null, c.biased ? b : null, c.eps)],
        reference: ([y, w, b]) => [layerReference(y, c.weighted ? w : null, c.biased ? b : null, c.eps)],
      };
    case "addRmsNorm":
      return {
        inputs: [x, input(c.shape, 1), vector(2)],
        run: ([y, r, w]) => {
          const { sum, normed } = nn.addRmsNorm(y, r, c.weighted ? w : null, c.eps);
          return [sum, normed];
        },
        reference: ([y, r, w]) => [y.add(r), rmsReference(y.add(r), c.weighted ? w : null, c.eps)],
      };
    default:
      return {
        inputs: [x, input(c.shape, 1)],
        run: ([gate, up]) => [nn[`${c.act}Mul`](gate, up)],
        reference: ([gate, up]) => [wide(gate)[c.act]().mul(wide(up)).toDType(c.dtype)],
      };
  }
}

/** Both sides round to the dtype once, so halves may differ by a unit in the last place. */
const relative = { f64: 1e-12, f32: 5e-6, f16: 2 ** -10, bf16: 2 ** -7 };
/** Weights of values are rounded once more in the fused kernels; their errors average out. */
const attention = { f32: 5e-6, f16: 2e-3, bf16: 1.2e-2 };
/** One step of the least numbers, for results without a floor. */
const least = { f64: 1e-300, f32: 1.2e-38, f16: 2 ** -24, bf16: 1.2e-38 };

function allowed(c) {
  if (c.kind.startsWith("sdpa")) {
    // In f32 an error is one of the scores, which grow with the scale.
    const scores = Math.max(1, Math.abs(c.scale) * Math.sqrt(c.d));
    const within = c.dtype === "f32" ? attention.f32 * scores + c.softcap * 1e-6 : attention[c.dtype];
    return { relative: within, absolute: within };
  }
  const within = relative[c.dtype];
  if (c.kind === "softmax") return { relative: within, absolute: least[c.dtype] };
  // The difference of close numbers loses digits in both; few columns are often close.
  const close = c.kind === "layerNorm" && c.shape.at(-1) <= 8 ? { f64: 1e-10, f32: 1e-4 }[c.dtype] : undefined;
  return { relative: within, absolute: close ?? within };
}

const number = (x) => (Number.isNaN(x) ? "NaN" : x.toPrecision(8));

/** What is wrong with a case, or null. The reference runs on `other`, the device itself unless told. */
export function checkCase(library, device, c, other = device) {
  return library.scope(() => {
    const { inputs, run, reference } = problem(library, device, c);
    const got = run(inputs);
    const want = reference(other === device ? inputs : inputs.map((x) => x?.toDeviceSync(other)));
    const { relative: share, absolute } = allowed(c);
    for (const [k, tensor] of got.entries()) {
      const [a, b] = [tensor, want[k]].map((x) => x.toDType(c.dtype === "f64" ? "f64" : "f32").dataSync());
      if (tensor.dtype !== want[k].dtype || a.length !== b.length) return `result ${k} has another dtype or size`;
      for (let i = 0; i < a.length; i++) {
        if (a[i] === b[i] || (Number.isNaN(a[i]) && Number.isNaN(b[i]))) continue;
        if (!(Math.abs(a[i] - b[i]) <= absolute + share * Math.abs(b[i]))) {
          return `element ${i} of result ${k} is ${number(a[i])}, op by op ${number(b[i])}`;
        }
      }
    }
    return null;
  });
}
