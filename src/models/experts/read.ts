/** What a GGUF file says of a mixture of experts under any architecture's name. */
import type { GgufTyped } from "../../formats/index.ts";
import { type Experts, expertsOf, type ModelConfig } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";

/** `more` is what the architecture knows, or reads itself. */
export function ggufExperts(
  own: JsonFields,
  { intermediateSize, layers }: ModelConfig,
  more: Pick<Experts, "routing"> & Partial<Pick<Experts, "shared" | "layers">>,
): { experts: Experts } {
  const every = new Array<boolean>(layers).fill(true);
  const experts = {
    count: own.count("expert_count"),
    perToken: own.count("expert_used_count"),
    width: own.countOr("expert_feed_forward_length", intermediateSize),
    shared: null,
    layers: every,
    ...more,
  };
  return { experts: expertsOf(experts, own.source) };
}

export function expertMetadata({ experts }: ModelConfig): Record<string, GgufTyped> {
  if (!experts) return {};
  const count = (value: number): GgufTyped => ({ type: "u32", value });
  return {
    expert_count: count(experts.count),
    expert_used_count: count(experts.perToken),
    expert_feed_forward_length: count(experts.width),
  };
}
