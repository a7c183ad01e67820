/** The page: puts its parts together and starts. */
import { App } from "./app.ts";
import { titleOf } from "./conversation.ts";
import { h, iconButton } from "./dom.ts";
import { applyTheme, theme } from "./preferences.ts";
import { installShortcuts } from "./shortcuts.ts";
import { Composer } from "./views/composer.ts";
import { askForKey } from "./views/dialogs.ts";
import { modelPicker } from "./views/model-picker.ts";
import { banners, Toasts } from "./views/notices.ts";
import { openSettings } from "./views/settings.ts";
import { Sidebar } from "./views/sidebar.ts";
import { Thread } from "./views/thread.ts";

function mount(): void {
  const app = new App();
  app.server.askKey = askForKey;
  const toasts = new Toasts();
  const thread = new Thread(app);
  const composer = new Composer(app, () => thread.editLast());
  const help = installShortcuts({
    create: () => sidebar.create(),
    search: () => sidebar.toggle(true),
    settings: () => openSettings(app),
    write: () => composer.focus(),
    stop: () => {
      const runs = app.answering !== undefined;
      app.stop();
      return runs;
    },
    step: (by) => sidebar.step(by),
    sidebar: () => sidebar.toggle(),
  });
  const sidebar = new Sidebar(app, toasts, help);
  const title = h("span", { class: "title" });
  const showTitle = () => {
    const isNew = app.current.messages.length === 0;
    title.textContent = isNew ? "" : titleOf(app.current);
    document.title = isNew ? "Wick" : `${titleOf(app.current)} · Wick`;
  };
  app.on(["thread", "list"], showTitle);
  const toComposer = (event: Event) => {
    event.preventDefault();
    composer.focus();
  };
  document.body.replaceChildren(
    h("a", { class: "skip", href: "#write", onclick: toComposer }, "Write a message"),
    sidebar.element,
    h(
      "main",
      {},
      h(
        "header",
        { class: "top" },
        iconButton("menu", "Conversations", () => sidebar.toggle(), {
          class: "menu-button",
          "aria-controls": "sidebar",
        }),
        modelPicker(app),
        title,
        iconButton("plus", "New conversation", () => sidebar.create(), { class: "new-small" }),
        iconButton("tune", "Settings of this conversation", () => openSettings(app)),
      ),
      banners(app),
      thread.element,
      composer.element,
    ),
    thread.announcer.element,
    toasts.element,
  );
  sidebar.mount();
  composer.mount();
  if (matchMedia("(pointer: fine)").matches) composer.focus();
  void app.start();
}

// Before anything is painted.
applyTheme(theme());
document.addEventListener("DOMContentLoaded", mount);
