import type { MatrixUnit } from "../../src/backend/gpu/attention-plan.ts";
export function unitsOf(
  arch: string,
): { readonly unit: MatrixUnit; readonly matrix?: string; readonly dot: string } | undefined;
export function mustUse(file: string, arch: string): readonly string[];
export const maySpill: readonly RegExp[];
