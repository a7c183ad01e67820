import type { Architecture } from "./architecture.ts";
import { llama } from "./llama.ts";

const { names, keys } = llama.huggingFace;

export const starcoder2: Architecture = {
  ...llama,
  normKind: "layer",
  mlp: "plain",
  activation: "gelu",
  huggingFace: {
    ...llama.huggingFace,
    keys: { ...keys, normEps: "norm_epsilon" },
    names: { ...names, linear: { ...names.linear, up: "mlp.c_fc", down: "mlp.c_proj" } },
    tiedByDefault: true,
    hasWindow: () => true,
  },
  gguf: { ...llama.gguf, name: "starcoder2", interleaved: false },
};
