/** The names in the safetensors of Hugging Face folders. */
import { traits } from "../architectures/index.ts";
import type { NamingOf } from "../weights/naming.ts";
import type { LinearRole, NormRole, Place } from "../weights/weights.ts";

export const huggingFaceNames: NamingOf = (config) => {
  const { normOffset, postNorms } = traits(config.architecture);
  return {
    embedding: "model.embed_tokens.weight",
    normOffset,
    linear: (role, place) => [{ name: linearName(role, place) }],
    fused: (roles, place) => {
      const own = Object.hasOwn(fusedNames, roles) ? fusedNames[roles] : undefined;
      return own && layerPrefix(place) + own;
    },
    norm: (role, place) => `${layerPrefix(place)}${normName(role, postNorms)}.weight`,
    isUsed: (name) => {
      if (name === "lm_head.weight") return !config.tiedEmbeddings;
      const layer = /^model\.layers\.(\d+)\./.exec(name)?.[1];
      return !name.endsWith(".rotary_emb.inv_freq") && (layer === undefined || Number(layer) < config.layers);
    },
  };
};

const linearNames: Readonly<Record<Exclude<LinearRole, "head">, string>> = {
  q: "self_attn.q_proj",
  k: "self_attn.k_proj",
  v: "self_attn.v_proj",
  o: "self_attn.o_proj",
  gate: "mlp.gate_proj",
  up: "mlp.up_proj",
  down: "mlp.down_proj",
  router: "block_sparse_moe.gate",
};
const expertNames: Partial<Record<LinearRole, string>> = { gate: "w1", up: "w3", down: "w2" };
/** Phi 3 saves these over each other. */
const fusedNames: Readonly<Record<string, string>> = {
  "q,k,v": "self_attn.qkv_proj",
  "gate,up": "mlp.gate_up_proj",
};

const layerPrefix = ({ layer }: Place): string => (layer === undefined ? "" : `model.layers.${layer}.`);

function linearName(role: LinearRole, place: Place): string {
  if (role === "head") return "lm_head";
  const own =
    place.expert === undefined ? linearNames[role] : `block_sparse_moe.experts.${place.expert}.${expertNames[role]}`;
  return layerPrefix(place) + own;
}

/** The same name means the norm after attention where there is one, and the norm before the MLP elsewhere. */
function normName(role: NormRole, postNorms: boolean): string {
  const names: Readonly<Record<NormRole, string>> = {
    attentionNorm: "input_layernorm",
    postAttentionNorm: "post_attention_layernorm",
    mlpNorm: postNorms ? "pre_feedforward_layernorm" : "post_attention_layernorm",
    postMlpNorm: "post_feedforward_layernorm",
    qNorm: "self_attn.q_norm",
    kNorm: "self_attn.k_norm",
    finalNorm: "model.norm",
  };
  return names[role];
}
