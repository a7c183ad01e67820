export interface AmdToolchain {
  readonly clang: string;
  readonly bitcode: string;
}
export const amdTargets: Readonly<Record<string, number>>;
export const nvidiaTargets: readonly string[];
export function findToolchain(): { amd: AmdToolchain | undefined; nvcc: string | undefined };
export function sourceHash(file: string): string;
export function instructionsOf(path: string, prefixes: readonly string[]): Promise<string[]>;
export function compileAmd(
  toolchain: AmdToolchain,
  file: string,
  arch: string,
  options?: readonly string[],
): Promise<string>;
export function compileNvidia(nvcc: string, file: string, arch: string): Promise<string>;
export function inParallel(jobs: readonly (() => Promise<void>)[], width: number): Promise<void>;
