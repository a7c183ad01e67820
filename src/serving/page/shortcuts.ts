/** What the keyboard does, as a table: the listener and the page's help are both made from it. */
import { h } from "./dom.ts";
import { showDialog } from "./views/dialogs.ts";

export interface Shortcut {
  readonly keys: readonly string[];
  readonly label: string;
  /** Missing where a field sees to it itself. */
  readonly matches?: (event: KeyboardEvent, typing: boolean) => boolean;
  readonly run?: () => void;
}

export interface Actions {
  readonly create: () => void;
  readonly search: () => void;
  readonly settings: () => void;
  readonly write: () => void;
  readonly stop: () => boolean;
  readonly step: (by: -1 | 1) => void;
  readonly sidebar: () => void;
}

const command = (event: KeyboardEvent) => (event.ctrlKey || event.metaKey) && !event.altKey;
const isApple = /Mac|iP(hone|ad)/.test(navigator.platform);
const ctrl = isApple ? "⌘" : "Ctrl";
const alt = isApple ? "⌥" : "Alt";

export function installShortcuts(actions: Actions): () => void {
  const table: readonly Shortcut[] = [
    { keys: ["Enter"], label: "Send" },
    { keys: ["Shift", "Enter"], label: "New line" },
    { keys: ["↑"], label: "In an empty field: edit the last message" },
    { keys: ["Esc"], label: "Stop the answer" },
    {
      keys: [ctrl, "Shift", "O"],
      label: "New conversation",
      matches: (event) => command(event) && event.shiftKey && event.code === "KeyO",
      run: actions.create,
    },
    {
      keys: [ctrl, "K"],
      label: "Find a conversation",
      matches: (event) => command(event) && !event.shiftKey && event.code === "KeyK",
      run: actions.search,
    },
    {
      keys: [alt, "↑ ↓"],
      label: "The conversation above or below",
      matches: (event) => event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown"),
    },
    {
      keys: [ctrl, "B"],
      label: "Show or hide the conversations",
      matches: (event) => command(event) && !event.shiftKey && event.code === "KeyB",
      run: actions.sidebar,
    },
    {
      keys: [ctrl, ","],
      label: "Settings of this conversation",
      matches: (event) => command(event) && event.key === ",",
      run: actions.settings,
    },
    { keys: ["/"], label: "Write", matches: (event, typing) => !typing && event.key === "/", run: actions.write },
    { keys: ["?"], label: "These keys", matches: (event, typing) => !typing && event.key === "?", run: () => help() },
  ];

  const help = () =>
    void showDialog(
      "Keyboard",
      {},
      h(
        "dl",
        { class: "keys" },
        ...table.flatMap(({ keys, label }) => [
          h("dt", {}, ...keys.map((key) => h("kbd", {}, key))),
          h("dd", {}, label),
        ]),
      ),
    );

  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") !== null || event.isComposing || event.defaultPrevented) return;
    const { target } = event;
    const typing = target instanceof HTMLElement && target.matches("input, textarea, select");
    if (event.key === "Escape") {
      if (actions.stop()) event.preventDefault();
      return;
    }
    const found = table.find(({ matches }) => matches?.(event, typing));
    if (found === undefined) return;
    event.preventDefault();
    if (found.run === undefined) actions.step(event.key === "ArrowUp" ? -1 : 1);
    else found.run();
  });
  return help;
}
