/** `wick serve`: models behind an API that other programs know already, and a page to talk to them. */
import { fileURLToPath } from "node:url";
import { Command, Option } from "commander";
import { Device } from "../backend/device.ts";
import { variable } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import type { Group } from "../distributed/group.ts";
import { loadModel } from "../models/index.ts";
import { createEngine, followEngine, pagesOfAll } from "../serving/create-engine.ts";
import { Log, type LogForm, logForms } from "../serving/http/log.ts";
import { idOf, type LoadRequest, Registry } from "../serving/http/registry.ts";
import { ApiServer, defaultLimits } from "../serving/http/server.ts";
import {
  addModelOptions,
  bytes,
  collected,
  count,
  devicesNamed,
  isAbort,
  MODEL_NAMES,
  type ModelOptions,
  modelPath,
} from "./model-options.ts";
import { ProgressBar } from "./progress.ts";
import { addRankOptions, joinRanks, type RankOptions } from "./ranks.ts";

/** Where the build puts the page. */
const PAGE = fileURLToPath(new URL("../../dist/serving/page", import.meta.url));
const BUNDLED_ID = "fable-7m";

interface Options extends Omit<ModelOptions, "model">, RankOptions {
  host: string;
  port: number;
  alias?: string[];
  apiKey?: string[];
  allowNoKey?: boolean;
  allowedHost?: string[];
  cors?: string[];
  memory?: number;
  cacheMemory?: number;
  batch?: number;
  batchInvariant?: boolean;
  maxBody: number;
  maxPrompt?: number;
  maxAnswers: number;
  maxChoices: number;
  maxConnections: number;
  requestTimeout: number;
  drainTimeout: number;
  log?: LogForm;
}

export function serveCommand(version: string): Command {
  const command = new Command("serve")
    .description("Answer over HTTP as OpenAI's API does, with a page to talk to the model")
    .argument("[models...]", "the models; the first is loaded at once, others when they are asked for")
    .option("--host <address>", "where to listen; others than this machine need a key", "127.0.0.1")
    .option("--port <n>", "0 is any that is free", count(0), 8080)
    .option("--alias <id>", "what clients call the first model, the second, and so on", collected)
    .option("--api-key <key>", "clients must send it, or one of several (default: WICK_API_KEY)", collected)
    .option("--allow-no-key", "listen elsewhere than on this machine without a key")
    .option("--allowed-host <name>", "a further name by which clients reach the server", collected)
    .option("--cors <origin>", "pages of this origin may use the server; * is all", collected)
    .option("--memory <bytes>", "what the models together may take of the device, as 8GiB", bytes)
    .option("--cache-memory <bytes>", "what a model's keys and values may take (default: most of what is left)", bytes)
    .option("--batch <n>", "answers that get tokens at once (default: 64, on the CPU 16)", count(1))
    .option("--batch-invariant", "the same text whatever else is answered, on a GPU too, which is slower then")
    .option("--max-body <bytes>", "the most bytes of a request", bytes, defaultLimits.bodyBytes)
    .option("--max-prompt <n>", "the most tokens of a prompt (default: what the context holds)", count(1))
    .option("--max-answers <n>", "answers under way at once, those that wait included", count(1), defaultLimits.answers)
    .option("--max-choices <n>", "the most answers to one request", count(1), defaultLimits.choices)
    .option("--max-connections <n>", "connections at once", count(1), 4096)
    .option("--request-timeout <s>", "seconds until an answer must be complete", count(1), defaultLimits.requestSeconds)
    .option("--drain-timeout <s>", "seconds that answers may go on when the server is to end", count(0), 30)
    .addOption(
      new Option("--log <form>", "what stderr tells of requests (default: text on a terminal, else json)").choices(
        logForms,
      ),
    );
  return addRankOptions(addModelOptions(command, { named: false }))
    .addHelpText(
      "after",
      `
Examples:
  wick serve
  wick serve Qwen/Qwen3-0.6B --port 8080
  wick serve ./chat.gguf BAAI/bge-small-en-v1.5 --alias chat --alias embed
  WICK_API_KEY=secret wick serve Qwen/Qwen3-0.6B --host 0.0.0.0
${MODEL_NAMES}

Ctrl-C or SIGTERM lets answers finish; a second one ends at once.`,
    )
    .action((models: string[], options: Options) => run(models, options, version));
}

/** The models by the names that clients call them. */
function servedModels(names: readonly string[], aliases: readonly string[]): { id: string; name: string }[] {
  if (aliases.length > Math.max(1, names.length)) fail("InvalidArgument", "serve: there are more aliases than models");
  const given = names.length === 0 ? [undefined] : names;
  const models = given.map((name, i) => ({
    id: aliases[i] ?? (name === undefined ? BUNDLED_ID : idOf(name)),
    name: modelPath(name),
  }));
  const ids = models.map(({ id }) => id);
  const twice = ids.find((id, i) => ids.indexOf(id) !== i);
  if (twice !== undefined) fail("InvalidArgument", `serve: two models are called ${twice}; tell them apart by --alias`);
  return models;
}

const keysOf = (given: readonly string[] | undefined): string[] =>
  (given ?? (variable("WICK_API_KEY") ?? "").split(",")).map((key) => key.trim()).filter((key) => key !== "");

