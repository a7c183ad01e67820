/** Suites of the page: one browser for all, and for each test a page of its own that is watched. */
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect } from "vitest";
import { buildPage } from "../../scripts/page.mjs";
import { browserPath, launchBrowser, type Watched, watchedPage } from "./browser.ts";
import { FakeOpenAi } from "./fake-openai.ts";
import { temporaryFolder } from "./temporary-folder.ts";

export interface PageTools {
  readonly server: () => FakeOpenAi;
  /** Opens the page; `before` runs in it before its own program does. */
  readonly open: (options?: BrowserContextOptions, before?: string) => Promise<Page>;
  readonly ask: (page: Page, text: string) => Promise<void>;
  /** Waits for so many whole answers. */
  readonly finished: (page: Page, count?: number) => Promise<void>;
  /** The body of a request that the page has sent. */
  readonly asked: (i: number) => Readonly<Record<string, unknown>>;
  readonly faults: () => string[];
}

export const texts = (page: Page, selector: string): Promise<string[]> => page.locator(selector).allInnerTexts();
export const evaluate = <T>(page: Page, program: string): Promise<T> => page.evaluate(program) as Promise<T>;

export function describePage(title: string, tests: (tools: PageTools) => void): void {
  if (browserPath === null) console.warn("no browser is installed: the page is not tried (sudo npm run setup)");
  describe.skipIf(browserPath === null)(title, () => {
    const folder = temporaryFolder();
    let browser: Browser;
    let server: FakeOpenAi;
    let watched: Watched | undefined;

    beforeAll(async () => {
      await buildPage(folder("page"));
      server = new FakeOpenAi(folder("page"));
      await server.open();
      browser = await launchBrowser();
    });
    afterAll(async () => {
      await browser?.close();
      await server?.close();
    });
    beforeEach(() => server.reset());
    // Whatever a test is about: no error, nothing blocked, no word to anybody else.
    afterEach(async () => {
      expect(watched?.faults ?? []).toEqual([]);
      expect(watched?.elsewhere ?? []).toEqual([]);
      await watched?.page.context().close();
      watched = undefined;
    });

    tests({
      server: () => server,
      open: async (options, before) => {
        watched = await watchedPage(browser, server.address, options, before);
        return watched.page;
      },
      ask: async (page, text) => {
        await page.locator("#write").fill(text);
        await page.keyboard.press("Enter");
      },
      finished: (page, count = 1) =>
        page
          .locator(".message.assistant[aria-busy=false] .stats")
          .nth(count - 1)
          .waitFor(),
      asked: (i) => server.asked.at(i)!.body,
      faults: () => watched!.faults,
    });
  });
}
