// Once, before the workers start: each of them would build the simulator for itself.
import { buildSim } from "../../sim/build.mjs";

export async function setup(): Promise<void> {
  // Where it cannot be built, devices.ts says so.
  await buildSim().catch(() => undefined);
}
