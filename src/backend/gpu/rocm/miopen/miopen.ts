/** MIOpen behind the small interface: one handle per context, bound to its stream. */
import { fail } from "../../../../core/errors.ts";
import type { DevicePtr, GpuContext, Handle } from "../../driver.ts";
import { addressOf } from "../../library.ts";
import {
  activationMode,
  batchNormSpatial,
  convolutionMode,
  convolutionResultBytes,
  directionForward,
  type MiopenApi,
  mhaArgumentBytes,
  mhaTensor,
  poolingMode,
  softmaxAlgorithm,
  softmaxInstance,
} from "./api.ts";
import { Descriptors } from "./descriptors.ts";
import type { Activate, Attention, BatchNorm, Convolution, Dnn, Pooling, Softmax } from "./dnn.ts";

/** Memory for what `run` enqueues; it may be reused afterwards. */
export type Temporary = (bytes: number, run: (at: number) => void) => void;

interface Plan {
  readonly algorithm: number;
  readonly bytes: number;
}
interface Solution {
  readonly handle: Handle;
  readonly bytes: number;
}

/** Problems whose choice is remembered; the oldest is forgotten first. */
const MAX_PLANS = 256;
/** Algorithms that a search may return: there are five. */
const MAX_RESULTS = 8;
/** Parts of one piece of memory are as far apart as allocations would be. */
const align = (bytes: number): number => Math.ceil(bytes / 256) * 256;
type MhaTensor = keyof typeof mhaTensor;
const scales = ["descaleK", "descaleQ", "descaleV", "descaleS", "scaleS", "scaleO"] satisfies MhaTensor[];
const zeros = ["dropoutProbability", "dropoutSeed", "dropoutOffset", "amaxO", "amaxS"] satisfies MhaTensor[];
const wideScalars: readonly MhaTensor[] = ["dropoutSeed", "dropoutOffset"];

export class Miopen implements Dnn {
  readonly library: string;
  readonly version: string;
  readonly #api: MiopenApi;
  readonly #context: GpuContext;
  readonly #temporary: Temporary;
  readonly #handle: Handle;
  /** 1 and 0 in f32, which scales of f16, bf16 and f32 are given in; in a buffer, because small arrays move. */
  readonly #scalars = new Float32Array(new ArrayBuffer(8));
  readonly #one = addressOf(this.#scalars);
  readonly #zero = this.#one + 4n;
  readonly #plans = new Map<string, Plan>();
  readonly #solutions = new Map<string, Solution>();
  /** Kept for life: MIOpen has no call that destroys it. */
  #mhaDescriptor: Handle | undefined;
  #mhaScalars: { readonly host: DataView; readonly at: DevicePtr } | undefined;
  #closed = false;

  constructor(api: MiopenApi, context: GpuContext, temporary: Temporary) {
    this.#api = api;
    this.#context = context;
    this.#temporary = temporary;
    this.library = api.library;
    this.version = `MIOpen ${api.version}`;
    this.#scalars[0] = 1;
    context.activate();
    const out = new BigUint64Array(1);
    api.check(api.calls.create(out, context.stream), "create");
    this.#handle = out[0]!;
  }

  get hasAttention(): boolean {
    return this.#api.attention !== null;
  }

  softmax({ dtype, rows, cols, x, y, log }: Softmax): void {
    using d = this.#begin();
    const desc = d.tensor(dtype, rows, cols, 1, 1);
    const algorithm = log ? softmaxAlgorithm.log : softmaxAlgorithm.accurate;
    const { softmax } = this.#api.calls;
    this.#api.check(
      softmax(this.#handle, this.#one, desc, x, this.#zero, desc, y, algorithm, softmaxInstance),
      "softmax",
    );
  }

  activation({ dtype, activation, param, numel, x, y }: Activate): void {
    using d = this.#begin();
    // tanh is β·tanh(α·x); the others have at most an α.
    const mode = d.activation(activationMode[activation], activation === "tanh" ? 1 : param, 1);
    const desc = d.tensor(dtype, numel);
    const run = this.#api.calls.activation;
    this.#api.check(run(this.#handle, mode, this.#one, desc, x, this.#zero, desc, y), "activation");
  }

