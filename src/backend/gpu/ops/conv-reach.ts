/** Which inputs the outputs of a convolution reach along one dim: the same for all of an ordinary one, not of a transposed one. */
import type { ConvParams } from "../../fused-ops.ts";

/**
 * `count` outputs, `apart` from each other from `place` on. The first meets input `first` under the first of `taps` taps, which are
 * those of the kernel from `firstTap` on, `tapStep` apart; each tap is `dilation` inputs behind the one before, and each output
 * `stride` inputs. No input reached is at `end` or behind; inputs outside of the image are zeros.
 */
export interface Reach {
  readonly place: number;
  readonly apart: number;
  readonly count: number;
  readonly first: number;
  readonly end: number;
  readonly stride: number;
  readonly taps: number;
  readonly firstTap: number;
  readonly tapStep: number;
  readonly dilation: number;
}

export function reachesOf(taps: number, p: ConvParams, dim: 0 | 1, transposed: boolean): readonly Reach[] {
  const [stride, padding, dilation, size] = [p.stride[dim], p.padding[dim], p.dilation[dim], p.size[dim]];
  if (!transposed) {
    const end = (size - 1) * stride + (taps - 1) * dilation + 1 - padding;
    const tap = { taps, firstTap: 0, tapStep: 1, dilation };
    return [{ place: 0, apart: 1, count: size, first: -padding, end, stride, ...tap }];
  }
  const found: Reach[] = [];
  for (let place = 0; place < Math.min(stride, size); place++) {
    // Output o meets input (o + padding − tap · dilation) / stride under the taps for which that is whole, every `step`-th of them.
    const isWhole = (tap: number): boolean => (place + padding - tap * dilation) % stride === 0;
    const all = Array.from({ length: taps }, (_, tap) => tap).filter(isWhole);
    if (all.length === 0) continue;
    const [last, next] = [all.at(-1)!, all[1] ?? all[0]! + stride];
    const step = next - all[0]!;
    const count = Math.ceil((size - place) / stride);
    // Taps further on meet inputs further back, so the last one comes first.
    const first = (place + padding - last * dilation) / stride;
    const between = (step * dilation) / stride;
    const end = first + (count - 1) + (all.length - 1) * between + 1;
    const tap = { taps: all.length, firstTap: last, tapStep: -step, dilation: between };
    found.push({ place, apart: stride, count, first, end, stride: 1, ...tap });
  }
  return found;
}
