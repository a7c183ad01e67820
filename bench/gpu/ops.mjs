// Wick's GPU kernels on one device: node bench/gpu/ops.mjs DEVICE [--dist PATH] [--json FILE] [--only NAME,…]
// Times are medians of 20 by device events after warm-up; GB/s count each input read once and each output written once.
// `--only gemm` and `--only sdpa` measure what is left out otherwise: products of many sizes, attention. ops.py is PyTorch's side.
// `share` is the part of the ceiling measured in the same run: a device copy of 1 GiB, or (for products) the vendor's BLAS.
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const nn = await import(`${dist}/nn/index.js`);

const device = Device.from(args[0] ?? "cuda:0");
const gpu = device.backend;
const { context } = gpu;
const only = option("--only")?.split(",");
const results = {};

// Enough calls between two events that the host's part of the first one does not count.
function time(run, rounds = 20) {
  const once = () => scope(() => void run());
  const measure = (calls) => {
    const [start, end] = [context.createEvent(), context.createEvent()];
    context.recordEvent(start);
    for (let i = 0; i < calls; i++) once();
    context.recordEvent(end);
    context.synchronizeSync();
    const ms = context.elapsed(start, end) / calls;
    context.destroyEvent(start);
    context.destroyEvent(end);
    return ms;
  };
  measure(3);
  const calls = Math.max(2, Math.min(50, Math.ceil(2 / measure(3))));
  return Array.from({ length: rounds }, () => measure(calls)).sort((a, b) => a - b)[rounds >> 1];
}

let ceiling = 0;
/** `run` does it `calls` times, of which `bytes` and `flops` are one. */
function row(name, { bytes, flops, calls = 1 }, run) {
  if (only && !only.some((o) => name.includes(o))) return;
  try {
    const ms = time(run) / calls;
    const r = { ms: +ms.toFixed(4) };
    if (bytes)
      Object.assign(r, { GBps: +(bytes / ms / 1e6).toFixed(1), share: +(bytes / ms / 1e6 / ceiling).toFixed(3) });
    if (flops) r.TFLOPs = +(flops / ms / 1e9).toFixed(1);
    results[name] = r;
    console.log(
      name.padEnd(44),
      Object.entries(r)
        .map(([k, v]) => `${k} ${v}`)
        .join("  "),
    );
  } catch (error) {
    results[name] = { error: error.message };
    process.exitCode = 1;
    console.log(name.padEnd(44), "FAILED", error.message);
  }
  device.backend.trim();
}

