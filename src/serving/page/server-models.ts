/** The models of the server, whether it answers at all, and the key it may want. */
import { ApiError, listModels } from "./api.ts";
import type { Model } from "./model.ts";
import { preference } from "./preferences.ts";

const AGAIN_MS = 3000;
const LOADING_MS = 1000;

export class ServerModels {
  models: readonly Model[] = [];
  /** Null until the server has answered or has failed to. */
  connected: boolean | null = null;
  /** Set by the page: asks the user for the server's key. */
  askKey: (reason: string) => Promise<string | null> = async () => null;
  readonly #onChange: (what: "models" | "connection") => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #asking: Promise<string | null> | null = null;

  constructor(onChange: (what: "models" | "connection") => void) {
    this.#onChange = onChange;
  }

  /** Those that one can talk to. */
  get usable(): readonly Model[] {
    return this.models.filter(({ kind }) => kind !== "embedding");
  }

  /** The first of the names that is one of them, or else the server's own choice. */
  find(...names: readonly (string | null)[]): Model | null {
    const { usable } = this;
    const named = names.map((name) => usable.find(({ id }) => id === name)).find((model) => model !== undefined);
    return named ?? usable.find(({ isDefault }) => isDefault) ?? usable[0] ?? null;
  }

  take(models: readonly Model[]): void {
    this.models = models;
    this.#setConnected(true);
    this.#onChange("models");
  }

  /** Asks, and goes on asking until the server answers and nothing loads any more. */
  async refresh(): Promise<void> {
    try {
      this.take(await listModels(preference("key"), AbortSignal.timeout(10_000)));
      if (this.models.some(({ state }) => state === "loading")) this.#refreshIn(LOADING_MS);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        this.#setConnected(true);
        if ((await this.needKey(error.message)) !== null) await this.refresh();
        return;
      }
      this.#setConnected(false);
      this.#refreshIn(AGAIN_MS);
    }
  }

  /** One question to the user, however many requests wait for it. */
  needKey(reason: string): Promise<string | null> {
    this.#asking ??= this.askKey(reason).finally(() => {
      this.#asking = null;
    });
    return this.#asking;
  }

  #refreshIn(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.refresh(), ms);
  }

  #setConnected(connected: boolean): void {
    if (this.connected === connected) return;
    this.connected = connected;
    this.#onChange("connection");
  }
}
