/** Losses, each the mean over the batch as a scalar tensor. */
import { asPartOf } from "../backend/call.ts";
import { fail } from "../core/errors.ts";
import { formatShape } from "../core/layout.ts";
import * as check from "../ops/check.ts";
import type { Tensor } from "../ops/index.ts";
import { define } from "../ops/op.ts";

/** −mean of the log-probabilities (n, classes) at the targets (n). */
export const nll = define(
  "losses",
  "nll",
  "log_probabilities target",
  (logProbabilities: Tensor, target: Tensor): Tensor => {
    check.hasRank("nll", logProbabilities, 2, "the log-probabilities");
    check.hasRank("nll", target, 1, "the target");
    if (target.numel !== logProbabilities.shape[0]) {
      fail(
        "ShapeMismatch",
        `nll: ${target.numel} targets for ${formatShape(logProbabilities.shape)} log-probabilities`,
      );
    }
    using column = target.unsqueeze(1);
    using picked = asPartOf("nll", () => logProbabilities.gather(column, 1));
    using mean = picked.meanAll();
    return mean.neg();
  },
);

/** nll of the log-softmax of the logits (n, classes). */
export const crossEntropy = define(
  "losses",
  "crossEntropy",
  "logits target",
  (logits: Tensor, target: Tensor): Tensor => {
    check.hasRank("crossEntropy", logits, 2, "the logits");
    using logs = logits.logSoftmax(1);
    return asPartOf("crossEntropy", () => nll(logs, target));
  },
);

export const mse = define("losses", "mse", "x target", (x: Tensor, target: Tensor): Tensor => {
  using difference = x.sub(target);
  using squared = difference.sqr();
  return squared.meanAll();
});

/** Binary cross-entropy of logits: max(x, 0) − x·target + log(1 + e^−|x|). */
export const bceWithLogits = define(
  "losses",
  "bceWithLogits",
  "logits target",
  (logits: Tensor, target: Tensor): Tensor => {
    using positive = logits.relu();
    using product = logits.mul(target);
    using line = positive.sub(product);
    using magnitude = logits.abs();
    using negative = magnitude.neg();
    using power = negative.exp();
    using plus = power.add(1);
    using tail = plus.log();
    using loss = line.add(tail);
    return loss.meanAll();
  },
);

/** Quadratic up to delta, linear beyond. */
export const huber = define("losses", "huber", "x target delta?", (x: Tensor, target: Tensor, delta = 1): Tensor => {
  if (!(delta > 0)) fail("InvalidArgument", `huber: delta must be positive, not ${delta}`);
  using difference = x.sub(target);
  using magnitude = difference.abs();
  using squared = magnitude.sqr();
  using quadratic = squared.affine(0.5, 0);
  using linear = magnitude.affine(delta, -0.5 * delta * delta);
  using near = magnitude.le(delta);
  using loss = near.whereCond(quadratic, linear);
  return loss.meanAll();
});
