import type { Finish } from "../../models/generation/generate.ts";

/** Why an answer ended, as OpenAI's API says it. */
export const finishReason = (finish: Finish, hasCalls = false): "stop" | "length" | "tool_calls" =>
  hasCalls ? "tool_calls" : finish === "length" || finish === "context" ? "length" : "stop";
