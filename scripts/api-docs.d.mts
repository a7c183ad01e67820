export function apiMarkdown(folder: string): string;
