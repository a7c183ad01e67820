export function withOps(text: string, ops: Iterable<{ readonly name: string; readonly group: string }>): string;
