/**
 * Where a model is loaded, found out before anything is uploaded: a load that runs out half-way may take the machine
 * along.
 */
import type { Available } from "../../backend/backend.ts";
import { Device } from "../../backend/device.ts";
import { collect } from "../../backend/storage.ts";
import { formatBytes } from "../../backend/usage.ts";
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail, shown } from "../../core/errors.ts";
import { type CacheType, cacheDType } from "../byte-cache.ts";
import { deviceAttends } from "../cache.ts";
import type { ModelConfig } from "../config.ts";
import type { WeightSizes } from "../weights/weight-sizes.ts";
import { type ModelSizes, measureModel } from "./model-sizes.ts";
import { type Demand, fits, neededBytes, place, type Room, type Share, shareBytes, sharesOf, spread } from "./place.ts";
import type { Sites } from "./sites.ts";

/**
 * One device; several, which share the layers in this order ("rocm:0,rocm:1,cpu" or a list); or "auto": the best GPU, with
 * as many others as the model needs, and at last the CPU.
 */
export type DeviceChoice = Device | string | readonly (Device | string)[];

/** What a device has of a model, as it was planned. */
export interface DeviceShare extends Omit<Share, "room"> {
  readonly device: Device;
}

export interface Chosen {
  readonly sites: Sites;
  readonly dtype: DType;
  /** What keys and values are kept as. */
  readonly stored: DType;
  readonly shares: readonly DeviceShare[];
}

export interface ChoiceOptions {
  readonly config: ModelConfig;
  readonly sizesIn: (dtype: DType) => WeightSizes;
  readonly device: DeviceChoice;
  /** Layers that GPUs get; the CPU has the others. */
  readonly gpuLayers?: number | undefined;
  readonly dtype?: DType | undefined;
  readonly context?: number | undefined;
  readonly kvCache?: CacheType | undefined;
  /** The most bytes it may take, where the devices could give more. */
  readonly memory?: number | undefined;
}

/** Positions that must fit beside the weights where the caller says nothing: caches grow with the text, not at once. */
const DEFAULT_CONTEXT = 2048;

/** Throws `OutOfMemory` with what is needed, what is there and the way out. */
export async function choosePlaces(options: ChoiceOptions): Promise<Chosen> {
  const { config, gpuLayers, memory = Number.POSITIVE_INFINITY } = options;
  checkContext(options.context, config);
  checkGpuLayers(gpuLayers, config);
  const measured = new Map<DType, ModelSizes>();
  const choices = choicesOf(options.device, gpuLayers);
  for (const [i, devices] of choices.entries()) {
    const demand = await demandOn(devices, options, measured);
    const { dtype, stored } = demand;
    let found = placedOn(devices, demand, gpuLayers, memory);
    // Garbage may hold what is missing.
    if (!found && collect() > 0) found = placedOn(devices, demand, gpuLayers, memory);
    if (found) return { sites: sitesFor(found, config), dtype, stored, shares: found };
    if (i === choices.length - 1) refuse(devices, demand, memory);
  }
  return fail("InvalidArgument", "loadModel: no device was named");
}

/** What a model needs on these devices; sizes that were `measured` are not counted again. */
export async function demandOn(
  devices: readonly Device[],
  options: Omit<ChoiceOptions, "device">,
  measured: Map<DType, ModelSizes> = new Map(),
): Promise<Demand & { readonly stored: DType }> {
  const { config } = options;
  const dtype = options.dtype ?? usualDType(devices, config);
  const sizes = measured.get(dtype) ?? (await measureModel(config, options.sizesIn(dtype)));
  measured.set(dtype, sizes);
  const stored = cacheDType(options.kvCache, config, devices, dtype);
  return { config, sizes, dtype, stored, positions: checkContext(options.context, config), sequences: 1 };
}

/** f32 on the CPU alone, elsewhere what the weights were saved in. */
const usualDType = (devices: readonly Device[], config: ModelConfig): DType =>
  devices.every(isSpare) ? "f32" : (config.dtype ?? "f32");

const isSpare = ({ name }: Device): boolean => name === "cpu";

/** The lists of devices to try, one after the other. */
function choicesOf(choice: DeviceChoice, gpuLayers: number | undefined): (readonly Device[])[] {
  const names = typeof choice === "string" ? choice.split(",").map((name) => name.trim()) : [choice].flat();
  if (names.length === 0) fail("InvalidArgument", "loadModel: the list of devices is empty");
  if (names.length === 1 && names[0] === "auto") {
    const present = Device.present();
    const prefixes = present.map((_, i) => present.slice(0, i + 1));
    return gpuLayers === undefined ? prefixes : [present];
  }
  const devices = names.map((name) => Device.from(name));
  // A card with MIOpen is the same card.
  const cards = devices.map(({ name }) => name.replace(/\+.*$/, ""));
  const twice = cards.find((card, i) => cards.indexOf(card) !== i);
  if (twice !== undefined) fail("InvalidArgument", `loadModel: ${twice} is named twice among ${cards.join(", ")}`);
  if (gpuLayers === undefined) return [devices];
  if (devices.every(isSpare)) {
    fail("InvalidArgument", `loadModel: ${gpuLayers} layers on GPUs were asked for, and no GPU was named`);
  }
  return [devices.some(isSpare) ? devices : [...devices, Device.from("cpu")]];
}

