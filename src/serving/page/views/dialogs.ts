/** Windows over the page: the browser keeps the focus inside, and Escape closes them. */
import { h, iconButton } from "../dom.ts";
import { preference, setPreference } from "../preferences.ts";

/** A dialog that leaves the page when it is closed; a click beside it closes it. */
export function showDialog(
  title: string,
  attributes: { readonly class?: string },
  ...content: Node[]
): HTMLDialogElement {
  const dialog = h(
    "dialog",
    { class: attributes.class ?? "window", "aria-label": title },
    h(
      "header",
      {},
      h("h2", {}, title),
      iconButton("close", "Close", () => dialog.close()),
    ),
    ...content,
  );
  dialog.addEventListener("click", (event) => {
    if (event.target !== dialog) return;
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    if (event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks for the server's key and keeps it; null where the user gives none. */
export function askForKey(reason: string): Promise<string | null> {
  return new Promise((resolve) => {
    const field = h("input", {
      type: "password",
      id: "key",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "sk-…",
      required: true,
      autofocus: true,
    });
    let given: string | null = null;
    const forget = () => {
      setPreference("key", null);
      dialog.close();
    };
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: (event) => {
          event.preventDefault();
          given = field.value.trim();
          setPreference("key", given);
          dialog.close();
        },
      },
      h("p", { class: "quiet" }, preference("key") === null ? "This server wants a key." : reason),
      h("label", { for: "key" }, "API key"),
      field,
      h("p", { class: "quiet small" }, "It is kept in this browser and sent to this server alone."),
      h(
        "div",
        { class: "row end" },
        preference("key") !== null &&
          h("button", { type: "button", class: "plain", onclick: forget }, "Forget the key"),
        h("button", { type: "submit", class: "primary" }, "Use this key"),
      ),
    );
    const dialog = showDialog("API key", {}, form);
    dialog.addEventListener("close", () => resolve(given));
  });
}

export function confirmDialog(title: string, text: string, action: string): Promise<boolean> {
  return new Promise((resolve) => {
    let agreed = false;
    const leave = (answer: boolean) => () => {
      agreed = answer;
      dialog.close();
    };
    const dialog = showDialog(
      title,
      {},
      h("p", {}, text),
      h(
        "div",
        { class: "row end" },
        h("button", { type: "button", class: "plain", onclick: leave(false), autofocus: true }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: leave(true) }, action),
      ),
    );
    dialog.addEventListener("close", () => resolve(agreed));
  });
}

export function askForText(title: string, value: string): Promise<string | null> {
  return new Promise((resolve) => {
    let given: string | null = null;
    const field = h("input", { type: "text", "aria-label": title, value, maxlength: "200", autofocus: true });
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: () => {
          given = field.value.trim();
        },
      },
      field,
      h("div", { class: "row end" }, h("button", { type: "submit", class: "primary" }, "Save")),
    );
    const dialog = showDialog(title, {}, form);
    field.select();
    dialog.addEventListener("close", () => resolve(given));
  });
}