  conv2d(p: Convolution): void {
    using d = this.#begin();
    const [xDesc, wDesc, yDesc] = [p.input, p.kernel, p.output].map((dims) => d.tensor(p.dtype, ...dims));
    const conv = d.convolution(convolutionMode, [...p.padding, ...p.stride, ...p.dilation], p.groups);
    const key = [p.dtype, p.input, p.kernel, p.padding, p.stride, p.dilation, p.groups].join();
    const { algorithm, bytes } = recall(this.#plans, key, () => this.#find(p, xDesc!, wDesc!, conv, yDesc!));
    this.#workspace(bytes, (workspace) =>
      this.#api.check(
        // biome-ignore format: one line per operand
        this.#api.calls.conv(this.#handle,
          this.#one, xDesc!, p.x,
          wDesc!, p.w, conv, algorithm,
          this.#zero, yDesc!, p.y,
          workspace, bytes),
        "conv",
      ),
    );
  }

  pool2d(p: Pooling): void {
    using d = this.#begin();
    const pool = d.pooling(poolingMode[p.kind], [...p.kernel, 0, 0, ...p.stride]);
    const [xDesc, yDesc] = [d.tensor(p.dtype, ...p.input), d.tensor(p.dtype, ...p.output)];
    // Only a backward pass wants the positions of the maxima, and memory for them.
    const run = this.#api.calls.pool;
    this.#api.check(run(this.#handle, pool, this.#one, xDesc, p.x, this.#zero, yDesc, p.y, 0, 0n, 0), "pool");
  }

  batchNorm(p: BatchNorm): void {
    using d = this.#begin();
    const desc = d.tensor(p.dtype, ...p.input);
    const perChannel = d.tensor("f32", 1, p.input[1], 1, 1);
    this.#api.check(
      // biome-ignore format: one line per operand
      this.#api.calls.batchNorm(this.#handle, batchNormSpatial, this.#one, this.#zero,
        desc, p.x,
        desc, p.y,
        perChannel, p.scale, p.bias, p.mean, p.variance, p.epsilon),
      "batchNorm",
    );
  }

  attention(p: Attention): void {
    const calls = this.#api.attention ?? fail("UnsupportedOp", `${this.version} has no attention, which came with 3.2`);
    this.#open();
    const [n, heads, length] = p.dims;
    const { handle, bytes } = recall(
      this.#solutions,
      `${p.dims} ${p.scale}`,
      () => this.#solve(p),
      (old) => this.#api.check(calls.solutionDestroy(old.handle), "solutionDestroy"),
    );
    const statistics = align(n * heads * length * 4);
    // The statistics of the rows are written whether they are wanted or not.
    this.#temporary(2 * statistics + bytes, (at) => {
      const rows = { m: BigInt(at), zInv: BigInt(at + statistics) };
      const buffers = { k: p.k, q: p.q, v: p.v, o: p.y, ...rows, ...this.#mhaScalarAddresses() };
      const tensors = new DataView(new ArrayBuffer(Object.keys(buffers).length * mhaArgumentBytes));
      Object.entries(buffers).forEach(([name, buffer], i) => {
        tensors.setUint32(i * mhaArgumentBytes, mhaTensor[name as MhaTensor], true);
        tensors.setBigUint64(i * mhaArgumentBytes + 16, buffer, true);
      });
      const workspace = bytes === 0 ? 0n : BigInt(at + 2 * statistics);
      const count = tensors.byteLength / mhaArgumentBytes;
      this.#api.check(calls.run(this.#handle, handle, count, tensors, workspace, bytes), "run");
    });
  }

  close(): void {
    if (this.#closed) return;
    this.#open();
    this.#closed = true;
    const { calls, attention, check } = this.#api;
    for (const { handle } of this.#solutions.values()) check(attention!.solutionDestroy(handle), "solutionDestroy");
    if (this.#mhaScalars) this.#context.free(this.#mhaScalars.at);
    check(calls.destroy(this.#handle), "destroy");
  }

  #open(): void {
    if (this.#closed) fail("Disposed", `${this.version} is closed`);
    this.#context.activate();
  }

  #begin(): Descriptors {
    this.#open();
    return new Descriptors(this.#api);
  }

  #workspace(bytes: number, run: (workspace: DevicePtr) => void): void {
    if (bytes === 0) run(0n);
    else this.#temporary(bytes, (at) => run(BigInt(at)));
  }

  /** The fastest algorithm by MIOpen's own search, which runs them on the operands. */
  #find(p: Convolution, xDesc: Handle, wDesc: Handle, conv: Handle, yDesc: Handle): Plan {
    const { calls, check } = this.#api;
    const size = new BigUint64Array(1);
    check(calls.convWorkspace(this.#handle, wDesc, xDesc, conv, yDesc, size), "convWorkspace");
    const found = new Int32Array(1);
    const results = new DataView(new ArrayBuffer(MAX_RESULTS * convolutionResultBytes));
    this.#workspace(Number(size[0]), (workspace) =>
      check(
        // biome-ignore format: one line per operand
        calls.convFind(this.#handle,
          xDesc, p.x, wDesc, p.w, conv, yDesc, p.y,
          MAX_RESULTS, found, results,
          workspace, size[0]!, 0),
        "convFind",
      ),
    );
    if (found[0]! < 1) {
      fail(
        "UnsupportedOp",
        `${this.version} has no algorithm for a ${p.dtype} convolution of ${p.input.join("×")} with ${p.kernel.join("×")}; use a device opened without MIOpen`,
      );
    }
    // The fastest comes first.
    return { algorithm: results.getInt32(0, true), bytes: Number(results.getBigUint64(8, true)) };
  }

  #solve(p: Attention): Solution {
    const calls = this.#api.attention!;
    const { check } = this.#api;
    const out = new BigUint64Array(1);
    if (this.#mhaDescriptor === undefined) {
      check(calls.descCreate(out), "descCreate");
      this.#mhaDescriptor = out[0]!;
    }
    check(calls.descSet(this.#mhaDescriptor, p.scale), "descSet");
    check(calls.problemCreate(out, this.#mhaDescriptor, directionForward), "problemCreate");
    const problem = out[0]!;
    try {
      using d = new Descriptors(this.#api);
      const set = (name: MhaTensor, tensor: Handle): void =>
        check(calls.problemTensor(problem, mhaTensor[name], tensor), "problemTensor");
      const [n, heads, length] = p.dims;
      for (const name of ["q", "k", "v", "o"] as const) set(name, d.tensor("f32", ...p.dims));
      for (const name of ["m", "zInv"] as const) set(name, d.tensor("f32", n, heads, length, 1));
      for (const name of [...scales, ...zeros]) set(name, d.tensor(wideScalars.includes(name) ? "i64" : "f32", 1));
      const found = new BigUint64Array(1);
      check(calls.find(this.#handle, problem, 0n, out, found, 1), "find");
      if (found[0] === 0n) {
        fail(
          "UnsupportedOp",
          `${this.version} has no attention for ${p.dims.join("×")}; it may be built without rocBLAS`,
        );
      }
      const handle = out[0]!;
      check(calls.workspace(handle, out), "workspace");
      return { handle, bytes: Number(out[0]) };
    } finally {
      check(calls.problemDestroy(problem), "problemDestroy");
    }
  }

  /** Scales of 1, no dropout, and room for the maxima, each in eight bytes; uploaded once. */
  #mhaScalarAddresses(): Record<(typeof scales)[number] | (typeof zeros)[number], DevicePtr> {
    if (!this.#mhaScalars) {
      const host = new DataView(new ArrayBuffer(8 * (scales.length + zeros.length)));
      scales.forEach((_, i) => {
        host.setFloat32(8 * i, 1, true);
      });
      const at = this.#context.malloc(host.byteLength);
      this.#mhaScalars = { host, at };
      this.#context.copyToDevice(at, addressOf(host), host.byteLength);
    }
    const { at } = this.#mhaScalars;
    const entries = [...scales, ...zeros].map((name, i) => [name, at + BigInt(8 * i)]);
    return Object.fromEntries(entries) as Record<(typeof scales)[number] | (typeof zeros)[number], DevicePtr>;
  }
}

/** What was made for a key before, or what `make` gives now. */
function recall<T>(kept: Map<string, T>, key: string, make: () => T, forget: (old: T) => void = () => {}): T {
  const known = kept.get(key);
  if (known !== undefined) return known;
  const made = make();
  kept.set(key, made);
  if (kept.size > MAX_PLANS) {
    const [oldest, value] = kept.entries().next().value!;
    kept.delete(oldest);
    forget(value);
  }
  return made;
}
