/** `wick pull`, `wick models`, `wick remove`, and names in place of files. */
import { spawn } from "node:child_process";
import { readdir, readFile, stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { DownloadBars, formatTime } from "../../src/cli/download-bars.ts";
import { inspectCommand } from "../../src/cli/inspect.ts";
import { located } from "../../src/cli/model-options.ts";
import { ago, modelsCommand, removeCommand } from "../../src/cli/models.ts";
import { pullCommand } from "../../src/cli/pull.ts";
import { FakeHub } from "../helpers/fake-hub.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const program = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const bundled = fileURLToPath(new URL("../../models/fable-7m.Q8_0.gguf", import.meta.url));
const commands = { pull: pullCommand, models: modelsCommand, remove: removeCommand, inspect: inspectCommand };
const hub = new FakeHub();
const at = temporaryFolder();
let environment: Record<string, string>;

beforeAll(async () => {
  await hub.open();
  hub.repos.set("owner/name", { files: { "fable-Q8_0.gguf": await readFile(bundled) } });
});
afterAll(() => hub.close());
beforeEach(() => {
  environment = { HF_HOME: at("home"), HF_HUB_CACHE: "", HF_ENDPOINT: hub.endpoint, XDG_CACHE_HOME: at("caches") };
  for (const [name, value] of Object.entries(environment)) vi.stubEnv(name, value);
});
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  process.exitCode = undefined;
});

async function printed(command: keyof typeof commands, ...args: string[]): Promise<string> {
  const log = vi.spyOn(console, "log").mockImplementation(() => undefined);
  vi.spyOn(process.stderr, "write").mockImplementation(() => true);
  await commands[command]().parseAsync(args, { from: "user" });
  const out = log.mock.calls.map(([line]) => String(line)).join("\n");
  log.mockRestore();
  return out;
}

describe("the hub's commands", () => {
  it("stop at Ctrl-C, and go on from there", async () => {
    hub.fault({ at: "/store/", stallAfter: 3_000_000 });
    const child = spawn(process.execPath, [program, "pull", "owner/name"], { env: { ...process.env, ...environment } });
    const ended = new Promise<number | null>((done) => child.on("exit", done));
    let lines = "";
    child.stderr.on("data", (text: Buffer) => {
      lines += String(text);
    });
    const blobs = at("home/hub/models--owner--name/blobs");
    const bytes = async () => {
      const [name] = await readdir(blobs).catch(() => []);
      return name === undefined ? 0 : (await stat(`${blobs}/${name}`)).size;
    };
    while ((await bytes()) === 0) await new Promise((done) => setTimeout(done, 20));
    child.kill("SIGINT");
    expect(await ended).toBe(130);
    expect(lines).toMatch(/fable-Q8_0.gguf: downloading 7.\d MiB/);
    expect((await readdir(blobs)).map((name) => name.slice(64))).toEqual([".incomplete"]);
    expect(await printed("models")).toMatch(/owner\/name .*interrupted; pull it again to go on/);
  });

  it("of two processes download a file once", async () => {
    hub.fault({ at: "/store/", delayMs: 300 });
    hub.seen.length = 0;
    const env = { ...process.env, ...environment, HF_HOME: at("shared") };
    const pull = () =>
      new Promise<number | null>((done) => {
        spawn(process.execPath, [program, "pull", "owner/name"], { env, stdio: "ignore" }).on("exit", done);
      });
    expect(await Promise.all([pull(), pull()])).toEqual([0, 0]);
    expect(hub.count("/store/")).toBe(1);
  });

  it("download a model, show it and remove it", async () => {
    expect(await printed("pull", "owner/name:q8_0")).toMatch(/^owner\/name:q8_0: 1 files, 7\.\d MiB, in .*Q8_0.gguf$/);
    expect(JSON.parse(await printed("pull", "owner/name", "--check", "--json"))).toMatchObject({
      files: ["fable-Q8_0.gguf"],
    });
    expect(await printed("models")).toMatch(
      /owner\/name:Q8_0 +7\.\d MiB +[0-9a-f]{12} +just now\n1 in .*hub, 7\.\d MiB$/,
    );
    expect(JSON.parse(await printed("models", "--json"))).toMatchObject({ models: [{ name: "owner/name:Q8_0" }] });
    expect(await printed("inspect", "owner/name")).toMatch(/GGUF version 3.*general.architecture/s);
    expect(await printed("remove", "owner/name:Q8_0")).toMatch(/^owner\/name:Q8_0 removed, 7\.\d MiB freed$/);
    expect(await printed("models")).toMatch(/^No models in .*; `wick pull owner\/name` downloads one$/);
    await expect(printed("remove", "--json", "owner/name")).rejects.toThrow(/is not in the cache/);
  });

  it("say that the hub is not reached, and go on", async () => {
    await printed("pull", "owner/name");
    vi.stubEnv("HF_ENDPOINT", "http://127.0.0.1:4");
    const error = vi.spyOn(console, "error").mockImplementation(() => undefined);
    expect(await located("owner/name")).toMatch(/Q8_0.gguf$/);
    expect(error.mock.calls.join()).toMatch(/^wick: .*not reached.*; the model is taken as the cache has it$/);
  });
});

