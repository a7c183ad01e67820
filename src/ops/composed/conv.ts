/** Convolutions as one matrix product over the windows, which are unrolled. */
import { call } from "../../backend/call.ts";
import type { ConvParams, Size2d } from "../../backend/fused-ops.ts";
import { Layout } from "../../core/layout.ts";
import { scope } from "../../tensor/scope.ts";
import { Tensor } from "../../tensor/tensor.ts";

const onDeviceOf = ({ dtype, device }: Tensor) => ({ dtype, device });

/** x (b, c, h, w) with zeros around it. */
function padded(x: Tensor, [top, left]: Size2d): Tensor {
  const rows = top === 0 ? x : x.padWithZeros(2, top, top);
  return left === 0 ? rows : rows.padWithZeros(3, left, left);
}

export const conv2d = (x: Tensor, w: Tensor, p: ConvParams): Tensor =>
  scope(() => {
    const [o, inner, kh, kw] = w.shape as [number, number, number, number];
    const { groups, stride, dilation } = p;
    const [oh, ow] = p.size;
    const b = x.shape[0]!;
    const source = padded(x, p.padding);
    const { layout } = source;
    const [sb, sc, sh, sw] = layout.strides as [number, number, number, number];
    const windows = source.view(
      new Layout(
        [b, groups, inner, kh, kw, oh, ow],
        [sb, sc * inner, sc, sh * dilation[0], sw * dilation[1], sh * stride[0], sw * stride[1]],
        layout.offset,
      ),
    );
    const taps = inner * kh * kw;
    const columns = windows.reshape([b, groups, taps, oh * ow]);
    return w
      .reshape([groups, o / groups, taps])
      .matmul(columns)
      .reshape([b, o, oh, ow]);
  });

/** The convolution whose gradient this is, backwards: elements `stride` apart among zeros, under the turned kernel. */
export const convTranspose2d = (x: Tensor, w: Tensor, p: ConvParams): Tensor =>
  scope(() => {
    const [b, c] = x.shape as [number, number, number, number];
    const [, outer, kh, kw] = w.shape as [number, number, number, number];
    const { groups, stride, dilation, size } = p;
    const reach = [dilation[0] * (kh - 1) + 1, dilation[1] * (kw - 1) + 1] as const;
    const spread = Tensor.zeros([b, c, size[0] + reach[0] - 1, size[1] + reach[1] - 1], onDeviceOf(x));
    let [from, to] = [x.layout, spread.layout];
    for (const i of [0, 1] as const) {
      const before = reach[i] - 1 - p.padding[i];
      const end = spread.shape[2 + i]!;
      // Elements that the padding cuts off are left out.
      const first = Math.max(0, Math.ceil(-before / stride[i]));
      const count = Math.max(0, Math.min(x.shape[2 + i]!, Math.ceil((end - before) / stride[i])) - first);
      from = from.narrow(2 + i, count === 0 ? 0 : first, count);
      const at = count === 0 ? 0 : before + first * stride[i];
      to = to.narrow(2 + i, at, count === 0 ? 0 : (count - 1) * stride[i] + 1).step(2 + i, stride[i]);
    }
    call(x.backend, "copy", x.view(from), spread.view(to));
    const turned = w
      .flip([2, 3])
      .reshape([groups, c / groups, outer, kh, kw])
      .transpose(1, 2)
      .reshape([groups * outer, c / groups, kh, kw]);
    return conv2d(spread, turned, { groups, size, dilation, stride: [1, 1], padding: [0, 0] });
  });
