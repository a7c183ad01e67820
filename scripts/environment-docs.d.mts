export const ofDevelopment: Readonly<Record<string, object>>;
export function environmentMarkdown(groups: Readonly<Record<string, object>>): string;
