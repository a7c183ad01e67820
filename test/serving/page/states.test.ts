/** The page when things are not as they should be, and with other models and looks. */
import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { describePage, evaluate, texts } from "../../helpers/page.ts";

const story = { id: "fable-7m", state: "unloaded", progress: 0, context_length: 512, kind: "completion" } as const;

describePage("the page's states", ({ server, open, ask, finished, asked }) => {
  it("keeps what had come when the server goes, and finds it again", async () => {
    const page = await open();
    server().next({ text: "one two three four five", cutAfter: 3 });
    await ask(page, "Count");
    await page.getByText("The connection to the server was lost.").waitFor();
    expect(await texts(page, ".message > .markdown")).toEqual(["one two three"]);
    await server().down(async () => {
      await page.getByRole("button", { name: "Try again" }).click();
      await page.getByText("Is the server still running?").waitFor();
      await page.getByText("The server does not answer.").waitFor();
    });
    await page.getByText("The server does not answer.").waitFor({ state: "detached" });
    server().next({ text: "one two three four five" });
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByText("2/2").waitFor();
    await finished(page);
    expect(await texts(page, ".message > .markdown")).toEqual(["one two three four five"]);
  });

  it("waits for a busy server, and says what a refusal says", async () => {
    const page = await open();
    server().next({ status: 429, message: "Too many requests.", headers: { "retry-after": "1" } }, { text: "Here." });
    await ask(page, "Hello");
    await page.getByText("The server is busy. Trying again in 1 s").waitFor();
    await finished(page);
    expect(server().asked).toHaveLength(2);
    server().next({ status: 400, code: "invalid_value", message: "The temperature must be a number." });
    await ask(page, "Hello again");
    await page.getByText("The temperature must be a number.").waitFor();
    await page.getByText("invalid_value").waitFor();
  });

  it("offers a way on when the context is full", async () => {
    const page = await open();
    await ask(page, `Old ${"words ".repeat(4000)}`);
    await finished(page);
    server().next({ status: 400, code: "context_length_exceeded", message: "9,000 tokens do not fit 8,192." });
    await ask(page, "New");
    server().next({ text: "Shorter." });
    await page.getByRole("button", { name: "Leave out the oldest" }).click();
    await finished(page, 2);
    expect(asked(2).messages).toEqual([{ role: "user", content: "New" }]);
  });

  it("asks for the key that a server wants, once", async () => {
    server().key = "sk-right";
    const page = await open();
    await page.getByLabel("API key").last().fill("sk-wrong");
    await page.keyboard.press("Enter");
    await page.getByText("The key is not one of this server's.").waitFor();
    await page.getByLabel("API key").last().fill("sk-right");
    await page.keyboard.press("Enter");
    await page.locator(".model-picker", { hasText: "sage-8b" }).waitFor();
    await page.reload();
    await ask(page, "Hello");
    await finished(page);
  });

  it("shows how far a model is loaded, and lets one choose another", async () => {
    server().models.push({ ...story }, { ...story, id: "owner/vectors", kind: "embedding" });
    const page = await open();
    await page.locator(".model-picker").click();
    expect(await texts(page, "[role=menuitemradio] .label")).toEqual([
      expect.stringMatching(/^sage-8b\s+ready · 8,192/),
      expect.stringMatching(/^fable-7m\s+loads at the first message/),
    ]);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByText("How does it begin?").waitFor();
    server().next({ text: " three sons.", loadMs: 1500, finish: "length" });
    await ask(page, "There was a king who had ");
    await page.getByText(/Loading fable-7m… [1-9]\d? %/).waitFor();
    await page.getByRole("button", { name: "Go on" }).first().waitFor();
    expect(await page.locator(".prose").innerText()).toBe("There was a king who had three sons.");
    expect(server().asked[0]!.path).toBe("/v1/completions");
    expect(asked(0)).toMatchObject({ prompt: "There was a king who had", max_tokens: 160, temperature: 0.7 });

    // The story goes on by itself, and slides through the context when it is longer.
    server().next({ text: ` ${"And they walked on through the snow. ".repeat(80)}`, finish: "length" });
    await page.locator("#write").press("Enter");
    await page.getByText(/^5\d\d tokens/).waitFor();
    expect(asked(1).prompt).toBe("There was a king who had three sons.");
    server().next({ status: 400, code: "context_length_exceeded", message: "too long" }, { text: " The end." });
    await ask(page, "At last they came home.");
    await page.getByText("The end.").first().waitFor();
    const [long, short] = [asked(2).prompt, asked(3).prompt].map(String);
    expect(long!.length).toBeLessThan(2000);
    expect(short!.length).toBeLessThan(long!.length);
    expect(short).toMatch(/^\w.* At last they came home\.$/);

    await page.getByRole("button", { name: "Edit the text" }).click();
    await page.getByLabel("Edit the story").fill("Once");
    await page.getByRole("button", { name: "Save" }).click();
    await page.locator(".prose", { hasText: /^Once$/ }).waitFor();
  });

  it("has a light and a dark side, and keeps the one that was chosen", async () => {
    const page = await open({ colorScheme: "dark" });
    const light = () =>
      evaluate<number>(page, `Number(/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0])`);
    expect(await light()).toBeLessThan(60);
    await page.emulateMedia({ colorScheme: "light" });
    expect(await light()).toBeGreaterThan(220);
    const look = page.getByRole("button", { name: /^Colours/ });
    await look.click();
    await look.click();
    await page.reload();
    expect(await light()).toBeLessThan(60);
    expect(await look.getAttribute("aria-label")).toBe("Colours: dark");
  });

  it("works without a store, and says so", async () => {
    const page = await open({}, "indexedDB.open = () => { throw new DOMException('denied', 'SecurityError') }");
    await page.getByText("The browser does not open its store (denied).").waitFor();
    await ask(page, "Hello");
    await finished(page);
    await page.getByRole("button", { name: "Dismiss" }).click();
  });

  it("says that the store is full, and does not lose what it shows", async () => {
    const full = "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') }";
    const page = await open({}, full);
    await ask(page, "Hello");
    await page.getByText("The browser's store is full.").waitFor();
    await finished(page);
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).click();
    expect(readFileSync(await (await download).path(), "utf8")).toBe(
      "# Hello\n\n**You**\n\nHello\n\n**sage-8b**\n\nCertainly.\n",
    );
  });

  it("keeps a hundred conversations, finds one, and gives a deleted one back", async () => {
    // As another visit has left them, with a broken one among them.
    const fill = `new Promise((done) => {
      const opening = indexedDB.open("wick", 1);
      opening.onsuccess = () => {
        const table = opening.result.transaction("conversations", "readwrite").objectStore("conversations");
        for (let i = 0; i < 100; i++) table.put({ id: "c" + i, updated: 1e12 + i, leaf: "b", messages: [
          { id: "a", parent: null, role: "user", content: "Question " + i },
          { id: "b", parent: "a", role: "assistant", content: "Answer " + i, finish: "stop" } ] });
        table.put({ id: "broken", messages: [{ id: 5 }] });
        table.transaction.oncomplete = done;
      };
    })`;
    const page = await open();
    await page.locator(".welcome").waitFor();
    await evaluate(page, fill);
    await page.reload();
    await page.getByText("Question 99").waitFor();
    expect(await page.locator(".conversations a").count()).toBe(100);
    await page.keyboard.press("Control+k");
    await page.keyboard.type("answer 42");
    await expect.poll(() => texts(page, ".conversations a")).toEqual(["Question 42"]);
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await page.locator(".markdown", { hasText: "Answer 42" }).waitFor();
    await page.getByRole("button", { name: "More on Question 42" }).click();
    await page.getByRole("menuitem", { name: "Delete" }).click();
    await page.locator(".welcome").waitFor();
    await page.getByRole("button", { name: "Undo" }).click();
    await expect.poll(() => texts(page, ".conversations a")).toEqual(["Question 42"]);
    // All of them leave as a file, and come back from it.
    const exported = page.waitForEvent("download");
    await page.getByRole("button", { name: "More", exact: true }).click();
    await page.getByRole("menuitem", { name: "Export everything" }).click();
    const file = await (await exported).path();
    await page.getByRole("button", { name: "More", exact: true }).click();
    await page.getByRole("menuitem", { name: "Delete everything" }).click();
    await page.getByRole("button", { name: "Delete everything" }).click();
    await expect.poll(() => page.locator(".conversations a").count()).toBe(0);
    const chooser = page.waitForEvent("filechooser");
    await page.getByRole("button", { name: "More", exact: true }).click();
    await page.getByRole("menuitem", { name: "Import" }).click();
    await (await chooser).setFiles(file);
    await page.getByText("100 conversations imported.").waitFor();
    expect(await page.locator(".conversations a").count()).toBe(100);
  });
});
