/** Small things that the browser keeps: a store that is off or full costs them at the next visit, and nothing else. */

const names = ["theme", "key", "model", "sidebar", "draft"] as const;
type Name = (typeof names)[number];
const kept = new Map<Name, string>();

export function preference(name: Name): string | null {
  try {
    return kept.get(name) ?? localStorage.getItem(`wick.${name}`);
  } catch {
    return null;
  }
}

export function setPreference(name: Name, value: string | null): void {
  if (value === null) kept.delete(name);
  else kept.set(name, value);
  try {
    if (value === null) localStorage.removeItem(`wick.${name}`);
    else localStorage.setItem(`wick.${name}`, value);
  } catch {
    // It holds until the page is closed.
  }
}

export const themes = ["system", "light", "dark"] as const;
export type Theme = (typeof themes)[number];

export const theme = (): Theme => themes.find((name) => name === preference("theme")) ?? "system";

export function applyTheme(chosen: Theme): void {
  setPreference("theme", chosen === "system" ? null : chosen);
  document.documentElement.dataset.theme = chosen;
}
