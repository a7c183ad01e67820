/** What `/metrics` tells: requests, tokens, times, the engines' state and the process's memory. */
import type { Device } from "../../backend/device.ts";
import type { ExchangeRecord } from "./exchange.ts";
import { Counter, exposition, Histogram, type Reading, reading } from "./prometheus.ts";
import type { ModelStatus, Registry } from "./registry.ts";

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];

export class ServerMetrics {
  readonly requests = new Counter("wick_requests_total", "Requests that have ended, by route and status.");
  readonly duration = new Histogram("wick_request_seconds", "Time from a request to the end of its answer.", SECONDS);
  readonly promptTokens = new Counter("wick_prompt_tokens_total", "Tokens of prompts.");
  readonly cachedTokens = new Counter("wick_cached_tokens_total", "Tokens of prompts that were in the cache already.");
  readonly generatedTokens = new Counter("wick_generated_tokens_total", "Tokens of answers.");
  readonly firstToken = new Histogram("wick_first_token_seconds", "Time to an answer's first token.", SECONDS);
  readonly betweenTokens = new Histogram("wick_between_tokens_seconds", "Time between tokens of an answer.", SECONDS);
  /** Requests whose answer is not complete. */
  active = 0;

  ended(record: ExchangeRecord): void {
    const { route, status, ms } = record;
    this.requests.add({ route, status: String(status) });
    this.duration.observe({ route }, ms / 1000);
  }

  text(registry: Registry, devices: readonly Device[]): string {
    const { status } = registry;
    const of = (value: (model: ModelStatus) => number | undefined): Reading[] =>
      status.flatMap((model) => {
        const found = value(model);
        return found === undefined ? [] : [[{ model: model.id }, found] as const];
      });
    const memory = process.memoryUsage();
    const cpu = process.cpuUsage();
    return exposition([
      this.requests,
      this.duration,
      reading("wick_requests_active", "Requests that are being answered.", "gauge", () => [[{}, this.active]]),
      this.promptTokens,
      this.cachedTokens,
      this.generatedTokens,
      this.firstToken,
      this.betweenTokens,
      reading("wick_running", "Answers that get tokens.", "gauge", () => of(({ stats }) => stats?.running)),
      reading("wick_waiting", "Answers that wait for their turn.", "gauge", () => of(({ stats }) => stats?.waiting)),
      reading("wick_cache_pages", "Pages of the cache, by what they are for.", "gauge", () =>
        status.flatMap(({ id, stats }) =>
          Object.entries(stats?.pages ?? {}).map(([state, count]) => [{ model: id, state }, count] as const),
        ),
      ),
      reading("wick_preemptions_total", "Answers that were set back for want of pages.", "counter", () =>
        of(({ stats, past }) => past.preemptions + (stats?.preemptions ?? 0)),
      ),
      reading("wick_steps_total", "Steps of the engines.", "counter", () =>
        of(({ stats, past }) => past.steps + (stats?.steps ?? 0)),
      ),
      reading("wick_model_state", "1 for the state that a model is in.", "gauge", () =>
        status.flatMap(({ id, state }) =>
          ["unloaded", "loading", "ready"].map((name) => [{ model: id, state: name }, Number(name === state)] as const),
        ),
      ),
      reading("wick_model_load_progress", "How much of a model is loaded.", "gauge", () =>
        of(({ state, progress }) => (state === "ready" ? 1 : progress)),
      ),
      reading(
        "wick_device_memory_bytes",
        "Bytes that tensors hold on the device, bytes kept for reuse, and bytes of files that tensors show in place.",
        "gauge",
        () =>
          devices.flatMap((device) => {
            const { live, cached, mapped } = device.memory();
            return [
              [{ device: device.name, state: "live" }, live],
              [{ device: device.name, state: "cached" }, cached],
              ...(mapped === undefined ? [] : [[{ device: device.name, state: "mapped" }, mapped] as const]),
            ] as const;
          }),
      ),
      reading("process_resident_memory_bytes", "Resident memory.", "gauge", () => [[{}, memory.rss]]),
      reading("nodejs_heap_used_bytes", "Used part of JavaScript's heap.", "gauge", () => [[{}, memory.heapUsed]]),
      reading("nodejs_heap_total_bytes", "What that heap has taken, garbage included.", "gauge", () => [
        [{}, memory.heapTotal],
      ]),
      reading("nodejs_external_memory_bytes", "Memory outside that heap.", "gauge", () => [[{}, memory.external]]),
      reading("process_cpu_seconds_total", "CPU time.", "counter", () => [[{}, (cpu.user + cpu.system) / 1e6]]),
      reading("process_start_time_seconds", "When the process started.", "gauge", () => [
        [{}, Math.round(Date.now() / 1000 - process.uptime())],
      ]),
    ]);
  }
}
