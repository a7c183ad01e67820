/** An engine for a model: how many requests at once, and how much memory for what they have said. */
import type { Device } from "../backend/device.ts";
import { PAGE_SIZE } from "../backend/paged-attention.ts";
import { formatBytes } from "../backend/usage.ts";
import { fail } from "../core/errors.ts";
import type { Group } from "../distributed/group.ts";
import type { Model } from "../models/model.ts";
import { PagedCache } from "../models/paged/cache.ts";
import type { Transformer } from "../models/transformer.ts";
import { BatchEngine, type BatchingOptions } from "./engine.ts";
import { FollowedRunner, follow } from "./followed-runner.ts";
import { ModelRunner } from "./model-runner.ts";
import type { Engine } from "./request.ts";

export interface EngineOptions extends BatchingOptions {
  /** The most requests that are answered at once. Default 64, on the CPU 16. */
  readonly batch?: number | undefined;
  /** Bytes for keys and values. Default: two thirds of what the device can give beside a step's own work, on the CPU a quarter. */
  readonly memory?: number | undefined;
  /** In place of `memory`: how many pages of `PAGE_SIZE` positions. */
  readonly pages?: number | undefined;
  /** Of a model that is split, on rank 0: the others follow by `followEngine`. All of them must be given `pages`. */
  readonly group?: Group | undefined;
}

interface Defaults {
  readonly batch: number;
  readonly stepTokens: number;
  /** Of the memory that can be had. */
  readonly share: number;
}

const CPU: Defaults = { batch: 16, stepTokens: 256, share: 1 / 4 };
/** A GPU is busy only with many rows. */
const GPU: Defaults = { batch: 64, stepTokens: 2048, share: 2 / 3 };
const defaultsOf = (devices: readonly Device[]): Defaults => (devices.some(({ name }) => name === "cpu") ? CPU : GPU);

/** Answers many requests at once by a model, which stays the caller's and must outlive the engine. */
export function createEngine(model: Model, options: EngineOptions = {}): Engine {
  const { transformer } = model;
  const defaults = defaultsOf(model.devices);
  const { batch = defaults.batch, stepTokens = defaults.stepTokens } = options;
  checkCount("batch", batch);
  checkCount("stepTokens", stepTokens);
  const pages = pagesOf(transformer, options, batch, stepTokens);
  const { group } = options;
  const runner = group
    ? new FollowedRunner(transformer, pages, batch).leads(group)
    : new ModelRunner(transformer, pages, batch);
  return new BatchEngine(runner, { ...options, stepTokens });
}

/** Pages that the engines of all ranks of a model that is split can have. */
export async function pagesOfAll(model: Model, options: EngineOptions, group: Group): Promise<number> {
  const defaults = defaultsOf(model.devices);
  const { batch = defaults.batch, stepTokens = defaults.stepTokens } = options;
  const own = pagesOf(model.transformer, options, batch, stepTokens);
  return Math.min(...(await group.exchange(own)));
}

/** What ranks other than 0 do while rank 0 has an engine. */
export async function followEngine(
  model: Model,
  options: EngineOptions & { readonly pages: number },
  group: Group,
): Promise<void> {
  const { batch = defaultsOf(model.devices).batch } = options;
  await using runner = new FollowedRunner(model.transformer, options.pages, batch);
  await follow(runner, group);
}

function pagesOf(model: Transformer, options: EngineOptions, batch: number, stepTokens: number): number {
  const { config, dtype, cacheDType, sites } = model;
  if (options.pages !== undefined) return checkCount("pages", options.pages);
  // Logits and their like for every request, and what a layer makes of a step's rows.
  const work = 8 * batch * config.vocabSize + 4 * stepTokens * (4 * config.hiddenSize + 3 * config.intermediateSize);
  // Of pages in 8 bits one layer at a time is read as what is computed in.
  const read = cacheDType === dtype ? 0 : PagedCache.pageBytes(config, dtype) / config.layers;
  const whole = PagedCache.pageBytes(config, cacheDType) + read;
  // More than all could ever hold would be of no use.
  const bounds = [batch * PagedCache.pagesFor(config.contextLength)];
  // Each device has the pages of its own layers.
  for (const device of new Set(sites.layers)) {
    const page = (whole * sites.layers.filter((own) => own === device).length) / config.layers;
    // Beyond what is near attention would be slow; whoever wants more than that asks for it.
    const { bytes, near: there = bytes, where } = device.available();
    const share = options.memory === undefined ? undefined : (options.memory * page) / whole;
    const memory = share ?? defaultsOf([device]).share * Math.max(0, there - work);
    bounds.push(Math.floor(memory / page));
    if (bounds.at(-1)! > 0) continue;
    fail(
      "OutOfMemory",
      `${device.name}: an engine needs ${formatBytes(page)} for each page of ${PAGE_SIZE} positions, but may use ${formatBytes(memory)} (${where}); give it more memory, or take a smaller model`,
    );
  }
  return Math.min(...bounds);
}

function checkCount(name: string, value: number): number {
  if (Number.isSafeInteger(value) && value > 0) return value;
  return fail("InvalidArgument", `an engine's ${name} must be a whole number from 1 up, not ${value}`);
}
