// The experts of a layer with random weights, checked against products expert by expert and measured as a recorded step:
//   node bench/gpu/experts.mjs DEVICE [--dist PATH] [--prompts 16,64,…] [--tiny]
// Rows of decode go through other experts in each of a graph's layers, so that no weights are found in a cache; `share` is that
// of the rate of a copy measured first.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { expertLinear, mixExperts, routeExperts } = await import(`${dist}/nn/index.js`);
const { quantTypes } = await import(`${dist}/core/quant-types.js`);

const device = Device.from(args[0] ?? "cuda:0");
const gpu = device.backend;
const tiny = args.includes("--tiny");
const shapes = tiny
  ? [{ name: "tiny", experts: 8, k: 2, hidden: 256, inter: 256, types: ["Q4_K", "MXFP4", null], glu: "clampedSwiglu" }]
  : [
      {
        name: "qwen3-30b-a3b",
        experts: 128,
        k: 8,
        hidden: 2048,
        inter: 768,
        types: ["Q4_K", "Q8_0", null],
        glu: "silu",
      },
      { name: "gpt-oss-20b", experts: 32, k: 4, hidden: 2880, inter: 2880, types: ["MXFP4"], glu: "clampedSwiglu" },
    ];

/** `experts` matrices, of which only a few differ. */
function stack(experts, rows, columns, type) {
  if (!type) return Tensor.randn([experts, rows, columns], { mean: 0, std: 0.02, dtype: "bf16", device });
  const { size, bytes } = quantTypes[type];
  const one = rows * (columns / size);
  let blocks;
  if (quantTypes[type].writable) {
    const some = Tensor.randn([1, 64, columns], { mean: 0, std: 0.02, seed: 1 });
    blocks = QTensor.quantize(some, type).bytesSync();
  } else {
    // Scales, then nibbles.
    blocks = new Uint8Array(64 * (columns / size) * bytes).map((_, i) =>
      i % bytes === 0 ? 118 : (i * 2654435761) >>> 13,
    );
  }
  const part = blocks.length;
  const all = new Uint8Array(one * bytes * 2);
  for (let at = 0, turn = 0; at < all.length; at += part, turn++) {
    const shift = ((turn * 7) % 64) * (columns / size) * bytes;
    const turned = new Uint8Array([...blocks.subarray(shift), ...blocks.subarray(0, shift)]);
    all.set(turned.subarray(0, Math.min(part, all.length - at)), at);
  }
  const two = Tensor.from(all, { device }).reshape([2, one * bytes]);
  const whole = Tensor.cat(
    Array.from({ length: experts / 2 }, () => two),
    0,
  );
  return QTensor.fromBlocks(whole, [experts, rows, columns], type);
}

async function time(run, rounds = 20) {
  run();
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < rounds; i++) best = Math.min(best, await gpu.milliseconds(run));
  return best * 1000;
}

/** Every slot by itself, in f32. */
function reference(x, w, ids, glu) {
  const k = ids.shape[1];
  const rows = [...ids.flattenAll().dataSync()].map((expert, slot) => {
    const matrix =
      w instanceof Tensor
        ? w.narrow(0, expert, 1).squeeze(0).toDType("f32")
        : QTensor.fromBlocks(w.blocks.narrow(0, expert, 1), w.shape.slice(1), w.type).dequantize("f32");
    const row = x.narrow(0, x.shape[0] === ids.numel ? slot : Math.floor(slot / k), 1).toDType("f32");
    const y = row.matmul(matrix.t());
    if (!glu) return y;
    const half = y.shape[1] / 2;
    const [gate, up] = [y.narrow(1, 0, half), y.narrow(1, half, half)];
    if (glu === "silu") return gate.silu().mul(up);
    const open = gate.minimum(7);
    return open.mul(open.affine(1.702, 0).sigmoid()).mul(up.clamp(-7, 7).affine(1, 1));
  });
  return Tensor.cat(rows, 0);
}
const error = (got, wanted) => {
  const difference = got.toDType("f32").sub(wanted).sqr().sumAll().sqrt().toScalarSync();
  return difference / wanted.sqr().sumAll().sqrt().toScalarSync();
};

const big = Tensor.zeros([tiny ? 4096 : 2 ** 28], { device });
const copied = await time(() => scope(() => void big.affine(1, 1)), 10);
const ceiling = (2 * 4 * big.numel) / copied;
console.log(`${gpu.context.properties.name}: a copy runs at ${(ceiling / 1e6).toFixed(2)} TB/s`);
big.dispose();

