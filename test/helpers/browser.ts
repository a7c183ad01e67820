/** A real browser, where there is one: Debian's chromium or another, named by WICK_TEST_BROWSER. */
import { existsSync } from "node:fs";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";

const places = [
  process.env.WICK_TEST_BROWSER ?? "",
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];
export const browserPath = places.find((path) => path !== "" && existsSync(path)) ?? null;

export const launchBrowser = (): Promise<Browser> =>
  chromium.launch({ executablePath: browserPath!, args: ["--no-sandbox", "--disable-dev-shm-usage"] });

export interface Watched {
  readonly page: Page;
  /** Errors of its program, and what its security policy has blocked. */
  readonly faults: string[];
  /** Requests to anywhere but its own server; none of them gets out. */
  readonly elsewhere: string[];
}

/** A page of its own, with nothing stored, that is watched for what it must never do. */
export async function watchedPage(
  browser: Browser,
  address: string,
  options: BrowserContextOptions = {},
  before = "",
): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1100, height: 760 }, ...options });
  const faults: string[] = [];
  const elsewhere: string[] = [];
  await context.route(
    (url) => url.origin !== address,
    (route) => {
      elsewhere.push(route.request().url());
      return route.abort();
    },
  );
  await context.addInitScript(before);
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    // Answers with an error's status are told there too; the tests of those look at the page.
    const isNetwork = /Failed to load resource|net::ERR/.test(message.text());
    if (message.type() === "error" && !isNetwork) faults.push(message.text());
  });
  await page.goto(address);
  return { page, faults, elsewhere };
}
