/**
 * Attention by latents, as DeepSeek has it: of each position a cache holds one small vector that the keys and values of all
 * heads are made of, and a key that all heads share, which alone is turned by its position.
 */
import { sdpa } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import type { Latent, ModelConfig, RopeConfig } from "./config.ts";
import { normalize } from "./norm.ts";
import type { Rotation } from "./rotary.ts";
import type { AppendsLatents, LayerCache, Step } from "./steps.ts";
import type { Around, Norm, Projection, ProjectionStack, Weights } from "./weights/weights.ts";

/** What a step needs of a layer to attend by latents. */
export interface LatentHeads extends Latent {
  readonly heads: number;
  readonly scale: number;
  readonly rope: RopeConfig;
  /** What makes a latent of a head's query: (heads, rank, keyDim), the matrices that keys are made by, turned round. */
  readonly keys: ProjectionStack;
  /** What makes a head's value of a latent: (heads, valueDim, rank). */
  readonly values: ProjectionStack;
}

/** The new rows of a step, (batch · length, …) each, none of them turned. */
export interface LatentRows {
  /** (…, heads · (keyDim + ropeDim)). */
  readonly q: Tensor;
  /** (…, rank). */
  readonly latent: Tensor;
  /** (…, ropeDim), the key that all heads share. */
  readonly key: Tensor;
}

export class LatentAttention {
  readonly #heads: LatentHeads;
  /** q, or what q is made of, and the latent beside the shared key. */
  readonly #down: Projection;
  readonly #q: { readonly norm: Norm; readonly up: Projection } | null;
  readonly #norm: Norm;
  readonly #out: Projection;

  private constructor(
    heads: LatentHeads,
    down: Projection,
    q: { norm: Norm; up: Projection } | null,
    norm: Norm,
    out: Projection,
  ) {
    this.#heads = heads;
    this.#down = down;
    this.#q = q;
    this.#norm = norm;
    this.#out = out;
  }

  static async load(config: ModelConfig, weights: Weights, layer: number): Promise<LatentAttention> {
    const { hiddenSize, heads, attentionScale: scale } = config;
    const latent = config.latent!;
    const { rank, keyDim, valueDim, queryRank, normEps: eps } = latent;
    const rope = config.ropes[layer]!;
    const [place, qSize] = [{ layer }, heads * (keyDim + rope.dims)];
    const norm = async (role: "qLatentNorm" | "latentNorm", size: number): Promise<Norm> => ({
      ...(await weights.norm(role, size, place)),
      kind: "rms",
      eps,
    });
    const query = queryRank === 0 ? { role: "q", outputs: qSize } : { role: "qDown", outputs: queryRank };
    const down = await weights.linear(
      [query as { role: "q" | "qDown"; outputs: number }, { role: "kvDown", outputs: rank + rope.dims }],
      hiddenSize,
      place,
    );
    const up = async () => ({
      norm: await norm("qLatentNorm", queryRank),
      up: await weights.linear([{ role: "qUp", outputs: qSize }], queryRank, place),
    });
    const q = queryRank === 0 ? null : await up();
    const keys = await weights.stack([{ role: "keyUp", outputs: rank }], keyDim, heads, place);
    const values = await weights.stack([{ role: "valueUp", outputs: valueDim }], rank, heads, place);
    return new LatentAttention(
      { ...latent, heads, scale, rope, keys, values },
      down,
      q,
      await norm("latentNorm", rank),
      await weights.linear([{ role: "o", outputs: hiddenSize }], heads * valueDim, place),
    );
  }

  /** x (batch · length, hidden); `around` is the norm before and the residual after. */
  forward(x: Tensor, step: Step, cache: LayerCache | undefined, { norm, ...after }: Around): Tensor {
    const { rank, rope } = this.#heads;
    const [first, kv] = this.#down.parts(x, norm) as [Tensor, Tensor];
    const q = this.#q ? this.#q.up.forward(first, { norm: this.#q.norm }) : first;
    const latent = normalize(kv.narrow(1, 0, rank), this.#norm);
    const y = step.attendLatent({ q, latent, key: kv.narrow(1, rank, rope.dims) }, cache, this.#heads);
    return this.#out.forward(y, after);
  }
}

/** Op by op, on any device: rows (batch · length, …) → (batch · length, heads · valueDim). */
export function attendLatents(
  { q, latent, key }: LatentRows,
  { batch, length }: Pick<Step, "batch" | "length">,
  cache: AppendsLatents | undefined,
  rotate: Rotation,
  mask: (keys: number) => Tensor | null,
  own: LatentHeads,
  expand: boolean,
): Tensor {
  const { heads, scale, rope, rank, keyDim, valueDim, keys, values } = own;
  const rows = batch * length;
  const byHead = (x: Tensor): Tensor => x.reshape([batch, length, heads, -1]).transpose(1, 2);
  const parts = q.reshape([rows, heads, keyDim + rope.dims]);
  const plain = parts.narrow(2, 0, keyDim);
  const turned = rotate(byHead(parts.narrow(2, keyDim, rope.dims)));
  const added = Tensor.cat(
    [latent.reshape([batch, 1, length, rank]), rotate(key.reshape([batch, 1, length, rope.dims]))],
    3,
  );
  const all = cache ? cache.append(added) : added;
  const total = all.shape[2]!;
  const [latents, turnedKeys] = [all.narrow(3, 0, rank), all.narrow(3, rank, rope.dims)];
  const bias = mask(total);
  const options = { scale, causal: true, ...(bias && { mask: bias }) };
  if (expand) {
    const k = latents.matmul(keys.dense());
    const v = latents.matmul(values.dense().transpose(1, 2));
    const k4 = Tensor.cat([k, turnedKeys.broadcastAs([batch, heads, total, rope.dims])], 3);
    const y = sdpa(Tensor.cat([byHead(plain), turned], 3), k4, v, options);
    return y.transpose(1, 2).reshape([rows, heads * valueDim]);
  }
  const queries = Tensor.cat([byHead(keys.each(plain)), turned], 3);
  const y = sdpa(queries, all, latents, options);
  return values.each(y.transpose(1, 2).reshape([rows, heads, rank])).reshape([rows, heads * valueDim]);
}

/**
 * Whether making keys and values of every latent there is costs less than what their being smaller saves: they are made
 * once for all of the new positions.
 */
export const expansionPays = (length: number, { rank, keyDim, valueDim }: Latent): boolean =>
  length * (2 * rank - keyDim - valueDim) > rank * (keyDim + valueDim);
