/** Short notes at the foot of the page, and lines above the thread for what lasts. */
import type { App } from "../app.ts";
import { asMarkdown } from "../conversation.ts";
import { download, h, icon, iconButton } from "../dom.ts";

const SHOWN_MS = 6000;

export class Toasts {
  readonly element = h("div", { class: "toasts", role: "status", "aria-live": "polite" });

  show(text: string, action?: { readonly label: string; readonly run: () => void }): void {
    const toast = h("div", { class: "toast" }, h("span", {}, text));
    const leave = () => toast.remove();
    if (action !== undefined) {
      const run = () => {
        leave();
        action.run();
      };
      toast.append(h("button", { type: "button", class: "text-button", onclick: run }, action.label));
    }
    this.element.replaceChildren(toast);
    setTimeout(leave, SHOWN_MS);
  }
}

export function banners(app: App): HTMLElement {
  const element = h("div", { class: "banners", role: "status" });
  let dismissed: string | null = null;
  const show = () => {
    const lines: HTMLElement[] = [];
    if (app.server.connected === false) {
      lines.push(h("div", { class: "banner" }, icon("warning"), "The server does not answer. Trying again…"));
    }
    const { fault } = app.store;
    if (fault !== null && fault !== dismissed) {
      const keep = () => download("conversation.md", "text/markdown", asMarkdown(app.current));
      const dismiss = () => {
        dismissed = fault;
        show();
      };
      lines.push(
        h(
          "div",
          { class: "banner" },
          icon("warning"),
          h("span", {}, `${fault} Conversations last until this page is closed.`),
          h("button", { type: "button", class: "text-button", onclick: keep }, "Export"),
          iconButton("close", "Dismiss", dismiss),
        ),
      );
    }
    element.replaceChildren(...lines);
  };
  app.on(["connection", "store"], show);
  return element;
}
