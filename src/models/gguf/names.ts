/** The names in GGUF files. */
import type { MatrixName, NamingOf } from "../weights/naming.ts";
import type { LinearRole, NormRole, Place } from "../weights/weights.ts";

export const EMBEDDING = "token_embd.weight";
export const HEAD = "output.weight";
/** A divisor per rotary frequency. */
export const ROPE_FACTORS = "rope_freqs.weight";
/** The same, for positions up to the original context and beyond it. */
export const ROPE_FACTORS_SHORT = "rope_factors_short.weight";
export const ROPE_FACTORS_LONG = "rope_factors_long.weight";

export const ggufNames: NamingOf = (config) => ({
  embedding: EMBEDDING,
  normOffset: 0,
  linear: ggufMatrix,
  fused: (roles, place) => {
    if (roles === "q,k,v") return `${layerPrefix(place)}attn_qkv`;
    // Phi 3's gate lies over its up projection, under the name of the latter.
    return roles === "gate,up" && config.architecture === "phi3" ? `${layerPrefix(place)}ffn_up` : undefined;
  },
  norm: ggufNorm,
  isUsed: (name) => {
    const layer = /^blk\.(\d+)\./.exec(name)?.[1];
    return layer === undefined ? !name.startsWith("rope_") : Number(layer) < config.layers;
  },
});

const linearNames: Readonly<Record<LinearRole, string>> = {
  q: "attn_q",
  k: "attn_k",
  v: "attn_v",
  o: "attn_output",
  gate: "ffn_gate",
  up: "ffn_up",
  down: "ffn_down",
  router: "ffn_gate_inp",
  head: "output",
};
const normNames: Readonly<Record<NormRole, string>> = {
  attentionNorm: "attn_norm",
  postAttentionNorm: "post_attention_norm",
  mlpNorm: "ffn_norm",
  postMlpNorm: "post_ffw_norm",
  qNorm: "attn_q_norm",
  kNorm: "attn_k_norm",
  finalNorm: "output_norm",
};

const layerPrefix = ({ layer }: Place): string => (layer === undefined ? "" : `blk.${layer}.`);

/** Experts are stacked in one tensor; files from before 2024 have a tensor for each. */
export function ggufMatrix(role: LinearRole, place: Place): MatrixName[] {
  const name = layerPrefix(place) + linearNames[role];
  if (place.expert === undefined) return [{ name }];
  return [{ name: `${name}_exps`, index: place.expert }, { name: `${name}.${place.expert}` }];
}

export const ggufNorm = (role: NormRole, place: Place): string => `${layerPrefix(place)}${normNames[role]}.weight`;
