/** The conversation that is shown, as a chat or as a story, and what stands there before it begins. */
import type { App } from "../app.ts";
import type { Message } from "../conversation.ts";
import { flame, h, iconButton } from "../dom.ts";
import { Announcer } from "./announcer.ts";
import { MessageView } from "./message.ts";
import { shortName } from "./model-picker.ts";
import { StoryView } from "./story.ts";

const beginnings = {
  chat: [
    "Explain how a hash map grows, with a small example in TypeScript",
    "What should I look at first when a query becomes slow?",
    "Write a regular expression for ISO dates and explain its parts",
    "Give me three names for a small lighthouse keeper’s cat",
  ],
  completion: [
    "Once upon a time there lived a king who had",
    "The old fisherman pulled in his net, and in it he found",
    "In a cottage at the edge of the forest lived a girl who",
    "“I will grant you one wish,” said the fox, “but first",
  ],
} as const;

/** Near enough to the end to be taken along. */
const NEAR_PX = 80;

export class Thread {
  readonly element: HTMLElement;
  readonly announcer = new Announcer();
  readonly #app: App;
  readonly #column = h("div", { class: "column" });
  readonly #views = new Map<Message, MessageView>();
  readonly #toEnd = iconButton("down", "To the end", () => this.#follow(true), { class: "to-end", hidden: true });
  #story: StoryView;
  #shownFor: string | null = null;
  #answeringFor: Message | null = null;
  #following = true;
  #scheduled = false;
  #lastCost = 0;

  constructor(app: App) {
    this.#app = app;
    this.#story = new StoryView(app);
    this.element = h(
      "div",
      { class: "thread", tabindex: "-1", id: "thread", onscroll: () => this.#onScroll() },
      this.#column,
      this.#toEnd,
    );
    app.on(["thread"], () => this.#show());
    app.on(["answer"], () => this.#schedule());
    // The welcome names the model.
    app.on(["models", "connection"], () => {
      if (app.path.length === 0) this.#show();
    });
    this.#show();
  }

  /** Opens the last message that the user wrote, to be written anew. */
  editLast(): void {
    if (this.#app.answering !== undefined) return;
    if (this.#app.form === "story") this.#story.edit();
    else {
      const last = this.#app.path.findLast(({ role }) => role === "user");
      if (last !== undefined) this.#views.get(last)?.edit();
    }
  }

  #show(): void {
    const { current, path, answering, form } = this.#app;
    if (this.#shownFor !== current.id) {
      this.#shownFor = current.id;
      this.#views.clear();
      this.#story = new StoryView(this.#app);
      this.#following = true;
    }
    this.#announce();
    if (answering !== undefined && answering.message.content === "") this.#following = true;
    this.#column.classList.toggle("empty", path.length === 0);
    if (path.length === 0) this.#showWelcome();
    else if (form === "story") {
      if (this.#column.firstChild !== this.#story.element) this.#column.replaceChildren(this.#story.element);
      this.#story.show(path, answering);
    } else this.#showChat(path);
    this.#follow(this.#following);
  }

  #showChat(path: readonly Message[]): void {
    const { answering } = this.#app;
    const wanted = path.map((message) => {
      const view = this.#views.get(message) ?? new MessageView(this.#app, message);
      this.#views.set(message, view);
      view.show(answering);
      return view.element;
    });
    // What stays in place keeps its selection and its focus.
    for (const [i, element] of wanted.entries()) {
      const there = this.#column.childNodes[i];
      if (there !== element) this.#column.insertBefore(element, there ?? null);
    }
    while (this.#column.childNodes.length > wanted.length) this.#column.lastChild!.remove();
  }

  /** No oftener than the screen changes, and the less often the more it costs: a tenth of the time, at most. */
  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const wait = this.#lastCost * 10;
    const run = () =>
      requestAnimationFrame(() => {
        this.#scheduled = false;
        const { answering, path, form } = this.#app;
        if (answering === undefined || answering.message !== path.at(-1)) return;
        const start = performance.now();
        if (form === "story") this.#story.show(path, answering);
        else this.#views.get(answering.message)?.show(answering);
        this.#lastCost = performance.now() - start;
        this.#announce();
        this.#follow(this.#following);
      });
    if (wait < 16) run();
    else setTimeout(run, wait);
  }

  #announce(): void {
    const { answering } = this.#app;
    if (answering !== undefined) {
      if (this.#answeringFor !== answering.message) this.announcer.begin();
      this.#answeringFor = answering.message;
      this.announcer.follow(answering.message.content, false);
    } else if (this.#answeringFor !== null) {
      this.announcer.follow(this.#answeringFor.content, true);
      this.#answeringFor = null;
    }
  }

  #onScroll(): void {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    this.#following = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this.#toEnd.hidden = this.#following;
  }

  #follow(wanted: boolean): void {
    if (!wanted) return;
    this.#following = true;
    this.element.scrollTop = this.element.scrollHeight;
  }

  #showWelcome(): void {
    const { model, form } = this.#app;
    const { connected } = this.#app.server;
    const shows = `${form} ${model?.id} ${connected}`;
    // Models are asked for often; what stays the same keeps its focus.
    if (this.#column.firstElementChild?.getAttribute("data-shows") === shows) return;
    const isStory = form === "story";
    const begin = (text: string) => () => void this.#app.send(text);
    const welcome = h(
      "div",
      { class: `welcome ${isStory ? "for-story" : ""}`, "data-shows": shows },
      flame(),
      h("h1", {}, isStory ? "How does it begin?" : "What is on your mind?"),
      h(
        "p",
        { class: "quiet" },
        model === null
          ? connected === false
            ? "Waiting for the server."
            : ""
          : isStory
            ? `${shortName(model.id)} goes on with whatever you begin.`
            : `${shortName(model.id)} answers.`,
      ),
      h(
        "div",
        { class: "beginnings" },
        ...(model === null ? [] : beginnings[isStory ? "completion" : "chat"]).map((text) =>
          h("button", { type: "button", onclick: begin(text) }, isStory ? `${text}…` : text),
        ),
      ),
    );
    this.#column.replaceChildren(welcome);
  }
}
