export interface AmdToolchain {
  /** "clang-19"; "amd-clang-18" for AMD's own. */
  readonly name: string;
  readonly clang: string;
  readonly bitcode: string;
  readonly objdump: string;
}
export const amdCompilers: readonly string[];
export const amdTargets: readonly string[];
export function targetsOf(compiler: string): readonly string[];
export const nvidiaTargets: readonly string[];
export function amdToolchain(clang: string, bitcode: string): AmdToolchain;
export function findToolchains(): { amd: readonly AmdToolchain[]; nvcc: string | undefined };
export function knowsTarget(toolchain: AmdToolchain, arch: string): Promise<boolean>;
export function sourceHash(file: string): string;
export function disassemble(toolchain: AmdToolchain, path: string): Promise<string>;
export function instructionsIn(listing: string, prefixes: readonly string[]): string[];
export const mca: { readonly command: string; readonly targets: Readonly<Record<string, string>> };
export function sharesByMca(
  arch: string,
  rounds: ReadonlyMap<string, readonly { readonly name: string; readonly operands: string }[]>,
): Promise<Map<string, number>>;
export function compileAmd(
  toolchain: AmdToolchain,
  file: string,
  arch: string,
  options: readonly string[],
): Promise<string>;
export function amdCommand(
  toolchain: AmdToolchain,
  file: string,
  arch: string,
  options: readonly string[],
): Promise<string[]>;
export function compiledFacts<Facts>(
  toolchain: AmdToolchain,
  file: string,
  arch: string,
  look: (path: string) => Promise<Facts>,
  options: readonly string[],
): Promise<Facts & { readonly seconds: number; readonly fresh: boolean }>;
export function compileNvidia(nvcc: string, file: string, arch: string, options: readonly string[]): Promise<string>;
export function inParallel(jobs: readonly (() => Promise<void>)[], width: number): Promise<void>;
