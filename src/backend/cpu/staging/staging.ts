/**
 * Runs ops of WebAssembly's kernels on tensors that are not all in its memory. What is outside is brought into the heap for
 * the time of the op, and where it is much, piece by piece; the pieces of the result are put together where it belongs.
 */
import { type DType, sizeOf } from "../../../core/dtype.ts";
import { Layout, numel, type Shape } from "../../../core/layout.ts";
import type { View } from "../../backend.ts";
import { Storage } from "../../storage.ts";
import { isNative } from "../blocks.ts";
import type { MemoryBackend } from "../memory-backend.ts";
import { type Axis, type Piece, pieces } from "./pieces.ts";
import { isScattered, stage, stagedBytes, type Use } from "./stage.ts";

/** So much larger are pieces that would be very many short runs. */
const SCATTERED = 16;

/** Operands, or null for one that is not there. */
export type Views = readonly (View | null)[];

export interface StagedOp<V extends Views> {
  readonly views: V;
  /** Along these it can be cut. */
  readonly axes: () => readonly Axis[];
  readonly dtype: DType;
  /** Of the result. */
  readonly shape: Shape;
  /** These operands stay where they are: the op finds itself what it needs of them. */
  readonly loose?: readonly View[];
  run(views: V): Storage;
}

export class Staging {
  readonly #backend: MemoryBackend;
  /** What the operands outside the heap and the result of one piece may take in it. */
  readonly #pieceBytes: number;

  constructor(backend: MemoryBackend, pieceBytes: number) {
    this.#backend = backend;
    this.#pieceBytes = pieceBytes;
  }

  run<const V extends Views>({ views, axes, dtype, shape, loose = [], run }: StagedOp<V>): Storage {
    const bytes = numel(shape) * sizeOf(dtype);
    if (this.#isDirect(views, bytes)) return run(views);
    const staged = (piece: Views): Views =>
      piece.filter((view) => view && !loose.some((own) => own.storage === view.storage));
    const cost = (piece: Piece) => inHeap(staged(piece.views)) + numel(piece.out.shape) * sizeOf(dtype);
    const whole = { views, out: Layout.contiguous(shape) };
    const compute = (piece: Views) => this.#within(piece, loose, (there) => run(there as V));
    const cut = (limit: number) => pieces(whole, axes(), cost, limit);
    let cuts = cut(this.#pieceBytes);
    let piece = cuts.next();
    if (!piece.done && staged(piece.value.views).some(isScattered)) {
      cuts = cut(SCATTERED * this.#pieceBytes);
      piece = cuts.next();
    }
    if (piece.value === whole) return compute(views);
    const result = Storage.alloc(this.#backend, dtype, numel(shape));
    try {
      for (; !piece.done; piece = cuts.next()) {
        const { views: own, out } = piece.value;
        const part = this.#backend.inHeap(() => compute(own));
        try {
          this.#backend.copy({ storage: part, layout: Layout.contiguous(out.shape) }, { storage: result, layout: out });
        } finally {
          part.discard();
        }
      }
    } catch (error) {
      result.discard();
      throw error;
    }
    return result;
  }

  /** The same for an op that writes into its first operand, whose pieces come in the order of the axes' parts. */
  update<const V extends Views>(
    views: V,
    axes: () => readonly Axis[],
    shape: Shape,
    use: Use,
    run: (views: V) => void,
  ): void {
    if (!views.some((view) => view && isNative(view))) {
      run(views);
      return;
    }
    const cost = (piece: Piece) => inHeap(piece.views);
    for (const piece of pieces({ views, out: Layout.contiguous(shape) }, axes(), cost, this.#pieceBytes)) {
      const [target, ...rest] = piece.views;
      using there = stage(this.#backend, target!, use);
      this.#within(rest, [], (others) => run([there.view, ...others] as unknown as V));
      if (isNative(target!)) there.leave();
    }
  }

  #isDirect(views: Views, resultBytes: number): boolean {
    for (const view of views) if (view && isNative(view)) return false;
    return resultBytes <= this.#pieceBytes || this.#backend.takesHeap(resultBytes);
  }

  /** Calls `run` with the views in the heap. */
  #within<T>(views: Views, loose: readonly View[], run: (views: Views) => T): T {
    const stages = [];
    try {
      const there = [];
      for (const view of views) {
        if (!view || loose.some((own) => own.storage === view.storage)) {
          there.push(view);
          continue;
        }
        const staged = stage(this.#backend, view, "read");
        stages.push(staged);
        there.push(staged.view);
      }
      return run(there);
    } finally {
      for (const staged of stages) staged[Symbol.dispose]();
    }
  }
}

const inHeap = (views: Views): number => views.reduce((sum, view) => sum + stagedBytes(view), 0);
