/**
 * Where a GPU's memory may come from. An integrated one has a small share of its own and maps the host's besides; the
 * vendors' call for "free memory" may mean either, so the kernel's own figures come first. Pure: figures in, room out.
 */
import { chosen } from "../../core/environment.ts";
import { fail } from "../../core/errors.ts";
import { formatBytes } from "../usage.ts";
import type { CardMemory, HostMemory } from "./system-memory.ts";

/** Whether host memory that the GPU maps may hold tensors: where it is as near as its own, never, or anywhere. */
export type HostMemoryChoice = "auto" | "never" | "allow";
const choices: readonly HostMemoryChoice[] = ["auto", "never", "allow"];

export interface MemoryFigures {
  readonly vendor: "rocm" | "cuda";
  readonly integrated: boolean;
  /** hipMemGetInfo or cuMemGetInfo. */
  readonly driver: { readonly free: number; readonly total: number };
  /** amdgpu's, where it tells them. */
  readonly card: CardMemory | null;
  readonly host: HostMemory | null;
  /** Linux's release: "6.14.0-1014-oem". */
  readonly kernel: string | null;
}

/** What can still be had, in bytes. */
export interface MemoryRoom {
  readonly own: number;
  readonly host: number;
  /** The driver's ordinary allocations are host memory, too: the room of both calls is one. */
  readonly sharesHost: boolean;
  /** Where it is and why, for people. */
  readonly text: string;
}

/** Where an allocator takes its regions from. */
export interface MemorySource {
  /** Host memory may be mapped where the driver's ordinary call gives none. */
  readonly maps: boolean;
  /** The driver's word is not enough: the room is looked at before every region. */
  readonly limits: boolean;
  room(): MemoryRoom;
  /** What it does and why, for people. */
  readonly text: string;
}

const GIB = 2 ** 30;
/**
 * What the rest of the machine keeps. Mapped memory is pinned: it cannot be swapped out, and when it is all taken the
 * kernel ends processes. A desktop with a browser lives in 2 GiB; on large machines caches and others want their share.
 */
const LEAST_KEPT = 2 * GIB;
const KEPT_SHARE = 0.1;
export const keptForOthers = (total: number): number => Math.max(LEAST_KEPT, KEPT_SHARE * total);

const above0 = (n: number): number => Math.max(0, Math.floor(n));

/** What the host can give: what the GPU may map, and what others can spare. Unknown where neither is known. */
function hostRoom({ card, host }: MemoryFigures): number | null {
  const bounds: number[] = [];
  if (card) bounds.push(card.gttTotal - card.gttUsed);
  if (host) bounds.push(host.available - keptForOthers(host.total));
  return bounds.length === 0 ? null : above0(Math.min(...bounds));
}

/**
 * Whether the ordinary call gives host memory. NVIDIA's integrated GPUs have no other. Of AMD's those do with less memory
 * of their own than they may map, since Linux 6.10 (amdgpu's apu_prefer_gtt) or wherever a driver with that change says
 * more than their own.
 */
function sharesHost({ vendor, integrated, driver, card, kernel }: MemoryFigures): boolean {
  if (!integrated) return false;
  if (vendor === "cuda") return true;
  if (!card || card.gttTotal <= card.vramTotal) return false;
  return driver.total > card.vramTotal || isAtLeast(kernel, 6, 10);
}

function isAtLeast(kernel: string | null, major: number, minor: number): boolean {
  const [, a, b] = /^(\d+)\.(\d+)/.exec(kernel ?? "") ?? [];
  return Number(a) > major || (Number(a) === major && Number(b) >= minor);
}

/** NVIDIA's integrated GPUs need not map: their ordinary memory is the host's. */
export const mapsHost = (
  { vendor, integrated }: Pick<MemoryFigures, "vendor" | "integrated">,
  choice: HostMemoryChoice,
) => choice === "allow" || (choice === "auto" && integrated && vendor === "rocm");

export function roomOf(figures: MemoryFigures, choice: HostMemoryChoice): MemoryRoom {
  const { vendor, integrated, driver, card } = figures;
  const shares = sharesHost(figures);
  const maps = mapsHost(figures, choice);
  const spare = hostRoom(figures);
  if (shares) {
    // AMD's ordinary call has a limit of its own. NVIDIA's figure of free memory leaves out what Linux only caches.
    const capped = vendor === "rocm" && !maps;
    const host = capped ? Math.min(spare ?? driver.free, driver.free) : (spare ?? driver.free);
    const text = `integrated: its memory is the host's, ${formatBytes(host)} of which it can have`;
    return { own: 0, host, sharesHost: true, text };
  }
  // A driver that knows of no memory at all cannot count: what there is shows when it is asked for.
  const told = driver.total > 0 ? driver.free : Number.POSITIVE_INFINITY;
  const own = integrated && card ? above0(card.vramTotal - card.vramUsed) : told;
  const host = maps ? (spare ?? 0) : 0;
  return { own, host, sharesHost: false, text: describe(figures, choice, own, host) };
}

/** What holds for a discrete card unless the user says otherwise. */
export const OWN_ONLY = "discrete: its own memory only; WICK_HOST_MEMORY=allow adds the host's, read over PCIe";

function describe({ integrated }: MemoryFigures, choice: HostMemoryChoice, own: number, host: number): string {
  if (!integrated && choice !== "allow") return OWN_ONLY;
  const mine = `${integrated ? "integrated" : "discrete"}: ${formatBytes(own)} of its own`;
  if (choice === "never") return `${mine} and none of the host's, by choice`;
  const more = `${mine}, then up to ${formatBytes(host)} of the host's`;
  return integrated ? `${more}; WICK_HOST_MEMORY=never turns that off` : `${more}, read over PCIe, by choice`;
}

export function checkChoice(value: string, what: string): HostMemoryChoice {
  const found = choices.find((choice) => choice === value);
  return found ?? fail("InvalidArgument", `${what} must be one of ${choices.join(", ")}, not "${value}"`);
}

/** By the environment. */
export const defaultChoice = (): HostMemoryChoice => chosen("WICK_HOST_MEMORY") ?? "auto";
