export function deviceSource(text: string): string;