for (const { name, experts, k, hidden, inter, types, glu } of shapes) {
  for (const type of types) {
    const gateUp = stack(experts, 2 * inter, hidden, type);
    const down = stack(experts, hidden, inter, type);
    const perWeight = type ? quantTypes[type].bytes / quantTypes[type].size : 2;
    const router = Tensor.randn([experts, hidden], { dtype: "bf16", device });
    for (const dtype of type ? ["f16", "f32"] : ["bf16"]) {
      const title = `${name} ${type ?? "bf16"} in ${dtype}`;
      // Decode: a layer per set of experts.
      for (const n of tiny ? [1] : [1, 4, 8]) {
        const layers = Math.max(1, Math.floor(experts / k));
        const x = Tensor.randn([n, hidden], { dtype, device });
        const sets = Array.from({ length: layers }, (_, l) =>
          Tensor.from(
            Uint32Array.from({ length: n * k }, (_, s) => (l * k + s + Math.floor(s / k) * 5) % experts),
            { device },
          ).reshape([n, k]),
        );
        const mix = Tensor.full([n, k], 1 / k, { device });
        if (n === 1 || dtype === "f16") {
          const h = expertLinear(x, gateUp, sets[0], { glu });
          const errors = [
            error(h, reference(x, gateUp, sets[0], glu)),
            error(expertLinear(h, down, sets[0]), reference(h, down, sets[0])),
          ];
          console.log(`${title}, ${n} rows: errors ${errors.map((e) => e.toExponential(1)).join(" ")}`);
        }
        const scores = Tensor.randn([n, experts], { device });
        const parts = {
          "gate and up": () => sets.map((ids) => expertLinear(x, gateUp, ids, { glu })),
          down: () => {
            const h = Tensor.zeros([n * k, inter], { dtype, device });
            return sets.map((ids) => expertLinear(h, down, ids));
          },
          route: () => sets.map(() => routeExperts(scores, k)),
          all: () =>
            sets.map((ids) => {
              routeExperts(scores, k);
              return mixExperts(expertLinear(expertLinear(x, gateUp, ids, { glu }), down, ids), mix, x);
            }),
        };
        const distinct = new Set(sets[0].flattenAll().dataSync()).size;
        const bytes = {
          "gate and up": 2 * distinct * inter * hidden * perWeight,
          down: distinct * inter * hidden * perWeight,
        };
        bytes.all = bytes.down + bytes["gate and up"];
        const line = [];
        for (const [part, run] of Object.entries(parts)) {
          const graph = gpu.recorder.capture(() => scope(() => void run()));
          const micros = (await time(() => graph.replay())) / layers;
          graph[Symbol.dispose]();
          const rate = bytes[part]
            ? `, ${(bytes[part] / micros / 1e6).toFixed(2)} TB/s, share ${(bytes[part] / micros / ceiling).toFixed(2)}`
            : "";
          line.push(`${part} ${micros.toFixed(1)} µs${rate}`);
        }
        console.log(`${title}, ${n} rows: ${line.join("; ")}`);
      }
      // Prompts.
      for (const n of tiny ? [40] : (option("--prompts") ?? "16,64,256,1024,4096").split(",").map(Number)) {
        const x = Tensor.randn([n, hidden], { dtype, device });
        const { ids } = routeExperts(x.matmul(router.toDType(dtype).t()).toDType("f32"), k);
        if (n <= 256) {
          const h = expertLinear(x, gateUp, ids, { glu });
          const few = [x.narrow(0, 0, 16), ids.narrow(0, 0, 16)];
          const errors = [error(h.narrow(0, 0, 16 * k), reference(few[0], gateUp, few[1], glu))];
          const slots = h.narrow(0, 0, 16 * k);
          errors.push(error(expertLinear(h, down, ids).narrow(0, 0, 16 * k), reference(slots, down, few[1])));
          console.log(`${title}, prompt of ${n}: errors ${errors.map((e) => e.toExponential(1)).join(" ")}`);
        }
        const h = Tensor.zeros([n * k, inter], { dtype, device });
        const first = await time(() => scope(() => void expertLinear(x, gateUp, ids, { glu })), 5);
        const second = await time(() => scope(() => void expertLinear(h, down, ids)), 5);
        const flops = 2 * n * k * inter * hidden;
        console.log(
          `${title}, prompt of ${n}: gate and up ${first.toFixed(0)} µs, ${((2 * flops) / first / 1e6).toFixed(0)} TFLOP/s; down ${second.toFixed(0)} µs, ${(flops / second / 1e6).toFixed(0)} TFLOP/s`,
        );
      }
    }
    gateUp.dispose();
    down.dispose();
  }
}