async function run(names: string[], options: Options, version: string): Promise<void> {
  if (options.threads !== undefined) Device.cpu({ threads: options.threads });
  const models = servedModels(names, options.alias ?? []);
  const group = await joinRanks(options);
  if (group && models.length > 1) fail("InvalidArgument", "serve: ranks serve one model together");
  const devices = group ? [group.device] : devicesNamed(options.device);
  const { batch, maxAnswers: queue } = options;
  const log = new Log(options.log ?? (process.stderr.isTTY ? "text" : "json"));
  if (group && group.rank > 0) return followServer(models[0]!.name, options, log, group);
  const registry = new Registry({
    models,
    device: devices,
    memory: options.memory,
    load: (request) => load(request, options, log, group),
    openEngine: async (model, memory) => {
      const asked = { batch, queue, memory: cacheMemory(options, memory) };
      const engine = createEngine(
        model,
        group ? { ...asked, group, pages: await pagesOfAll(model, asked, group) } : asked,
      );
      try {
        await engine.ready();
      } catch (error) {
        await engine[Symbol.asyncDispose]();
        throw error;
      }
      return engine;
    },
    onEvent: (event, id, detail) => {
      if (event === "failed") log.error(detail);
      else log.event(event, `${id} is ${event === "loaded" ? "loaded" : "put aside"}`, { model: id });
    },
  });
  const server = new ApiServer({
    registry,
    device: devices,
    log,
    version,
    host: options.host,
    port: options.port,
    apiKeys: keysOf(options.apiKey),
    allowNoKey: options.allowNoKey,
    allowedHosts: options.allowedHost,
    corsOrigins: options.cors,
    connections: options.maxConnections,
    drainSeconds: options.drainTimeout,
    page: PAGE,
    limits: {
      bodyBytes: options.maxBody,
      ...(options.maxPrompt !== undefined && { promptTokens: options.maxPrompt }),
      answers: options.maxAnswers,
      choices: options.maxChoices,
      requestSeconds: options.requestTimeout,
    },
  });
  const starting = new AbortController();
  using signals = onSignals(() => {
    starting.abort();
    return server.close();
  });
  try {
    const address = await server.listen();
    // Ready is who can answer: until then /health says that it loads.
    (await registry.acquire(undefined, starting.signal))[Symbol.dispose]();
    console.log(`wick: listening on ${address}`);
  } catch (error) {
    await server.close();
    if (isAbort(error)) return;
    throw (error as Error).cause ?? error;
  }
  await signals.ended;
}

/** Of ranks other than 0: its part of the model does what rank 0's does, until the server ends. */
async function followServer(name: string, options: Options, log: Log, group: Group): Promise<void> {
  // Rank 0 has its own ways to end, and tells.
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => {});
  const request = { name, memory: options.memory, signal: group.signal, onProgress: () => {} };
  using model = await load(request, options, log, group);
  const asked = { batch: options.batch, memory: cacheMemory(options, undefined) };
  await followEngine(model, { ...asked, pages: await pagesOfAll(model, asked, group) }, group);
}

/** Of what was asked for keys and values, and what the limit leaves, the smaller. */
const cacheMemory = ({ cacheMemory: asked }: Options, left: number | undefined): number | undefined =>
  asked === undefined || left === undefined ? (asked ?? left) : Math.min(asked, left);

/** Closes when the process is told to end, and ends it at once when it is told again. */
function onSignals(close: () => Promise<void>): { readonly ended: Promise<void> } & Disposable {
  let end = (_: NodeJS.Signals) => {};
  const ended = new Promise<void>((resolve, reject) => {
    let isClosing = false;
    end = (signal) => {
      if (isClosing) process.exit(signal === "SIGINT" ? 130 : 143);
      isClosing = true;
      close().then(resolve, reject);
    };
  });
  const signals = ["SIGINT", "SIGTERM"] as const;
  for (const signal of signals) process.on(signal, end);
  return {
    ended,
    [Symbol.dispose]: () => {
      for (const signal of signals) process.off(signal, end);
    },
  };
}

async function load(
  { name, memory, signal, onProgress }: LoadRequest,
  { device, gpuLayers, dtype, context, kvCache, batchInvariant }: Options,
  log: Log,
  group: Group | null,
) {
  const bar = new ProgressBar("Loading", process.stderr);
  const files = new Map<string, readonly [done: number, total: number]>();
  try {
    return await loadModel(name, {
      device: group?.device ?? device,
      group: group ?? undefined,
      gpuLayers,
      dtype,
      context,
      kvCache,
      memory,
      batchInvariant,
      signal,
      onDownload: ({ file, bytesDone, bytesTotal }) => {
        files.set(file, [bytesDone, bytesTotal ?? bytesDone]);
        const all = [...files.values()];
        const [done, total] = [0, 1].map((i) => all.reduce((sum, sizes) => sum + sizes[i as 0 | 1], 0));
        onProgress("download", total === 0 ? 0 : done! / total!);
        bar.update(done!, total!);
      },
      onUnreached: (why) => log.event("unreached", `${why}; the model is taken as the cache has it`, { why }),
      onProgress: ({ bytesLoaded, bytesTotal }) => {
        onProgress("load", bytesTotal === 0 ? 0 : bytesLoaded / bytesTotal);
        bar.update(bytesLoaded, bytesTotal);
      },
    });
  } finally {
    bar.clear();
  }
}
