/** A GPU on which MIOpen does what it does just as Wick would; all else is done by Wick's kernels. */
import type { UnaryOp, View } from "../../../backend.ts";
import type { ConvParams, PoolParams, SdpaParams } from "../../../fused-ops.ts";
import type { Storage } from "../../../storage.ts";
import { GpuBackend } from "../../backend.ts";
import type { HipPlatform } from "../hip.ts";
import { activationMode } from "./api.ts";
import type { Activation } from "./dnn.ts";
import { Miopen } from "./miopen.ts";
import { MiopenOps } from "./ops.ts";

const isActivation = (op: string): op is Activation => op in activationMode;

export class MiopenBackend extends GpuBackend {
  readonly miopen: MiopenOps;

  constructor(name: string, platform: HipPlatform, ordinal: number) {
    // The library is looked for before the device is opened, so that nothing is left behind where there is none.
    const api = platform.miopen();
    super(name, platform, ordinal);
    try {
      this.miopen = new MiopenOps(this, new Miopen(api, this.context, (bytes, run) => this.temporary(bytes, run)));
    } catch (error) {
      this.context.close();
      throw error;
    }
  }

  override unary(op: UnaryOp, x: View, param: number): Storage {
    if (isActivation(op) && this.miopen.takes(op, this.miopen.limits.activation(op, x))) {
      return this.miopen.activation(op, x, param);
    }
    return super.unary(op, x, param);
  }

  override softmax(x: View, log: boolean): Storage {
    const takes = this.miopen.takes(log ? "logSoftmax" : "softmax", this.miopen.limits.softmax(x, log));
    return takes ? this.miopen.softmax(x, log) : super.softmax(x, log);
  }

  override conv2d(x: View, w: View, p: ConvParams): Storage {
    const takes = this.miopen.takes("conv2d", this.miopen.limits.conv2d(x, w, p));
    return takes ? this.miopen.conv2d(x, w, p) : super.conv2d(x, w, p);
  }

  override pool2d(kind: "avg" | "max", x: View, p: PoolParams): Storage {
    const takes = this.miopen.takes(`${kind}Pool2d`, this.miopen.limits.pool2d(kind, x));
    return takes ? this.miopen.pool2d(kind, x, p) : super.pool2d(kind, x, p);
  }

  override sdpa(q: View, k: View, v: View, mask: View | null, p: SdpaParams): Storage | null {
    const takes = this.miopen.takes("sdpa", this.miopen.limits.sdpa(q, k, v, mask, p));
    return takes ? this.miopen.sdpa(q, k, v, mask, p) : super.sdpa(q, k, v, mask, p);
  }
}
