import type { MatrixUnit } from "../../src/backend/gpu/attention-plan.ts";
import type { RoundFacts } from "./hot-loop.mjs";
export function unitsOf(
  arch: string,
): { readonly unit: MatrixUnit; readonly matrix?: string; readonly dot: string } | undefined;
export function mustUse(file: string, arch: string): readonly string[];
export const maySpill: readonly RegExp[];
/** A round of a hot loop; `alone` is the matrix unit's share by llvm-mca. */
export type HotLoop = RoundFacts & { readonly alone?: number };
export function shareOf(hot: HotLoop, waves: number): number | undefined;
export function signsOf(
  file: string,
  arch: string,
  kernel: { readonly name: string; readonly hot: HotLoop; readonly waves: number },
): readonly { readonly sign: string; readonly found: string }[];
export const mayShow: readonly { readonly sign: string; readonly kernels: RegExp; readonly why: string }[];
