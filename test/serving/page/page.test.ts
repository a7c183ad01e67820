/** The page in a real browser, against a server that says what a test wants to hear. */
import { expect, it } from "vitest";
import { describePage, evaluate, texts } from "../../helpers/page.ts";

describePage("the page", ({ server, open, ask, finished, asked, faults }) => {
  it("holds a conversation, which a reload keeps", async () => {
    const page = await open();
    await page.getByText("sage-8b answers.").waitFor();
    expect(await page.locator(".beginnings button").count()).toBe(4);
    server().next({ reasoning: "They greet me.", text: "Hello, **traveller**.\n\n```ts\nconst lamp = 1;\n```" });
    await ask(page, "Good evening");
    await finished(page);
    expect(asked(0)).toMatchObject({
      model: "sage-8b",
      stream: true,
      stream_options: { include_usage: true },
      messages: [{ role: "user", content: "Good evening" }],
    });
    expect(await texts(page, ".markdown strong")).toEqual(["traveller"]);
    expect(await texts(page, ".code figcaption span")).toEqual(["ts"]);
    expect(await texts(page, ".code .code-keyword")).toEqual(["const"]);
    expect(await page.locator(".assistant .stats").innerText()).toMatch(
      /^\d+ tokens · 56 tokens\/s · first after 84 ms$/,
    );
    expect(await page.locator(".composer .room").innerText()).toMatch(/of 8,192 tokens/);
    // Reasoning is folded until one opens it.
    expect(await page.getByText("They greet me.").isVisible()).toBe(false);
    await page.locator(".reasoning summary").click();
    await page.getByText("They greet me.").waitFor();

    // Another tab hears of what is said here.
    const tab = await page.context().newPage();
    await tab.goto(page.url());
    await finished(tab);
    server().next({ text: "You asked twice." });
    await ask(page, "And again");
    await finished(page, 2);
    await finished(tab, 2);
    await tab.close();
    expect(asked(1).messages).toHaveLength(3);

    await page.reload();
    await finished(page, 2);
    expect(await texts(page, ".bubble")).toEqual(["Good evening", "And again"]);
    expect(await texts(page, ".conversations a")).toEqual(["Good evening"]);
    expect(server().asked).toHaveLength(2);
  });

  it("stops, answers again, and takes an edited question", async () => {
    const page = await open();
    server().next({ text: "word ".repeat(500), pauseMs: 10 });
    await ask(page, "Count");
    await page.getByText("word word word").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText(/about \d+ tokens.*stopped/).waitFor();
    await expect.poll(() => server().asked[0]!.left).toBe(true);

    server().next({ text: "One." });
    await page.getByRole("button", { name: "Answer again" }).click();
    await page.getByText("2/2").waitFor();
    await finished(page);
    expect(asked(1).messages).toEqual([{ role: "user", content: "Count" }]);
    await page.getByRole("button", { name: "The one before" }).click();
    await page.getByText("word word word").waitFor();

    server().next({ text: "Two." });
    await page.locator(".message.user").hover();
    await page.getByRole("button", { name: "Edit" }).click();
    await page.getByLabel("Edit the message").fill("Count to two");
    await page.locator(".editor").getByRole("button", { name: "Send" }).click();
    await page.getByText("Two.", { exact: true }).first().waitFor();
    expect(asked(2).messages).toEqual([{ role: "user", content: "Count to two" }]);
    expect(await texts(page, ".bubble")).toEqual(["Count to two"]);
    // The other branch is a step away, with its newest answer.
    await page.locator(".message.user").getByRole("button", { name: "The one before" }).click();
    await page.getByText("One.", { exact: true }).waitFor();
  });

  it("does nothing that a text tells it to", async () => {
    const page = await open();
    const hostile = [
      "<script>window.owned = 1</script><img src=x onerror='window.owned = 2'><svg onload='window.owned = 3'>",
      "[a](javascript:window.owned=4) [b](JaVaScRiPt&#58;window.owned=5) [c](data:text/html,<script>alert(1)</script>)",
      "[d](vbscript:x) [e](//elsewhere.test/x) [f](/v1/models) <javascript:alert(1)> [g](\u0001javascript:alert(1))",
      "![h](https://elsewhere.test/pixel.png) ![i](data:image/svg+xml,<svg/onload=alert(1)>) ![j](javascript:alert(1))",
      '[k](https://elsewhere.test/fine "title") [l](mailto:a@b.test) https://elsewhere.test/bare',
      "</div></body><style>* { display: none }</style><iframe src='https://elsewhere.test'></iframe>",
      '```"><img src=x onerror=alert(1)>\n</code></pre><script>window.owned = 6</script>\n```',
      "| <b>x</b> |\n|---|\n| <a href='javascript:alert(1)'>y</a> |",
      `${">".repeat(3000)} deep ${"[".repeat(3000)}${"*".repeat(3000)}${"`".repeat(999)}`,
      `${"- ".repeat(500)}x`,
    ].join("\n\n");
    server().next({ text: hostile, reasoning: hostile });
    await ask(page, hostile);
    await finished(page);
    await page.locator(".reasoning summary").click();
    const inside = ".message";
    expect(await page.locator(`${inside} :is(script, img, iframe, style, object, embed, form)`).count()).toBe(0);
    const links = await evaluate<string[]>(page, `[...document.querySelectorAll(".message a")].map((a) => a.href)`);
    expect([...new Set(links)].sort()).toEqual([
      "https://elsewhere.test/",
      "https://elsewhere.test/bare",
      "https://elsewhere.test/fine",
      "https://elsewhere.test/pixel.png",
      "mailto:a@b.test",
    ]);
    const bare = await page.locator(".message a:not([rel~=noopener]), .message a:not([target=_blank])").count();
    expect(bare).toBe(0);
    const handlers = `[...document.querySelectorAll("*")].flatMap((e) => e.getAttributeNames()).filter((n) => /^on/.test(n))`;
    expect(await evaluate(page, handlers)).toEqual([]);
    expect(await evaluate(page, "window.owned")).toBe(undefined);
    // And could not, if it tried: markup from text is refused by the page's own policy.
    expect(await evaluate(page, `try { document.body.innerHTML = "<b>x</b>" } catch (e) { e.name }`)).toBe("TypeError");
    faults().length = 0;
  });

  it("builds each block of a long answer once", async () => {
    const page = await open();
    const paragraph = `${"A long walk through the forest. ".repeat(12)}\n\n- one\n- two\n\n\`\`\`py\nx = 1\n\`\`\`\n\n`;
    server().next({ text: `${paragraph.repeat(120)}The end.` });
    await ask(page, "Tell me everything");
    await page.locator(".markdown > p").nth(1).waitFor();
    await evaluate(page, `document.querySelector(".message > .markdown > p").isFirst = true`);
    await page.getByText("The end.", { exact: true }).waitFor();
    await finished(page);
    expect(await evaluate(page, `document.querySelector(".message > .markdown > p").isFirst`)).toBe(true);
    expect(await page.locator(".markdown > p").count()).toBe(121);
    expect(await page.locator(".code").count()).toBe(120);
  });

  it("fits a phone, with its conversations in a drawer", async () => {
    const page = await open({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
    server().next({
      text: `| ${"wide | ".repeat(20)}\n|${"---|".repeat(20)}\n\n\`${"x".repeat(200)}\` ${"y".repeat(300)}\n\n    ${"z".repeat(200)}`,
    });
    // Enter is a new line there, and a button sends.
    await page.locator("#write").fill("Long words");
    await page.getByRole("button", { name: "Send" }).tap();
    await finished(page);
    const overflow = () => evaluate(page, "document.documentElement.scrollWidth - innerWidth");
    expect(await overflow()).toBe(0);
    const sizes = await evaluate<number[]>(
      page,
      `[...document.querySelectorAll("main button")].filter((b) => b.offsetParent).map((b) => b.offsetHeight)`,
    );
    expect(Math.min(...sizes)).toBeGreaterThanOrEqual(30);
    await page.getByRole("button", { name: "Conversations" }).tap();
    await page.locator(".conversations a").waitFor();
    expect(await overflow()).toBe(0);
    await page.locator(".conversations a").tap();
    await page.getByRole("button", { name: "Settings of this conversation" }).tap();
    await page.getByLabel("Temperature").fill("0.3");
    expect(await overflow()).toBe(0);
    await page.getByRole("button", { name: "Close" }).tap();
    await page.locator("#write").fill("Again");
    await page.getByRole("button", { name: "Send" }).tap();
    await finished(page, 2);
    expect(asked(1)).toMatchObject({ temperature: 0.3 });
  });

  it("needs no mouse", async () => {
    const page = await open();
    await page.keyboard.type("First line");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("second");
    await page.keyboard.press("Enter");
    await finished(page);
    expect(asked(0).messages).toEqual([{ role: "user", content: "First line\nsecond" }]);
    expect(await page.locator("[role=status].off-screen").innerText()).toBe("Certainly.");
    await page.keyboard.press("ArrowUp");
    // At once: the field need not be drawn before it takes keys.
    await page.keyboard.type("!");
    await page.keyboard.press("Control+Enter");
    await page.getByText("2/2").first().waitFor();
    await finished(page);
    await page.keyboard.press("Control+,");
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Control+Shift+O");
    await page.locator(".welcome").waitFor();
    server().next({ text: "word ".repeat(300), pauseMs: 10 });
    await page.keyboard.type("Another");
    await page.keyboard.press("Enter");
    await page.getByText("word word").waitFor();
    await page.keyboard.press("Escape");
    await page.getByText(/stopped/).waitFor();
    await expect.poll(async () => (await texts(page, ".conversations a"))[0]).toBe("Another");
    await page.keyboard.press("Alt+ArrowDown");
    await page.getByText("second!").waitFor();
    await page.locator("#write").press("Enter");
    await ask(page, "Third");
    await finished(page, 2);
    expect(asked(3).messages).toMatchObject([{ role: "system", content: "Be brief." }, {}, {}, { content: "Third" }]);
    await evaluate(page, "document.activeElement.blur()");
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    // From the top: the way around, without a trap.
    await evaluate(page, "document.body.tabIndex = -1; document.body.focus()");
    const seen: string[] = [];
    for (let i = 0; i < 12; i++) {
      await page.keyboard.press("Tab");
      seen.push(await evaluate(page, `document.activeElement.ariaLabel ?? document.activeElement.innerText`));
    }
    expect(seen.slice(0, 3)).toEqual(["Write a message", "Hide the conversations", "New conversation"]);
    expect(seen).toContain("Settings of this conversation");
    expect(seen.some((name) => name.startsWith("Model: sage-8b"))).toBe(true);
  });
});
