// One library, one model, one process: prints seconds to the first token and from there to the last.
const [library, path, threads, promptTokens, tokens] = process.argv.slice(2);
const count = Number(tokens);
const prompt = Array.from({ length: Number(promptTokens) }, (_, i) => 3 + ((7919 * (i + 1)) % 4000));

async function wick() {
  const { Device } = await import("../../dist/index.js");
  const { loadModel } = await import("../../dist/models/index.js");
  Device.cpu({ threads: Number(threads) });
  const model = await loadModel(path);
  return async () => model.generate(prompt, { maxTokens: count, ignoreEos: true });
}

async function llama() {
  const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
  const options = { gpu: false, build: "never", maxThreads: Number(threads), logLevel: LlamaLogLevel.error };
  const model = await (await getLlama(options)).loadModel({ modelPath: path });
  const size = Math.min(prompt.length + count + 8, 512);
  const context = await model.createContext({ contextSize: size, batchSize: 512, threads: Number(threads) });
  const sequence = context.getSequence();
  return async () => {
    await sequence.clearHistory();
    return sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true });
  };
}

const start = await { wick, "node-llama-cpp": llama }[library]();
const runs = [];
for (let run = 0; run < 4; run++) {
  const pieces = await start();
  const from = performance.now();
  let first = 0;
  let seen = 0;
  for await (const _ of pieces) {
    first ||= performance.now();
    if (++seen === count) break;
  }
  const end = performance.now();
  // The first run warms up.
  if (run > 0) runs.push({ prompt: prompt.length / (first - from), decode: (count - 1) / (end - first) });
}
const best = (key) => Math.max(...runs.map((run) => run[key])) * 1000;
process.stdout.write(JSON.stringify({ prompt: best("prompt"), decode: best("decode") }));
process.exit(0);
