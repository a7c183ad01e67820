// Weights for benches, made on the device: random ones in `dtype`, or a quantized slab of random ones over and over.

/**
 * `parts` are the modules of a build; `type` is null for weights that are not quantized. MXFP4 is for experts alone, as
 * files have it.
 */
export function randomWeights(
  { Tensor, QTensor, Matrices, Stack, quantTypes },
  device,
  { config, biased },
  type,
  dtype = "bf16",
) {
  const slabs = new Map();
  const options = { dtype, device };

  function slabOf(own, columns) {
    const key = `${own} ${columns}`;
    if (!slabs.has(key)) slabs.set(key, makeSlab(own, columns));
    return slabs.get(key);
  }

  function makeSlab(own, columns) {
    const { size, bytes, writable } = quantTypes[own];
    if (writable) {
      const floats = Tensor.randn([16, columns], { seed: columns, std: 0.02 });
      return QTensor.quantize(floats, own).blocks.toDeviceSync(device);
    }
    // A scale of 2⁻⁹ before nibbles.
    const row = (columns / size) * bytes;
    const blocks = new Uint8Array(16 * row).map((_, i) => (i % bytes === 0 ? 118 : Math.imul(i, 2654435761) >>> 13));
    return Tensor.from(blocks, { shape: [16, row], device });
  }

  class RandomWeights {
    owned = [];
    /** That a step reads: of experts those that a token goes through. */
    bytes = 0;
    #seed = 1;

    async linear(parts, inputs) {
      const sizes = parts.map((part) => part.outputs);
      const rows = sizes.reduce((a, b) => a + b);
      // Routers are never quantized.
      const own = type === "MXFP4" || parts[0].role === "router" ? null : this.#typeFor(inputs);
      const weight = this.#matrix(rows, inputs, own, 1);
      const bias = biased && parts[0].role !== "head" ? this.#own(Tensor.zeros([rows], options)) : null;
      return own ? Matrices.quantized(weight, bias, sizes) : Matrices.plain(weight, bias, sizes);
    }

    async stack(parts, inputs, count) {
      const rows = parts.reduce((sum, part) => sum + part.outputs, 0);
      const ofHeads = parts[0].role === "keyUp" || parts[0].role === "valueUp";
      const own = ofHeads && type === "MXFP4" ? null : this.#typeFor(inputs);
      const share = ofHeads ? 1 : config.experts.perToken / count;
      const flat = this.#matrix(count * rows, inputs, own, share);
      const shape = [count, rows, inputs];
      const weight = own ? QTensor.fromBlocks(flat.blocks, shape, own).keep() : flat.reshape(shape).keep();
      const bias = biased && !ofHeads ? this.#own(Tensor.zeros([count, rows], options)) : null;
      const made = new Stack(weight, bias, dtype);
      this.owned.push(weight, made);
      return made;
    }

    async vector(role, size) {
      return this.#own(Tensor.zeros([size], role === "routerBias" ? { device } : options));
    }

    async norm(_, size) {
      return { weight: this.#own(Tensor.ones([size], options)), bias: null };
    }

    async embedding(_, rows, width) {
      const own = type === "MXFP4" ? null : this.#typeFor(width);
      // A step reads one row of a table that is not the head as well.
      const table = this.#matrix(rows, width, own, config.tiedEmbeddings ? 1 : 0);
      const lookup = own ? (ids) => table.rows(ids, dtype) : (ids) => table.indexSelect(ids, 0);
      return { lookup, head: own ? Matrices.quantized(table, null, [rows]) : Matrices.plain(table, null, [rows]) };
    }

    async [Symbol.asyncDispose]() {}

    /** Rows that are not whole blocks have smaller ones, as in files. */
    #typeFor(columns) {
      return type && columns % quantTypes[type].size !== 0 ? "Q8_0" : type;
    }

    #matrix(rows, columns, own, share) {
      if (!own) {
        this.bytes += rows * columns * 2 * share;
        return this.#own(Tensor.randn([rows, columns], { ...options, seed: this.#seed++, std: 0.02 }));
      }
      const slab = slabOf(own, columns);
      const blocks = Tensor.empty([rows, slab.shape[1]], { dtype: "u8", device });
      // Doubling: each copy is of what is there already.
      blocks.sliceSet(slab.narrow(0, 0, Math.min(rows, slab.shape[0])), 0, 0);
      for (let have = slab.shape[0]; have < rows; have *= 2) {
        const part = blocks.narrow(0, 0, Math.min(have, rows - have)).copy();
        blocks.sliceSet(part, 0, have);
        part.dispose();
      }
      this.bytes += blocks.numel * share;
      const weight = QTensor.fromBlocks(blocks, [rows, columns], own).keep();
      blocks.dispose();
      this.owned.push(weight);
      return weight;
    }

    #own(tensor) {
      this.owned.push(tensor.keep());
      return tensor;
    }
  }
  return new RandomWeights();
}
