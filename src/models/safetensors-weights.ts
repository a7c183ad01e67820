/** Weights from the safetensors of a Hugging Face folder, read piece by piece into the dtype the model computes in. */
import { isFloat, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, numel, type Shape, sameShape } from "../core/layout.ts";
import { openSafetensors, type SafetensorsReader } from "../formats/index.ts";
import { isForeign } from "../formats/safetensors-header.ts";
import { Tensor } from "../tensor/index.ts";
import { traits } from "./architectures.ts";
import type { ModelConfig } from "./config.ts";
import type { WeightsOptions } from "./load.ts";
import type { EmbeddingTable, LinearRole, NormRole, Part, Place, Projection, Weights } from "./weights.ts";

/** How much of a tensor is in host memory at once. */
const CHUNK_BYTES = 16 * 2 ** 20;

export class SafetensorsWeights implements Weights {
  readonly owned: Tensor[] = [];
  readonly #file: SafetensorsReader;
  readonly #names: ReadonlySet<string>;
  readonly #folder: string;
  readonly #config: ModelConfig;
  readonly #options: WeightsOptions;
  readonly #bytesTotal: number;
  #bytesLoaded = 0;

  private constructor(
    file: SafetensorsReader,
    folder: string,
    config: ModelConfig,
    options: WeightsOptions,
    bytesTotal: number,
  ) {
    this.#file = file;
    this.#names = new Set(file.names);
    this.#folder = folder;
    this.#config = config;
    this.#options = options;
    this.#bytesTotal = bytesTotal;
  }

