// A first look: tensors, views, a matrix product, softmax, and memory that takes care of itself.
import { Device, scope, Tensor } from "wick";
import { rmsNorm, sdpa } from "wick/nn";

const device = Device.best();
const x = Tensor.randn([4, 256], { device, seed: 1 });
const y = x.matmul(x.t()).softmax(-1);
console.log(`softmax(x·xᵀ), computed on ${device}:\n${y}\n`);

// Everything made inside a scope is freed at its end, except what it returns.
const attended = scope(() => {
  const [q, k, v] = [2, 3, 4].map((seed) => Tensor.randn([1, 8, 64, 32], { device, seed }));
  return rmsNorm(sdpa(q, k, v, { causal: true }), null);
});
console.log(`causal attention over 8 heads:\n${attended.index(0, 0)}\n`);
console.log("memory:", device.memory());
