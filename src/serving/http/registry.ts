/**
 * The models of a server: loaded when they are first asked for, once for all who ask meanwhile, and put aside when memory is
 * short, the one that was not asked for the longest first and never one that answers.
 */
import { basename } from "node:path";
import type { Device } from "../../backend/device.ts";
import { shownBytes } from "../../backend/usage.ts";
import { WickError } from "../../core/errors.ts";
import { plainTemplate } from "../../models/chat/chat.ts";
import type { Model } from "../../models/model.ts";
import type { ChatTemplate } from "../../models/text/chat-template.ts";
import { Grammars } from "../grammar/grammars.ts";
import type { Engine, EngineStats } from "../request.ts";
import { ApiError, snake } from "./errors.ts";

export type ModelKind = "chat" | "completion" | "embedding";
export type ModelState = "unloaded" | "loading" | "ready";

export interface LoadRequest {
  readonly name: string;
  /** The most bytes that it may take; undefined where the device alone decides. */
  readonly memory: number | undefined;
  readonly signal: AbortSignal;
  readonly onProgress: (phase: "download" | "load", progress: number) => void;
}

export interface RegistryOptions {
  readonly models: readonly { readonly id: string; readonly name: string }[];
  readonly load: (request: LoadRequest) => Promise<Model>;
  /** `memory` is what of the limit is left for keys and values; undefined where there is none. */
  readonly openEngine: (model: Model, memory: number | undefined) => Engine | Promise<Engine>;
  /** Where they are loaded. */
  /** Where models may lie. */
  readonly device: Device | readonly Device[];
  /** What all models together may take of the device's memory. */
  readonly memory?: number | undefined;
  /** How long a model may wait for others to end what they answer, where memory is short. */
  readonly waitSeconds?: number | undefined;
  readonly onEvent?: ((event: "loaded" | "failed" | "put_aside", id: string, detail: unknown) => void) | undefined;
}

interface Loaded {
  readonly model: Model;
  /** Null where the model only embeds. */
  readonly engine: Engine | null;
  /** A plain one, where the model came without. */
  readonly template: ChatTemplate;
  readonly bytes: number;
  /** Made when the first is asked for. */
  grammars: Grammars | null;
}

interface Entry {
  readonly id: string;
  readonly name: string;
  state: ModelState;
  phase: "download" | "load";
  progress: number;
  /** The code of the last failure. */
  error: string | null;
  loaded: Loaded | null;
  loading: Promise<Loaded> | null;
  /** Requests that hold it, or wait for it. */
  users: number;
  lastUsed: number;
  known: { readonly kind: ModelKind; readonly contextLength: number } | null;
  /** What earlier engines of it have counted. */
  past: Pick<EngineStats, "preemptions" | "steps">;
}

/** A model that cannot be put aside until this is disposed. */
export interface Lease extends Disposable {
  readonly id: string;
  readonly model: Model;
  readonly template: ChatTemplate;
  /** Fails for a model that only embeds. */
  readonly engine: Engine;
  readonly grammars: Grammars;
}

export interface ModelStatus extends Pick<Entry, "id" | "state" | "phase" | "progress" | "error" | "known"> {
  readonly stats: EngineStats | null;
  readonly past: Entry["past"];
  readonly bytes: number;
  readonly isDefault: boolean;
}

/** What clients call a model: its name at the hub, or of a file or folder nothing that tells where it lies. */
export function idOf(name: string): string {
  if (/^https?:/i.test(name) || /^\.{0,2}\//.test(name) || /[\\]|^file:|\.gguf$/i.test(name)) {
    return basename(name.replace(/[\\/]+$/, "").replaceAll("\\", "/")).replace(/\.gguf$/i, "");
  }
  return name.replace(/^hf:(\/\/)?/i, "");
}

export class Registry implements AsyncDisposable {
  readonly #options: RegistryOptions;
  readonly #entries: ReadonlyMap<string, Entry>;
  /** Loads happen one after another: each must know what the ones before have left. */
  #turn: Promise<unknown> = Promise.resolve();
  readonly #abort = new AbortController();
  #released = () => {};
  /** Whether any model has been loaded yet. */
  wasReady = false;

  constructor(options: RegistryOptions) {
    this.#options = options;
    const entry = ({ id, name }: { id: string; name: string }): Entry => ({
      id,
      name,
      state: "unloaded",
      phase: "load",
      progress: 0,
      error: null,
      loaded: null,
      loading: null,
      users: 0,
      lastUsed: 0,
      known: null,
      past: { preemptions: 0, steps: 0 },
    });
    this.#entries = new Map(options.models.map((model) => [model.id, entry(model)]));
  }

