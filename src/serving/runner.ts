/**
 * What the scheduler drives: a model with its paged cache and its samplers, one step at a time over whichever requests
 * take part in it. Steps run in the order they were asked for, and a step may be asked for before the tokens of those
 * before it are known, so that a device need never wait for the host.
 */
import type { SamplerSpec } from "../backend/transformers.ts";
import type { WickError } from "../core/errors.ts";
import type { Choice } from "../models/generation/batch-sampler.ts";
import type { TokenConstraint } from "./request.ts";

/** What a runner keeps of a request while it runs: how its tokens are chosen, and the last of them. */
export interface Slot extends Disposable {}

/** A request's part in a step. Valid during the call. */
export interface Row {
  readonly slot: Slot;
  /** The new tokens; null is the one that the slot's last row chose, which the host may not have seen yet. */
  readonly ids: readonly number[] | null;
  /** Positions that are in its pages already. */
  readonly past: number;
  /** The pages of its positions in order, the new ones included. */
  readonly pages: readonly number[];
  /** The positions that decide how the new ones are turned, where that depends on the length of the text. */
  readonly extent: number;
  /** Whether the token behind the last of `ids` is chosen. */
  readonly samples: boolean;
}

/** A page whose positions another has in common with it. */
export interface PageCopy {
  readonly from: number;
  readonly to: number;
}

export interface Runner extends AsyncDisposable {
  /** Positions of a page, and how many pages there are. */
  readonly pageSize: number;
  readonly pages: number;
  /** Requests that may take part in a step, and as many slots. */
  readonly slots: number;
  /** Steps that may be asked for beyond the one whose tokens are waited for. */
  readonly ahead: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  /** Tokens that end an answer. */
  readonly eosTokens: readonly number[];
  /** Readies what steps need, while no page is in use; they work without, too. */
  ready(): Promise<void>;
  /** How many positions are turned as those of a text of `extent` are: beyond, their keys may not be shared. */
  turnedAlikeUntil(extent: number): number;
  /** A slot for a request whose tokens are chosen so, behind those of its answer that there are already. */
  open(spec: SamplerSpec, constraint: TokenConstraint | undefined): Slot;
  /**
   * One step; for each row what was chosen, null where nothing was asked for. Before it writes anything, pages are copied, one
   * after another. A row of its own may fail: the others are none the worse for it. Where the whole step fails, so will those
   * after it, and what its rows and copies would have written is undefined.
   */
  step(rows: readonly Row[], copies: readonly PageCopy[]): Promise<readonly (Choice | WickError | null)[]>;
}
