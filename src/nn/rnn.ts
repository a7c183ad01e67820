/** Recurrent layers in PyTorch's weight layout: gates stacked along the first dim of each weight. */
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import { scope, Tensor } from "../ops/index.ts";

export interface RnnWeights {
  /** (gates · hidden, input) and (gates · hidden, hidden). */
  readonly inputWeight: Tensor;
  readonly hiddenWeight: Tensor;
  readonly inputBias?: Tensor | null;
  readonly hiddenBias?: Tensor | null;
}
export interface LstmState {
  readonly h: Tensor;
  readonly c: Tensor;
}

const linear = (x: Tensor, weight: Tensor, bias: Tensor | null | undefined): Tensor => {
  const y = x.matmul(weight.t());
  return bias ? y.add(bias) : y;
};

abstract class Recurrent<State> {
  readonly hidden: number;
  constructor(
    readonly weights: RnnWeights,
    gates: number,
  ) {
    const [rows, hidden] = weights.hiddenWeight.shape;
    if (weights.hiddenWeight.rank !== 2 || rows !== gates * hidden! || weights.inputWeight.shape[0] !== rows) {
      fail(
        "ShapeMismatch",
        `a recurrent layer of ${gates} gates takes weights (${gates}·h, input) and (${gates}·h, h), not ${formatShape(weights.inputWeight.shape)} and ${formatShape(weights.hiddenWeight.shape)}`,
      );
    }
    this.hidden = hidden!;
  }

  /** The state before the first step: zeros. */
  abstract zeroState(batch: number): State;
  /** One step on x (batch, input). */
  abstract step(x: Tensor, state: State): State;
  /** What a state shows to the next layer. */
  abstract output(state: State): Tensor;

  protected zeros(batch: number): Tensor {
    const { dtype, device } = this.weights.hiddenWeight;
    return Tensor.zeros([batch, this.hidden], { dtype, device });
  }

  /** All steps of x (batch, time, input): the outputs (batch, time, hidden) and the last state. */
  sequence(x: Tensor, state: State = this.zeroState(x.shape[0]!)): { output: Tensor; state: State } {
    return scope(() => {
      let now = state;
      const outputs: Tensor[] = [];
      for (let t = 0; t < x.shape[1]!; t++) {
        now = this.step(x.index(null, t), now);
        outputs.push(this.output(now));
      }
      const { dtype, device } = this.weights.hiddenWeight;
      const nothing = () => Tensor.zeros([x.shape[0]!, 0, this.hidden], { dtype, device });
      return { output: outputs.length > 0 ? Tensor.stack(outputs, 1) : nothing(), state: now };
    });
  }
}

/** Gates in the order input, forget, cell, output. */
export class Lstm extends Recurrent<LstmState> {
  constructor(weights: RnnWeights) {
    super(weights, 4);
  }

  override zeroState(batch: number): LstmState {
    return { h: this.zeros(batch), c: this.zeros(batch) };
  }

  override step(x: Tensor, { h, c }: LstmState): LstmState {
    return scope(() => {
      const w = this.weights;
      const gates = linear(x, w.inputWeight, w.inputBias).add(linear(h, w.hiddenWeight, w.hiddenBias));
      const [input, forget, cell, output] = gates.chunk(4, 1) as [Tensor, Tensor, Tensor, Tensor];
      const next = forget.sigmoid().mul(c).add(input.sigmoid().mul(cell.tanh()));
      return { h: output.sigmoid().mul(next.tanh()), c: next };
    });
  }

  override output(state: LstmState): Tensor {
    return state.h;
  }
}

/** Gates in the order reset, update, new. */
export class Gru extends Recurrent<Tensor> {
  constructor(weights: RnnWeights) {
    super(weights, 3);
  }

  override zeroState(batch: number): Tensor {
    return this.zeros(batch);
  }

  override step(x: Tensor, h: Tensor): Tensor {
    return scope(() => {
      const w = this.weights;
      const [xr, xz, xn] = linear(x, w.inputWeight, w.inputBias).chunk(3, 1) as [Tensor, Tensor, Tensor];
      const [hr, hz, hn] = linear(h, w.hiddenWeight, w.hiddenBias).chunk(3, 1) as [Tensor, Tensor, Tensor];
      const reset = xr.add(hr).sigmoid();
      const update = xz.add(hz).sigmoid();
      const fresh = xn.add(reset.mul(hn)).tanh();
      return fresh.sub(update.mul(fresh)).add(update.mul(h));
    });
  }

  override output(state: Tensor): Tensor {
    return state;
  }
}
