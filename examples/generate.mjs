// The bundled model tells a story, token by token.
import { fileURLToPath } from "node:url";
import { Device } from "wick";
import { loadModel } from "wick/models";

const path = fileURLToPath(new URL("../models/fable-7m.Q8_0.gguf", import.meta.url));
const model = await loadModel(path, { device: Device.best() });
const prompt = "Once upon a time there was a princess who";
process.stdout.write(prompt);
for await (const piece of model.generate(prompt, { maxTokens: 60, temperature: 0.7, topK: 40, seed: 3 })) {
  process.stdout.write(piece.text);
}
console.log(`\n(${model.config.layers} layers, ${model.config.architecture}, on ${model.device})`);
model.dispose();
