// Convolutions of halves on one device: node bench/gpu/conv.mjs DEVICE [--dist PATH] [--peers FILE] [--dtype f16|bf16|f32] [--only NAME,…]
// Times as in ops.mjs, without the host's share where calls are short: a captured graph of several. The error is that of the result
// against the same convolution in f32. FILE is what conv.py wrote on the same machine.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const device = Device.from(args[0] ?? "cuda:0");
const { context } = device.backend;
const dtype = option("--dtype") ?? "f16";
const only = option("--only")?.split(",");
const peers = option("--peers") ? JSON.parse(readFileSync(option("--peers"), "utf8")) : {};
const cases = JSON.parse(readFileSync(new URL("conv-cases.json", import.meta.url), "utf8"));
const CALLS = 10;

function time(run) {
  scope(() => void run());
  const graph = device.backend.capture(() => {
    for (let i = 0; i < CALLS; i++) scope(() => void run());
  });
  const measure = () => {
    const [start, end] = [context.createEvent(), context.createEvent()];
    context.recordEvent(start);
    graph.replay();
    context.recordEvent(end);
    context.synchronizeSync();
    const ms = context.elapsed(start, end) / CALLS;
    context.destroyEvent(start);
    context.destroyEvent(end);
    return ms;
  };
  measure();
  const times = Array.from({ length: 9 }, measure).sort((a, b) => a - b);
  graph[Symbol.dispose]();
  return times[4];
}

for (const { name, x: shape, outs, kernel, transposed, groups = 1, ...options } of cases) {
  if (only && !only.some((o) => name.includes(o))) continue;
  scope(() => {
    const weights = transposed ? [shape[1], outs / groups, ...kernel] : [outs, shape[1] / groups, ...kernel];
    const x = Tensor.randn(shape, { dtype, device, seed: 1 });
    const w = Tensor.randn(weights, { dtype, device, seed: 2 }).affine(0.05, 0);
    const op = transposed ? "convTranspose2d" : "conv2d";
    const run = (a, b) => a[op](b, { groups, ...options });
    const y = run(x, w);
    const wide = run(x.toDType("f32"), w.toDType("f32"));
    const norm = (t) => Math.sqrt(t.sqr().sumAll().toScalarSync());
    const error = norm(y.toDType("f32").sub(wide)) / norm(wide);
    const us = 1000 * time(() => run(x, w));
    const pixels = transposed ? shape[2] * shape[3] * shape[0] : y.numel / outs;
    const flops = 2 * pixels * (shape[1] / groups) * outs * kernel[0] * kernel[1];
    const bytes = 2 * (x.numel + y.numel + w.numel);
    const beside = Object.entries(peers[name] ?? {})
      .map(([what, their]) => `${what} ${their.toFixed(1)} = ${(their / us).toFixed(2)}`)
      .join("  ");
    console.log(
      name.padEnd(36),
      `${us.toFixed(1).padStart(8)} us ${(flops / us / 1e6).toFixed(1).padStart(6)} TFLOP/s ${(bytes / us / 1e6).toFixed(2)} TB/s  error ${error.toExponential(1)}  ${beside}`,
    );
  });
  device.backend.trim();
}
