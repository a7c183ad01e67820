/** Memory: transfers come back unchanged, blocks are reused and given back, and too much is an error, not the end. */
import { Device } from "../backend/device.ts";
import { formatBytes } from "../backend/usage.ts";
import { WickError } from "../core/errors.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, expectThat, type Say } from "./check.ts";
import { gpuOf, isSimulated } from "./gpu-of.ts";

export async function checkMemory(name: string, say: Say): Promise<Check[]> {
  const device = Device.from(name);
  const bytes = isSimulated(name) ? 2 ** 20 + 3 : 64 * 2 ** 20 + 3;
  return [
    await check(say, "transfers", () => transfer(device, bytes)),
    await check(say, "allocate and free", () => churn(device)),
    await check(say, "out of memory", () => overflow(device)),
  ];
}

/** There and back, in pieces that are not round, by both ways of reading. */
async function transfer(device: Device, bytes: number): Promise<string> {
  const sent = new Uint8Array(bytes);
  // A multiplicative hash: no two neighbouring pages are alike, so misplaced pieces show.
  for (let i = 0; i < bytes; i++) sent[i] = Math.imul(i, 0x9e3779b1) >>> 24;
  using there = Tensor.fromBytes(sent, [bytes], "u8", device);
  using part = there.narrow(0, 1, bytes - 2);
  for (const got of [await there.bytes(), there.bytesSync()]) requireSame(got, sent);
  requireSame(await part.bytes(), sent.subarray(1, -1));
  return `${formatBytes(bytes)} to the device and back, unchanged`;
}

function requireSame(got: Uint8Array, want: Uint8Array): void {
  expectThat(got.length === want.length, () => `${got.length} bytes came back, not ${want.length}`);
  if (Buffer.compare(got, want) === 0) return;
  const at = got.findIndex((byte, i) => byte !== want[i]);
  throw new Error(`byte ${at} came back as ${got[at]}, not ${want[at]}`);
}

function churn(device: Device): string {
  const before = device.memory().live;
  const held: Tensor[] = [];
  let count = 0;
  for (let turn = 0; turn < 4; turn++) {
    for (const n of [1, 100, 4097, 65536, 300_001]) {
      held.push(Tensor.full([n], turn, { device }));
      count++;
    }
    for (const tensor of held.splice(0, 3)) tensor.dispose();
  }
  for (const tensor of held) expectThat(Number(tensor.dataSync().at(-1)) < 4, () => "a live tensor was overwritten");
  for (const tensor of held) tensor.dispose();
  const { live } = device.memory();
  expectThat(live === before, () => `${formatBytes(live - before)} were not given back`);
  device.backend.trim();
  return `${count} tensors, all given back`;
}

async function overflow(device: Device): Promise<string> {
  const info = gpuOf(device.name)?.context.memoryInfo();
  const wanted = info ? 2 * info.total : 2 ** 40;
  try {
    device.backend.free(device.backend.alloc(wanted));
  } catch (error) {
    if (!(error instanceof WickError) || error.code !== "OutOfMemory") throw error;
    using x = Tensor.full([1000], 2, { device });
    using y = x.affine(3, 1);
    expectThat(Number((await y.data())[999]) === 7, () => "the device computes wrongly after an allocation failed");
    return `${formatBytes(wanted)} are refused and the device goes on`;
  }
  // Some drivers back such a block by the host's memory.
  return `${formatBytes(wanted)}, twice what the device has, were granted`;
}
