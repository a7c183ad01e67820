// Damaged GGUF files without end, the same for the same seed. Shared by the test suite and `npm run fuzz`.

/** A small generator of pseudo-random numbers (xorshift32). */
export function random(seed) {
  let state = (Math.imul(seed, 0x9e3779b1) ^ 0x85ebca6b) >>> 0 || 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state = (state ^ (state << 5)) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Builds a file and remembers where its numbers are, so that damage can aim at them. */
class Builder {
  bytes = [];
  fields = [];
  constructor(version) {
    this.version = version;
  }
  number(value, size) {
    this.fields.push({ at: this.bytes.length, size });
    for (let i = 0n; i < size; i++) this.bytes.push(Number((BigInt(value) >> (8n * i)) & 255n));
  }
  u32(value) {
    this.number(value, 4);
  }
  length(value) {
    this.number(value, this.version === 1 ? 4 : 8);
  }
  string(text) {
    const bytes = Buffer.from(text);
    this.length(bytes.length);
    this.bytes.push(...bytes);
  }
  array(type, values, element) {
    this.u32(type);
    this.length(values.length);
    for (const value of values) element(value);
  }
}

const scalars = [
  ["u8", 0, 1, 200],
  ["i8", 1, 1, -5],
  ["u16", 2, 2, 60000],
  ["i16", 3, 2, -300],
  ["u32", 4, 4, 70000],
  ["i32", 5, 4, -70000],
  ["f32", 6, 4, 0x3f800000],
  ["bool", 7, 1, 1],
  ["u64", 10, 8, 2n ** 60n],
  ["i64", 11, 8, -(2n ** 60n)],
  ["f64", 12, 8, 0x3ff0000000000000n],
];

/** name, dims as the file has them (fastest first), type, bytes */
const tensors = [
  ["a", [4, 2], 0, 32],
  ["b.weight", [32, 3], 2, 54],
  ["c", [256], 14, 210],
  ["d", [3], 1, 6],
  ["e", [0, 7], 0, 0],
  ["f", [], 28, 8],
  ["g", [2, 1, 1, 2], 30, 8],
  ["h", [5], 24, 5],
];

/** A valid file with every value type, nested arrays and several tensor types. */
export function sample(version, alignment = 32) {
  const b = new Builder(version);
  b.bytes.push(...Buffer.from("GGUF"));
  b.u32(version);
  b.length(tensors.length);
  b.length(scalars.length + 6);
  for (const [name, type, size, value] of scalars) {
    b.string(`scalar.${name}`);
    b.u32(type);
    b.number(value, size);
  }
  const entry = (key, type) => {
    b.string(key);
    b.u32(type);
  };
  entry("general.architecture", 8);
  b.string("llama");
  entry("general.alignment", 4);
  b.u32(alignment);
  entry("strings", 9);
  b.array(8, ["", "a", "日本", "<0x0A>"], (s) => b.string(s));
  entry("numbers", 9);
  b.array(5, [1, -2, 3], (n) => b.u32(n));
  entry("flags", 9);
  b.array(7, [1, 0], (n) => b.number(n, 1));
  entry("nested", 9);
  b.array(9, [[1, 2], [], [3]], (inner) => b.array(10, inner, (n) => b.number(n, 8)));
  let offset = 0;
  for (const [name, dims, type, bytes] of tensors) {
    b.string(name);
    b.u32(dims.length);
    for (const dim of dims) b.length(dim);
    b.u32(type);
    b.number(offset, 8);
    offset += Math.ceil(bytes / alignment) * alignment;
  }
  const dataStart = Math.ceil(b.bytes.length / alignment) * alignment;
  const bytes = Buffer.alloc(dataStart + offset, 0x5a);
  bytes.set(b.bytes);
  bytes.fill(0, b.bytes.length, dataStart);
  return { bytes, fields: b.fields };
}

const samples = [sample(3), sample(2, 1), sample(1, 8)];

/** Numbers that counts, lengths, types, offsets and alignments are sensitive to. */
function hostile(next, size) {
  const near = [0n, 1n, 2n, 3n, 4n, 7n, 8n, 9n, 12n, 13n, 31n, 32n, 33n, 64n, 99n];
  const powers = [7n, 8n, 15n, 16n, 20n, 24n, 31n, 32n, 48n, 52n, 53n, 62n, 63n, 64n].map((p) => 1n << p);
  const kind = next(4);
  if (kind === 0) return near[next(near.length)];
  if (kind === 1) return powers[next(powers.length)] + BigInt(next(3) - 1);
  if (kind === 2) return BigInt(size + next(65) - 32);
  return BigInt(next(2 ** 16));
}

const splice = (bytes, at, drop, insert) =>
  Buffer.concat([bytes.subarray(0, at), insert, bytes.subarray(Math.min(bytes.length, at + drop))]);

/** The kinds of damage; each takes and gives `bytes`. `fields` are exact until something was moved. */
const damages = [
  setField,
  setField,
  setField,
  setField,
  function flip(bytes, next) {
    const out = Buffer.from(bytes);
    for (let n = 1 + next(4); n > 0 && out.length > 0; n--) out[next(out.length)] ^= 1 << next(8);
    return out;
  },
  function setBytes(bytes, next) {
    const out = Buffer.from(bytes);
    const at = next(out.length + 1);
    out.fill([0, 0xff, 0x7f, 0x80, 9][next(5)], at, Math.min(out.length, at + 1 + next(16)));
    return out;
  },
  function truncate(bytes, next) {
    return Buffer.from(bytes.subarray(0, next(bytes.length + 1)));
  },
  function remove(bytes, next) {
    return splice(bytes, next(bytes.length + 1), 1 + next(40), Buffer.alloc(0));
  },
  function repeat(bytes, next) {
    const at = next(bytes.length + 1);
    return splice(bytes, at, 0, bytes.subarray(at, at + 1 + next(80)));
  },
  function nest(bytes, next, fields) {
    // Array of one array of one array … in place of a value's type.
    const header = Buffer.alloc(12);
    header.writeUInt32LE(9);
    header.writeUInt32LE(1, 4);
    const depth = Buffer.concat(Array.from({ length: 1 + next(20) }, () => header));
    return splice(bytes, fields[next(fields.length)].at, 4 * next(2), depth);
  },
  function noise(_, next) {
    const out = Buffer.from(Uint8Array.from({ length: next(200) }, () => next(256)));
    // Otherwise nearly all of it would end at the first check.
    if (next(4) > 0) out.write("GGUF\x03\0\0\0", "latin1");
    return out;
  },
];

function setField(bytes, next, fields) {
  const out = Buffer.from(bytes);
  const { at, size } = fields[next(fields.length)];
  const value = BigInt.asUintN(size * 8, hostile(next, bytes.length));
  for (let i = 0; i < size && at + i < out.length; i++) out[at + i] = Number((value >> BigInt(8 * i)) & 255n);
  return out;
}

/** One damaged file: from one to three damages of one of the samples. */
export function mutated(seed) {
  const next = random(seed);
  const { bytes, fields } = samples[next(samples.length)];
  let out = bytes;
  for (let n = 1 + next(3); n > 0; n--) out = damages[next(damages.length)](out, next, fields);
  return out;
}

/** A source that counts what is asked of it; bytes beyond its end are never given. */
export function memorySource(bytes, path = "memory") {
  const source = {
    path,
    size: bytes.length,
    bytesRead: 0,
    read(offset, length) {
      if (!(offset >= 0 && length >= 0 && offset + length <= bytes.length)) {
        throw new RangeError(`${length} bytes at ${offset} of ${bytes.length} were asked for`);
      }
      source.bytesRead += length;
      return Promise.resolve(Uint8Array.from(bytes.subarray(offset, offset + length)));
    },
  };
  return source;
}
