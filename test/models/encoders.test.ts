/** Encoders compute what Hugging Face transformers computes; texts become vectors and pairs scores, from either format. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { Device, Tensor } from "../../src/index.ts";
import { loadModel, type Model, writeModelGguf } from "../../src/models/index.ts";
import { verify } from "../../src/verify/runner.ts";
import { describeDevices, deviceNames, gpuNames } from "../helpers/devices.ts";
import { unigramJson, wordPieceJson } from "../helpers/encoder-tokenizers.ts";
import { encoderNames, fable, tiny, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const texts = ["the cats", "dog", "a cat and a dog", "dog", "the"];

const write = (path: string, name: string, json: unknown): Promise<void> =>
  writeFile(join(path, name), JSON.stringify(json));

/** A tiny encoder with a tokenizer, and what else is given by file. */
async function withTokenizer(
  name: (typeof encoderNames)[number],
  to: string,
  files: Record<string, unknown> = {},
  config: Record<string, unknown> = {},
  change: (tensors: Map<string, Tensor>) => void = () => {},
): Promise<string> {
  const path = await variant(tiny(name), folder(to), config, change);
  await write(path, "tokenizer.json", name === "xlm_roberta" ? unigramJson : wordPieceJson);
  const written = { ...files };
  for (const [file, json] of Object.entries(written)) await write(path, file, json);
  return path;
}

const vectors = async (model: Model, ...args: Parameters<Model["embed"]>): Promise<number[][]> => {
  using found = await model.embed(...args);
  return (await found.toArray()) as number[][];
};

function expectClose(got: readonly (readonly number[])[], want: readonly (readonly number[])[], digits = 5): void {
  expect(got.map((row) => row.length)).toEqual(want.map((row) => row.length));
  for (const [i, row] of want.entries()) for (const [j, x] of row.entries()) expect(got[i]![j]).toBeCloseTo(x, digits);
}

const dot = (a: readonly number[], b: readonly number[]): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
const times = (matrix: readonly (readonly number[])[], x: readonly number[]): number[] =>
  matrix.map((row) => dot(row, x));

describe("encoders", () => {
  it.each(encoderNames)("%s gives the states and vectors of transformers", async (name) => {
    const report = await verify(tiny(name), Device.cpu());
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.cases.map((c) => c.id)).toEqual(["hidden", "hidden-one-by-one", "embedding-mean", "embedding-cls"]);
  });

  it.each(encoderNames)("%s gives the same from a GGUF file", async (name) => {
    const own = await variant(tiny(name), folder(`gguf-${name}`));
    const path = join(own, "model.gguf");
    await writeModelGguf(own, path, { type: "F32" });
    const report = await verify(path, Device.cpu());
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
  });

  it("read both spellings of ModernBERT's config", async () => {
    const older = {
      layer_types: undefined,
      rope_parameters: undefined,
      global_rope_theta: 160_000,
      local_rope_theta: 10_000,
    };
    const report = await verify(await variant(tiny("modernbert"), folder("older"), older), Device.cpu());
    expect(report.failed).toBe(0);
    const wider = await variant(tiny("modernbert"), folder("wider"), { ...older, local_rope_theta: 20_000 });
    expect((await verify(wider, Device.cpu(), { only: ["hidden"] })).passed).toBe(0);
  });

  it("load checkpoints with another model's head, and with TensorFlow's names of norms", async () => {
    const path = await variant(tiny("bert"), folder("masked"), { architectures: ["BertForMaskedLM"] }, (tensors) => {
      for (const [name, tensor] of [...tensors]) {
        tensors.delete(name);
        const old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        tensors.set(`bert.${old}`, tensor);
      }
      tensors.set("cls.predictions.bias", Tensor.zeros([128]));
    });
    expect((await verify(path, Device.cpu())).failed).toBe(0);
  });

  it("embed and generate nothing", async () => {
    using model = await loadModel(tiny("bert"));
    expect(`${model}`).toBe("Model(bert, 2 layers of 64, 128 tokens, context 64, f32, cpu)");
    await expect(async () => {
      for await (const _ of model.generate([5, 6])) expect.unreachable();
    }).rejects.toThrow(/bert is an encoder: it embeds texts/);
    expect(() => model.newCache()).toThrow(/bert is an encoder/);
    await expect(model.score([["a", "b"]])).rejects.toThrow(/no classification head/);
  });

  it("refuse what they are not", async () => {
    const load = async (name: string, config: Record<string, unknown>) =>
      loadModel(await variant(tiny("bert"), folder(name), config));
    await expect(load("decoder", { is_decoder: true })).rejects.toThrow(/is_decoder makes a decoder/);
    await expect(load("relative", { position_embedding_type: "relative_key" })).rejects.toThrow(
      /relative_key positions are not run/,
    );
  });
});

