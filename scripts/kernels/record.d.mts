/** What was found of a file on a target; `uses` where a matrix or dot unit was asked for, `share` the least of its matrix unit. */
export type Facts = readonly [
  kernels: number,
  vgprs: number,
  lds: number,
  spilling: number,
  seconds: number,
  uses?: string,
  share?: number,
];
export interface CheckedFile {
  readonly source: string;
  readonly arguments: string;
  readonly compilers: Readonly<Record<string, Readonly<Record<string, Facts>>>>;
}
export function readRecord(): { readonly files: Readonly<Record<string, CheckedFile>> };