  get status(): ModelStatus[] {
    return [...this.#entries.values()].map((entry, i) => ({
      ...entry,
      stats: entry.loaded?.engine?.stats ?? null,
      bytes: entry.loaded?.bytes ?? 0,
      isDefault: i === 0,
    }));
  }

  /** Without an id: the first. */
  async acquire(id: string | undefined, signal: AbortSignal): Promise<Lease> {
    signal.throwIfAborted();
    const entry = id === undefined ? [...this.#entries.values()][0] : this.#entries.get(id);
    if (!entry) {
      throw new ApiError(
        404,
        "model_not_found",
        `there is no model ${JSON.stringify(id)} here; /v1/models lists them`,
        {
          param: "model",
        },
      );
    }
    entry.users++;
    try {
      const loaded = entry.loaded ?? (await unlessAborted(this.#load(entry), signal));
      return this.#lease(entry, loaded);
    } catch (error) {
      this.#release(entry);
      throw error;
    }
  }

  #lease(entry: Entry, loaded: Loaded): Lease {
    const { model, template, engine } = loaded;
    let isHeld = true;
    return {
      id: entry.id,
      model,
      template,
      get engine() {
        if (engine) return engine;
        throw new ApiError(400, "model_not_supported", `${entry.id} embeds texts and generates none: /v1/embeddings`, {
          param: "model",
        });
      },
      get grammars() {
        loaded.grammars ??= grammarsOf(model);
        return loaded.grammars;
      },
      [Symbol.dispose]: () => {
        if (isHeld) this.#release(entry);
        isHeld = false;
      },
    };
  }

  #release(entry: Entry): void {
    entry.users--;
    entry.lastUsed = performance.now();
    this.#released();
  }

  #load(entry: Entry): Promise<Loaded> {
    if (entry.loading) return entry.loading;
    entry.state = "loading";
    entry.progress = 0;
    const loading = this.#turn.then(() => this.#loadNow(entry));
    entry.loading = loading;
    this.#turn = loading.then(
      (loaded) => {
        entry.loaded = loaded;
        entry.state = "ready";
        this.wasReady = true;
        entry.error = null;
        this.#options.onEvent?.("loaded", entry.id, loaded.model.toString());
      },
      (error: unknown) => {
        entry.state = "unloaded";
        entry.error = error instanceof ApiError ? error.code : "model_load_failed";
        this.#options.onEvent?.("failed", entry.id, error);
      },
    );
    const done = () => {
      entry.loading = null;
    };
    this.#turn.then(done, done);
    return loading;
  }

  async #loadNow(entry: Entry): Promise<Loaded> {
    const until = performance.now() + (this.#options.waitSeconds ?? 60) * 1000;
    for (;;) {
      try {
        return await this.#open(entry);
      } catch (error) {
        if (!(error instanceof WickError)) throw error;
        if (error.code === "OutOfMemory" && (await this.#makeRoom(until))) continue;
        throw error.code === "OutOfMemory"
          ? new ApiError(503, "out_of_memory", `there is no memory to load ${entry.id} now`, {
              retryAfter: 10,
              cause: error,
            })
          : new ApiError(500, "model_load_failed", `${entry.id} could not be loaded (${snake(error.code)})`, {
              cause: error,
            });
      }
    }
  }

  /** Bytes that tensors show. */
  get #shown(): number {
    return [this.#options.device].flat().reduce((sum, device) => sum + shownBytes(device.memory()), 0);
  }

  async #open(entry: Entry): Promise<Loaded> {
    const { memory, load, openEngine } = this.#options;
    const before = this.#shown;
    const used = [...this.#entries.values()].reduce((sum, { loaded }) => sum + (loaded?.bytes ?? 0), 0);
    const model = await load({
      name: entry.name,
      memory: memory === undefined ? undefined : memory - used,
      signal: this.#abort.signal,
      onProgress: (phase, progress) => {
        entry.phase = phase;
        entry.progress = progress;
      },
    });
    try {
      const isEncoder = model.config.encoder !== null;
      const left = memory === undefined ? undefined : memory - used - (this.#shown - before);
      const engine = isEncoder ? null : await openEngine(model, left);
      const kind = isEncoder ? "embedding" : model.chatTemplate ? "chat" : "completion";
      entry.known = { kind, contextLength: model.config.contextLength };
      const template = model.chatTemplate ?? plainTemplate(model);
      return { model, engine, template, grammars: null, bytes: Math.max(0, this.#shown - before) };
    } catch (error) {
      model.dispose();
      throw error;
    }
  }

  /** Puts aside the model that was not asked for the longest, or waits until one can be; false where none will be. */
  async #makeRoom(until: number): Promise<boolean> {
    for (;;) {
      const loaded = [...this.#entries.values()].filter((entry) => entry.loaded);
      const idle = loaded.filter((entry) => entry.users === 0).sort((a, b) => a.lastUsed - b.lastUsed);
      if (idle[0]) {
        await this.#putAside(idle[0]);
        return true;
      }
      const left = until - performance.now();
      if (loaded.length === 0 || left <= 0 || this.#abort.signal.aborted) return false;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#released = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  async #putAside(entry: Entry): Promise<void> {
    const { model, engine, grammars } = entry.loaded!;
    entry.loaded = null;
    entry.state = "unloaded";
    entry.progress = 0;
    const { preemptions, steps } = engine?.stats ?? { preemptions: 0, steps: 0 };
    entry.past = { preemptions: entry.past.preemptions + preemptions, steps: entry.past.steps + steps };
    await engine?.[Symbol.asyncDispose]();
    grammars?.[Symbol.dispose]();
    model.dispose();
    this.#options.onEvent?.("put_aside", entry.id, null);
  }

  /** Takes no more, and waits for what runs. */
  async drain(): Promise<void> {
    await Promise.all([...this.#entries.values()].map(({ loaded }) => loaded?.engine?.drain()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#abort.abort();
    this.#released();
    await this.#turn;
    for (const entry of this.#entries.values()) if (entry.loaded) await this.#putAside(entry);
  }
}

function grammarsOf({ tokenizer, config }: Model): Grammars {
  if (!tokenizer) throw new ApiError(400, "model_not_supported", "the model has no tokenizer, and so no grammars");
  return new Grammars({ tokenizer, vocabSize: config.vocabSize, eosTokens: config.eosTokens });
}

/** The load goes on for others when one of those who wait for it leaves. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let leave = () => {};
  const left = new Promise<never>((_, reject) => {
    leave = () => reject(signal.reason);
    signal.addEventListener("abort", leave, { once: true });
  });
  // Of a failure nobody waits for any more, the log tells.
  work.catch(() => {});
  try {
    return await Promise.race([work, left]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}
