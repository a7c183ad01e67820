/** What the page knows and does, without how it looks: views call it, and hear by topic what has changed. */
import { Answering } from "./answering.ts";
import {
  addMessage,
  type Conversation,
  type Form,
  type Message,
  newConversation,
  pathOf,
  readConversation,
  showBranch,
  siblingsOf,
  storyOf,
} from "./conversation.ts";
import type { Model } from "./model.ts";
import { preference, setPreference } from "./preferences.ts";
import { questionFor } from "./question.ts";
import { ServerModels } from "./server-models.ts";
import { Store } from "./store.ts";

/**
 * list: conversations came, went or were renamed; thread: another conversation or other messages in it; answer: the
 * answer in it has grown; models: their list or state; connection: whether the server answers; store: whether it works.
 */
export type Topic = "list" | "thread" | "answer" | "models" | "connection" | "store";

const SAVE_MS = 1500;

export class App {
  readonly conversations = new Map<string, Conversation>();
  readonly answers = new Map<string, Answering>();
  readonly store = new Store();
  readonly server = new ServerModels((what) => this.#serverChanged(what));
  /** Whether the conversations that the browser keeps are here. */
  started = false;
  current: Conversation = newConversation(null);
  readonly #listeners = new Map<Topic, (() => void)[]>();
  #savedAt = 0;
  #firstModels: Promise<void> = Promise.resolve();
  #shownForm: Form = "chat";

  on(topics: readonly Topic[], listener: () => void): void {
    for (const topic of topics) this.#listeners.set(topic, [...(this.#listeners.get(topic) ?? []), listener]);
  }

  changed(...topics: Topic[]): void {
    for (const listener of new Set(topics.flatMap((topic) => this.#listeners.get(topic) ?? []))) listener();
  }

  async start(): Promise<void> {
    this.store.onFault = () => this.changed("store");
    this.store.onOther = (id, conversation) => this.#takeOther(id, conversation);
    this.#firstModels = this.server.refresh();
    for (const conversation of await this.store.readAll()) this.conversations.set(conversation.id, conversation);
    this.started = true;
    this.openFromAddress();
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("pagehide", () => {
      if (this.answering !== undefined) void this.store.write(this.current);
    });
    this.changed("list");
  }

  // Conversations

  get list(): readonly Conversation[] {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  get path(): readonly Message[] {
    return pathOf(this.current);
  }

  get answering(): Answering | undefined {
    return this.answers.get(this.current.id);
  }

  openFromAddress(): void {
    const asked = this.conversations.get(location.hash.slice(1));
    if (asked !== undefined && asked !== this.current) this.current = asked;
    else if (asked === undefined && this.conversations.has(this.current.id)) this.current = newConversation(null);
    this.changed("thread", "list", "models");
  }

  open(id: string | null): void {
    // `hashchange` does the rest; without a hash there is none to change to.
    if (id !== null) location.hash = id;
    else {
      history.pushState(null, "", location.pathname + location.search);
      this.current = newConversation(null);
      this.changed("thread", "list", "models");
    }
  }

  save(conversation: Conversation): void {
    if (conversation.messages.length === 0) return;
    const isNew = !this.conversations.has(conversation.id);
    this.conversations.set(conversation.id, conversation);
    if (isNew && conversation === this.current) history.replaceState(null, "", `#${conversation.id}`);
    void this.store.write(conversation);
    this.changed("list");
  }

  remove(conversation: Conversation): void {
    this.answers.get(conversation.id)?.stop();
    this.conversations.delete(conversation.id);
    void this.store.remove(conversation.id);
    if (conversation === this.current) this.open(null);
    this.changed("list");
  }

  removeAll(): void {
    for (const conversation of this.list) this.remove(conversation);
  }

  /** Takes conversations from a file that the page has written; gives how many they were. */
  import(text: string): number {
    const value: unknown = JSON.parse(text);
    const found = (Array.isArray(value) ? value : [value]).map(readConversation).filter((one) => one !== null);
    for (const conversation of found) this.save(conversation);
    return found.length;
  }

  #takeOther(id: string, conversation: Conversation | null): void {
    if (this.answers.has(id)) return;
    if (conversation === null) this.conversations.delete(id);
    else this.conversations.set(id, conversation);
    if (id === this.current.id) {
      this.current = conversation ?? newConversation(null);
      this.changed("thread");
    }
    this.changed("list");
  }

  // Models

  modelFor(conversation: Conversation): Model | null {
    return this.server.find(conversation.model, preference("model"));
  }

  get model(): Model | null {
    return this.modelFor(this.current);
  }

  /** How a conversation is shown and asked. */
  formOf(conversation: Conversation): Form {
    return conversation.form ?? (this.modelFor(conversation)?.kind === "completion" ? "story" : "chat");
  }

  get form(): Form {
    return this.formOf(this.current);
  }

  #serverChanged(what: "models" | "connection"): void {
    // A model that is loaded may turn out to be one for stories.
    const turns = this.form !== this.#shownForm;
    this.#shownForm = this.form;
    this.changed(what, ...(turns ? (["thread"] as const) : []));
  }

  choose(model: Model): void {
    this.current.model = model.id;
    setPreference("model", model.id);
    this.save(this.current);
    this.changed("models", "thread");
  }

  /** Who is quicker than the server's list of models, or asks again after it has failed, need not know of it. */
  async #modelsAreKnown(): Promise<void> {
    await this.#firstModels;
    if (this.model === null) await this.server.refresh();
  }

  // Messages

  async send(text: string): Promise<void> {
    const { current } = this;
    await this.#modelsAreKnown();
    if (this.answers.has(current.id)) return;
    if (this.formOf(current) === "story") {
      const story = storyOf(pathOf(current));
      const joint = story === "" || /\s$/.test(story) || /^[\s.,;:!?)’”'"-]/.test(text) ? "" : " ";
      // The next word brings its own space, as the model has learnt it.
      if (text.trim() !== "") addMessage(current, "user", joint + text.trimEnd(), current.leaf);
    } else addMessage(current, "user", text.trim(), current.leaf);
    this.#answer(current, current.leaf);
  }

  /** Another answer in the place of one. */
  async regenerate(message: Message): Promise<void> {
    const { current } = this;
    await this.#modelsAreKnown();
    if (this.answers.has(current.id)) return;
    // One that has said nothing is no alternative.
    if (message.content === "" && message.reasoning === undefined) {
      current.messages = current.messages.filter((other) => other !== message);
    }
    this.#answer(current, message.parent);
  }

  async edit(message: Message, text: string): Promise<void> {
    const { current } = this;
    await this.#modelsAreKnown();
    if (this.answers.has(current.id)) return;
    const { id } = addMessage(current, "user", text, message.parent);
    this.#answer(current, id);
  }

  /** Puts another text in the place of a whole story. */
  rewrite(text: string): void {
    if (this.answering !== undefined) return;
    addMessage(this.current, "user", text, null);
    this.save(this.current);
    this.changed("thread");
  }

  /** Shows the alternative before or after a message. */
  turn(message: Message, by: -1 | 1): void {
    if (this.answering !== undefined) return;
    const siblings = siblingsOf(this.current, message);
    const other = siblings[siblings.indexOf(message) + by];
    if (other === undefined) return;
    showBranch(this.current, other.id);
    this.save(this.current);
    this.changed("thread");
  }

  stop(): void {
    this.answering?.stop();
  }

  #answer(conversation: Conversation, parent: string | null): void {
    const model = this.modelFor(conversation);
    conversation.leaf = parent;
    const before = pathOf(conversation);
    const message = addMessage(conversation, "assistant", "", parent);
    if (model === null) {
      message.finish = "failed";
      message.failure = { code: "unreachable", message: "The server has not told which models it has." };
      this.save(conversation);
      this.changed("thread");
      return;
    }
    conversation.form = this.formOf(conversation);
    message.model = model.id;
    conversation.model = model.id;
    const answering = new Answering({
      message,
      model,
      question: (share) => questionFor(conversation, before, model, share),
      key: () => preference("key"),
      needKey: (reason) => this.server.needKey(reason),
      onModels: (models) => this.server.take(models),
      onChange: () => this.#grown(conversation),
    });
    this.answers.set(conversation.id, answering);
    this.save(conversation);
    this.changed("thread");
    void answering.run().then(() => {
      this.answers.delete(conversation.id);
      if (this.conversations.has(conversation.id)) this.save(conversation);
      if (conversation === this.current) this.changed("thread");
      void this.server.refresh();
    });
  }

  #grown(conversation: Conversation): void {
    if (conversation === this.current) this.changed("answer");
    // What has come so far outlives a page that is closed midway.
    const now = Date.now();
    if (now - this.#savedAt < SAVE_MS) return;
    this.#savedAt = now;
    void this.store.write(conversation);
  }
}
