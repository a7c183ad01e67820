// Takes the pictures of the page for docs/images: `npm run screenshots`. What the chat says is written here, by a server that
// only repeats it; the story is told by the bundled model, from a seed.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { rolldown } from "rolldown";

const root = fileURLToPath(new URL("..", import.meta.url));
const images = join(root, "docs/images");
const work = mkdtempSync(join(tmpdir(), "wick-screenshots-"));

/** A helper of the tests, which are TypeScript. */
async function helper(name) {
  const bundle = await rolldown({
    input: join(root, "test/helpers", `${name}.ts`),
    platform: "node",
    external: [/^[^./]/],
  });
  // Inside the project, so that it finds its packages.
  const path = join(root, "node_modules/.cache", `wick-${name}.mjs`);
  const { output } = await bundle.generate({ format: "esm" });
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, output[0].code);
  await bundle.close();
  return import(pathToFileURL(path).href);
}

const question = "Explain how a hash map grows, with a small example in TypeScript";
const answer = `A hash map keeps its entries in an array of **buckets**. When the array becomes too full, chains grow long and lookups slow down, so the map makes a larger array and moves everything over.

The *load factor* is entries divided by buckets. Most maps grow at about \`0.75\`:

| Entries | Buckets | Load factor |
|---|--:|--:|
| 12 | 16 | 0.75 |
| 13 | 32 | 0.41 |

\`\`\`ts
function grow<K, V>(old: Bucket<K, V>[]): Bucket<K, V>[] {
  const next = Array.from({ length: old.length * 2 }, () => []);
  // Every key finds its new place: the hash is the same, the modulus is not.
  for (const [key, value] of old.flat()) {
    next[hash(key) % next.length].push([key, value]);
  }
  return next;
}
\`\`\`

Moving costs *n* steps, but happens so rarely that each insertion pays a constant on average.`;
const earlier = [
  "Why does this query scan the whole table?",
  "Three names for a lighthouse keeper’s cat",
  "What does “batch-invariant” mean?",
  "A packing list for four days of walking",
];

async function capture(page, name) {
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 82 });
  const bytes = Buffer.from(data, "base64");
  writeFileSync(join(images, `${name}.webp`), bytes);
  console.log(`docs/images/${name}.webp: ${Math.ceil(bytes.length / 1024)} KiB`);
}

async function pictureChat(browser, server, name, options) {
  const context = await browser.newContext({ deviceScaleFactor: 2, ...options });
  const page = await context.newPage();
  await page.goto(server.address);
  await page.locator(".beginnings button").first().waitFor();
  for (const text of earlier) {
    await page.locator("#write").fill(text);
    await page.locator(".send").click();
    await page.locator(".assistant .stats", { hasText: "tokens" }).waitFor();
    await page.evaluate(`document.querySelector(".sidebar .new").click()`);
    await page.locator(".welcome").waitFor();
  }
  server.next({
    text: answer,
    reasoning: "They ask how a hash map grows. Load factor first, then a short example.",
    pauseMs: 1,
  });
  await page.locator("#write").fill(question);
  await page.locator(".send").click();
  await page.locator(".assistant .stats", { hasText: "tokens/s" }).waitFor();
  await page.locator(".assistant[aria-busy=false]").waitFor();
  await page.evaluate(`document.querySelector("#thread").scrollTop = 0; document.activeElement.blur()`);
  await page.mouse.move(5, 300);
  await page.waitForTimeout(400);
  await capture(page, name);
  await context.close();
}

async function pictureStory(browser) {
  const port = 8097;
  const serving = spawn(process.execPath, [join(root, "dist/cli/main.js"), "serve", "--port", port], { stdio: "pipe" });
  await new Promise((resolve) => serving.stdout.once("data", resolve));
  const context = await browser.newContext({ deviceScaleFactor: 2, viewport: { width: 1200, height: 760 } });
  const page = await context.newPage();
  await page.goto(`http://127.0.0.1:${port}`);
  await page.getByText("How does it begin?").waitFor();
  await page.getByRole("button", { name: "Settings of this conversation" }).click();
  await page.getByLabel("Seed").fill("12");
  await page.getByLabel("Most tokens").fill("110");
  await page.keyboard.press("Escape");
  await page.locator(".beginnings button").first().click();
  await page.getByRole("button", { name: "Go on" }).first().waitFor();
  await page.mouse.move(5, 300);
  await page.waitForTimeout(300);
  await capture(page, "story");
  await context.close();
  serving.kill();
}

const { buildPage } = await import("./page.mjs");
const { launchBrowser } = await helper("browser");
const { FakeOpenAi } = await helper("fake-openai");
mkdirSync(images, { recursive: true });
await buildPage(join(work, "page"));
const server = new FakeOpenAi(join(work, "page"));
await server.open();
const browser = await launchBrowser();
const wide = { viewport: { width: 1200, height: 760 } };
await pictureChat(browser, server, "chat-light", { ...wide, colorScheme: "light" });
await pictureChat(browser, server, "chat-dark", { ...wide, colorScheme: "dark" });
await pictureChat(browser, server, "phone", { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true });
await pictureStory(browser);
await browser.close();
await server.close();
rmSync(work, { recursive: true });
