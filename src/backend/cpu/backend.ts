/** The CPU device: ops that have machine code take it, the others WebAssembly. */
import { chosen } from "../../core/environment.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { BinaryOp, Block, NativeMemory, ReadInto, ReduceOp, UnaryOp, View } from "../backend.ts";
import type { ConvParams, LinearParams, SdpaParams } from "../fused-ops.ts";
import type { PagedAttentionParams } from "../paged-attention.ts";
import type { Storage } from "../storage.ts";
import { addressOfStorage } from "./blocks.ts";
import { CPU_BYTES } from "./engine.ts";
import type { Address, OutAddress } from "./kernels.ts";
import { libc } from "./libc.ts";
import { isaText } from "./native/isa.ts";
import { findNative, type Native } from "./native/native.ts";
import { sdpa, sdpaPages } from "./native/ops/attention.ts";
import { NativeCachedAttention } from "./native/ops/cached-attention.ts";
import { conv2d } from "./native/ops/conv.ts";
import { forgetCopies, refuseCopies } from "./native/ops/copies.ts";
import { linear } from "./native/ops/linear.ts";
import * as map from "./native/ops/map.ts";
import { matmul } from "./native/ops/matmul.ts";
import { type QuantRunner, qmatmul } from "./native/ops/qmatmul.ts";
import * as rows from "./native/ops/rows.ts";
import { settle } from "./native/pending.ts";
import { LARGE_FROM } from "./native-memory.ts";
import { CpuRecorder, forgetRecorded } from "./recorder.ts";
import { recording } from "./recording.ts";
import { StagedBackend } from "./staged-backend.ts";

export class CpuBackend extends StagedBackend {
  readonly cachedAttention = new NativeCachedAttention(this);
  readonly recorder = new CpuRecorder(this, this.usage);
  readonly nativeMemory: NativeMemory = {
    address(storage) {
      settle();
      recording()?.refuse("others work with the memory");
      refuseCopies(storage.block);
      return BigInt(addressOfStorage(storage));
    },
  };
  #native: Native | null | undefined;
  #prefersLargePages = false;
  readonly #planes = chosen("WICK_ACTIVATIONS") === "8bit" ? 1 : 2;

  /** Machine code, looked for at the first op that is worth it; null where there is none. */
  get native(): Native | null {
    if (this.#native === undefined) {
      this.#native = findNative();
      if (this.#native) this.#preferLargePages();
    }
    return this.#native;
  }

  /** Pages stay as they are when they are first written to: many of them before the first op that has machine code. */
  override alloc(bytes: number): Block {
    if (bytes >= LARGE_FROM) this.#preferLargePages();
    return super.alloc(bytes);
  }

  #preferLargePages(): void {
    if (this.#prefersLargePages) return;
    this.#prefersLargePages = true;
    libc()?.preferLargePages(this.engine.base, CPU_BYTES);
  }

  override describe(): string {
    const rest = super.describe();
    return this.native ? `${isaText(this.native.isa)}, ${rest}` : rest;
  }

  override free(block: Block): void {
    forgetCopies(block);
    forgetRecorded(block);
    super.free(block);
  }

  override write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    forgetCopies(dst.block);
    super.write(dst, byteOffset, data);
  }

  override async receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    await super.receive(dst, byteOffset, byteLength, read);
    forgetCopies(dst.block);
  }

  override copy(src: View, dst: View): void {
    forgetCopies(dst.storage.block);
    super.copy(src, dst);
  }

  override scatter(dst: View, ids: View, src: View, dim: number, add: boolean): void {
    forgetCopies(dst.storage.block);
    super.scatter(dst, ids, src, dim, add);
  }

  override indexAdd(dst: View, ids: View, src: View, dim: number): void {
    forgetCopies(dst.storage.block);
    super.indexAdd(dst, ids, src, dim);
  }

  override unary(op: UnaryOp, x: View, param: number): Storage {
    return map.unary(this, op, x) ?? super.unary(op, x, param);
  }

  override affine(x: View, mul: number, add: number): Storage {
    return map.affine(this, x, mul, add) ?? super.affine(x, mul, add);
  }

  override binary(op: BinaryOp, a: View, b: View): Storage {
    return map.binary(this, op, a, b) ?? super.binary(op, a, b);
  }

  override reduce(op: ReduceOp, x: View, dims: number): Storage {
    return (op === "sum" ? rows.sum(this, x, dims) : undefined) ?? super.reduce(op, x, dims);
  }

  override softmax(x: View, log: boolean): Storage {
    return (log ? undefined : rows.softmax(this, x)) ?? super.softmax(x, log);
  }

  override rmsNorm(x: View, weight: View | null, eps: number): Storage {
    return rows.norm(this, x, weight, null, eps, false) ?? super.rmsNorm(x, weight, eps);
  }

  override layerNorm(x: View, weight: View | null, bias: View | null, eps: number): Storage {
    return rows.norm(this, x, weight, bias, eps, true) ?? super.layerNorm(x, weight, bias, eps);
  }

  override sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage {
    return sdpa(this, q, k, v, mask, p) ?? super.sdpa(q, k, v, mask, p);
  }

  protected override attendTurned(
    turned: Address,
    rows: number,
    heads: number,
    p: PagedAttentionParams,
    out: OutAddress,
  ): void {
    const { base } = this.engine;
    for (const { storage } of [p.k, p.v]) refuseCopies(storage.block);
    if (!sdpaPages(this, base + turned, rows, heads, p, base + out)) super.attendTurned(turned, rows, heads, p, out);
  }

  override conv2d(x: View, w: View, p: ConvParams): Storage {
    return conv2d(this, x, w, p) ?? super.conv2d(x, w, p);
  }

  override matmul(a: View, b: View): Storage {
    return (this.native && matmul(this, this.native, a, b)) ?? super.matmul(a, b);
  }

  override qmatmul(type: QuantType, x: View, blocks: View): Storage {
    const runner = this.#quantRunner;
    return (runner && qmatmul(this, runner, type, x, blocks)) ?? super.qmatmul(type, x, blocks);
  }

  /** With its norm, gate and residual in one call, where the weights are quantized. */
  linear(x: View, w: View, type: QuantType | null, p: LinearParams): Storage | null {
    const runner = type && this.#quantRunner;
    return runner ? linear(this, runner, x, w, type, p) : null;
  }

  get #quantRunner(): QuantRunner | null {
    const { native } = this;
    return native && { native, threads: this.engine.threads, planes: this.#planes };
  }
}
