// A GGUF file: written from tensors, opened without reading them, read back one by one.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Tensor } from "wick";
import { GgufFile, writeGguf } from "wick/formats";
import { QTensor } from "wick/quantized";

const folder = await mkdtemp(join(tmpdir(), "wick-example-"));
const path = join(folder, "tiny.gguf");
const weights = Tensor.randn([8, 64], { seed: 1 });
await writeGguf(path, {
  metadata: { "general.name": "tiny", "tiny.layers": 1 },
  tensors: [
    { name: "plain", tensor: weights },
    { name: "small", tensor: QTensor.quantize(weights, "Q4_0") },
  ],
});
const file = await GgufFile.open(path);
console.log(
  file.metadata.get("general.name"),
  [...file.tensors.values()].map((t) => `${t.typeName} [${t.shape}]`),
);
const small = await file.readTensor("small");
const difference = small.dequantize().sub(weights).abs().maxAll();
console.log(`largest difference: ${Number(await difference.toScalar()).toFixed(3)}`);
await file.close();
await rm(folder, { recursive: true });
