/** The libraries: each takes a number of threads and gives what loads a model, which gives what starts a generation. */
export const libraries = {
  async wick(threads) {
    const { Device } = await import("../../dist/index.js");
    const { loadModel } = await import("../../dist/models/index.js");
    Device.cpu({ threads });
    return async (path) => {
      const model = await loadModel(path);
      return async (prompt, count) => model.generate(prompt, { maxTokens: count, ignoreEos: true });
    };
  },

  async "node-llama-cpp"(threads) {
    const { getLlama, LlamaLogLevel } = await import("node-llama-cpp");
    const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, logLevel: LlamaLogLevel.error });
    return async (path, contextSize) => {
      const model = await llama.loadModel({ modelPath: path });
      const context = await model.createContext({ contextSize, batchSize: 512, threads });
      const sequence = context.getSequence();
      return async (prompt) => {
        await sequence.clearHistory();
        return sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true });
      };
    };
  },
};

/** When generation began and when each of `count` tokens came, in milliseconds. */
export async function timeTokens(start, prompt, count) {
  const pieces = await start(prompt, count);
  const times = [performance.now()];
  for await (const _ of pieces) {
    times.push(performance.now());
    if (times.length > count) return times;
  }
  throw new Error(`the generation ended after ${times.length - 1} of ${count} tokens`);
}
