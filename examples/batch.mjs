// Several prompts side by side, and the likeliest next tokens of one.
import { fileURLToPath } from "node:url";
import { loadModel } from "wick/models";

const model = await loadModel(fileURLToPath(new URL("../models/fable-7m.Q8_0.gguf", import.meta.url)));
const prompts = ["The old fox", "In a far country there lived a", "The king said,"];
const texts = [...prompts];
for await (const { sequence, text } of model.generateBatch(prompts, { maxTokens: 16 })) texts[sequence] += text;
for (const text of texts) console.log(text);

const logits = model.logits(model.encode("Once upon a"));
const [values, order] = logits.softmax(-1).sortLastDim(false);
const [shares, ids] = await Promise.all([values.data(), order.data()]);
console.log('\nAfter "Once upon a":');
for (let i = 0; i < 3; i++) {
  console.log(`  ${JSON.stringify(model.tokenizer.decode([ids[i]]))}  ${(100 * shares[i]).toFixed(1)} %`);
}
model.dispose();