const randn = (shape, dtype = "f32", seed = 1) => Tensor.randn(shape, { dtype, device, seed });
const big = 2 ** 28;
scope(() => {
  const x = randn([big]);
  ceiling = (big * 8) / time(() => x.copy()) / 1e6;
  console.log(
    `${context.properties.name}: copy ceiling ${ceiling.toFixed(0)} GB/s, BLAS ${gpu.blas?.library ?? gpu.blasProblem}`,
  );
  results.ceiling = { GBps: +ceiling.toFixed(1) };
  row("memcpy f32 256M", { bytes: big * 8 }, () => x.copy());
  row("affine f32 256M", { bytes: big * 8 }, () => x.affine(2, 1));
  for (const op of ["exp", "gelu", "geluErf", "silu", "sqrt", "tanh", "sin"])
    row(`${op} f32 256M`, { bytes: big * 8 }, () => x[op]());
  row("cast f32->bf16 256M", { bytes: big * 6 }, () => x.toDType("bf16"));
  row("sum all f32 256M", { bytes: big * 4 }, () => x.sumAll());
  const y = randn([big], "f32", 2);
  row("add f32 256M", { bytes: big * 12 }, () => x.add(y));
  row("lt f32 256M", { bytes: big * 9 }, () => x.lt(y));
  const cond = x.lt(y);
  row("where f32 256M", { bytes: big * 13 }, () => cond.whereCond(x, y));
});
scope(() => {
  const h = randn([big], "bf16");
  row("exp bf16 256M", { bytes: big * 4 }, () => h.exp());
  for (const op of ["gelu", "geluErf", "sin"]) row(`${op} bf16 256M`, { bytes: big * 4 }, () => h[op]());
  const other = randn([big], "bf16", 2);
  row("add bf16 256M", { bytes: big * 6 }, () => h.add(other));
  row("cast bf16->f32 256M", { bytes: big * 6 }, () => h.toDType("f32"));
});
for (const dtype of ["f32", "bf16"]) {
  scope(() => {
    const [r, c] = [65536, 4096];
    const x = randn([r, c], dtype);
    const w = randn([c], dtype, 3);
    const bytes = r * c * (dtype === "f32" ? 4 : 2);
    const ids = Tensor.rand([r], { device, high: r, seed: 4 }).toDType("i64");
    row(`rms_norm ${dtype} 65536x4096`, { bytes: 2 * bytes }, () => nn.rmsNorm(x, w));
    const residual = randn([r, c], dtype, 6);
    row(`add_rms_norm ${dtype} 65536x4096`, { bytes: 4 * bytes }, () => nn.addRmsNorm(x, residual, w));
    residual.dispose();
    row(`layer_norm ${dtype} 65536x4096`, { bytes: 2 * bytes }, () => nn.layerNorm(x, w, w));
    row(`softmax ${dtype} 65536x4096`, { bytes: 2 * bytes }, () => x.softmax(-1));
    const up = randn([r, c], dtype, 5);
    row(`silu_mul ${dtype}`, { bytes: 3 * bytes }, () => nn.siluMul(x, up));
    row(`sum last ${dtype}`, { bytes }, () => x.sum(-1));
    row(`max last ${dtype}`, { bytes }, () => x.max(-1));
    row(`argmax last ${dtype}`, { bytes }, () => x.argmax(-1));
    row(`sum first ${dtype}`, { bytes }, () => x.sum(0));
    row(`transpose copy ${dtype}`, { bytes: 2 * bytes }, () => x.t().contiguous());
    row(`index_select rows ${dtype}`, { bytes: 2 * bytes }, () => x.indexSelect(ids, 0));
  });
}
scope(() => {
  const q = randn([8, 32, 2048, 128], "bf16");
  const angle = randn([2048, 64]);
  const [cos, sin] = [angle.cos().toDType("bf16"), angle.sin().toDType("bf16")];
  row("rope bf16 8x32x2048x128", { bytes: q.numel * 4 }, () => nn.rope(q, cos, sin));
  row("rope_i bf16 8x32x2048x128", { bytes: q.numel * 4 }, () => nn.ropeI(q, cos, sin));
  const rows = randn([8, 2048, 32, 128], "bf16");
  row("rope_thd bf16 8x2048x32x128", { bytes: q.numel * 4 }, () => nn.ropeThd(rows, cos, sin));
});
for (const [b, h, hk, t, d] of [
  [4, 32, 8, 4096, 128],
  [4, 32, 8, 4096, 64],
  [1, 32, 8, 16384, 128],
]) {
  if (!only?.includes("sdpa")) continue;
  scope(() => {
    const [q, k, v] = [randn([b, h, t, d], "bf16"), randn([b, hk, t, d], "bf16", 2), randn([b, hk, t, d], "bf16", 3)];
    row(`sdpa causal bf16 ${b}x${h}/${hk}x${t}x${d}`, { flops: 2 * b * h * t * t * d }, () =>
      nn.sdpa(q, k, v, { causal: true }),
    );
  });
}
for (const d of [128, 64]) {
  if (!only?.includes("sdpa")) continue;
  scope(() => {
    const [q, k, v] = [1, 2, 3].map((seed) => randn([4, 32, 4096, d], "bf16", seed));
    const mask = randn([4096, 4096], "bf16", 4);
    row(`sdpa masked bf16 4x32x4096x${d}`, { flops: 4 * 4 * 32 * 4096 * 4096 * d }, () => nn.sdpa(q, k, v, { mask }));
  });
}
if (only?.includes("sdpa")) {
  scope(() => {
    const [q, k, v] = [
      randn([8, 32, 1, 128], "bf16"),
      randn([8, 8, 8192, 128], "bf16", 2),
      randn([8, 8, 8192, 128], "bf16", 3),
    ];
    row("sdpa decode bf16 8x32/8 kv 8192x128", { bytes: k.numel * 4 }, () => nn.sdpa(q, k, v));
  });
}
for (const [n, dtype] of [
  [8192, "bf16"],
  [8192, "f16"],
  [4096, "f32"],
]) {
  scope(() => {
    const a = randn([n, n], dtype);
    row(`matmul ${dtype} ${n}`, { flops: 2 * n ** 3 }, () => a.matmul(a));
  });
}
// By size, for a curve: once with the vendor's library and once, by WICK_BLAS=none, without it. Recorded, because the host
// takes longer to ask for a small product than the device to compute it.
if (only?.includes("gemm")) {
  for (const dtype of ["bf16", "f16", "f32"]) {
    for (const n of [256, 512, 1024, 2048, 4096, 8192]) {
      scope(() => {
        const [a, b] = [randn([n, n], dtype), randn([n, n], dtype, 2)];
        const calls = 20;
        const graph = gpu.recorder.capture(() => {
          for (let i = 0; i < calls; i++) a.matmul(b).dispose();
        });
        row(`gemm ${dtype} ${n}`, { flops: 2 * n ** 3, calls }, () => graph.replay());
        graph[Symbol.dispose]();
      });
    }
  }
}
scope(() => {
  const a = randn([1, 4096], "bf16");
  const ws = Array.from({ length: 8 }, (_, i) => randn([14336, 4096], "bf16", i));
  let i = 0;
  row("matvec bf16 14336x4096", { bytes: 14336 * 4096 * 2 }, () => a.matmul(ws[i++ % 8].t()));
});
scope(() => {
  const x = randn([4096, 4096]);
  row("argsort rows f32 4096x4096", { bytes: x.numel * 8 }, () => x.argSortLastDim());
});
scope(() => {
  const [x, w] = [randn([16, 256, 64, 64], "f16"), randn([256, 256, 3, 3], "f16", 2)];
  row("conv2d f16 16x256x64x64 k3", { flops: 2 * 16 * 256 * 64 * 64 * 256 * 9 }, () => x.conv2d(w, { padding: 1 }));
});
{
  const small = randn([16]);
  const loops = 20000;
  const run = () => {
    for (let i = 0; i < loops; i++) small.add(small).dispose();
  };
  run();
  context.synchronizeSync();
  const start = performance.now();
  run();
  results["host cost per add, us"] = +(((performance.now() - start) * 1000) / loops).toFixed(2);
  console.log("host cost per small add".padEnd(44), results["host cost per add, us"], "us");
  context.synchronizeSync();
}
console.log("memory", device.memory());
if (option("--json")) writeFileSync(option("--json"), JSON.stringify({ device: context.properties, results }, null, 1));
