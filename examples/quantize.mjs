// What the block types cost: bytes per weight against the error of a product.
import { Tensor } from "wick";
import { QTensor, qmatmul } from "wick/quantized";

const weights = Tensor.randn([256, 1024], { seed: 1 });
const x = Tensor.randn([4, 1024], { seed: 2 });
const exact = x.matmul(weights.t());
const size = Number(await exact.sqr().meanAll().toScalar());
for (const type of ["Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K"]) {
  const quantized = QTensor.quantize(weights, type);
  const error = qmatmul(x, quantized).sub(exact).sqr().meanAll();
  const relative = Math.sqrt(Number(await error.toScalar()) / size);
  const bits = (8 * quantized.byteLength) / quantized.numel;
  console.log(`${type}  ${bits.toFixed(2)} bits per weight  ${(100 * relative).toFixed(2)} % error`);
}
