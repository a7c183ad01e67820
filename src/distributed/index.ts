/** Processes that run a model together. */
import "../core/globals.ts";

export type { Communicator, Reduction } from "./communicator.ts";
export { type Group, type GroupOptions, joinGroup } from "./group.ts";
export { type RankSource, type Ranks, ranksHere } from "./ranks.ts";
