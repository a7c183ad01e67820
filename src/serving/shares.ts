/** How the prompts that are being computed divide the tokens of a step. */

export interface Wanted {
  /** Tokens that it could feed now. */
  readonly now: number;
  /** Tokens that are between it and its first answer. */
  readonly inAll: number;
}

/**
 * Half goes to the one that came first, so that a long prompt gets on; the rest to those nearest to their first token, so
 * that a short one does not wait for it. `wanted` is in the order of arrival, and so are the shares.
 */
export function shareTokens(tokens: number, wanted: readonly Wanted[]): number[] {
  if (wanted.length === 1) return [Math.max(0, Math.min(tokens, wanted[0]!.now))];
  const shares = wanted.map(() => 0);
  let left = Math.max(0, tokens);
  const give = (i: number, most: number): void => {
    const share = Math.min(most, left, wanted[i]!.now - shares[i]!);
    shares[i]! += share;
    left -= share;
  };
  const first = wanted.findIndex(({ now }) => now > 0);
  if (first >= 0) give(first, Math.ceil(left / 2));
  const nearest = [...wanted.keys()].sort((a, b) => wanted[a]!.inAll - wanted[b]!.inAll);
  for (const i of nearest) give(i, left);
  return shares;
}
