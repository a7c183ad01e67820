/** The page as `wick serve` gives it, with the model that comes with Wick. */
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { buildPage } from "../../../scripts/page.mjs";
import { createEngine } from "../../../src/serving/create-engine.ts";
import { openTestServer, type TestServer } from "../../helpers/api-server.ts";
import { browserPath, launchBrowser, watchedPage } from "../../helpers/browser.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

describe.skipIf(browserPath === null)("the served page", () => {
  const folder = temporaryFolder();
  let browser: Browser;
  let served: TestServer;

  beforeAll(async () => {
    await buildPage(folder("page"));
    served = await openTestServer({ engine: (model) => createEngine(model), page: folder("page") });
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await served?.server.close();
  });

  it("tells a story with the bundled model, stops it, and keeps it", async () => {
    const { page, faults, elsewhere } = await watchedPage(browser, served.address);
    const opening = "Once upon a time there lived a king who had";
    // Which model it is and what it is for is known when it is loaded, at the latest by the first answer.
    await page.locator("#write").fill(opening);
    await page.getByRole("button", { name: "Send" }).click();
    await page
      .getByText(/\d+ tokens.*tokens\/s/)
      .first()
      .waitFor({ timeout: 20_000 });
    await page.reload();
    await page.getByText(opening).last().waitFor();

    await page.getByRole("button", { name: "New conversation" }).first().click();
    await page.getByText("How does it begin?").waitFor();
    await page.getByRole("button", { name: "Settings of this conversation" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Most tokens").fill("24");
    await page.keyboard.press("Escape");
    await page.locator("#write").fill(opening);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Go on" }).first().waitFor();
    const story = (await page.locator(".prose").innerText()).trim();
    expect(story.startsWith(`${opening} `)).toBe(true);
    const answer = await served.post("/v1/completions", { prompt: opening, max_tokens: 24, temperature: 0 });
    const { choices } = (await answer.json()) as { choices: { text: string }[] };
    expect(story).toBe(opening + choices[0]!.text.trimEnd());
    expect(await page.locator(".stats").innerText()).toMatch(/^24 tokens · [\d.,]+ tokens\/s · first after .*s$/);

    // The server hears of a stop.
    await page.getByRole("button", { name: "Settings of this conversation" }).click();
    await page.getByLabel("Most tokens").fill("400");
    await page.getByLabel("Temperature").fill("1");
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Another way on" }).click();
    await page.locator(".send[data-does=Stop]").click();
    await page.getByText("2/2").waitFor();
    expect(faults).toEqual([]);
    expect(elsewhere).toEqual([]);
  });
});
