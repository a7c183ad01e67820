/** A list of choices under a button: arrows move, Enter chooses, Escape and a click elsewhere close it. */
import { h, type Icon, icon } from "../dom.ts";

export interface MenuItem {
  readonly label: string;
  readonly note?: string | undefined;
  readonly icon?: Icon;
  /** For choices of which one holds. */
  readonly checked?: boolean;
  readonly dangerous?: boolean;
  readonly run: () => void;
}

let open: { readonly button: HTMLElement; readonly close: () => void } | null = null;

/** Below its button, or above it where there is no room, and never beyond the edge of the page. */
function place(list: HTMLElement, button: HTMLElement): void {
  const at = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = list;
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  const below = at.bottom + 6;
  list.style.left = `${left}px`;
  list.style.top = `${below + height > innerHeight - 8 ? Math.max(8, at.top - height - 6) : below}px`;
}

export function toggleMenu(button: HTMLElement, items: readonly MenuItem[]): void {
  const again = open?.button === button;
  open?.close();
  if (again) return;
  const choose = (item: MenuItem) => () => {
    close(true);
    item.run();
  };
  const list = h(
    "div",
    { class: "menu", role: "menu" },
    ...items.map((item) =>
      h(
        "button",
        {
          type: "button",
          role: item.checked === undefined ? "menuitem" : "menuitemradio",
          "aria-checked": item.checked,
          class: item.dangerous === true ? "dangerous" : undefined,
          tabindex: "-1",
          onclick: choose(item),
        },
        item.icon !== undefined && icon(item.icon),
        h("span", { class: "label" }, item.label, item.note !== undefined && h("small", {}, item.note)),
        item.checked === true && icon("done"),
      ),
    ),
  );
  const outside = (event: Event) => {
    const { target } = event;
    if (target instanceof Node && (list.contains(target) || button.contains(target))) return;
    close(false);
  };
  const close = (refocus: boolean) => {
    list.remove();
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    document.removeEventListener("focusin", outside, true);
    open = null;
    if (refocus) button.focus();
  };
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: buttons.length - 1,
    };
    const to = steps[event.key];
    if (to !== undefined) buttons.at(to % buttons.length)?.focus();
    else if (event.key === "Escape" || event.key === "Tab") close(true);
    else return;
    event.preventDefault();
  });
  open = { button, close: () => close(false) };
  document.body.append(list);
  place(list, button);
  button.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside, true);
  document.addEventListener("focusin", outside, true);
  (list.querySelector<HTMLElement>("[aria-checked=true]") ?? list.querySelector("button"))?.focus();
}
