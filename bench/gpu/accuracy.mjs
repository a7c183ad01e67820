// How far products with quantized weights move a model's logits, by type, compute dtype and number of rows:
//   node bench/gpu/accuracy.mjs DEVICE [--dist PATH] [--only dense,Q8_0,…] [--json FILE] [--dump FOLDER] [--tiny]
// Four layers of an 8B Llama's width with random weights. The reference is the same model computed in f32 with the same
// weights dequantized; the error is the norm of the difference over the norm of the reference. Prompts are fed at once, so
// that products have as many rows; decoding feeds one token to each of so many texts. Exits 1 where a bound is exceeded.
// --dump writes weights and logits for bench/gpu/accuracy.py, which computes the reference again, in f64 by PyTorch.
import { mkdirSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const dist = pathToFileURL(resolve(option("--dist") ?? new URL("../../dist", import.meta.url).pathname)).href;
const { Device, Tensor, scope } = await import(`${dist}/index.js`);
const { QTensor } = await import(`${dist}/quantized/index.js`);
const { quantTypes, quantTypeNames } = await import(`${dist}/core/quant-types.js`);
const { saveSafetensors } = await import(`${dist}/formats/index.js`);
const { ModelCache } = await import(`${dist}/models/cache.js`);
const { needsOf } = await import(`${dist}/models/load.js`);
const { Matrices } = await import(`${dist}/models/projections.js`);
const { Transformer } = await import(`${dist}/models/transformer.js`);

const device = Device.from(args[0] ?? "cuda:0");
const tiny = args.includes("--tiny");
const types = option("--only")?.split(",") ?? ["dense", ...quantTypeNames];
const bounds = { f32: 1e-4, f16: 3e-3, bf16: 2e-2 };
const dtypes = Object.keys(bounds);
const promptRows = tiny ? [1, 2, 6, 9, 33] : [1, 2, 4, 6, 8, 9, 16, 17, 33, 48, 64, 512, 2048];
const decodeRows = tiny ? [1, 6] : [1, 2, 4, 6, 8, 9, 16, 17, 33, 48, 64];
/** Tokens of each text that is decoded; the last one is fed by itself. */
const textLength = tiny ? 3 : 16;
const shape = tiny
  ? { vocabSize: 256, hiddenSize: 256, intermediateSize: 512, layers: 2, heads: 2, kvHeads: 1 }
  : { vocabSize: 4096, hiddenSize: 4096, intermediateSize: 14336, layers: 4, heads: 32, kvHeads: 8 };
const rope = { theta: 500_000, dims: 128, interleaved: false, scaling: { type: "none" } };
const config = {
  architecture: "llama",
  ...shape,
  headDim: 128,
  contextLength: 8192,
  normEps: 1e-5,
  activation: "silu",
  rope,
  ropes: new Array(shape.layers).fill(rope),
  attentionScale: 1 / Math.sqrt(128),
  attentionSoftcap: 0,
  windows: new Array(shape.layers).fill(0),
  logitScale: 1,
  logitSoftcap: 0,
  // Embeddings of deviation 1 to layers of 0.02: their outputs then add to a residual that is not smaller than them.
  embeddingScale: 50,
  residualScale: 1,
  parallelResidual: false,
  tiedEmbeddings: false,
  experts: null,
  bosToken: null,
  eosTokens: [],
  dtype: "bf16",
};

/** Deviation of the weights. */
const STD = 0.02;
const POOL = 8192;

/**
 * Types that are read and not written: the bytes before the 4-bit levels, null where any will do, what levels mean, and the
 * deviation in which they are drawn, for weights of about STD.
 */
const unwritten = {
  // d is 2⁻¹¹ to 1.25 · 2⁻¹¹, in f16.
  IQ4_NL: {
    head: [null, 0x10],
    levels: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    deviation: 40,
  },
  // d is 2⁻¹⁶ to 2⁻¹⁵; the groups' factors have their two high bits set, and are 16 to 31 therefore.
  IQ4_XS: {
    head: [null, 0x01, 0xff, 0xff, null, null, null, null],
    levels: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    deviation: 40,
  },
  // The exponent of 2⁻⁷.
  MXFP4: {
    head: [120],
    levels: [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6],
    deviation: 2.5,
  },
};

/** Blocks (POOL, bytes) of such a type. */
function drawBlocks(type) {
  const { size, bytes } = quantTypes[type];
  const { head, levels, deviation } = unwritten[type];
  const normals = Tensor.randn([POOL * size], { seed: 1, std: deviation }).dataSync();
  const blocks = Tensor.rand([POOL * bytes], { seed: 2 })
    .affine(256, 0)
    .toDType("u8")
    .dataSync();
  const nearest = (x) =>
    levels.reduce((best, level, i) => (Math.abs(level - x) < Math.abs(levels[best] - x) ? i : best), 0);
  let drawn = 0;
  for (let at = 0; at < blocks.length; at += bytes) {
    for (const [i, byte] of head.entries()) if (byte !== null) blocks[at + i] = byte;
    for (let i = head.length; i < bytes; i++) {
      blocks[at + i] = nearest(normals[drawn]) | (nearest(normals[drawn + 1]) << 4);
      drawn += 2;
    }
  }
  return Tensor.fromBytes(blocks, [POOL, bytes], "u8", device);
}

/** Blocks of a type, (POOL, bytes), of normal weights. */
function poolOf(type) {
  if (!quantTypes[type].writable) return scope(() => drawBlocks(type));
  return scope(() => {
    const weights = Tensor.randn([POOL, quantTypes[type].size], { seed: 1, std: STD });
    return QTensor.quantize(weights, type).blocks.toDeviceSync(device);
  });
}

/** The matrices of one type, made when first asked for; the models and the reference share them. */
class Store {
  #type;
  #pool;
  #made = new Map();

  constructor(type) {
    this.#type = type;
    this.#pool = type === "dense" ? null : poolOf(type).keep();
  }

  /** A bf16 tensor, or a QTensor whose blocks are drawn from the pool. */
  matrix(name, rows, columns) {
    const found = this.#made.get(name);
    if (found) return found;
    const seed = this.#made.size + 1;
    const made = this.#pool
      ? this.#draw(rows, columns, seed)
      : Tensor.randn([rows, columns], { device, seed, std: STD, dtype: "bf16" });
    this.#made.set(name, made.keep());
    return made;
  }

  /** Every matrix as the reference has it, by name. */
  async save(folder, logits) {
    for (const [name, matrix] of this.#made) {
      const wide = matrix instanceof QTensor ? matrix.dequantize("f32") : matrix.view(matrix.layout);
      await saveSafetensors(join(folder, `${name}.safetensors`), { [name]: wide });
      wide.dispose();
    }
    await saveSafetensors(join(folder, "logits.safetensors"), logits);
  }

  dispose() {
    this.#pool?.dispose();
    for (const matrix of this.#made.values()) matrix.dispose();
  }

  #draw(rows, columns, seed) {
    const count = rows * (columns / quantTypes[this.#type].size);
    return scope(() => {
      const ids = Tensor.rand([count], { device, seed }).affine(POOL, 0).toDType("u32");
      return QTensor.fromBlocks(this.#pool.indexSelect(ids, 0), [rows, columns], this.#type);
    });
  }
}

/** The store's matrices for a model that computes in a dtype: as they are, or, for the reference, dequantized. */
class StoredWeights {
  owned = [];
  #store;
  #dtype;
  #isReference;

  constructor(store, dtype, isReference) {
    this.#store = store;
    this.#dtype = dtype;
    this.#isReference = isReference;
  }

  async linear(parts, inputs, { layer }) {
    const sizes = parts.map((part) => part.outputs);
    const name = [...parts.map((part) => part.role), ...(layer === undefined ? [] : [layer])].join(".");
    const rows = sizes.reduce((a, b) => a + b);
    return this.#layer(this.#matrix(name, rows, inputs), sizes);
  }

  async norm(_, size) {
    return { weight: this.#own(Tensor.ones([size], { dtype: this.#dtype, device })), bias: null };
  }

  async embedding(_, rows, width) {
    const table = this.#matrix("embedding", rows, width);
    const lookup = (ids) => (table instanceof QTensor ? table.rows(ids, this.#dtype) : table.indexSelect(ids, 0));
    return { lookup, head: this.#layer(table, [rows]) };
  }

  #matrix(name, rows, columns) {
    const matrix = this.#store.matrix(name, rows, columns);
    if (!(matrix instanceof QTensor)) return this.#own(matrix.toDType(this.#dtype));
    return this.#isReference ? this.#own(matrix.dequantize("f32")) : matrix;
  }

  #layer(matrix, sizes) {
    return matrix instanceof QTensor ? Matrices.quantized(matrix, null, sizes) : Matrices.plain(matrix, null, sizes);
  }

  #own(tensor) {
    this.owned.push(tensor.keep());
    return tensor;
  }
}

const most = (list) => list.reduce((a, b) => Math.max(a, b));
const idsOf = (batch, length, seed) =>
  Tensor.rand([batch, length], { device, seed }).affine(config.vocabSize, 0).toDType("u32").keep();
const prompt = idsOf(1, most(promptRows), 11);
const texts = idsOf(most(decodeRows), textLength, 12);

/** Logits (rows, vocab) of a prompt's first tokens; what comes later changes none of them. */
function prompted(transformer, rows) {
  const cache = new ModelCache(config, device, transformer.dtype);
  const own = prompt.narrow(1, 0, rows);
  const logits = scope(() => transformer.forward(own, { cache }).reshape([rows, config.vocabSize]));
  cache.dispose();
  return logits;
}

/** Logits (rows, vocab) behind the last token of each text, fed after the others. */
function decoded(transformer, rows) {
  const cache = new ModelCache(config, device, transformer.dtype, { batch: rows });
  const logits = scope(() => {
    const own = texts.narrow(0, 0, rows);
    transformer.forward(own.narrow(1, 0, textLength - 1), { cache, last: true });
    return transformer.forward(own.narrow(1, textLength - 1, 1), { cache, last: true });
  });
  cache.dispose();
  return logits;
}

/** Of all rows together, and of the row that is worst. */
function errorOf(got, reference) {
  return scope(() => {
    const want = reference.narrow(0, 0, got.shape[0]);
    const [off, size] = [got.sub(want), want].map((x) => x.sqr().sum([1]));
    const ratio = (a, b) => Math.sqrt(a / b);
    return {
      all: ratio(off.sumAll().toScalarSync(), size.sumAll().toScalarSync()),
      worst: Math.sqrt(off.div(size).max(0).toScalarSync()),
    };
  });
}

async function withModel(store, dtype, isReference, run) {
  const weights = new StoredWeights(store, dtype, isReference);
  const transformer = await Transformer.load(config, weights, device, dtype);
  const result = run(transformer);
  transformer[Symbol.dispose]();
  return result;
}

/** What is measured: the rows of each way to feed them. */
const ways = { prompt: { rows: promptRows, run: prompted }, decode: { rows: decodeRows, run: decoded } };

async function measure(type, report) {
  const store = new Store(type);
  const dumped = option("--dump") ? {} : null;
  const keep = (name, tensor) => {
    if (dumped) dumped[name] = tensor.copy().keep();
  };
  const references = await withModel(store, "f32", true, (model) =>
    Object.fromEntries(Object.entries(ways).map(([way, { rows, run }]) => [way, run(model, most(rows)).keep()])),
  );
  for (const dtype of dtypes) {
    await withModel(store, dtype, false, (model) => {
      for (const [way, { rows, run }] of Object.entries(ways)) {
        for (const n of rows) {
          const got = run(model, n);
          keep(`${dtype} ${way} ${n}`, got);
          report({ type, dtype, way, rows: n, ...errorOf(got, references[way]) });
          got.dispose();
        }
      }
    });
  }
  if (dumped) {
    const folder = join(option("--dump"), type);
    mkdirSync(folder, { recursive: true });
    await store.save(folder, { prompt, texts, ...dumped });
    writeFileSync(join(folder, "config.json"), JSON.stringify(config));
    for (const tensor of Object.values(dumped)) tensor.dispose();
  }
  for (const reference of Object.values(references)) reference.dispose();
  store.dispose();
}

// Everything is compiled side by side before it is needed.
const quantized = types.filter((type) => type !== "dense");
const needs = { quantTypes: quantized, storedTypes: ["bf16"], normsAreShifted: false, hasPlainMatrices: true };
await Promise.all(dtypes.map((dtype) => device.backend.transformers?.prepare(needsOf(config, needs, dtype)).toRun));

const results = [];
const exceeded = [];
const line = (name, cells) => {
  const [prompts, decodes] = [cells.slice(0, promptRows.length), cells.slice(promptRows.length)];
  console.log(
    [name.padEnd(12), ...[prompts, decodes].map((part) => part.map((c) => c.padStart(8)).join(""))].join(" |"),
  );
};
console.log(
  `${device.backend.describe()}: relative error of the logits by rows, of a prompt | in decoding; ! over the bound`,
);
line("", [...promptRows, ...decodeRows].map(String));
for (const type of types) {
  const rows = [];
  await measure(type, (row) => rows.push(row));
  results.push(...rows);
  for (const dtype of dtypes) {
    const cells = rows
      .filter((row) => row.dtype === dtype)
      .map((row) => {
        const isOver = !(row.all <= bounds[dtype]);
        if (isOver) exceeded.push(row);
        return `${row.all.toExponential(1)}${isOver ? "!" : " "}`;
      });
    line(`${type} ${dtype}`, cells);
  }
  device.backend.trim();
}
if (option("--json")) {
  const result = { bench: "accuracy", device: device.backend.describe(), bounds, results };
  writeFileSync(option("--json"), `${JSON.stringify(result, null, 1)}\n`);
}
const limits = dtypes.map((dtype) => `${dtype} ${bounds[dtype]}`).join(", ");
if (exceeded.length === 0) {
  console.log(`all ${results.length} errors are within their bounds: ${limits}`);
} else {
  const names = [...new Set(exceeded.map(({ type, dtype }) => `${type} in ${dtype}`))];
  console.log(`${exceeded.length} of ${results.length} errors exceed their bounds (${limits}): ${names.join(", ")}`);
  process.exitCode = 1;
}
