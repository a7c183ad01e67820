/** How many tokens a step may have: fewer after one that failed, until it is clear who is to blame, then more again. */

/** Steps that must succeed before twice as much is tried. */
const PROVED = 16;

export class StepBudget {
  readonly most: number;
  #now: number;
  #proved = 0;

  constructor(most: number) {
    this.most = most;
    this.#now = most;
  }

  get tokens(): number {
    return this.#now;
  }

  succeeded(): void {
    if (this.#now === this.most || ++this.#proved < PROVED) return;
    this.#proved = 0;
    this.#now = Math.min(this.most, 2 * this.#now);
  }

  /** A step of so many tokens failed; says whether there is less to try. */
  failed(tokens: number): boolean {
    this.#proved = 0;
    this.#now = Math.max(1, Math.floor(tokens / 2));
    return tokens > 1;
  }
}
