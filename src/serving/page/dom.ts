/** Elements from code: text is always text, so nothing that a model says can become markup. */

type Child = Node | string | null | undefined | false;
type Listener<E> = (event: E) => void;
type Listeners = { [K in keyof HTMLElementEventMap as `on${K}`]?: Listener<HTMLElementEventMap[K]> };
type Attributes = Listeners & Readonly<Record<string, unknown>>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Strokes on a field of 24 by 24. */
const icons = {
  menu: "M4 7h16M4 12h16M4 17h10",
  panel: "M4 5.5h16v13H4zM9.5 5.5v13",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  done: "M5 12.5l4.5 4.5L19 7.5",
  again: "M19 12a7 7 0 1 1-2.1-5M19 3.5V7.5h-4",
  edit: "M5 19l.8-3.6L16 5.2l2.8 2.8L8.6 18.2zM14 7.2l2.8 2.8",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  tune: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  close: "M6 6l12 12M18 6L6 18",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  keyboard: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M17 11h.01M8 14h8",
  key: "M8 15a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM11.5 11.5H20M17 11.5v3",
  save: "M12 4v10M8 10.5l4 4 4-4M5 19h14",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7",
  warning: "M12 4.5l8.5 15h-17zM12 10v4M12 16.8h.01",
} as const;
export type Icon = keyof typeof icons;

const svg = (tag: string, attributes: Readonly<Record<string, string>>, ...children: Node[]): SVGElement => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

export const icon = (name: Icon): SVGElement =>
  svg(
    "svg",
    { class: `icon icon-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true" },
    svg("path", { d: icons[name] }),
  );

export const flame = (): SVGElement =>
  svg(
    "svg",
    { class: "flame", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("path", {
      class: "outer",
      d: "M16.6 2.5c.9 5.2 7.9 8.9 7.9 16.1a8.5 8.5 0 0 1-17 0c0-4.2 2.4-6.2 3.9-9 .5 1.9 1.3 3 2.5 3.7.1-4.3.9-7.9 2.7-10.8Z",
    }),
    svg("path", { class: "inner", d: "M16.2 15.2c.5 2.7 3.5 4.2 3.5 7.3a3.7 3.7 0 0 1-7.4 0c0-3.1 3.4-4.6 3.9-7.3Z" }),
    svg("path", { class: "wick", d: "M16 23v6.5" }),
  );

/** A button that shows an icon alone; its name is what a screen reader says and what the tooltip shows. */
export function iconButton(
  name: Icon,
  label: string,
  onclick: () => void,
  attributes: Attributes = {},
): HTMLButtonElement {
  const { class: extra = "", ...rest } = attributes;
  return h(
    "button",
    { type: "button", class: `icon-button ${String(extra)}`, "aria-label": label, title: label, onclick, ...rest },
    icon(name),
  );
}

/** Hands a file to the browser's downloads. */
export function download(name: string, type: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
