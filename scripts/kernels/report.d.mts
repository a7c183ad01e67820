import type { KernelMetadata } from "../../src/backend/gpu/codeobject.ts";
import type { HotLoop } from "./expected.mjs";
export type Row = KernelMetadata & {
  readonly compiler: string;
  readonly arch: string;
  readonly hot: HotLoop;
  readonly waves: number;
};
export function tableOf(rows: readonly Row[]): string;
export function reportOf(rows: readonly Row[]): string;
export function writeReport(path: string, rows: readonly Row[]): void;
