/** The memory that one device may use: what its driver and the system say now, under the user's choice. */
import type { GpuContext, GpuPlatform } from "./driver.ts";
import {
  type HostMemoryChoice,
  type MemoryRoom,
  type MemorySource,
  mapsHost,
  OWN_ONLY,
  roomOf,
} from "./memory-policy.ts";

export class DeviceMemory implements MemorySource {
  maps = false;
  limits = false;
  readonly #context: GpuContext;
  readonly #platform: GpuPlatform;
  #choice: HostMemoryChoice = "never";

  constructor(context: GpuContext, platform: GpuPlatform, choice: HostMemoryChoice) {
    this.#context = context;
    this.#platform = platform;
    this.choice = choice;
  }

  /** Counts for regions taken from now on. */
  set choice(choice: HostMemoryChoice) {
    this.#choice = choice;
    this.maps = mapsHost(this.#kind, choice);
    this.limits = this.#kind.integrated || this.maps;
  }

  room(): MemoryRoom {
    const { busId } = this.#context.properties;
    const { memory } = this.#platform;
    const driver = this.#context.memoryInfo();
    const card = busId === null ? null : memory.card(busId);
    return roomOf({ ...this.#kind, driver, card, host: memory.host(), kernel: memory.kernel }, this.#choice);
  }

  get text(): string {
    return this.limits ? this.room().text : OWN_ONLY;
  }

  get #kind() {
    return { vendor: this.#platform.driver.vendor, integrated: this.#context.properties.integrated };
  }
}