function placedOn(
  devices: readonly Device[],
  demand: Demand,
  gpuLayers: number | undefined,
  memory: number,
): DeviceShare[] | null {
  const rooms = devices.map((device) => roomOn(device, demand, memory));
  const shares = gpuLayers === undefined ? place(demand, rooms) : placeByHand(demand, rooms, gpuLayers);
  const total = shares?.reduce((sum, share) => sum + shareBytes(share), 0) ?? 0;
  if (!shares || total > memory) return null;
  return shares.map(({ room, ...share }) => ({ device: devices[room]!, ...share }));
}

function placeByHand(demand: Demand, rooms: readonly Room[], gpuLayers: number): Share[] | null {
  const counts = spread(demand, rooms, demand.config.layers - gpuLayers);
  const shares = counts && sharesOf(demand, rooms, counts);
  return shares && fits(shares, rooms, demand) ? shares : null;
}

const roomOn = (device: Device, { config, dtype, stored = dtype }: Demand, memory: number): Room => ({
  name: device.name,
  bytes: Math.min(device.available().bytes, Math.max(0, memory)),
  spare: isSpare(device),
  // A limit counts what is shown from files all the same.
  maps: device.backend.map !== undefined && memory === Number.POSITIVE_INFINITY,
  // Stages must be able to go back alike.
  keepsAll: config.stage !== undefined || deviceAttends(config, device, dtype, stored),
});

function sitesFor(shares: readonly DeviceShare[], { layers }: ModelConfig): Sites {
  const at = new Array<Device>(layers);
  for (const { device, first, layers: count } of shares) at.fill(device, first, first + count);
  const having = (which: "hasInput" | "hasOutput"): Device => shares.find((share) => share[which])!.device;
  return { input: having("hasInput"), layers: at, output: having("hasOutput") };
}

function checkContext(context: number | undefined, { contextLength }: ModelConfig): number {
  if (context === undefined) return Math.min(DEFAULT_CONTEXT, contextLength);
  if (Number.isInteger(context) && context > 0 && context <= contextLength) return context;
  return fail(
    "InvalidArgument",
    `loadModel: context must be a whole number from 1 to the model's ${contextLength}, not ${context}`,
  );
}

function checkGpuLayers(gpuLayers: number | undefined, { layers }: ModelConfig): void {
  if (gpuLayers === undefined || (Number.isInteger(gpuLayers) && gpuLayers >= 0 && gpuLayers <= layers)) return;
  fail(
    "InvalidArgument",
    `loadModel: gpuLayers must be a whole number from 0 to the model's ${layers} layers, not ${shown(gpuLayers)}`,
  );
}

/** What is needed beside what there is, device by device. */
function refuse(devices: readonly Device[], demand: Demand, memory: number): never {
  const { config, dtype, positions } = demand;
  const nowhere = { ...roomOn(devices.at(-1)!, demand, memory), keepsAll: true };
  const [whole] = sharesOf(demand, [nowhere], [config.layers]) as [Share];
  const needed = neededBytes(whole, nowhere, demand.sizes);
  const { cache, work } = whole;
  const weights = needed - cache - work;
  const needs = `the model needs ${formatBytes(needed)} (weights ${formatBytes(weights)}, a context of ${positions} tokens ${formatBytes(cache)}, work ${formatBytes(work)})`;
  const smaller = `a smaller quantization or dtype${sizeOf(dtype) > 2 ? ' (dtype: "bf16")' : ""}, a shorter context (the option context, or --context)`;
  const rooms = devices.map((device) => limited(device.available(), memory));
  const there = (i: number): string => `${formatBytes(rooms[i]!.bytes)} can be had (${rooms[i]!.where})`;
  const names = devices.map(({ name }) => name).join(" + ");
  if (devices.length === 1) {
    fail(
      "OutOfMemory",
      `${names}: ${needs}, but ${there(0)}; nothing was loaded. Take ${smaller}, another device, or several (device: ["${names}", "cpu"], or --device ${names},cpu)`,
    );
  }
  const sum = Math.min(
    memory,
    rooms.reduce((total, { bytes }) => total + bytes, 0),
  );
  const each = devices.map(({ name }, i) => `${name} ${there(i)}`).join(", ");
  const largest = Math.max(...demand.sizes.layers.map(({ matrices, experts, rest }) => matrices + experts + rest));
  const missing =
    needed > sum
      ? `${formatBytes(needed - sum)} more would hold it`
      : `in all that is enough, but a layer of ${formatBytes(largest)} cannot be cut, nor may more go to one of them than it can have`;
  fail(
    "OutOfMemory",
    `${names}: ${needs}, but on ${each}; ${missing}; nothing was loaded. Take ${smaller}, or more devices`,
  );
}

const limited = (available: Available, memory: number): Available =>
  available.bytes <= memory ? available : { bytes: Math.max(0, memory), where: "the limit on memory leaves no more" };
