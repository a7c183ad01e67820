// Tensors of more than 2³¹ elements: node bench/gpu/large.mjs DEVICE [--dist PATH]. Exits 1 on a wrong result.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const device = Device.from(args[0] ?? "cuda:0");
const n = 2 ** 31 + 7;
let failed = 0;
const check = (name, got, want) => {
  const ok = JSON.stringify(got, (_, v) => (typeof v === "bigint" ? Number(v) : v)) === JSON.stringify(want);
  console.log(ok ? "ok    " : "WRONG ", name, ok ? "" : `got ${got}, expected ${want}`);
  failed += ok ? 0 : 1;
};

for (const dtype of ["u8", "f16"]) {
  scope(() => {
    const x = Tensor.zeros([n], { dtype, device });
    x.sliceSet(Tensor.from([1, 2, 3], { dtype, device }), 0, n - 3);
    const tail = (t) => Array.from(t.narrow(0, n - 4, 4).dataSync(), Number);
    check(`${dtype} narrow`, tail(x), [0, 1, 2, 3]);
    check(`${dtype} unary sqr`, tail(x.sqr()), [0, 1, 4, 9]);
    check(`${dtype} affine`, tail(x.affine(2, 1)), [1, 3, 5, 7]);
    check(`${dtype} binary add`, tail(x.add(x)), [0, 2, 4, 6]);
    check(`${dtype} compare`, tail(x.gt(1)), [0, 0, 1, 1]);
    check(`${dtype} sum`, Number(x.sumAll().toScalarSync()), 6);
    check(`${dtype} max`, Number(x.max(0).toScalarSync()), 3);
    check(`${dtype} argmax`, Number(x.argmax(0).toScalarSync()), n - 1);
    check(`${dtype} copy`, tail(x.copy()), [0, 1, 2, 3]);
    check(
      `${dtype} flipped copy`,
      Array.from(x.flip([0]).contiguous().narrow(0, 0, 4).dataSync(), Number),
      [3, 2, 1, 0],
    );
    const ids = Tensor.from([n - 2, 0, n - 1], { dtype: "i64", device });
    check(`${dtype} index_select`, Array.from(x.indexSelect(ids, 0).dataSync(), Number), [2, 0, 3]);
    check(`${dtype} cast`, tail(x.toDType("u8")), [0, 1, 2, 3]);
  });
}
process.exitCode = failed ? 1 : 0;
