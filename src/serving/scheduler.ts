/**
 * Who takes part in the next step. Requests that have their prompt behind them get a token each; what the step has room
 * for beyond goes to prompts, piece by piece. Requests join in the order they came while there are pages for their prompts;
 * where pages run out, the one that came last is put back, and computes again what it lost when it gets its turn.
 */
import type { WickError } from "../core/errors.ts";
import type { Choice } from "../models/generation/batch-sampler.ts";
import type { Finish } from "../models/generation/generate.ts";
import { StepBudget } from "./budget.ts";
import { type Page, PagePool } from "./pages.ts";
import type { EngineStats } from "./request.ts";
import type { PageCopy, Row, Runner } from "./runner.ts";
import { shareTokens } from "./shares.ts";
import type { Task } from "./task.ts";
import { feedable, givePagesBack, registerPages, takePages } from "./task-pages.ts";

/** How many may be taken before one that came earlier and does not fit yet. */
const PATIENCE = 32;
/** How many that do not fit are looked at before those behind them must wait. */
const LOOKED_AT = 4;

interface Part {
  readonly task: Task;
  /** Positions that are computed with this step. */
  readonly until: number;
  readonly samples: boolean;
}

export interface Step {
  readonly rows: readonly Row[];
  readonly tokens: number;
  readonly parts: readonly Part[];
  /** Of pages, before the rows. */
  readonly copies: readonly PageCopy[];
  /** Pages that it writes to, and how many of their positions were there before. */
  readonly written: readonly (readonly [Page, number])[];
}

export class Scheduler {
  readonly #runner: Runner;
  readonly #pool: PagePool;
  readonly #budget: StepBudget;
  /** Both in the order of arrival. */
  #running: Task[] = [];
  #waiting: Task[] = [];
  /** Those among them that have ended, and still have what they had. */
  readonly #ended: Task[] = [];
  #steps = 0;
  #counts = { promptTokens: 0, cachedTokens: 0, generatedTokens: 0, preemptions: 0 };

  constructor(runner: Runner, stepTokens: number) {
    this.#runner = runner;
    this.#pool = new PagePool(runner.pages, runner.pageSize);
    this.#budget = new StepBudget(stepTokens);
  }

