/** A bar on a terminal, of bytes unless told otherwise; elsewhere nothing is written. */
import type { WriteStream } from "node:tty";
import { formatBytes } from "../backend/usage.ts";

const WIDTH = 30;
const EVERY_MS = 50;

export class ProgressBar {
  readonly #label: string;
  readonly #format: (amount: number) => string;
  readonly #stream: Pick<WriteStream, "write"> & { readonly isTTY?: boolean };
  #last = 0;
  #shown = false;

  constructor(
    label: string,
    stream: Pick<WriteStream, "write"> & { readonly isTTY?: boolean },
    format: (amount: number) => string = formatBytes,
  ) {
    this.#label = label;
    this.#format = format;
    this.#stream = stream;
  }

  update(done: number, total: number): void {
    const now = performance.now();
    if (!this.#stream.isTTY || (done < total && now - this.#last < EVERY_MS)) return;
    this.#last = now;
    this.#shown = true;
    const share = total === 0 ? 1 : Math.min(done / total, 1);
    const filled = Math.round(share * WIDTH);
    const bar = "█".repeat(filled) + "░".repeat(WIDTH - filled);
    const percent = `${Math.floor(share * 100)}%`.padStart(4);
    this.#stream.write(`\r${this.#label} ${bar}${percent}  ${this.#format(done)} of ${this.#format(total)}\x1b[K`);
  }

  /** Leaves the line empty. */
  clear(): void {
    if (this.#shown) this.#stream.write("\r\x1b[K");
    this.#shown = false;
  }
}