describeDevices(
  "encoders",
  (device) => {
    it("modernbert gives the states and vectors of transformers", async () => {
      const report = await verify(tiny("modernbert"), device);
      expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    });
  },
  gpuNames.slice(0, deviceNames === gpuNames ? gpuNames.length : 1),
);

describe("embed", () => {
  it("gives the vectors in the order of the texts, however they are batched", async () => {
    using model = await loadModel(await withTokenizer("bert", "order"));
    const all = await vectors(model, texts);
    expect(all).toHaveLength(texts.length);
    expectClose([all[1]!], [all[3]!]);
    for (const [i, text] of texts.entries()) expectClose(await vectors(model, [text]), [all[i]!]);
    expectClose(await vectors(model, texts, { batchTokens: 1 }), all);
    expectClose(await vectors(model, texts, { batchTokens: 9 }), all);
    const ids = texts.map((text) => model.tokenizer!.encode(text));
    expectClose(await vectors(model, ids), all);
    expect(await vectors(model, [])).toEqual([]);
  });

  it("pools by the mean, the first or the last token, and scales to length 1", async () => {
    using model = await loadModel(await withTokenizer("bert", "pooling"));
    const [states] = await model.hiddenStates(["the cats"]);
    const rows = (await states!.toArray()) as number[][];
    states!.dispose();
    const mean = rows[0]!.map((_, j) => rows.reduce((sum, row) => sum + row[j]! / rows.length, 0));
    expectClose(await vectors(model, ["the cats"]), [mean]);
    expectClose(await vectors(model, ["the cats"], { pooling: "cls" }), [rows[0]!]);
    expectClose(await vectors(model, ["the cats"], { pooling: "last" }), [rows.at(-1)!]);
    const length = Math.sqrt(dot(mean, mean));
    expectClose(await vectors(model, ["the cats"], { normalize: true }), [mean.map((x) => x / length)]);
    await expect(model.embed(["a"], { pooling: "max" as "mean" })).rejects.toThrow(/mean, cls, last, not max/);
  });

  it("follows the files of sentence-transformers", async () => {
    const path = await withTokenizer("bert", "sentences", {
      "modules.json": [
        { idx: 0, name: "0", path: "", type: "sentence_transformers.models.Transformer" },
        { idx: 1, name: "1", path: "1_Pooling", type: "sentence_transformers.models.Pooling" },
        { idx: 2, name: "2", path: "2_Normalize", type: "sentence_transformers.models.Normalize" },
      ],
      "config_sentence_transformers.json": { prompts: { query: "the ", document: "" }, default_prompt_name: null },
      "sentence_bert_config.json": { max_seq_length: 6, do_lower_case: false },
    });
    const pooling = join(path, "1_Pooling");
    await (await import("node:fs/promises")).mkdir(pooling);
    await write(pooling, "config.json", {
      word_embedding_dimension: 64,
      pooling_mode_cls_token: true,
      pooling_mode_mean_tokens: false,
    });
    using model = await loadModel(path);
    expect(model.embedding).toMatchObject({ pooling: "cls", normalize: true, maxTokens: 6 });
    const [query] = await vectors(model, ["cat"], { prompt: "query" });
    expect(dot(query!, query!)).toBeCloseTo(1, 5);
    expectClose([query!], await vectors(model, ["the cat"]));
    await expect(model.embed(["cat"], { prompt: "passage" })).rejects.toThrow(
      /no prompt "passage"; it has query, document/,
    );
    // [CLS], four tokens and [SEP].
    expectClose(await vectors(model, ["dog dog dog dog cat"]), await vectors(model, ["dog dog dog dog"]));
    await expect(model.embed(["cat", "dog dog dog dog cat"], { truncate: false })).rejects.toThrow(
      /text 1 has 7 tokens, but the model takes 6/,
    );
    const gguf = join(path, "model.gguf");
    await writeModelGguf(path, gguf, { type: "F32" });
    using other = await loadModel(gguf);
    expect(other.embedding).toMatchObject({ pooling: "cls", normalize: true });
    expectClose(await vectors(other, texts.slice(0, 2)), await vectors(model, texts.slice(0, 2)));

    await write(pooling, "config.json", { pooling_mode: "lasttoken" });
    using last = await loadModel(path);
    expect(last.embedding.pooling).toBe("last");
    await write(pooling, "config.json", { pooling_mode_max_tokens: true, pooling_mode_mean_tokens: true });
    await expect(loadModel(path)).rejects.toThrow(/pooling_mode_max_tokens \+ pooling_mode_mean_tokens is not run/);
    await write(path, "modules.json", [{ idx: 0, path: "2_Dense", type: "sentence_transformers.models.Dense" }]);
    await expect(loadModel(path)).rejects.toThrow(/a "Dense" module is not run; Transformer, Pooling, Normalize are/);
  });

  it("can be followed and stopped", async () => {
    using model = await loadModel(await withTokenizer("bert", "progress"));
    const seen: number[] = [];
    await vectors(model, texts, { batchTokens: 8, onProgress: ({ textsDone }) => seen.push(textsDone) });
    expect(seen.at(-1)).toBe(texts.length);
    expect(seen.length).toBeGreaterThan(1);
    const abort = new AbortController();
    const stopped = model.embed(texts, { batchTokens: 1, signal: abort.signal, onProgress: () => abort.abort() });
    await expect(stopped).rejects.toThrow(/abort/i);
  });

  it("names what is wrong with a text", async () => {
    using model = await loadModel(await withTokenizer("bert", "wrong"));
    await expect(model.embed([[]])).rejects.toThrow(/text 0 has no tokens/);
    await expect(model.embed(["a", [128]])).rejects.toThrow(/text 1: 128 is no token id; the vocabulary has 128/);
    await expect(model.embed([["a", "b", "c"] as unknown as string])).rejects.toThrow(
      /must be a string, token ids, or/,
    );
    await expect(model.embed(["a"], { batchTokens: 0 })).rejects.toThrow(/batchTokens must be a whole number from 1/);
    using bare = await loadModel(tiny("bert"));
    await expect(bare.embed(["a"])).rejects.toThrow(/without a tokenizer/);
  });

  it("takes decoders: the states that their logits are made of, by the last token", async () => {
    using model = await loadModel(fable);
    const prompts = ["Once upon a time there was a king", "A fox"];
    const states = await model.hiddenStates(prompts);
    const last = await Promise.all(states.map(async (own) => ((await own.toArray()) as number[][]).at(-1)!));
    for (const own of states) own.dispose();
    expectClose(await vectors(model, prompts), last);
    using small = await loadModel(tiny("llama"));
    const ids = [
      [5, 6, 7, 8],
      [9, 10],
      [11, 12],
    ];
    const hidden = await small.hiddenStates(ids);
    const weights = await (await import("../../src/formats/index.ts")).loadSafetensors(tiny("llama"));
    const head = (await (weights.get("lm_head.weight") ??
      weights.get("model.embed_tokens.weight"))!.toArray()) as number[][];
    for (const [i, row] of ids.entries()) {
      using logits = small.logits(row);
      expectClose(
        [times(head, ((await hidden[i]!.toArray()) as number[][]).at(-1)!)],
        (await logits.toArray()) as number[][],
        3,
      );
      hidden[i]!.dispose();
    }
    for (const tensor of weights.values()) tensor.dispose();
  });
});