  get stats(): EngineStats {
    this.tidy();
    const { total, available, kept } = this.#pool;
    const pages = { total, used: total - available, kept };
    const [running, waiting] = [this.#running.length, this.#waiting.length];
    return { running, waiting, pages, steps: this.#steps, ...this.#counts };
  }

  get tasks(): Task[] {
    this.tidy();
    return [...this.#running, ...this.#waiting];
  }

  get isIdle(): boolean {
    this.tidy();
    return this.#running.length + this.#waiting.length === 0;
  }

  add(task: Task): void {
    this.#waiting.push(task);
  }

  /** Ends a request: with its tokens, or with an error, behind them or at once. */
  end(task: Task, error?: { readonly reason: unknown; readonly atOnce: boolean }): void {
    if (task.ended) return;
    task.ended = true;
    task.onEnd();
    if (error) task.stream.fail(error.reason, error.atOnce);
    else task.stream.end();
    this.#ended.push(task);
    if (error) this.tidy();
  }

  /** Frees what those have that have ended: last tokens do not wait for it, and all that counts or plans comes behind it. */
  tidy(): void {
    if (this.#ended.length === 0) return;
    for (const task of this.#ended.splice(0)) this.#stop(task);
    this.#running = this.#running.filter((task) => !task.ended);
    this.#waiting = this.#waiting.filter((task) => !task.ended);
  }

  /** The next step, as if all that are enqueued had succeeded; null where there is nothing to do now. */
  plan(): Step | null {
    this.tidy();
    const before = this.#counts.preemptions;
    this.#makeRoom();
    // Who has just been put back would come again at once.
    if (this.#counts.preemptions === before) this.#admit();
    const parts = [...this.#decodes()];
    let left = this.#budget.tokens - parts.length;
    for (const [task, count] of this.#chunks(left)) {
      const until = task.computed + count;
      parts.push({ task, until, samples: until === task.tokens.length });
      left -= count;
    }
    if (parts.length === 0) return null;
    this.#steps++;
    const rows = parts.map((part) => this.#row(part));
    const begun = this.#pool.takeCopies();
    const written = [...begun.map(({ page }) => [page, 0] as const), ...parts.flatMap((part) => this.#enqueued(part))];
    const copies = begun.filter(({ from, to }) => from !== to).map(({ from, to }): PageCopy => ({ from, to }));
    return { rows, parts, copies, written, tokens: this.#budget.tokens - left };
  }

  /** The oldest enqueued step has ended well. */
  settle(step: Step, choices: readonly (Choice | WickError | null)[]): void {
    this.#budget.succeeded();
    for (const [i, part] of step.parts.entries()) {
      const { task, samples } = part;
      if (samples) task.inFlight--;
      if (task.ended || !samples) continue;
      const choice = choices[i]!;
      if (choice instanceof Error) this.end(task, { reason: choice, atOnce: false });
      else this.#say(task, choice);
    }
  }

  /** The oldest of these has failed, and nothing that the others did counts. None but these are enqueued. */
  discard(steps: readonly Step[], error: WickError): void {
    this.tidy();
    const [failed] = steps;
    // Of what was to be copied next, some may have been theirs.
    for (const { page } of this.#pool.takeCopies()) this.#pool.spoil(page, 0);
    for (const [page, filled] of steps.flatMap(({ written }) => written)) this.#pool.spoil(page, filled);
    for (const { task, samples } of steps.flatMap((step) => step.parts)) if (samples) task.inFlight--;
    if (!this.#budget.failed(failed!.tokens)) {
      for (const { task } of failed!.parts) this.end(task, { reason: error, atOnce: false });
    }
    for (const task of [...this.#running]) {
      const { pageSize } = this.#runner;
      const broken = task.pages.findIndex(({ filled }) => filled < pageSize);
      if (broken >= 0) task.computed = Math.min(task.computed, broken * pageSize + task.pages[broken]!.filled);
      task.skipped = Math.min(task.skipped, task.computed);
      // Where its last token lies in a page of another by now, it needs one of its own to compute what comes behind.
      if (task.computed >= task.tokens.length) this.#putBack(task);
      else this.#open(task);
    }
  }

  /** Pages for the next positions of those that run, by the order of arrival. */
  #makeRoom(): void {
    for (const task of [...this.#running]) {
      while (task.pages.length * this.#runner.pageSize < task.needed) {
        const page = this.#pool.allocate(task);
        if (page) task.addPage(page);
        else this.#putBack(this.#running.at(-1)!);
      }
    }
  }

  #putBack(task: Task): void {
    this.#stop(task);
    this.#running = this.#running.filter((other) => other !== task);
    const later = this.#waiting.findIndex((other) => other.arrival > task.arrival);
    this.#waiting.splice(later < 0 ? this.#waiting.length : later, 0, task);
    this.#counts.preemptions++;
  }

  #admit(): void {
    const blocked: Task[] = [];
    const taken: Task[] = [];
    for (const task of this.#waiting) {
      const full = this.#running.length === this.#runner.slots;
      if (full || blocked.length > LOOKED_AT || blocked.some(({ passed }) => passed >= PATIENCE)) break;
      // What it says in steps from before it was put back has to be known first.
      if (task.inFlight > 0 || !this.#join(task)) blocked.push(task);
      else {
        taken.push(task);
        for (const other of blocked) other.passed++;
      }
    }
    if (taken.length > 0) this.#waiting = this.#waiting.filter((task) => task.slot === null && !task.ended);
  }

  /** Lets it run, where there are pages for all its tokens. */
  #join(task: Task): boolean {
    // Those that run will need some soon.
    if (!takePages(task, this.#pool, this.#runner.pageSize, this.#running.length)) return false;
    task.passed = 0;
    task.computed = task.skipped = 0;
    if (!this.#open(task)) return false;
    const later = this.#running.findIndex((other) => other.arrival > task.arrival);
    this.#running.splice(later < 0 ? this.#running.length : later, 0, task);
    return true;
  }

  /** A slot, anew where it has one: it goes on from the tokens that are known. */
  #open(task: Task): boolean {
    task.slot?.[Symbol.dispose]();
    task.slot = null;
    try {
      const answer = task.tokens.slice(task.promptLength);
      const spec = answer.length > 0 ? { ...task.sampling, answer } : task.sampling;
      task.slot = this.#runner.open(spec, task.request.constraint);
      task.target = task.tokens.length;
      return true;
    } catch (reason) {
      this.end(task, { reason, atOnce: false });
      return false;
    }
  }

  /** Gives back all that it has while it runs. */
  #stop(task: Task): void {
    task.slot?.[Symbol.dispose]();
    task.slot = null;
    givePagesBack(task, this.#pool);
  }

  /** Those that decode, one token each, as many as the step takes; who had no turn for longest goes first. */
  *#decodes(): Generator<Part> {
    const tasks = this.#running.filter((task) => task.decodes);
    const prompts = this.#running.filter((task) => task.prefills);
    const { tokens } = this.#budget;
    // Prompts get a part of every step, however small; of a step of one token, as soon as it is their turn.
    const lastOf = (some: readonly Task[]): number => Math.min(...some.map(({ lastStep }) => lastStep));
    const least = tokens > 1 ? Math.ceil(tokens / 4) : lastOf(prompts) < lastOf(tasks) ? 1 : 0;
    const most = prompts.length > 0 ? tokens - least : tokens;
    if (tasks.length > most) tasks.sort((a, b) => a.lastStep - b.lastStep);
    for (const task of tasks.slice(0, most)) {
      yield { task, until: task.computed + 1, samples: true };
    }
  }

  /** Which prompts get how many of `tokens`. */
  #chunks(tokens: number): [Task, number][] {
    const wanted = this.#running
      .filter((task) => task.prefills)
      .map((task) => ({ task, now: feedable(task, this.#runner), inAll: task.target - task.computed }));
    const shares = shareTokens(tokens, wanted);
    return wanted.map(({ task }, i): [Task, number] => [task, shares[i]!]).filter(([, count]) => count > 0);
  }

  #row({ task, until, samples }: Part): Row {
    const past = task.computed;
    const ids = task.prefills ? task.tokens.slice(past, until) : null;
    return { slot: task.slot!, ids, past, pages: task.table, extent: task.extentAt(until - 1), samples };
  }

  /** Takes note of what the step will have computed; gives the pages that it writes to as they were. */
  #enqueued({ task, until, samples }: Part): (readonly [Page, number])[] {
    const { pageSize } = this.#runner;
    const first = Math.floor(task.computed / pageSize);
    const written = task.pages.slice(first, Math.ceil(until / pageSize)).map((page, i) => {
      const before = page.filled;
      page.filled = Math.min(pageSize, until - (first + i) * pageSize);
      if (page.filled === pageSize) page.writer = null;
      return [page, before] as const;
    });
    task.computed = until;
    task.lastStep = this.#steps;
    if (samples) task.inFlight++;
    return written;
  }

  #say(task: Task, { token, logprob, top }: Choice): void {
    task.tokens.push(token);
    try {
      task.request.constraint?.accept(token);
    } catch (reason) {
      this.end(task, { reason, atOnce: false });
      return;
    }
    this.#counts.generatedTokens++;
    if (task.cached === null) {
      task.cached = task.skipped;
      this.#counts.promptTokens += task.promptLength;
      this.#counts.cachedTokens += task.cached;
    }
    const finish = this.#finishOf(task, token);
    task.stream.push({ token, logprob, top, finish, cachedTokens: task.cached });
    if (finish !== null) this.end(task);
    else if (task.slot) registerPages(task, this.#pool);
  }

  #finishOf(task: Task, token: number): Finish | null {
    if (task.ends.has(token)) return "token";
    if (task.request.constraint?.ended) return "string";
    if (task.said < task.limit) return null;
    return task.limitIsContext ? "context" : "length";
  }
}
