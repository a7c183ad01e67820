/** The pages of a request: those that are there already, those that it computes, and those that others compute for it. */
import type { PagePool } from "./pages.ts";
import type { Runner } from "./runner.ts";
import type { Task } from "./task.ts";

/** Gives it the pages of all its tokens, if `reserve` more would be left; says whether it did. */
export function takePages(task: Task, pool: PagePool, pageSize: number, reserve: number): boolean {
  const { length } = task.tokens;
  const needed = Math.ceil(length / pageSize);
  // The last token is computed anyway, for what comes behind it, and nobody writes to a page that others read.
  const found = pool.find(task.keys(Math.floor((length - 1) / pageSize)));
  const kept = found.filter(({ holders }) => holders === 0).length;
  if (needed - found.length + kept + reserve > pool.available) return false;
  for (const page of found) {
    pool.hold(page);
    task.addPage(page);
  }
  task.registered = found.length;
  while (task.pages.length < needed) task.addPage(pool.allocate(task)!);
  registerPages(task, pool);
  return true;
}

/** Lets others find its pages as far as their tokens are known; takes those that are there already in place of its own. */
export function registerPages(task: Task, pool: PagePool): void {
  const keys = task.keys(task.pages.length);
  for (; task.registered < keys.length; task.registered++) {
    const place = task.registered;
    const page = task.pages[place]!;
    const there = pool.register(page, task.pages[place - 1] ?? null, keys[place]!);
    if (there === page) continue;
    if (!there.ready || !page.ready) return;
    pool.hold(there);
    task.replacePage(place, there);
    pool.release(page);
  }
}

export function givePagesBack(task: Task, pool: PagePool): void {
  for (const page of task.pages.toReversed()) {
    if (page.writer === task) page.writer = null;
    pool.release(page);
  }
  task.pages.length = task.table.length = task.registered = 0;
}

/**
 * How many of a prompt's tokens it can feed now: those up to where others compute its pages for it. Pages that are there
 * are passed over; pages that were left half-done become its own.
 */
export function feedable(task: Task, runner: Runner): number {
  const { pageSize } = runner;
  let place = Math.floor(task.computed / pageSize);
  for (; task.pages[place]!.ready; place++) {
    task.skipped += (place + 1) * pageSize - task.computed;
    task.computed = (place + 1) * pageSize;
  }
  for (; place < task.pages.length; place++) {
    const page = task.pages[place]!;
    if (page.ready) break;
    page.writer ??= task;
    if (page.writer !== task) break;
  }
  const alike = runner.turnedAlikeUntil(task.extentAt(task.computed));
  return Math.max(0, Math.min(place * pageSize, task.target, alike) - task.computed);
}
