/** The pages of a request: those that are there already, those that it computes, and those that others compute for it. */
import type { PagePool } from "./pages.ts";
import type { Runner } from "./runner.ts";
import type { Task } from "./task.ts";

/** Gives it the pages of all its tokens, if `reserve` more would be left; says whether it did. */
export function takePages(task: Task, pool: PagePool, pageSize: number, reserve: number): boolean {
  const { length } = task.tokens;
  const needed = Math.ceil(length / pageSize);
  // The last token is computed anyway, for what comes behind it, and nobody writes to a page that others read.
  const most = Math.min(length - 1, task.shareable);
  const found = pool.find(task.textFrom(0), Math.floor(most / pageSize));
  const kept = found.filter(({ holders }) => holders === 0).length;
  if (needed - found.length + kept + reserve > pool.available) return false;
  for (const page of found) {
    pool.hold(page);
    task.addPage(page);
  }
  task.registered = found.length;
  const rest = most - found.length * pageSize;
  const begun = rest > 0 && pool.begun(task, found.at(-1) ?? null, task.textFrom(found.length), rest);
  if (begun) task.addPage(begun);
  while (task.pages.length < needed) task.addPage(pool.allocate(task)!);
  registerPages(task, pool);
  return true;
}

/** Lets others find its pages as far as their tokens are known; takes those that are there already in place of its own. */
export function registerPages(task: Task, pool: PagePool): void {
  for (; task.registered < task.wholePages; task.registered++) {
    const place = task.registered;
    const page = task.pages[place]!;
    const there = pool.register(page, task.pages[place - 1] ?? null, task.textFrom(place));
    if (there === page) continue;
    if (!pool.isFull(there) || !pool.isFull(page)) return;
    pool.hold(there);
    task.replacePage(place, there);
    pool.release(page);
  }
  const last = task.pages[task.registered];
  const from = task.registered * pool.pageSize;
  if (!last || from >= task.shareable) return;
  if (!last.level) pool.lay(last, task.pages[task.registered - 1] ?? null, task.textFrom(task.registered));
  else last.tokens.push(...task.tokens.slice(from + last.tokens.length));
}

export function givePagesBack(task: Task, pool: PagePool): void {
  for (const page of task.pages.toReversed()) {
    if (page.writer === task) page.writer = null;
    pool.release(page);
  }
  task.pages.length = task.table.length = task.registered = 0;
}

/**
 * How many of a prompt's tokens it can feed now: those up to where others compute its pages for it. What is there is passed
 * over; pages that were left half-done become its own.
 */
export function feedable(task: Task, runner: Runner): number {
  const { pageSize } = runner;
  let place = Math.floor(task.computed / pageSize);
  while (task.pages[place]!.filled === pageSize) place++;
  task.passOver(place * pageSize);
  const next = task.pages[place]!;
  next.writer ??= task;
  if (next.writer === task) task.passOver(place * pageSize + next.filled);
  for (; place < task.pages.length; place++) {
    const page = task.pages[place]!;
    if (page.filled === pageSize) break;
    page.writer ??= task;
    if (page.writer !== task) break;
  }
  const alike = runner.turnedAlikeUntil(task.extentAt(task.computed));
  return Math.max(0, Math.min(place * pageSize, task.target, alike) - task.computed);
}
