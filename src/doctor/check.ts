/** What a step of the doctor found. */
import { WickError } from "../core/errors.ts";

export type Verdict = "ok" | "problem" | "skipped";

export interface Check {
  readonly name: string;
  readonly verdict: Verdict;
  /** What was found; of a problem also the way out. */
  readonly detail: string;
}

/** Tells the parent what is being done: progress for people, and the place if this process dies of it. */
export type Say = (doing: string, done?: number, total?: number) => void;

/** Runs one check; what it throws is a problem, and the next check goes on. */
export async function check(say: Say, name: string, run: () => string | Promise<string>): Promise<Check> {
  say(name);
  try {
    return { name, verdict: "ok", detail: await run() };
  } catch (error) {
    return { name, verdict: "problem", detail: describeError(error) };
  }
}

export const describeError = (error: unknown): string => {
  if (error instanceof WickError) return `${error.message} [${error.code}]`;
  return error instanceof Error ? error.message : String(error);
};

/** For checks: throws when `condition` does not hold. */
export function expectThat(condition: boolean, otherwise: () => string): asserts condition {
  if (!condition) throw new Error(otherwise());
}

/** Problems outweigh all else; a section of nothing but skipped checks is skipped. */
export function overall(verdicts: readonly Verdict[]): Verdict {
  if (verdicts.includes("problem")) return "problem";
  return verdicts.includes("ok") ? "ok" : "skipped";
}
