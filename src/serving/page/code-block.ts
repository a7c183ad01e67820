/** A block of code with its language and a button that copies it. */
import { h, icon, iconButton } from "./dom.ts";
import { highlighted } from "./highlight.ts";

/** Beyond it, colours cost more than they tell. */
const MOST_HIGHLIGHTED = 50_000;

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages that came by plain HTTP from another machine have no clipboard, but may copy what is selected.
    const field = h("textarea", { class: "off-screen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    const focused = document.activeElement;
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return copied;
  }
}

/** A button that copies, and shows for a moment that it has. */
export function copyButton(label: string, text: () => string, attributes: Readonly<Record<string, string>> = {}) {
  const button = iconButton(
    "copy",
    label,
    async () => {
      const copied = await copyText(text());
      button.replaceChildren(icon(copied ? "done" : "warning"));
      button.setAttribute("aria-label", copied ? "Copied" : "The browser does not let this page copy");
      setTimeout(() => {
        button.replaceChildren(icon("copy"));
        button.setAttribute("aria-label", label);
      }, 1500);
    },
    attributes,
  );
  return button;
}

export function codeBlock(language: string, code: string, settled: boolean): HTMLElement {
  const text = code.replace(/\n$/, "");
  const colours = settled && text.length <= MOST_HIGHLIGHTED;
  return h(
    "figure",
    { class: "code" },
    h(
      "figcaption",
      {},
      h("span", {}, language === "" ? "text" : language.slice(0, 30)),
      copyButton("Copy code", () => text),
    ),
    h("pre", { tabindex: "0" }, h("code", {}, ...(colours ? highlighted(text, language) : [text]))),
  );
}
