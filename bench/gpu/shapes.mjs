// The sizes of models that benches make of random weights, as configs.

const llama = (hiddenSize, intermediateSize, layers, headDim) => ({
  ...{ architecture: "llama", vocabSize: 128256, hiddenSize, intermediateSize, layers, heads: 32, kvHeads: 8, headDim },
  theta: 500_000,
});

const softmax = (normalize) => ({ scoring: "softmax", normalize, scale: 1, groups: null, biased: false });

/** Experts in all layers but the first `dense`. */
const experts = (layers, count, perToken, width, more = {}) => ({
  ...{ count, perToken, width, routing: softmax(true), shared: null },
  ...{ layers: Array.from({ length: layers }, (_, layer) => layer >= (more.dense ?? 0)) },
  ...more,
});

const shapes = {
  "1b": { ...llama(2048, 8192, 16, 64), tiedEmbeddings: true },
  "8b": llama(4096, 14336, 32, 128),
  "qwen3-30b-a3b": {
    ...{ architecture: "qwen3_moe", vocabSize: 151936, hiddenSize: 2048, intermediateSize: 6144, layers: 48 },
    ...{ heads: 32, kvHeads: 4, headDim: 128, theta: 1_000_000, experts: experts(48, 128, 8, 768) },
  },
  "gpt-oss-20b": {
    ...{ architecture: "gpt_oss", vocabSize: 201088, hiddenSize: 2880, intermediateSize: 2880, layers: 24 },
    ...{ heads: 64, kvHeads: 8, headDim: 64, theta: 150_000, experts: experts(24, 32, 4, 2880) },
    ...{ activation: "clampedSwiglu", windows: Array.from({ length: 24 }, (_, layer) => (layer % 2 === 0 ? 128 : 0)) },
    biased: true,
  },
  "deepseek-v2-lite": {
    ...{ architecture: "deepseek_v2", vocabSize: 102400, hiddenSize: 2048, intermediateSize: 10944, layers: 27 },
    ...{ heads: 16, kvHeads: 16, headDim: 192, ropeDims: 64, interleaved: true, theta: 10_000 },
    latent: { rank: 512, queryRank: 0, keyDim: 128, valueDim: 128, normEps: 1e-6 },
    experts: experts(27, 64, 6, 1408, {
      ...{ dense: 1, routing: softmax(false), shared: { width: 2816, gated: false } },
    }),
  },
};
export const shapeNames = Object.keys(shapes);

/** The same layers, few and narrow, to see that all runs. */
function shrunk(shape) {
  const { latent, experts: all, windows } = shape;
  return {
    ...shape,
    ...{ vocabSize: 512, hiddenSize: 256, intermediateSize: 512, layers: 2, heads: 4, kvHeads: latent ? 4 : 2 },
    ...(latent ? { headDim: 48, ropeDims: 16, latent: { ...latent, rank: 64, keyDim: 32, valueDim: 32 } } : {}),
    ...(all && {
      experts: experts(2, 4, 2, 256, { routing: all.routing, shared: all.shared && { ...all.shared, width: 256 } }),
    }),
    ...(windows && { windows: windows.slice(0, 2) }),
  };
}

/** `biased`: matrices have biases. */
export function configOf(name, tiny) {
  const { theta, ropeDims, interleaved = false, biased = false, ...shape } = tiny ? shrunk(shapes[name]) : shapes[name];
  const { layers, headDim } = shape;
  const rope = { theta, dims: ropeDims ?? headDim, interleaved, scaling: { type: "none" } };
  const config = {
    contextLength: 8192,
    normEps: 1e-5,
    activation: "silu",
    rope,
    ropes: new Array(layers).fill(rope),
    attentionScale: headDim ** -0.5,
    attentionSoftcap: 0,
    windows: new Array(layers).fill(0),
    logitScale: 1,
    logitSoftcap: 0,
    embeddingScale: 1,
    residualScale: 1,
    parallelResidual: false,
    tiedEmbeddings: false,
    experts: null,
    latent: null,
    bosToken: null,
    eosTokens: [],
    dtype: "bf16",
    ...shape,
  };
  return { config, biased };
}
