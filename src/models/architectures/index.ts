/** The architectures that are known: to add one is to add its file and its name here. */
import { fail } from "../../core/errors.ts";
import type { JsonFields } from "../json-fields.ts";
import type { Architecture } from "./architecture.ts";
import { bert } from "./bert.ts";
import { cohere } from "./cohere.ts";
import { cohere2 } from "./cohere2.ts";
import { deepseekV2 } from "./deepseek-v2.ts";
import { deepseekV3 } from "./deepseek-v3.ts";
import { gemma } from "./gemma.ts";
import { gemma2 } from "./gemma2.ts";
import { gemma3 } from "./gemma3.ts";
import { glm4 } from "./glm4.ts";
import { gptNeox } from "./gpt-neox.ts";
import { gptOss } from "./gpt-oss.ts";
import { gpt2 } from "./gpt2.ts";
import { granite } from "./granite.ts";
import { llama } from "./llama.ts";
import { mistral } from "./mistral.ts";
import { mixtral } from "./mixtral.ts";
import { modernbert } from "./modernbert.ts";
import { olmo2 } from "./olmo2.ts";
import { phi } from "./phi.ts";
import { phi3 } from "./phi3.ts";
import { qwen2 } from "./qwen2.ts";
import { qwen2Moe } from "./qwen2-moe.ts";
import { qwen3 } from "./qwen3.ts";
import { qwen3Moe } from "./qwen3-moe.ts";
import { roberta } from "./roberta.ts";
import { smollm3 } from "./smollm3.ts";
import { starcoder2 } from "./starcoder2.ts";

/** By config.json's `model_type`. */
export const architectures = {
  llama,
  mistral,
  qwen2,
  qwen3,
  gemma2,
  phi3,
  mixtral,
  qwen2_moe: qwen2Moe,
  qwen3_moe: qwen3Moe,
  gpt_oss: gptOss,
  deepseek_v2: deepseekV2,
  deepseek_v3: deepseekV3,
  olmo2,
  granite,
  gemma,
  gemma3_text: gemma3,
  smollm3,
  glm4,
  starcoder2,
  phi,
  gpt2,
  gpt_neox: gptNeox,
  cohere,
  cohere2,
  bert,
  roberta,
  "xlm-roberta": roberta,
  camembert: roberta,
  modernbert,
} as const satisfies Record<string, Architecture>;

export type ArchitectureName = keyof typeof architectures;

export const architectureOf = ({ architecture }: { readonly architecture: ArchitectureName }): Architecture =>
  architectures[architecture];

/** `source` opens the error message. */
export function architectureNamed(name: string, source: string): ArchitectureName {
  if (Object.hasOwn(architectures, name)) return name as ArchitectureName;
  const known = Object.keys(architectures).join(", ");
  return fail("InvalidFile", `${source}: unknown architecture ${JSON.stringify(name)}; known are ${known}`);
}

/** The architecture of a GGUF file of that name with these fields under it. */
export function ggufArchitecture(name: string, own: JsonFields): ArchitectureName {
  const rows = Object.entries(architectures) as [ArchitectureName, Architecture][];
  const candidates = rows.filter(([, { gguf }]) => gguf.name === name);
  const fitting = candidates.find(([, { gguf }]) => gguf.fits?.(own)) ?? candidates.find(([, { gguf }]) => !gguf.fits);
  if (fitting) return fitting[0];
  const known = [...new Set(rows.map(([, { gguf }]) => gguf.name))].join(", ");
  const shared = rows.filter(([row, { gguf }]) => gguf.name !== row).map(([row, { gguf }]) => `${row} as ${gguf.name}`);
  return fail(
    "InvalidFile",
    `${own.source}: unknown architecture ${JSON.stringify(name)}; known are ${known} (${shared.join(", ")})`,
  );
}
