/** How a model's authors mean its hidden states to become the vector of a text. */
import { fail } from "../../core/errors.ts";
import type { ModelConfig } from "../config.ts";

export const poolings = ["mean", "cls", "last"] as const;
/** The mean over all tokens, the first token's state, or the last one's. */
export type Pooling = (typeof poolings)[number];

export interface EmbeddingSettings {
  readonly pooling: Pooling;
  /** Vectors are scaled to length 1. */
  readonly normalize: boolean;
  /** Longer texts are cut. Null: as many as the model's context holds. */
  readonly maxTokens: number | null;
  /** What is put before a text, by what the text is for ("query", "document"). */
  readonly prompts: Readonly<Record<string, string>>;
  /** The one of them that is used where none is asked for. */
  readonly defaultPrompt: string | null;
}

/** Where the model's files say nothing: of a decoder only the last token has seen all of the text. */
export const usualPooling = ({ encoder }: ModelConfig): Pooling => (encoder ? "mean" : "last");

/** The same, with that pooling. */
export const usualSettings = (pooling: Pooling): EmbeddingSettings => ({
  pooling,
  normalize: false,
  maxTokens: null,
  prompts: {},
  defaultPrompt: null,
});

export function poolingNamed(name: unknown): Pooling {
  const found = poolings.find((pooling) => pooling === name);
  return found ?? fail("InvalidArgument", `embed: pooling must be ${poolings.join(", ")}, not ${String(name)}`);
}

/** What is put before texts for `name`; undefined asks for the default. */
export function promptNamed({ prompts, defaultPrompt }: EmbeddingSettings, name: string | undefined): string {
  const asked = name ?? defaultPrompt;
  if (asked === null) return "";
  if (Object.hasOwn(prompts, asked)) return prompts[asked]!;
  const known = Object.keys(prompts).join(", ");
  return fail(
    "InvalidArgument",
    `embed: the model has no prompt ${JSON.stringify(asked)}; ${known === "" ? "it has none: write what it needs before the texts" : `it has ${known}`}`,
  );
}
