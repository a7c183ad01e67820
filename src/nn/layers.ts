/** Layers: weights with a `forward`. They hold the tensors they are given and do not own them. */
import { fail } from "../core/errors.ts";
import { formatShape, numel } from "../core/layout.ts";
import type { ConvOptions, ConvTransposeOptions, Pair, Tensor } from "../ops/index.ts";
import { batchNorm, groupNorm, layerNorm, rmsNorm } from "./norm.ts";

export interface Module {
  forward(x: Tensor): Tensor;
}

function addChannels(y: Tensor, bias: Tensor | null): Tensor {
  if (!bias) return y;
  using before = y;
  using b = bias.reshape(y.shape.map((_, i) => (i === 1 ? -1 : 1)));
  return before.add(b);
}

/** x·Wᵀ + bias with W (out, in). */
export class Linear implements Module {
  constructor(
    readonly weight: Tensor,
    readonly bias: Tensor | null = null,
  ) {
    if (weight.rank !== 2)
      fail("UnexpectedNumberOfDims", `Linear: the weight must be (out, in), not ${formatShape(weight.shape)}`);
  }

  forward(x: Tensor): Tensor {
    const width = x.shape.at(-1) ?? -1;
    if (width !== this.weight.shape[1]) {
      fail(
        "ShapeMismatch",
        `Linear: an input of ${formatShape(x.shape)} does not fit the weight ${formatShape(this.weight.shape)}`,
      );
    }
    // One matrix product over all leading dims, whatever their number.
    using rows = x.reshape([numel(x.shape.slice(0, -1)), width]);
    using transposed = this.weight.t();
    using product = rows.matmul(transposed);
    using y = product.reshape([...x.shape.slice(0, -1), this.weight.shape[0]!]);
    return this.bias ? y.add(this.bias) : y.view(y.layout);
  }
}

export class Embedding implements Module {
  constructor(readonly table: Tensor) {}
  forward(ids: Tensor): Tensor {
    return this.table.embedding(ids);
  }
}

export class Conv1d implements Module {
  constructor(
    readonly weight: Tensor,
    readonly bias: Tensor | null = null,
    readonly options: ConvOptions = {},
  ) {}
  forward(x: Tensor): Tensor {
    return addChannels(x.conv1d(this.weight, this.options), this.bias);
  }
}

export class Conv2d implements Module {
  constructor(
    readonly weight: Tensor,
    readonly bias: Tensor | null = null,
    readonly options: ConvOptions<Pair> = {},
  ) {}
  forward(x: Tensor): Tensor {
    return addChannels(x.conv2d(this.weight, this.options), this.bias);
  }
}

export class ConvTranspose1d implements Module {
  constructor(
    readonly weight: Tensor,
    readonly bias: Tensor | null = null,
    readonly options: ConvTransposeOptions = {},
  ) {}
  forward(x: Tensor): Tensor {
    return addChannels(x.convTranspose1d(this.weight, this.options), this.bias);
  }
}

export class ConvTranspose2d implements Module {
  constructor(
    readonly weight: Tensor,
    readonly bias: Tensor | null = null,
    readonly options: ConvTransposeOptions<Pair> = {},
  ) {}
  forward(x: Tensor): Tensor {
    return addChannels(x.convTranspose2d(this.weight, this.options), this.bias);
  }
}

export class RmsNorm implements Module {
  constructor(
    readonly weight: Tensor | null,
    readonly eps = 1e-5,
  ) {}
  forward(x: Tensor): Tensor {
    return rmsNorm(x, this.weight, this.eps);
  }
}

export class LayerNorm implements Module {
  constructor(
    readonly weight: Tensor | null,
    readonly bias: Tensor | null = null,
    readonly eps = 1e-5,
  ) {}
  forward(x: Tensor): Tensor {
    return layerNorm(x, this.weight, this.bias, this.eps);
  }
}

export class GroupNorm implements Module {
  constructor(
    readonly groups: number,
    readonly weight: Tensor | null = null,
    readonly bias: Tensor | null = null,
    readonly eps = 1e-5,
  ) {}
  forward(x: Tensor): Tensor {
    return groupNorm(x, this.groups, this.weight, this.bias, this.eps);
  }
}

/** With running statistics, as in inference. */
export class BatchNorm implements Module {
  constructor(
    readonly mean: Tensor,
    readonly variance: Tensor,
    readonly weight: Tensor | null = null,
    readonly bias: Tensor | null = null,
    readonly eps = 1e-5,
  ) {}
  forward(x: Tensor): Tensor {
    return batchNorm(x, this, this.weight, this.bias, this.eps);
  }
}
