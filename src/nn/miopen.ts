/** AMD's MIOpen by name: on a device opened with it, each of these is done by MIOpen or throws the reason why not. */
import type { Activation } from "../backend/gpu/rocm/miopen/dnn.ts";
import type { MiopenOps } from "../backend/gpu/rocm/miopen/ops.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import type { ConvOptions, Pair, Tensor } from "../ops/index.ts";
import { result } from "../tensor/tensor.ts";
import { type SdpaOptions, sdpa } from "./attention.ts";
import type { BatchStatistics } from "./norm.ts";

/** What the activations that have a parameter take unless told otherwise. */
const usual: Partial<Record<Activation, number>> = { leakyRelu: 0.01, clippedRelu: 6, elu: 1 };

const of = (op: string, x: Tensor): MiopenOps =>
  x.device.miopen ??
  fail(
    "UnsupportedOp",
    `miopen.${op}: the tensor is on ${x.device.name}, which was opened without MIOpen; make it on Device.rocm(0, { miopen: true })`,
  );

export const miopen = {
  /** Over the last dim. */
  softmax: (x: Tensor): Tensor => of("softmax", x).only(() => x.softmax(-1)),
  logSoftmax: (x: Tensor): Tensor => of("logSoftmax", x).only(() => x.logSoftmax(-1)),

  /** `param` is the slope of leakyRelu (0.01), the ceiling of clippedRelu (6) and the scale of elu (1). */
  activation: (x: Tensor, activation: Activation, param = usual[activation] ?? 1): Tensor =>
    result(of(activation, x).activation(activation, x, param), x.shape),

  conv2d: (x: Tensor, w: Tensor, options: ConvOptions<Pair> = {}): Tensor =>
    of("conv2d", x).only(() => x.conv2d(w, options)),
  avgPool2d: (x: Tensor, kernel: Pair, stride: Pair = kernel): Tensor =>
    of("avgPool2d", x).only(() => x.avgPool2d(kernel, stride)),
  maxPool2d: (x: Tensor, kernel: Pair, stride: Pair = kernel): Tensor =>
    of("maxPool2d", x).only(() => x.maxPool2d(kernel, stride)),

  /** As `batchNorm`, with all of its tensors. */
  batchNorm(x: Tensor, { mean, variance }: BatchStatistics, weight: Tensor, bias: Tensor, eps = 1e-5): Tensor {
    const ops = of("batchNorm", x);
    for (const [name, t] of Object.entries({ mean, variance, weight, bias })) {
      check.compatible("miopen.batchNorm", x, t);
      if (t.rank !== 1 || t.numel !== x.shape[1]) {
        fail(
          "ShapeMismatch",
          `miopen.batchNorm: the ${name} must have shape [${x.shape[1]}] for an input of ${formatShape(x.shape)}, not ${formatShape(t.shape)}`,
        );
      }
    }
    return result(ops.batchNorm(x, mean, variance, weight, bias, eps), x.shape);
  },

  sdpa: (q: Tensor, k: Tensor, v: Tensor, options: SdpaOptions = {}): Tensor =>
    of("sdpa", q).only(() => sdpa(q, k, v, options)),
};
