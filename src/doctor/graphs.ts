/** Work recorded once and replayed gives what the ops give by themselves, on whatever is in its inputs by then. */
import { Device } from "../backend/device.ts";
import type { Gpu } from "../backend/gpu/gpu.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, expectThat, type Say } from "./check.ts";
import { gpuOf } from "./gpu-of.ts";

const SIZE = 24;

export async function checkGraphs(name: string, say: Say): Promise<Check[]> {
  const device = Device.from(name);
  const gpu = gpuOf(name)!;
  const { recordingProblem } = gpu.context;
  if (recordingProblem !== null) {
    return [{ name: "recording", verdict: "skipped", detail: `decoding goes step by step: ${recordingProblem}` }];
  }
  const kernels = (x: Tensor): Tensor => {
    using a = x.affine(0.5, -1);
    using b = a.exp();
    using c = b.add(x);
    using t = c.transpose(0, 1);
    using packed = t.contiguous();
    return packed.sum(1);
  };
  const product = (x: Tensor): Tensor => {
    using y = x.affine(1, 1);
    return x.matmul(y);
  };
  return [
    await check(say, "kernels recorded and replayed", () => replay(gpu, device, kernels)),
    await check(say, `a product by ${gpu.blas?.version ?? "Wick's own kernels"} recorded and replayed`, () =>
      replay(gpu, device, product),
    ),
  ];
}

async function replay(gpu: Gpu, device: Device, run: (x: Tensor) => Tensor): Promise<string> {
  const inputs = [1, 2, 3].map((seed) => Tensor.rand([SIZE, SIZE], { seed }));
  const results: Tensor[] = [];
  using x = Tensor.zeros([SIZE, SIZE], { device });
  try {
    // Once beforehand: kernels are compiled and the memory is there.
    run(x).dispose();
    await device.synchronize();
    gpu.context.beginCapture();
    let failed = true;
    try {
      results.push(run(x));
      failed = false;
    } finally {
      // A recording that is left open would swallow all later work.
      if (failed) abandon(gpu);
    }
    const graph = gpu.context.endCapture();
    try {
      for (const input of inputs) {
        gpu.write(x.storage, 0, input.bytesSync());
        gpu.context.launchGraph(graph);
        const got = await results[0]!.data();
        using expected = run(input);
        const want = expected.dataSync();
        const at = want.findIndex(
          (w, i) => !(Math.abs(Number(got[i]) - Number(w)) <= 1e-4 * (1 + Math.abs(Number(w)))),
        );
        expectThat(at < 0, () => `element ${at} of the replay is ${got[at]}, not ${want[at]}`);
      }
    } finally {
      gpu.context.destroyGraph(graph);
    }
    return `${inputs.length} replays give what the ops give`;
  } finally {
    for (const tensor of [...inputs, ...results]) tensor.dispose();
  }
}

function abandon(gpu: Gpu): void {
  try {
    gpu.context.destroyGraph(gpu.context.endCapture());
  } catch {
    // The error that broke the recording is the one to tell.
  }
}
