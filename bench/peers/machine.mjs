// Not a library: the machine's own ceilings, for one thread. The parent starts one of these per thread and adds them up.
export const version = process.version;
export const threads = () => 1;

const ACCUMULATORS = 12; // with the two factors, all the vector registers V8 hands out; enough to hide FMA latency
const LANES = 4;
const COPY_BYTES = 256 * 2 ** 20;
const FMA_LOOPS = 2 ** 20;

const MUL = [0xfd, 0xe6, 0x01];
const ADD = [0xfd, 0xe4, 0x01];
const RELAXED_MADD = [0xfd, 0x85, 0x02];
const get = (local) => [0x20, local];
const set = (local) => [0x21, local];
const length = (bytes) => (bytes.length < 128 ? [bytes.length] : [(bytes.length & 127) | 128, bytes.length >> 7]);
const section = (id, bytes) => [id, ...length(bytes), ...bytes];

/** (n: i32, x: f32, y: f32) → f32: n rounds of one multiply-add into each accumulator. */
function multiplyAddModule(relaxed) {
  const [n, x, y, xs, ys, first] = [0, 1, 2, 3, 4, 5];
  const accumulators = Array.from({ length: ACCUMULATORS }, (_, i) => first + i);
  const multiplyAdd = relaxed
    ? (acc) => [...get(xs), ...get(ys), ...get(acc), ...RELAXED_MADD, ...set(acc)]
    : (acc) => [...get(acc), ...get(xs), ...MUL, ...get(ys), ...ADD, ...set(acc)];
  const splat = (from, to) => [...get(from), 0xfd, 0x13, ...set(to)];
  const body = [
    ...[1, ACCUMULATORS + 2, 0x7b], // locals: v128
    ...splat(x, xs),
    ...splat(y, ys),
    ...[0x03, 0x40], // loop
    ...accumulators.flatMap(multiplyAdd),
    ...[...get(n), 0x41, 1, 0x6b, 0x22, n, 0x0d, 0], // br_if 0 (n -= 1)
    0x0b,
    ...get(first),
    ...accumulators.slice(1).flatMap((acc) => [...get(acc), ...ADD]), // keeps every accumulator alive
    ...[0xfd, 0x1f, 0], // f32x4.extract_lane 0
    0x0b,
  ];
  return new Uint8Array([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, [1, 0x60, 3, 0x7f, 0x7d, 0x7d, 1, 0x7d]),
    ...section(3, [1, 0]),
    ...section(7, [1, 1, 0x66, 0, 0]), // export "f"
    ...section(10, [1, ...length(body), ...body]),
  ]);
}

export const cases = {
  fma: () => {
    const relaxed = multiplyAddModule(true);
    const bytes = WebAssembly.validate(relaxed) ? relaxed : multiplyAddModule(false);
    const { f } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
    return { run: () => f(FMA_LOOPS, 0.5, 0.5) };
  },
  copy: () => {
    const from = new Float32Array(COPY_BYTES / 4).fill(1);
    const to = new Float32Array(COPY_BYTES / 4).fill(2);
    return { run: () => to.set(from) };
  },
};

/** The work of one run, as in workloads.mjs; a copy reads and writes every byte. */
export const ceilings = {
  flops: { op: "fma", flops: 2 * LANES * ACCUMULATORS * FMA_LOOPS },
  bytes: { op: "copy", bytes: 2 * COPY_BYTES },
};
