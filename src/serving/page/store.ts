/**
 * Conversations in the browser's database, each a record of its own, so that tabs do not overwrite one another. Where
 * there is no database, or it is full, the page goes on with what it has in memory and says so.
 */
import { type Conversation, readConversation } from "./conversation.ts";

const TABLE = "conversations";

const settled = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function openDatabase(): Promise<IDBDatabase> {
  const request = indexedDB.open("wick", 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  return settled(request);
}

export class Store {
  #database: IDBDatabase | null = null;
  readonly #channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("wick");
  /** Why conversations are not kept; null as long as they are. */
  fault: string | null = null;
  onFault: () => void = () => undefined;
  /** Another tab has changed a conversation, or deleted it. */
  onOther: (id: string, conversation: Conversation | null) => void = () => undefined;

  constructor() {
    if (this.#channel !== null) this.#channel.onmessage = ({ data }) => void this.#refresh(String(data));
  }

  async readAll(): Promise<Conversation[]> {
    try {
      this.#database = await openDatabase();
      // The user may clear the site's data while the page is open.
      this.#database.onclose = () => this.#fail("The browser has closed its store.");
      const records = (await settled(this.#table("readonly").getAll())) as unknown[];
      return records.map(readConversation).filter((conversation) => conversation !== null);
    } catch (error) {
      this.#fail(`The browser does not open its store (${(error as Error).message}).`);
      return [];
    }
  }

  async write(conversation: Conversation): Promise<void> {
    if (this.#database === null) return;
    try {
      await settled(this.#table("readwrite").put(conversation));
      this.#recover();
      this.#channel?.postMessage(conversation.id);
    } catch (error) {
      const full = (error as Error).name === "QuotaExceededError";
      this.#fail(full ? "The browser's store is full." : `The browser does not write (${(error as Error).message}).`);
    }
  }

  async remove(id: string): Promise<void> {
    if (this.#database === null) return;
    try {
      await settled(this.#table("readwrite").delete(id));
      this.#recover();
      this.#channel?.postMessage(id);
    } catch (error) {
      this.#fail(`The browser does not delete (${(error as Error).message}).`);
    }
  }

  #table(mode: IDBTransactionMode): IDBObjectStore {
    return this.#database!.transaction(TABLE, mode).objectStore(TABLE);
  }

  async #refresh(id: string): Promise<void> {
    try {
      if (this.#database === null) return;
      this.onOther(id, readConversation(await settled(this.#table("readonly").get(id))));
    } catch {
      // This tab keeps what it has; its own next write tells whether the store works.
    }
  }

  #fail(reason: string): void {
    if (this.fault === reason) return;
    this.fault = reason;
    this.onFault();
  }

  #recover(): void {
    if (this.fault === null) return;
    this.fault = null;
    this.onFault();
  }
}
