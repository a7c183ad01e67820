/** Chat templates, and the commands that run a model: what they print, and the exit codes they end with. */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { cp, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { benchCommand } from "../../src/cli/bench.ts";
import { chatCommand, converse } from "../../src/cli/chat.ts";
import { generateCommand } from "../../src/cli/generate.ts";
import { ProgressBar } from "../../src/cli/progress.ts";
import { quantizeCommand } from "../../src/cli/quantize.ts";
import { verifyCommand } from "../../src/cli/verify.ts";
import { Device } from "../../src/index.ts";
import { ChatTemplate, loadModel, type Model, PLAIN_TEMPLATE } from "../../src/models/index.ts";
import { buildCli } from "../helpers/built-cli.ts";
import { fable, tiny } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();

/** The form most models use, written for these tests. */
const turns =
  "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}\n{% endfor %}" +
  "{% if add_generation_prompt %}[assistant]{% endif %}";
const userFirst =
  "{% if messages[0].role != 'user' %}{{ raise_exception('the first message must be from the user') }}{% endif %}" +
  "{{ messages[0].content }}";
const hello = [{ role: "user", content: " Hello " }];

describe("a chat template", () => {
  it("writes turns, special tokens and the opening of the answer", () => {
    const template = new ChatTemplate(turns, { bos_token: "<s>" });
    expect(template.render(hello)).toBe("<s>[user]Hello\n[assistant]");
    expect(template.render(hello, { addGenerationPrompt: false })).toBe("<s>[user]Hello\n");
    const system = { role: "system", content: "Be brief." };
    expect(template.render([system, ...hello])).toBe("<s>[system]Be brief.\n[user]Hello\n[assistant]");
  });

  it("takes further variables", () => {
    expect(new ChatTemplate("{{ mood }}").render(hello, { variables: { mood: "calm" } })).toBe("calm");
  });

  it("says what it refuses", () => {
    const template = new ChatTemplate(userFirst);
    const system = [{ role: "system", content: "" }];
    expect(() => template.render(system)).toThrow(/refuses these messages: the first message must be from the user/);
    expect(() => template.render([])).toThrow(/at least one message/);
    expect(() => template.render([{ role: "user" } as never])).toThrow(/needs a role and a content/);
    expect(() => new ChatTemplate("{% if %}")).toThrow(/cannot be parsed/);
  });

  it("is found in either place, as text or among several", async () => {
    const render = async (name: string, config: object | null, jinja?: string): Promise<string | undefined> => {
      const own = folder(name);
      await cp(fable, own, { recursive: true });
      if (config) await writeFile(join(own, "tokenizer_config.json"), JSON.stringify(config));
      if (jinja) await writeFile(join(own, "chat_template.jinja"), jinja);
      using model = await loadModel(own);
      return model.chatTemplate?.render(hello);
    };
    const tokens = { bos_token: { content: "<|bos|>" }, eos_token: null };
    expect(await render("none", tokens)).toBeUndefined();
    expect(await render("text", { ...tokens, chat_template: turns })).toBe("<|bos|>[user]Hello\n[assistant]");
    const several = [
      { name: "tool_use", template: "tools" },
      { name: "default", template: turns },
    ];
    expect(await render("several", { ...tokens, chat_template: several })).toBe("<|bos|>[user]Hello\n[assistant]");
    expect(await render("file", { ...tokens, chat_template: "other" }, turns)).toBe("<|bos|>[user]Hello\n[assistant]");
    await expect(render("wrong", { chat_template: 3 })).rejects.toThrow(/chat_template must be a string/);
  });

  it("feeds a model without a second first token", async () => {
    using model = await loadModel(fable, { chatTemplate: "<|bos|>{{ messages[0].content }}" });
    expect(model.encode([{ role: "user", content: "Once upon" }])).toEqual(model.encode("Once upon"));
  });
});

/** What a command printed, and the exit code it set. */
async function runCommand(command: ReturnType<typeof generateCommand>, args: string[]) {
  const out: string[] = [];
  const err: string[] = [];
  const lines = (to: string[]) => (line: unknown) => void to.push(`${line}\n`);
  vi.spyOn(process.stdout, "write").mockImplementation((text) => out.push(String(text)) > 0);
  vi.spyOn(console, "log").mockImplementation(lines(out));
  vi.spyOn(console, "error").mockImplementation(lines(err));
  const before = process.exitCode;
  process.exitCode = undefined;
  try {
    await command
      .exitOverride()
      .configureOutput({ writeErr: () => {}, writeOut: (text) => out.push(text) })
      .parseAsync(args, { from: "user" });
    return { out: out.join(""), err: err.join(""), code: process.exitCode ?? 0 };
  } finally {
    process.exitCode = before;
  }
}
afterEach(() => vi.restoreAllMocks());

describe("wick generate", () => {
  const args = ["--model", fable, "--prompt", "Once upon a time", "--max-tokens", "12"];

  it("prints the prompt, the text and, apart from them, the rate", async () => {
    const { out, err, code } = await runCommand(generateCommand(), [...args, "--temperature", "0"]);
    expect(out).toMatch(/^Once upon a time\W.*\n$/s);
    expect(err).toMatch(/^prompt 5 tokens \(\S+ tokens\/s\), generated 12 tokens \(\S+ tokens\/s\); the limit/);
    expect(code).toBe(0);
  });

  it("prints the same for the same seed, and JSON where asked", async () => {
    const sampled = [...args, "--seed", "4", "--temperature", "1", "--json"];
    const [a, b] = [await runCommand(generateCommand(), sampled), await runCommand(generateCommand(), sampled)];
    const result = JSON.parse(a.out) as Record<string, unknown>;
    expect(result).toMatchObject({ prompt: "Once upon a time", promptTokens: 5, finish: "length" });
    expect(result.device).toBe(Device.best().name);
    expect(result.tokens).toHaveLength(12);
    expect(JSON.parse(b.out)).toMatchObject({ text: result.text, tokens: result.tokens });
  });

  it("uses the bundled model unless told otherwise", async () => {
    const { out } = await runCommand(generateCommand(), ["--max-tokens", "8", "--temperature", "0", "--json"]);
    const bundled = JSON.parse(out) as Record<string, unknown>;
    expect(bundled.model).toMatch(/models.fable-7m\.Q8_0\.gguf$/);
    const { out: plain } = await runCommand(generateCommand(), [
      ...args.slice(0, -1),
      "8",
      "--temperature",
      "0",
      "--json",
    ]);
    expect(bundled.tokens).toEqual((JSON.parse(plain) as Record<string, unknown>).tokens);
  });

  it("ends at a stop string", async () => {
    const stop = [...args, "--temperature", "0", "--stop", "zzz", "--stop", ","];
    const { out, err } = await runCommand(generateCommand(), stop);
    expect(out).not.toContain(",");
    expect(err).toMatch(/a stop string\n$/);
  });

  it("stops for Ctrl-C with exit code 130, while it writes and while it loads", async () => {
    const many = ["--model", fable, "--max-tokens", "400", "--json"];
    setTimeout(() => process.emit("SIGINT"), 400);
    const writing = await runCommand(generateCommand(), many);
    expect(JSON.parse(writing.out)).toMatchObject({ finish: "aborted" });
    expect(writing.code).toBe(130);
    setImmediate(() => process.emit("SIGINT"));
    expect(await runCommand(generateCommand(), many)).toEqual({ out: "", err: "", code: 130 });
    expect(process.listenerCount("SIGINT")).toBe(0);
  });

  it.each([
    ["--temperature", "-1"],
    ["--temperature", "warm"],
    ["--top-k", "1.5"],
    ["--top-p", "2"],
    ["--max-tokens", "0"],
    ["--seed", ""],
    ["--dtype", "i8"],
    ["--threads", "none"],
  ])("refuses %s %s as wrong usage", async (option, value) => {
    const run = runCommand(generateCommand(), [...args, option, value]);
    await expect(run).rejects.toMatchObject({ code: "commander.invalidArgument" });
  });

  it("shows examples in its help", async () => {
    for (const command of [generateCommand, chatCommand, benchCommand, verifyCommand]) {
      expect(command().helpInformation()).toContain("Options:");
      let out = "";
      const shown = command()
        .exitOverride()
        .configureOutput({ writeOut: (text) => (out += text) });
      expect(() => shown.parse(["--help"], { from: "user" })).toThrow();
      expect(out).toMatch(/Examples:\n {2}wick /);
    }
  });
});

describe("wick bench", () => {
  const args = ["--model", tiny("llama"), "--prompt-tokens", "8", "--tokens", "4", "--runs", "2", "--batch", "2"];

  it("prints a row per device", async () => {
    const { out } = await runCommand(benchCommand(), [...args, "--device", "cpu,cpu"]);
    const [head, ...rows] = out.trim().split("\n");
    expect(head).toMatch(/device +dtype +batch +load +prompt tokens\/s +decode tokens\/s +weights +peak/);
    expect(rows).toHaveLength(2);
    expect(rows[0]).toMatch(/^cpu +f32 +2 +\S+ s +[\d.]+ +[\d.]+ +4\S+ KiB/);
  });

  it("measures several numbers of sequences with one load", async () => {
    const { out } = await runCommand(benchCommand(), [...args, "--batch", "1,3", "--json"]);
    const { results } = JSON.parse(out) as { results: { batch: number; loadSeconds: number }[] };
    expect(results.map(({ batch }) => batch)).toEqual([1, 3]);
    expect(results[0]!.loadSeconds).toBe(results[1]!.loadSeconds);
    await expect(runCommand(benchCommand(), [...args, "--batch", "1,0"])).rejects.toThrow("a whole number from 1 up");
  });

  it("prints JSON", async () => {
    const { out } = await runCommand(benchCommand(), [...args, "--json", "--dtype", "bf16"]);
    const { results } = JSON.parse(out) as { results: Record<string, number>[] };
    expect(results).toMatchObject([{ device: "cpu", dtype: "bf16", batch: 2, promptTokens: 8, tokens: 4 }]);
    expect(results[0]!.decodeTokensPerSecond).toBeGreaterThan(0);
    expect(results[0]!.promptTokensPerSecond).toBeGreaterThan(0);
  });

  it("stops for Ctrl-C", async () => {
    setTimeout(() => process.emit("SIGINT"), 200);
    const long = ["--model", fable, "--prompt-tokens", "8", "--tokens", "400", "--runs", "99"];
    expect(await runCommand(benchCommand(), long)).toMatchObject({ out: "", code: 130 });
  });
});

describe("wick verify", () => {
  it("takes a model's folder, with the table and the JSON it has for ops", async () => {
    const { out, code } = await runCommand(verifyCommand(), [tiny("qwen3")]);
    expect(out).toMatch(/^op .*\nlogits +1 +0 .*\nlogits-cached +1 +0 .*\ngreedy +2 +0 .*\n4 passed, 0 failed/s);
    expect(code).toBe(0);
    const json = await runCommand(verifyCommand(), [tiny("qwen3"), "--json", "--only", "greedy"]);
    expect(JSON.parse(json.out)).toMatchObject({
      device: "cpu",
      passed: 2,
      failed: 0,
      skipped: 2,
      cases: [{ id: "greedy-0", op: "greedy", ok: true, maxAbs: 0, maxRel: 0 }, { id: "greedy-1" }],
    });
  });
});

describe("wick quantize", () => {
  it("makes a complete model of a folder", async () => {
    const path = folder("fable.Q8_0.gguf");
    const { out } = await runCommand(quantizeCommand(), [fable, path, "--type", "q8_0"]);
    expect(out).toMatch(/blk\.7\.attn_q\.weight +\[256, 256\] +bf16 → Q8_0/);
    const args = ["--prompt", "Once upon a time", "--max-tokens", "8", "--temperature", "0", "--json"];
    const tokens = async (model: string) =>
      (JSON.parse((await runCommand(generateCommand(), ["--model", model, ...args])).out) as { tokens: number[] })
        .tokens;
    expect(await tokens(path)).toEqual(await tokens(fable));
  });
});

describe("a progress bar", () => {
  it("shows bytes on a terminal, and nothing elsewhere", () => {
    const written: string[] = [];
    const stream = (isTTY: boolean) => ({ isTTY, write: (text: string) => written.push(text) > 0 });
    const silent = new ProgressBar("Loading", stream(false));
    silent.update(1, 2);
    silent.clear();
    expect(written).toEqual([]);
    const bar = new ProgressBar("Loading", stream(true));
    bar.update(2 ** 20, 2 ** 21);
    bar.update(2 ** 20 + 1, 2 ** 21); // too soon to be worth drawing
    bar.update(2 ** 21, 2 ** 21);
    bar.clear();
    bar.clear();
    expect(written).toEqual([
      `\rLoading ${"█".repeat(15)}${"░".repeat(15)} 50%  1.0 MiB of 2.0 MiB\x1b[K`,
      `\rLoading ${"█".repeat(30)}100%  2.0 MiB of 2.0 MiB\x1b[K`,
      "\r\x1b[K",
    ]);
  });
});

describe("a conversation", () => {
  let model: Model;
  beforeAll(async () => {
    model = await loadModel(fable, { chatTemplate: `<|bos|>${PLAIN_TEMPLATE}` });
  });
  afterAll(() => model.dispose());

  const flags = { maxTokens: 6, temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1 };

  function open(options: Parameters<typeof converse>[1] = flags) {
    const input = new PassThrough();
    const output = Object.assign(new PassThrough(), { isTTY: true });
    let text = "";
    output.setEncoding("utf8").on("data", (chunk: string) => {
      text += chunk;
    });
    const ended = converse(model, options, { input, output });
    const until = (pattern: RegExp) => vi.waitUntil(() => pattern.test(text), { timeout: 20_000, interval: 10 });
    return { input, ended, until, text: () => text };
  }

  it("answers, forgets, explains and ends", async () => {
    const { input, ended, until, text } = open();
    input.write("Once upon a time\n");
    await until(/tokens\/s\)\n/);
    input.write("/reset\n");
    await until(/\(the conversation is forgotten\)/);
    input.write("/help\n/what\n\n");
    await until(/\(there is no \/what: /);
    input.write("/exit\n");
    await ended;
    expect(text()).toMatch(/\(6 tokens, [\d.]+ tokens\/s\)/);
  });

  it("stops an answer for Ctrl-C and goes on; at the prompt says how to leave", async () => {
    const { input, ended, until, text } = open({ ...flags, maxTokens: 450 });
    await until(/> /);
    input.write("\x03");
    await until(/\(\/exit or Ctrl-D leaves\)/);
    input.write("Once upon a time\n");
    await until(/Once upon a time[\r\n]+.{5}/s);
    input.write("\x03");
    await until(/\(stopped\)/);
    input.write("\x04");
    await ended;
    expect(text().match(/\(stopped\)/g)).toHaveLength(1);
  });

  it("keeps what was said, and says when it no longer fits", async () => {
    const { input, ended, until } = open({ ...flags, system: "word ".repeat(300) });
    input.write(`${"word ".repeat(300)}\n`);
    await until(/tokens, but the model's context holds 512.*\/reset/s);
    input.write("\x04");
    await ended;
  });
});

describe("the wick command", () => {
  let wick: string;
  const running: ChildProcessWithoutNullStreams[] = [];
  beforeAll(async () => {
    wick = await buildCli(folder("package"));
  }, 120_000);
  afterEach(() => {
    for (const child of running.splice(0)) child.kill("SIGKILL");
  });

  function start(command: string, args: string[]) {
    const child = spawn(command, args, { env: { ...process.env, NO_COLOR: "1" } });
    running.push(child);
    const seen = { out: "", err: "" };
    child.stdout.setEncoding("utf8").on("data", (chunk: string) => (seen.out += chunk));
    child.stderr.setEncoding("utf8").on("data", (chunk: string) => (seen.err += chunk));
    const code = new Promise<number | null>((resolve) => child.on("close", resolve));
    const until = (pattern: RegExp) => vi.waitUntil(() => pattern.test(seen.out), { timeout: 30_000, interval: 20 });
    return { child, seen, code, until };
  }
  const node = (...args: string[]) => start(process.execPath, [wick, ...args]);

  it("ends with 0 when all is well, 2 for wrong usage, 1 for the rest", async () => {
    const good = node("generate", "--max-tokens", "3");
    expect(await good.code).toBe(0);
    expect(good.seen.out).toMatch(/^Once upon a time/);
    for (const [args, code, message] of [
      [["generate", "--model", fable, "--top-p", "0"], 2, /topP must be above 0.*\[InvalidArgument\]/],
      [["generate", "--model", fable, "--device", "abacus"], 2, /unknown device "abacus"/],
      [["generate", "--max-tokens", "many"], 2, /whole number from 1 up/],
      [["generate", "--model", folder("nowhere")], 1, /cannot be opened/],
      [["generate", "--model", fable, "--prompt", "word ".repeat(600)], 1, /tokens, but the model's context holds 512/],
    ] as const) {
      const run = node(...args);
      expect(await run.code).toBe(code);
      expect(run.seen.err).toMatch(message);
      expect(run.seen.out).toBe("");
    }
  });

  it("reads a prompt from stdin, and ends for Ctrl-C with 130 after what it wrote", async () => {
    const run = node("generate", "--model", fable, "--prompt", "-", "--max-tokens", "500");
    run.child.stdin.end("It was a dark night");
    await run.until(/It was a dark night.{5}/s);
    run.child.kill("SIGINT");
    expect(await run.code).toBe(130);
    expect(run.seen.err).toMatch(/; stopped\n$/);
  });

  it("talks in a terminal", async () => {
    const quoted = [process.execPath, wick, "chat", "--model", fable, "--max-tokens", "480", "--seed", "1"].join(" ");
    const { child, seen, code, until } = start("script", ["-qefc", quoted, "/dev/null"]);
    const type = (text: string) => child.stdin.write(text);
    await until(/not made for chat.*> /s);
    type("Once upon a time\r");
    await until(/Once upon a time[\r\n]+.{20}/s);
    type("\x03");
    await until(/\(stopped\)\r\n\(\d+ tokens, [\d.]+ tokens\/s\)\r\n/);
    await delay(50);
    type("\x1b[A"); // arrow up: the line is there again
    await until(/stopped.*Once upon a time/s);
    type("\x15/reset\r");
    await until(/\(the conversation is forgotten\)/);
    type("\x03");
    await until(/\(\/exit or Ctrl-D leaves\)/);
    type("/exit\r");
    expect(await code).toBe(0);
    expect(seen.out.match(/\(stopped\)/g)).toHaveLength(1);
  });
});
