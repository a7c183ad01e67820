/** A model of the server, as its list tells it. */
export interface Model {
  readonly id: string;
  readonly state: "unloaded" | "loading" | "ready";
  /** From 0 to 1. */
  readonly progress: number;
  /** What is being done to it where it is loading. */
  readonly phase: "download" | "load";
  /** Why it could not be loaded, where that was tried. */
  readonly error: string | null;
  readonly contextLength: number | null;
  /** What it was made for: messages, going on with a text, or vectors. Some servers know only when it is loaded. */
  readonly kind: "chat" | "completion" | "embedding" | null;
  readonly isDefault: boolean;
}
