// Tensors larger than WebAssembly's memory, on the CPU: fills one of more than 4 GiB, reduces it, multiplies by it and moves
// it, and checks what comes out. It needs twice its size of memory.
//
//   node bench/beyond.mjs [--gib 5]
import { parseArgs } from "node:util";
import { Device, scope, Tensor } from "../dist/index.js";

const { values: options } = parseArgs({ options: { gib: { type: "string", default: "5" } } });
const columns = 2 ** 14;
const rows = Math.round((Number(options.gib) * 2 ** 30) / 4 / columns);
const cpu = Device.cpu();
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

async function step(title, run, expected) {
  const start = performance.now();
  const got = await scope(() => run());
  const seconds = (performance.now() - start) / 1000;
  const isRight = Math.abs(got - expected) <= 1e-5 * Math.abs(expected);
  if (!isRight) process.exitCode = 1;
  console.log(
    `${title.padEnd(34)} ${seconds.toFixed(2).padStart(7)} s   ${isRight ? "right" : `WRONG: ${got}, not ${expected}`}`,
  );
}

console.log(`${cpu}: a tensor [${rows}, ${columns}] f32 of ${gib(rows * columns * 4)}, ${cpu.available().where}`);
let x;
await step(
  "fill",
  async () => {
    x = Tensor.full([rows, columns], 0.5).keep();
    return rows * columns;
  },
  rows * columns,
);
await step("sum of all", () => x.sumAll().toScalar(), rows * columns * 0.5);
await step("sum of rows, then of those", () => x.sum(1).sumAll().toScalar(), rows * columns * 0.5);
await step("sum of columns, then of those", () => x.sum(0).sumAll().toScalar(), rows * columns * 0.5);
await step(
  "matrix · vector",
  () =>
    x
      .matmul(Tensor.ones([columns, 1]))
      .sumAll()
      .toScalar(),
  rows * columns * 0.5,
);
await step("vector · matrix", () => Tensor.ones([1, rows]).matmul(x).sumAll().toScalar(), rows * columns * 0.5);
await step(
  "the last row, by its index",
  () =>
    x
      .indexSelect(Tensor.from(new Uint32Array([rows - 1])), 0)
      .sumAll()
      .toScalar(),
  columns * 0.5,
);
await step("largest of x · 2 + 1", () => x.affine(2, 1).maxAll().toScalar(), 2);
await step(
  "write a row, and find it",
  async () => {
    x.sliceSet(Tensor.full([1, columns], 9), 0, rows - 2);
    return x.narrow(1, 5, 1).flattenAll().argmax(0).toScalar();
  },
  rows - 2,
);
console.log(`peak ${gib(cpu.memory().peak)}, live ${gib(cpu.memory().live)}`);
x.dispose();
console.log(`after its end ${gib(cpu.memory().live)} live, the process has ${gib(process.memoryUsage.rss())}`);
