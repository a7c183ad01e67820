/**
 * What came of trials, kept beside the compiled kernels: later processes do not try again until the library, the card or
 * the runtime is another.
 */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { type BlasTrial, runTrial, runTrialAsync, type Verdict } from "./blas-trial.ts";
import { replaceFile } from "./replace-file.ts";

/** Loading a library's kernels for the first time can take twenty seconds. */
const TRIAL_SECONDS = 45;

/** Verdicts of this process, for folders that cannot be written. */
const verdicts = new Map<string, string>();

/** Trials and what is known of them, in a folder. */
export class BlasTrials {
  readonly #folder: string;
  readonly #seconds: number;

  constructor(folder: string, seconds = TRIAL_SECONDS) {
    this.#folder = folder;
    this.#seconds = seconds;
  }

  /** Why the library is not to be used; empty where it may be. */
  problem(trial: BlasTrial): string {
    return this.#known(trial) ?? this.#keep(trial, runTrial(trial, this.#seconds));
  }

  async problemAsync(trial: BlasTrial): Promise<string> {
    return this.#known(trial) ?? this.#keep(trial, await runTrialAsync(trial, this.#seconds));
  }

  #known({ key }: BlasTrial): string | undefined {
    try {
      const kept: unknown = JSON.parse(readFileSync(this.#path(key), "utf8"));
      const { key: of, problem } = kept as { key?: unknown; problem?: unknown };
      if (of === key && typeof problem === "string") return problem;
    } catch {
      // Not there, or damaged: tried anew and written again.
    }
    return verdicts.get(this.#path(key));
  }

  #keep({ key }: BlasTrial, { problem, isLasting }: Verdict): string {
    if (!isLasting) return problem;
    const path = this.#path(key);
    verdicts.set(path, problem);
    replaceFile(path, JSON.stringify({ key, problem }, null, 2));
    return problem;
  }

  #path(key: string): string {
    return join(this.#folder, `blas-${createHash("sha256").update(key).digest("hex").slice(0, 32)}.json`);
  }
}
