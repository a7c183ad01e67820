/**
 * Jobs may still be under way when the call that gave them is back. Whoever touches tensors' memory in another way than by
 * jobs, which keep their order, asks `settle` first.
 */
let settling: (() => void) | null = null;

/** `run` waits for what is under way; null where nothing is. */
export function setPending(run: (() => void) | null): void {
  settling = run;
}

export function settle(): void {
  if (settling !== null) settling();
}
