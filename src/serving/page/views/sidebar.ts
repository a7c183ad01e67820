/** The conversations: newest first, by day, with a field that finds. */
import type { App } from "../app.ts";
import { asMarkdown, type Conversation, titleOf } from "../conversation.ts";
import { download, flame, h, icon, iconButton } from "../dom.ts";
import { applyTheme, preference, setPreference, theme, themes } from "../preferences.ts";
import { askForKey, askForText, confirmDialog } from "./dialogs.ts";
import { type MenuItem, toggleMenu } from "./menu.ts";
import type { Toasts } from "./notices.ts";

/** Fewer are seen at a glance. */
const SEARCHED_FROM = 6;
const DAY_MS = 86_400_000;
const themeIcons = { system: "system", light: "sun", dark: "moon" } as const;

function dayOf(time: number): string {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 6 * DAY_MS) return "This week";
  return new Intl.DateTimeFormat("en", { month: "long", year: "numeric" }).format(time);
}

const fileName = (conversation: Conversation, ending: string): string =>
  `${
    titleOf(conversation)
      .replaceAll(/[^\p{L}\p{N}]+/gu, "-")
      .replaceAll(/^-|-$/g, "")
      .slice(0, 60) || "conversation"
  }.${ending}`;

const asJson = (value: unknown): string => JSON.stringify(value, null, 2);