  static async open(folder: string, config: ModelConfig, options: WeightsOptions): Promise<SafetensorsWeights> {
    const file = await openSafetensors(folder);
    try {
      let bytes = 0;
      for (const name of file.names) if (isUsed(name, config)) bytes += (await file.info(name)).byteLength;
      return new SafetensorsWeights(file, folder, config, options, bytes);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const sizes = parts.map((part) => part.outputs);
    const rows = sizes.reduce((a, b) => a + b, 0);
    const fused = this.#fusedName(parts, place);
    const sources = fused
      ? [{ name: fused, outputs: rows, needsBias: parts.some((part) => part.needsBias) }]
      : parts.map((part) => ({ ...part, name: linearName(part.role, place) }));
    const weight = this.#empty([rows, inputs]);
    let at = 0;
    for (const { name, outputs } of sources) {
      await this.#readInto(weight, at, `${name}.weight`, [outputs, inputs]);
      at += outputs;
    }
    const biased = sources.filter(({ name, needsBias }) => needsBias || this.#names.has(`${name}.bias`));
    if (biased.length === 0) return new Matrices(weight, null, sizes, this.owned);
    // Parts without a bias among others that have one get zeros.
    const bias = Tensor.zeros([rows], this.#tensorOptions).keep();
    this.owned.push(bias);
    at = 0;
    for (const source of sources) {
      if (biased.includes(source)) await this.#readInto(bias, at, `${source.name}.bias`, [source.outputs]);
      at += source.outputs;
    }
    return new Matrices(weight, bias, sizes, this.owned);
  }

  async norm(role: NormRole, size: number, place: Place): Promise<Tensor> {
    const { normOffset, postNorms } = traits(this.#config.architecture);
    const weight = this.#empty([size]);
    // 1 + w is formed before the rounding to the computing dtype.
    const prepare = (w: Tensor): Tensor => {
      if (normOffset === 0) return w.view(w.layout);
      using wide = w.toDType("f32");
      return wide.affine(1, normOffset);
    };
    await this.#readInto(weight, 0, normName(role, place, postNorms), [size], prepare);
    return weight;
  }

  async embedding(rows: number, width: number): Promise<EmbeddingTable> {
    const table = this.#empty([rows, width]);
    await this.#readInto(table, 0, EMBEDDING, [rows, width]);
    const head = new Matrices(table, null, [rows], this.owned);
    return {
      lookup: (ids) => table.indexSelect(ids, 0),
      project: (x) => head.forward(x)[0]!,
    };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }

  get #tensorOptions() {
    const { device, dtype } = this.#options;
    return { device, dtype };
  }

  #empty(shape: Shape): Tensor {
    const tensor = Tensor.empty(shape, this.#tensorOptions).keep();
    this.owned.push(tensor);
    return tensor;
  }

  #fusedName(parts: readonly Part[], place: Place): string | undefined {
    const roles = parts.map((part) => part.role).join();
    const suffix = Object.hasOwn(fusedNames, roles) ? fusedNames[roles] : undefined;
    const name = `${layerPrefix(place)}${suffix}`;
    return suffix && this.#names.has(`${name}.weight`) ? name : undefined;
  }

  /** Copies the file's tensor into the rows of `target` from `row` on. */
  async #readInto(
    target: Tensor,
    row: number,
    name: string,
    shape: Shape,
    prepare: (part: Tensor) => Tensor = (part) => part.view(part.layout),
  ): Promise<void> {
    const { signal, onProgress, device, dtype } = this.#options;
    if (!this.#names.has(name)) {
      fail("MissingTensor", `${this.#folder} has no tensor "${name}", which a ${this.#config.architecture} needs`);
    }
    const info = await this.#file.info(name);
    if (!sameShape(info.shape, shape)) {
      fail(
        "ShapeMismatch",
        `${this.#folder}: tensor "${name}" has shape ${formatShape(info.shape)}, but the config asks for ${formatShape(shape)}`,
      );
    }
    const { dtype: stored } = info;
    if (isForeign(stored) || !isFloat(stored)) {
      fail("UnexpectedDType", `${this.#folder}: tensor "${name}" has dtype ${stored}; weights must be floats`);
    }
    const rowBytes = numel(shape.slice(1)) * sizeOf(stored);
    const step = Math.max(1, Math.floor(CHUNK_BYTES / Math.max(rowBytes, 1)));
    for (let from = 0; from < shape[0]!; from += step) {
      const rows = Math.min(step, shape[0]! - from);
      const range = { start: from * rowBytes, end: (from + rows) * rowBytes };
      const bytes = await this.#file.readBytes(name, signal, range);
      using part = Tensor.fromBytes(bytes, [rows, ...shape.slice(1)], stored, device);
      using prepared = prepare(part);
      using converted = prepared.toDType(dtype);
      target.sliceSet(converted, 0, row + from);
      this.#bytesLoaded += bytes.byteLength;
      onProgress?.({ name, bytesLoaded: this.#bytesLoaded, bytesTotal: this.#bytesTotal });
    }
  }
}

/** One or several matrices over each other, applied in one product; the results are views of it. */
class Matrices implements Projection {
  readonly #transposed: Tensor;
  readonly #bias: Tensor | null;
  readonly #sizes: readonly number[];

  constructor(weight: Tensor, bias: Tensor | null, sizes: readonly number[], owned: Tensor[]) {
    this.#transposed = weight.t().keep();
    this.#bias = bias;
    this.#sizes = sizes;
    owned.push(this.#transposed);
  }

  forward(x: Tensor): Tensor[] {
    const product = x.matmul(this.#transposed);
    const y = this.#bias ? product.add(this.#bias) : product;
    if (this.#sizes.length === 1) return [y];
    let at = 0;
    return this.#sizes.map((size) => {
      at += size;
      return y.narrow(1, at - size, size);
    });
  }
}

const EMBEDDING = "model.embed_tokens.weight";

const linearNames: Readonly<Record<Exclude<LinearRole, "head">, string>> = {
  q: "self_attn.q_proj",
  k: "self_attn.k_proj",
  v: "self_attn.v_proj",
  o: "self_attn.o_proj",
  gate: "mlp.gate_proj",
  up: "mlp.up_proj",
  down: "mlp.down_proj",
  router: "block_sparse_moe.gate",
};
const expertNames: Partial<Record<LinearRole, string>> = { gate: "w1", up: "w3", down: "w2" };
/** Phi 3 saves these over each other. */
const fusedNames: Readonly<Record<string, string>> = {
  "q,k,v": "self_attn.qkv_proj",
  "gate,up": "mlp.gate_up_proj",
};

const layerPrefix = ({ layer }: Place): string => (layer === undefined ? "" : `model.layers.${layer}.`);

function linearName(role: LinearRole, place: Place): string {
  if (role === "head") return "lm_head";
  const own =
    place.expert === undefined ? linearNames[role] : `block_sparse_moe.experts.${place.expert}.${expertNames[role]}`;
  return layerPrefix(place) + own;
}

/** The same name means the norm after attention where there is one, and the norm before the MLP elsewhere. */
function normName(role: NormRole, place: Place, postNorms: boolean): string {
  const names: Readonly<Record<NormRole, string>> = {
    attentionNorm: "input_layernorm",
    postAttentionNorm: "post_attention_layernorm",
    mlpNorm: postNorms ? "pre_feedforward_layernorm" : "post_attention_layernorm",
    postMlpNorm: "post_feedforward_layernorm",
    qNorm: "self_attn.q_norm",
    kNorm: "self_attn.k_norm",
    finalNorm: "model.norm",
  };
  return `${layerPrefix(place)}${names[role]}.weight`;
}

/** Files may hold more than the model asks for; progress must not count that. */
function isUsed(name: string, config: ModelConfig): boolean {
  if (name === "lm_head.weight") return !config.tiedEmbeddings;
  const layer = /^model\.layers\.(\d+)\./.exec(name)?.[1];
  return !name.endsWith(".rotary_emb.inv_freq") && (layer === undefined || Number(layer) < config.layers);
}