describe("bars", () => {
  class Output {
    text = "";
    readonly isTTY: boolean;
    readonly columns = 120;
    constructor(isTTY: boolean) {
      this.isTTY = isTTY;
    }
    write(text: string): boolean {
      this.text += text;
      return true;
    }
  }
  const run = (output: Output) => {
    let now = 0;
    const bars = new DownloadBars(output, () => now);
    const step = (file: string, bytesDone: number, bytesTotal: number | null, after = 1000) => {
      now += after;
      bars.update({ file, bytesDone, bytesTotal });
    };
    return { bars, step };
  };

  it("show each file with its rate and the time left", () => {
    const output = new Output(true);
    const { bars, step } = run(output);
    step("there.json", 10, 10);
    step("a.safetensors", 2 ** 20, 2 ** 30);
    step("b", 0, null);
    output.text = "";
    step("a.safetensors", 3 * 2 ** 20, 2 ** 30);
    const rewound = "\x1b[2A\x1b[J";
    expect(output.text.startsWith(rewound)).toBe(true);
    expect(output.text.slice(rewound.length)).toMatch(
      /^a\.safetensors +░{20} +0% 3\.0 MiB of 1\.0 GiB, 1\.0 MiB\/s, 17 min 1 s left\nb +░{20} 0 B\n$/,
    );
    output.text = "";
    step("a.safetensors", 2 ** 30, 2 ** 30);
    expect(output.text.slice(rewound.length)).toMatch(/^a\.safetensors +1\.0 GiB\nb /);
    bars.clear();
    expect(output.text.endsWith("\x1b[1A\x1b[J")).toBe(true);
    expect(output.text).not.toContain("there.json");
  });

  it("are lines where there is no terminal", () => {
    const output = new Output(false);
    const { step } = run(output);
    step("there.json", 10, 10);
    step("a", 0, 2 ** 30);
    step("a", 2 ** 20, 2 ** 30);
    step("a", 2 ** 29, 2 ** 30, 10_000);
    step("a", 0, 2 ** 30);
    step("a", 2 ** 30, 2 ** 30);
    step("b\u001b", 1, null);
    expect(output.text.split("\n")).toEqual([
      "a: downloading 1.0 GiB",
      "a:  50% 512.0 MiB of 1.0 GiB, 51.1 MiB/s, 11 s left",
      "a: done",
      "b\\u{1b}: downloading",
      "",
    ]);
  });

  it.each([
    [1.2, "2 s"],
    [61, "1 min 1 s"],
    [7261, "2 h 1 min"],
  ])("tell %f seconds as %s", (seconds, text) => {
    expect(formatTime(seconds)).toBe(text);
  });

  it.each([
    [0, "just now"],
    [60, "1 minute ago"],
    [7200, "2 hours ago"],
    [86_400 * 3, "3 days ago"],
  ])("what was used %i s before was used %s", (seconds, text) => {
    expect(ago(new Date(0), new Date(seconds * 1000))).toBe(text);
  });
});
