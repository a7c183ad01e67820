/** How the architectures differ. Everything else about a model is in its config; the code is the same for all. */
import { fail } from "../../core/errors.ts";

export interface Architecture {
  /** q, k and v have biases. Elsewhere a bias is used where the file has one. */
  readonly qkvBias: boolean;
  /** q and k are normalised per head before they are rotated. */
  readonly qkNorm: boolean;
  /** Norms after attention and MLP too, before the residual is added. */
  readonly postNorms: boolean;
  /** Checkpoints hold norm weights minus this. */
  readonly normOffset: 0 | 1;
  /** The embeddings are multiplied by √hidden. */
  readonly scaledEmbeddings: boolean;
  /** The MLP is a mixture of experts. */
  readonly experts: boolean;
  readonly tiedByDefault: boolean;
  /** Which layers have the config's sliding window, where it does not list them. */
  readonly windowed: "none" | "all" | "even" | "upper";
  /** Where q·k is scaled by 1 / √query_pre_attn_scalar. */
  readonly queryScalar: boolean;
  readonly ropeTheta: number;
}

const llama: Architecture = {
  qkvBias: false,
  qkNorm: false,
  postNorms: false,
  normOffset: 0,
  scaledEmbeddings: false,
  experts: false,
  tiedByDefault: false,
  windowed: "none",
  queryScalar: false,
  ropeTheta: 10_000,
};

export const architectures = {
  llama,
  mistral: { ...llama, windowed: "all" },
  qwen2: { ...llama, qkvBias: true, windowed: "upper" },
  qwen3: { ...llama, qkNorm: true, windowed: "upper" },
  gemma2: {
    ...llama,
    postNorms: true,
    normOffset: 1,
    scaledEmbeddings: true,
    tiedByDefault: true,
    windowed: "even",
    queryScalar: true,
  },
  phi3: { ...llama, windowed: "all" },
  mixtral: { ...llama, experts: true, windowed: "all", ropeTheta: 1_000_000 },
} as const satisfies Record<string, Architecture>;

export type ArchitectureName = keyof typeof architectures;

/** `source` opens the error message. */
export function architectureNamed(name: string, source: string): ArchitectureName {
  if (Object.hasOwn(architectures, name)) return name as ArchitectureName;
  const known = Object.keys(architectures).join(", ");
  return fail("InvalidFile", `${source}: unknown architecture ${JSON.stringify(name)}; known are ${known}`);
}

export const traits = (name: ArchitectureName): Architecture => architectures[name];
