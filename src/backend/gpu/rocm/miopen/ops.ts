/**
 * MIOpen's operations on views. Each throws `UnsupportedOp` with the reason where MIOpen cannot do it; `limits` answers
 * beforehand, and `routes()` tells afterwards which operations of the device went where, and why.
 */
import { fail } from "../../../../core/errors.ts";
import { formatShape, numel } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams, PoolParams, SdpaParams } from "../../../fused-ops.ts";
import type { Storage } from "../../../storage.ts";
import type { Gpu } from "../../gpu.ts";
import type { MiopenType } from "./api.ts";
import type { Activation, Dims, Dnn } from "./dnn.ts";
import { limits, type Verdict } from "./limits.ts";

/** An operation of the device, by whom it was done, why not by MIOpen (else empty), and how often. */
export interface Route {
  readonly op: string;
  readonly by: "MIOpen" | "Wick";
  readonly why: string;
  readonly times: number;
}

export class MiopenOps {
  readonly #gpu: Gpu;
  readonly #dnn: Dnn;
  readonly #routes = new Map<string, { route: Omit<Route, "times">; times: number }>();
  #only = false;

  constructor(gpu: Gpu, dnn: Dnn) {
    this.#gpu = gpu;
    this.#dnn = dnn;
  }

  /** The library's path. */
  get library(): string {
    return this.#dnn.library;
  }

  get version(): string {
    return this.#dnn.version;
  }

  /** What MIOpen would say to an operation. */
  get limits(): typeof limits {
    if (this.#dnn.hasAttention) return limits;
    const refused = `${this.version} has no attention, which came with 3.2`;
    return { ...limits, sdpa: () => ({ refused, differs: null }) };
  }

  /** Which operations the device did since it was opened, and by whom. */
  routes(): Route[] {
    return [...this.#routes.values()].map(({ route, times }) => ({ ...route, times }));
  }

  /** In `run`, which must not be async, operations that MIOpen has are MIOpen's, or throw the reason why not. */
  only<T>(run: () => T): T {
    const before = this.#only;
    this.#only = true;
    try {
      return run();
    } finally {
      this.#only = before;
    }
  }

  /** Whether an operation goes to MIOpen; noted for `routes()`. */
  takes(op: string, { refused, differs }: Verdict): boolean {
    if (this.#only && refused !== null) return true; // to be thrown
    const why = this.#only ? "" : (refused ?? differs ?? "");
    const route = { op, by: why === "" ? ("MIOpen" as const) : ("Wick" as const), why };
    const key = `${op} ${why}`;
    const entry = this.#routes.get(key) ?? { route, times: 0 };
    entry.times++;
    this.#routes.set(key, entry);
    return why === "";
  }

  softmax(x: View, log: boolean): Storage {
    this.#require("softmax", this.limits.softmax(x, log), x);
    const cols = x.layout.shape.at(-1) ?? 1;
    return this.#map(x, x.layout.numel, (at) => this.#dnn.softmax({ ...at, rows: x.layout.numel / cols, cols, log }));
  }

  activation(activation: Activation, x: View, param: number): Storage {
    this.#require(activation, this.limits.activation(activation, x), x);
    const { numel } = x.layout;
    return this.#map(x, numel, (at) => this.#dnn.activation({ ...at, activation, param, numel }));
  }

  conv2d(x: View, w: View, p: ConvParams): Storage {
    this.#require("conv2d", this.limits.conv2d(x, w, p), x, w);
    const { stride, padding, dilation, groups } = p;
    const [input, kernel] = [x.layout.shape as unknown as Dims, w.layout.shape as unknown as Dims];
    const output: Dims = [input[0], kernel[0], ...p.size];
    return this.#map(x, numel(output), (at) =>
      this.#gpu.packed(w, (weights) =>
        this.#dnn.conv2d({ ...at, w: BigInt(weights), input, kernel, output, stride, padding, dilation, groups }),
      ),
    );
  }

  pool2d(kind: "avg" | "max", x: View, { kernel, stride, size }: PoolParams): Storage {
    this.#require(`${kind}Pool2d`, this.limits.pool2d(kind, x), x);
    const input = x.layout.shape as unknown as Dims;
    const output: Dims = [input[0], input[1], ...size];
    return this.#map(x, numel(output), (at) => this.#dnn.pool2d({ ...at, kind, input, output, kernel, stride }));
  }

  /** The last four are (c) in x's dtype. */
  batchNorm(x: View, mean: View, variance: View, weight: View, bias: View, epsilon: number): Storage {
    this.#require("batchNorm", this.limits.batchNorm(x), x);
    const [b, c, ...rest] = x.layout.shape as [number, number, ...number[]];
    return this.#map(x, x.layout.numel, (at) =>
      this.#allPacked([mean, variance, weight, bias], ([m, v, scale, shift]) =>
        this.#dnn.batchNorm({
          ...at,
          input: [b, c, 1, numel(rest)],
          mean: m!,
          variance: v!,
          scale: scale!,
          bias: shift!,
          epsilon,
        }),
      ),
    );
  }

  sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage {
    this.#require("sdpa", this.limits.sdpa(q, k, v, mask, p), q, k, v);
    const dims = q.layout.shape as unknown as Dims;
    return this.#gpu.filled("f32", numel(dims), (out) =>
      this.#allPacked([q, k, v], ([qAt, kAt, vAt]) =>
        this.#dnn.attention({ q: qAt!, k: kAt!, v: vAt!, y: BigInt(out), dims, scale: p.scale }),
      ),
    );
  }

  #map(
    x: View,
    n: number,
    run: (at: { readonly dtype: MiopenType; readonly x: bigint; readonly y: bigint }) => void,
  ): Storage {
    const dtype = x.storage.dtype as MiopenType; // limits let no other through
    return this.#gpu.filled(dtype, n, (out) =>
      this.#gpu.packed(x, (at) => run({ dtype, x: BigInt(at), y: BigInt(out) })),
    );
  }

  #allPacked(views: readonly View[], run: (at: readonly bigint[]) => void, at: readonly bigint[] = []): void {
    const [next, ...rest] = views;
    if (!next) run(at);
    else this.#gpu.packed(next, (address) => this.#allPacked(rest, run, [...at, BigInt(address)]));
  }

  #require(op: string, { refused }: Verdict, ...views: readonly View[]): void {
    if (refused === null) return;
    const given = views.map((v) => `${v.storage.dtype} ${formatShape(v.layout.shape)}`).join(", ");
    fail(
      "UnsupportedOp",
      `MIOpen does not do ${op} of ${given}: ${refused}; outside of MIOpen's own calls Wick's kernels do it`,
    );
  }
}
