/** Which experts a row goes through, and what each of them counts: the ways of the architectures, all on the device. */
import { type Route, routeExperts } from "../../nn/index.ts";
import { Tensor } from "../../ops/index.ts";

/** How a router's scores become a choice. */
export interface Routing {
  /** What makes probabilities of them: over all experts, or each by itself. */
  readonly scoring: "softmax" | "sigmoid";
  /** The probabilities of the chosen experts are divided by their sum. */
  readonly normalize: boolean;
  /** Multiplies what an expert counts. */
  readonly scale: number;
  /** Experts are chosen from some groups only, those whose best expert, or whose two best together, score most. */
  readonly groups: RoutingGroups | null;
  /** A bias per expert is added to the probabilities, for the choice alone. */
  readonly biased: boolean;
}

export interface RoutingGroups {
  readonly count: number;
  readonly perToken: number;
  /** How many of a group's best experts its score is the sum of. */
  readonly scoredBy: 1 | 2;
}

/** Keeps a sum of probabilities that have all vanished from dividing by zero. */
const TINY = 1e-20;

/** Whether what experts count is the softmax of the chosen ones' scores, times a factor. */
export const isPlain = ({ scoring, normalize, groups }: Routing, bias: Tensor | null): boolean =>
  scoring === "softmax" && normalize && !groups && !bias;

/** scores (n, experts), and the bias (experts) of a router that has one, in f32. */
export function route(scores: Tensor, perToken: number, routing: Routing, bias: Tensor | null): Route {
  const { scoring, normalize, scale, groups } = routing;
  if (isPlain(routing, bias)) {
    // The softmax of the chosen is that of all, divided by the sum of the chosen.
    const { ids, mix } = routeExperts(scores, perToken);
    return { ids, mix: scaled(mix, scale) };
  }
  const wide = scores.toDType("f32");
  const probabilities = scoring === "softmax" ? wide.softmax(1) : wide.sigmoid();
  const rated = bias ? probabilities.add(bias) : probabilities;
  const [best, ids] = (groups ? withinGroups(rated, groups) : rated).topk(perToken, 1);
  const chosen = bias ? probabilities.gather(ids, 1) : best;
  return { ids, mix: scaled(normalize ? chosen.div(chosen.sumKeepdim(1).add(TINY)) : chosen, scale) };
}

const scaled = (mix: Tensor, scale: number): Tensor<"f32"> =>
  (scale === 1 ? mix : mix.affine(scale, 0)) as Tensor<"f32">;

/** The ratings, those of experts outside the best groups at −∞. */
function withinGroups(rated: Tensor, { count, perToken, scoredBy }: RoutingGroups): Tensor {
  const [n, experts] = rated.shape as [number, number];
  const grouped = rated.reshape([n, count, experts / count]);
  const scores = scoredBy === 1 ? grouped.max(2) : grouped.topk(scoredBy, 2)[0].sum(2);
  const [, best] = scores.topk(perToken, 1);
  const options = { dtype: rated.dtype, device: rated.device };
  const closed = Tensor.full([n, count], Number.NEGATIVE_INFINITY, options);
  const open = closed.scatter(best.contiguous(), Tensor.zeros([n, perToken], options), 1);
  return grouped.add(open.unsqueeze(2)).reshape([n, experts]);
}

/** By the softmax of all scores, or of those of the chosen. */
export const softmaxRouting = (normalize: boolean): Routing => ({
  scoring: "softmax",
  normalize,
  scale: 1,
  groups: null,
  biased: false,
});
