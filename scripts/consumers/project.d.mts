export const entries: readonly string[];
export function writeProject(folder: string, options?: Readonly<Record<string, unknown>>): string;