export class Sidebar {
  readonly element: HTMLElement;
  readonly #app: App;
  readonly #toasts: Toasts;
  readonly #list = h("div", { class: "conversations" });
  readonly #search = h("input", {
    type: "search",
    placeholder: "Find",
    "aria-label": "Find a conversation",
    oninput: () => this.#show(),
    onkeydown: (event) => {
      if (event.key === "Escape" && this.#search.value !== "") {
        this.#search.value = "";
        this.#show();
      } else if (event.key === "Enter" || event.key === "ArrowDown") {
        this.#list.querySelector<HTMLElement>("a")?.focus();
      } else return;
      event.preventDefault();
    },
  });
  readonly #field = h("label", { class: "search" }, icon("search"), this.#search);
  readonly #narrow = matchMedia("(max-width: 800px)");
  readonly #veil = h("div", { class: "veil", onclick: () => this.toggle(false) });

  constructor(app: App, toasts: Toasts, help: () => void) {
    this.#app = app;
    this.#toasts = toasts;
    const more = iconButton("more", "More", () => toggleMenu(more, this.#generalItems(help)), {
      "aria-haspopup": "menu",
    });
    const look = iconButton("system", "", () => {
      applyTheme(themes[(themes.indexOf(theme()) + 1) % themes.length]!);
      showLook();
    });
    const showLook = () => {
      const label = `Colours: ${theme() === "system" ? "as the system has them" : theme()}`;
      look.replaceChildren(icon(themeIcons[theme()]));
      look.title = label;
      look.setAttribute("aria-label", label);
    };
    showLook();
    const create = h(
      "button",
      { type: "button", class: "new", title: "New conversation", onclick: () => this.create() },
      icon("plus"),
      "New conversation",
    );
    this.element = h(
      "aside",
      { class: "sidebar", "aria-label": "Conversations", id: "sidebar" },
      h(
        "div",
        { class: "brand" },
        flame(),
        h("span", {}, "Wick"),
        iconButton("panel", "Hide the conversations", () => this.toggle(false)),
      ),
      create,
      this.#field,
      this.#list,
      h("footer", {}, look, iconButton("keyboard", "Keyboard", help), more),
    );
    app.on(["list", "thread"], () => this.#show());
    this.#narrow.addEventListener("change", () =>
      this.#arrange(!this.#narrow.matches && preference("sidebar") !== "off"),
    );
    this.#show();
  }

  /** To be called when the sidebar is in the page. */
  mount(): void {
    this.element.after(this.#veil);
    this.#arrange(!this.#narrow.matches && preference("sidebar") !== "off");
  }

  toggle(open = document.documentElement.dataset.sidebar !== "open"): void {
    if (!this.#narrow.matches) setPreference("sidebar", open ? null : "off");
    this.#arrange(open);
    if (open) (this.#field.hidden ? this.element.querySelector<HTMLElement>(".new") : this.#search)?.focus();
  }

  create(): void {
    this.#app.open(null);
    if (this.#narrow.matches) this.#arrange(false);
    document.querySelector<HTMLElement>(".composer textarea")?.focus();
  }

  step(by: -1 | 1): void {
    const { list, current } = this.#app;
    const at = list.indexOf(current);
    const next = at < 0 ? list[0] : list[at + by];
    if (next !== undefined) this.#app.open(next.id);
  }

  #arrange(open: boolean): void {
    document.documentElement.dataset.sidebar = open ? "open" : "closed";
    this.element.inert = !open;
    const main = document.querySelector("main");
    if (main !== null) main.inert = open && this.#narrow.matches;
  }

  #show(): void {
    const { list, current, answers } = this.#app;
    this.#field.hidden = list.length < SEARCHED_FROM;
    if (this.#field.hidden) this.#search.value = "";
    const wanted = this.#search.value.trim().toLowerCase();
    const found = list.filter(
      (conversation) =>
        wanted === "" ||
        titleOf(conversation).toLowerCase().includes(wanted) ||
        conversation.messages.some(({ content }) => content.toLowerCase().includes(wanted)),
    );
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.id : undefined;
    const parts: HTMLElement[] = [];
    for (const [day, group] of Map.groupBy(found, ({ updated }) => dayOf(updated))) {
      parts.push(
        h("h2", {}, day),
        h("ul", {}, ...group.map((one) => this.#row(one, one === current, answers.has(one.id)))),
      );
    }
    if (list.length > 0 && found.length === 0) parts.push(h("p", { class: "quiet" }, "None says that."));
    this.#list.replaceChildren(...parts);
    if (focused !== undefined) this.#list.querySelector<HTMLElement>(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(conversation: Conversation, isCurrent: boolean, answering: boolean): HTMLElement {
    const title = titleOf(conversation);
    const more = iconButton("more", `More on ${title}`, () => toggleMenu(more, this.#itemsFor(conversation)), {
      "aria-haspopup": "menu",
    });
    return h(
      "li",
      { class: isCurrent ? "current" : undefined },
      h(
        "a",
        {
          href: `#${conversation.id}`,
          "data-id": conversation.id,
          "aria-current": isCurrent ? "page" : undefined,
          title,
          onclick: () => {
            if (this.#narrow.matches) this.#arrange(false);
          },
        },
        answering && h("span", { class: "dot", "data-state": "loading", "aria-label": "answering" }),
        title,
      ),
      more,
    );
  }

  #itemsFor(conversation: Conversation): readonly MenuItem[] {
    const rename = async () => {
      const title = await askForText("Rename", titleOf(conversation));
      if (title === null) return;
      conversation.title = title === "" ? null : title;
      this.#app.save(conversation);
    };
    const remove = () => {
      this.#app.remove(conversation);
      this.#toasts.show("Deleted.", { label: "Undo", run: () => this.#app.save(conversation) });
    };
    return [
      { label: "Rename", icon: "edit", run: () => void rename() },
      {
        label: "Export as Markdown",
        icon: "save",
        run: () => download(fileName(conversation, "md"), "text/markdown", asMarkdown(conversation)),
      },
      {
        label: "Export as JSON",
        icon: "save",
        run: () => download(fileName(conversation, "json"), "application/json", asJson(conversation)),
      },
      { label: "Delete", icon: "trash", dangerous: true, run: remove },
    ];
  }

  #generalItems(help: () => void): readonly MenuItem[] {
    const count = this.#app.conversations.size;
    const removeAll = async () => {
      const text = `${count} conversations are deleted from this browser. There is no way back.`;
      if (await confirmDialog("Delete everything", text, "Delete everything")) this.#app.removeAll();
    };
    return [
      {
        label: "API key",
        icon: "key",
        run: () =>
          void askForKey("Another key in place of the one that is kept.").then(() => this.#app.server.refresh()),
      },
      { label: "Keyboard", icon: "keyboard", run: help },
      { label: "Import", icon: "plus", run: () => this.#import() },
      {
        label: "Export everything",
        icon: "save",
        run: () => download("wick-conversations.json", "application/json", asJson(this.#app.list)),
      },
      ...(count > 0
        ? [{ label: "Delete everything", icon: "trash", dangerous: true, run: () => void removeAll() } as const]
        : []),
    ];
  }

  #import(): void {
    const take = async () => {
      const file = field.files?.[0];
      field.remove();
      if (file === undefined) return;
      try {
        const count = this.#app.import(await file.text());
        this.#toasts.show(count === 0 ? "That file holds no conversations." : `${count} conversations imported.`);
      } catch {
        this.#toasts.show("That file is not one that this page has exported.");
      }
    };
    const field = h("input", { type: "file", accept: "application/json,.json", onchange: () => void take() });
    field.hidden = true;
    this.element.append(field);
    field.addEventListener("cancel", () => field.remove());
    field.click();
  }
}
