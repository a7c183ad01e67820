/** A bar for each file that is being downloaded, with its rate and the time left; lines now and then where there is no terminal. */
import type { WriteStream } from "node:tty";
import { formatBytes } from "../backend/usage.ts";
import type { DownloadProgress } from "../models/index.ts";
import { printable } from "./columns.ts";

type Output = Pick<WriteStream, "write"> & { readonly isTTY?: boolean; readonly columns?: number };

const WIDTH = 20;
const NAME = 32;
const EVERY_MS = 100;
const LINE_EVERY_MS = 10_000;
/** Rates are those of the last seconds. */
const WINDOW_MS = 5_000;

interface Entry {
  readonly samples: { readonly at: number; readonly done: number }[];
  done: number;
  total: number | null;
  said: number;
}

export class DownloadBars {
  readonly #output: Output;
  readonly #now: () => number;
  readonly #entries = new Map<string, Entry>();
  #lines = 0;
  #last = Number.NEGATIVE_INFINITY;

  constructor(output: Output, now: () => number = () => performance.now()) {
    this.#output = output;
    this.#now = now;
  }

  update({ file, bytesDone, bytesTotal }: DownloadProgress): void {
    const isDone = bytesDone === bytesTotal;
    const entry = this.#entries.get(file);
    // What is there already needs no bar.
    if (!entry && isDone) return;
    const now = this.#now();
    const current = entry ?? { samples: [], done: 0, total: null, said: now };
    this.#entries.set(file, current);
    current.done = bytesDone;
    current.total = bytesTotal;
    // A download that begins anew has a rate of its own.
    if ((current.samples.at(-1)?.done ?? 0) > bytesDone) current.samples.length = 0;
    current.samples.push({ at: now, done: bytesDone });
    while (now - current.samples[0]!.at > WINDOW_MS && current.samples.length > 2) current.samples.shift();
    if (this.#output.isTTY) this.#draw(file, isDone, now);
    else this.#say(file, current, isDone, !entry, now);
  }

  /** Leaves the lines of what is done, and no others. */
  clear(): void {
    if (this.#lines > 0) this.#output.write(this.#rewind());
    this.#entries.clear();
  }

  #draw(file: string, isDone: boolean, now: number): void {
    if (!isDone && now - this.#last < EVERY_MS) return;
    this.#last = now;
    let text = this.#rewind();
    if (isDone) {
      text += `${shortened(file)}  ${formatBytes(this.#entries.get(file)!.done)}\n`;
      this.#entries.delete(file);
    }
    const width = (this.#output.columns ?? 80) - 1;
    for (const [name, entry] of this.#entries) {
      text += `${bar(name, entry).slice(0, width)}\n`;
      this.#lines++;
    }
    this.#output.write(text);
  }

  /** To where the bars begin, with nothing below. */
  #rewind(): string {
    const up = this.#lines > 0 ? `\x1b[${this.#lines}A\x1b[J` : "";
    this.#lines = 0;
    return up;
  }

  #say(file: string, entry: Entry, isDone: boolean, isNew: boolean, now: number): void {
    const line = (text: string) => this.#output.write(`${printable(file)}: ${text}\n`);
    if (isNew) line(entry.total === null ? "downloading" : `downloading ${formatBytes(entry.total)}`);
    else if (isDone) line("done");
    else if (now - entry.said >= LINE_EVERY_MS) line(described(entry));
    else return;
    entry.said = now;
    if (isDone) this.#entries.delete(file);
  }
}

const shortened = (name: string): string => {
  const text = printable(name);
  return (text.length > NAME ? `…${text.slice(1 - NAME)}` : text).padEnd(NAME);
};

function bar(name: string, entry: Entry): string {
  const { done, total } = entry;
  const share = total === null ? 0 : Math.min(done / Math.max(total, 1), 1);
  const filled = Math.round(share * WIDTH);
  return `${shortened(name)} ${"█".repeat(filled)}${"░".repeat(WIDTH - filled)} ${described(entry)}`;
}

function described({ done, total, samples }: Entry): string {
  const first = samples[0]!;
  const last = samples.at(-1)!;
  const rate = last.at > first.at ? ((last.done - first.done) * 1000) / (last.at - first.at) : 0;
  const amount =
    total === null
      ? formatBytes(done)
      : `${`${Math.floor((done / Math.max(total, 1)) * 100)}%`.padStart(4)} ${formatBytes(done)} of ${formatBytes(total)}`;
  const left = total === null || rate === 0 ? "" : `, ${formatTime((total - done) / rate)} left`;
  return `${amount}${rate === 0 ? "" : `, ${formatBytes(Math.round(rate))}/s`}${left}`;
}

export function formatTime(seconds: number): string {
  const s = Math.ceil(seconds);
  if (s < 60) return `${s} s`;
  return s < 3600
    ? `${Math.floor(s / 60)} min ${s % 60} s`
    : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}
