import type { Kernel } from "../../src/backend/gpu/catalogue.ts";
export function isWhole(compiler: string, target: string, file?: string): boolean;
export function kernelsToCheck(compiler: string, target: string, ofFile: readonly Kernel[]): readonly Kernel[];