describe("rerankers", () => {
  const size = 64;
  const random = (shape: number[], seed: number): Tensor => Tensor.randn(shape, { seed }).affine(0.3, 0);
  const one = { id2label: { 0: "LABEL_0" }, label2id: { LABEL_0: 0 } };
  const gelu = (x: number): number => {
    // Φ by its series: |x| is small here.
    let [term, sum] = [x / Math.SQRT2, x / Math.SQRT2];
    for (let n = 1; n < 60; n++) {
      term *= (-x * x) / 2 / n;
      sum += term / (2 * n + 1);
    }
    return x * 0.5 * (1 + (2 / Math.sqrt(Math.PI)) * sum);
  };
  const normed = (x: readonly number[], weight: readonly number[]): number[] => {
    const mean = x.reduce((a, b) => a + b) / x.length;
    const variance = x.reduce((sum, v) => sum + (v - mean) ** 2, 0) / x.length;
    return x.map((v, i) => ((v - mean) / Math.sqrt(variance + 1e-5)) * weight[i]!);
  };
  const heads = {
    bert: {
      config: { architectures: ["BertForSequenceClassification"], ...one },
      prefix: "bert.",
      names: ["bert.pooler.dense", "classifier"],
      biased: true,
      norm: false,
      activation: Math.tanh,
      pooling: "cls",
    },
    xlm_roberta: {
      config: { architectures: ["XLMRobertaForSequenceClassification"], ...one },
      prefix: "roberta.",
      names: ["classifier.dense", "classifier.out_proj"],
      biased: true,
      norm: false,
      activation: Math.tanh,
      pooling: "cls",
    },
    modernbert: {
      config: { architectures: ["ModernBertForSequenceClassification"], classifier_pooling: "mean", ...one },
      prefix: "model.",
      names: ["head.dense", "classifier"],
      biased: false,
      norm: true,
      activation: gelu,
      pooling: "mean",
    },
  } as const;
  const pairs = [
    ["the cat", "a dog"],
    ["dog", "the cats and the dog"],
  ] as const;

  it.each(encoderNames)("%s scores pairs by its head", async (name) => {
    const { config, prefix, names, biased, norm, activation, pooling } = heads[name];
    const [dense, out] = names;
    const own = new Map<string, Tensor>([
      [`${dense}.weight`, random([size, size], 1)],
      [`${out}.weight`, random([1, size], 2)],
      [`${out}.bias`, random([1], 3)],
      ...(biased ? [[`${dense}.bias`, random([size], 4)] as const] : []),
      ...(norm ? [["head.norm.weight", random([size], 5)] as const] : []),
    ]);
    const values = new Map<string, number[] | number[][]>();
    for (const [key, tensor] of own) values.set(key, (await tensor.toArray()) as number[]);
    const path = await withTokenizer(name, `ranks-${name}`, {}, config, (tensors) => {
      for (const [key, tensor] of [...tensors]) {
        tensors.delete(key);
        tensors.set(prefix + key, tensor);
      }
      for (const [key, tensor] of own) tensors.set(key, tensor);
    });
    using model = await loadModel(path);
    expect(model.canScore).toBe(true);
    // The types of segments matter: what embeds ids alone has none.
    const segments = pairs.map((pair) => model.tokenizer!.encodeSegments([pair[0], pair[1]]));
    const between = name === "xlm_roberta" ? [2, 2] : [3];
    expect(segments[0]!.ids.join()).toContain([...between].join());
    const got = await model.score(pairs);
    const reference = await Promise.all(
      segments.map(async ({ ids, types }) => {
        const sees = name === "bert" ? types : types.map(() => 0);
        expect(types.at(-1)).toBe(1);
        const states = await statesOf(path, ids, sees);
        const pooled =
          pooling === "cls"
            ? states[0]!
            : states[0]!.map((_, j) => states.reduce((sum, row) => sum + row[j]! / states.length, 0));
        const bias = (values.get(`${dense}.bias`) ?? new Array<number>(size).fill(0)) as number[];
        const hidden = times(values.get(`${dense}.weight`) as number[][], pooled).map((x, i) =>
          activation(x + bias[i]!),
        );
        const last = norm ? normed(hidden, values.get("head.norm.weight") as number[]) : hidden;
        return times(values.get(`${out}.weight`) as number[][], last)[0]! + (values.get(`${out}.bias`) as number[])[0]!;
      }),
    );
    expectClose([got], [reference], 4);
    expect((await model.score(pairs, { activation: "sigmoid" }))[0]).toBeCloseTo(1 / (1 + Math.exp(-got[0]!)), 5);
    const gguf = join(path, "model.gguf");
    await writeModelGguf(path, gguf, { type: "F32" });
    using other = await loadModel(gguf);
    expectClose([await other.score(pairs)], [got], 5);
    for (const tensor of own.values()) tensor.dispose();
  });

  /** By a model of which the vectors of types are added to those of the tokens: it has no head to ask. */
  async function statesOf(path: string, ids: readonly number[], types: readonly number[]): Promise<number[][]> {
    const { Packed } = await import("../../src/models/packed.ts");
    const { Encoder } = await import("../../src/models/encoder/encoder.ts");
    const { openModel } = await import("../../src/models/load.ts");
    await using source = await openModel(path);
    await using weights = await source.openWeights({ device: Device.cpu(), dtype: "f32" });
    using encoder = await Encoder.load(source.config, weights, Device.cpu(), "f32");
    await weights.arrival();
    using states = encoder.forward(new Packed([{ ids, types }]));
    return (await states.toArray()) as number[][];
  }

  it("with several labels classify texts, and give no score", async () => {
    const labels = { 0: "no", 1: "maybe", 2: "yes" };
    const config = { architectures: ["BertForSequenceClassification"], id2label: labels };
    const path = await withTokenizer("bert", "labels", {}, config, (tensors) => {
      tensors.set("classifier.weight", random([3, size], 6));
      tensors.set("classifier.bias", random([3], 7));
    });
    using model = await loadModel(path);
    expect(model.config.encoder!.labels).toEqual(["no", "maybe", "yes"]);
    using logits = await model.classify(["the cat", ["the cat", "a dog"]]);
    expect(logits.shape).toEqual([2, 3]);
    await expect(model.score(pairs)).rejects.toThrow(/3 labels \(no, maybe, yes\) and no one score; use classify/);
    const gguf = join(path, "model.gguf");
    await writeModelGguf(path, gguf, { type: "F32" });
    using other = await loadModel(gguf);
    expect(other.config.encoder!.labels).toEqual(["no", "maybe", "yes"]);
  });
});
