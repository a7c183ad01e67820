/** Answering many requests at once by one model. */
import "../core/globals.ts";

export type { TokenLogprob } from "../models/generation/row-sampler.ts";
export { createEngine, type EngineOptions } from "./create-engine.ts";
export type { BatchingOptions } from "./engine.ts";
export {
  type CompiledGrammar,
  type ConstraintOptions,
  type GrammarLimits,
  Grammars,
  type GrammarsOptions,
} from "./grammar/grammars.ts";
export type { ToolGrammarOptions } from "./grammar/tool-grammar.ts";
export type { Engine, EngineRequest, EngineStats, TokenConstraint, TokenEvent } from "./request.ts";
