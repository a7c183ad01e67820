/** The architectures as GGUF files name and shape them. */
import { fail } from "../../core/errors.ts";
import type { ArchitectureName } from "../architectures/index.ts";
import type { Activation } from "../config.ts";

export interface GgufArchitecture {
  /** How it is run. Llama's name also stands for Mistral, and for Mixtral where there are experts. */
  readonly architecture: ArchitectureName;
  readonly withExperts?: ArchitectureName;
  /** The rows of q and k are ordered so that rotary pairs are neighbours. */
  readonly interleaved: boolean;
  /** The files do not name it. */
  readonly activation: Activation;
}

export const ggufArchitectures = {
  llama: { architecture: "llama", withExperts: "mixtral", interleaved: true, activation: "silu" },
  qwen2: { architecture: "qwen2", interleaved: false, activation: "silu" },
  qwen3: { architecture: "qwen3", interleaved: false, activation: "silu" },
  gemma2: { architecture: "gemma2", interleaved: false, activation: "gelu" },
  phi3: { architecture: "phi3", interleaved: false, activation: "silu" },
} as const satisfies Record<string, GgufArchitecture>;

export type GgufArchitectureName = keyof typeof ggufArchitectures;

/** The name under which GGUF files hold an architecture. */
export const ggufNameOf: Readonly<Record<ArchitectureName, GgufArchitectureName>> = {
  llama: "llama",
  mistral: "llama",
  mixtral: "llama",
  qwen2: "qwen2",
  qwen3: "qwen3",
  gemma2: "gemma2",
  phi3: "phi3",
};

/** `source` opens the error message. */
export function ggufArchitecture(name: string, source: string): GgufArchitecture {
  if (Object.hasOwn(ggufArchitectures, name)) return ggufArchitectures[name as GgufArchitectureName];
  const known = Object.keys(ggufArchitectures).join(", ");
  return fail(
    "InvalidFile",
    `${source}: unknown architecture ${JSON.stringify(name)}; known are ${known} (llama stands for mistral and mixtral, too)`,
  );
}
