/** What is in the cache, taking it out, and loading from it. */
import { mkdir, readdir, readFile, rm, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { holdLock } from "../../../src/models/hub/lock.ts";
import { pullModel } from "../../../src/models/hub/pull.ts";
import { hubSettings } from "../../../src/models/hub/settings.ts";
import { cachedModels, loadModel, removeModel } from "../../../src/models/index.ts";
import { FakeHub, hashOf } from "../../helpers/fake-hub.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const hub = new FakeHub();
const at = temporaryFolder();
let home = "";
let round = 0;

beforeAll(() => hub.open());
afterAll(() => hub.close());
beforeEach(() => {
  hub.reset();
  home = at(`home-${round++}`);
  vi.stubEnv("HF_HOME", home);
  vi.stubEnv("XDG_CACHE_HOME", join(home, "other"));
  vi.stubEnv("HF_ENDPOINT", hub.endpoint);
  for (const name of ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"]) vi.stubEnv(name, "");
});
afterEach(() => {
  vi.unstubAllEnvs();
});

const big = (text: string) => Buffer.alloc(5000, text);
const folder = { "config.json": "{}", "model.safetensors": big("one") };
const quantized = { "m-Q4_0.gguf": big("four"), "m-Q8_0.gguf": big("eight"), "README.md": "" };
const names = async () => (await cachedModels()).map(({ name }) => name).sort();

describe("the cache's models", () => {
  it("have the names they can be asked for by, their sizes, and when they were last used", async () => {
    expect(await cachedModels()).toEqual([]);
    hub.repos.set("a/folder", { files: folder }).set("b/quantized", { files: quantized });
    await pullModel("a/folder");
    await pullModel("b/quantized:Q8_0");
    const { path } = await pullModel("b/quantized@v1:Q4_0");
    await pullModel(`${hub.cdn}/store/b/quantized/m-Q4_0.gguf`);
    const then = new Date("2020-02-20T20:20:20Z");
    await utimes(path, then, then);
    const models = await cachedModels();
    const address = `${hub.cdn}/store/b/quantized/m-Q4_0.gguf`;
    expect(models.map(({ name }) => name).sort()).toEqual(
      ["a/folder", "b/quantized:Q4_0", "b/quantized:Q8_0", address].sort(),
    );
    expect(models.find(({ name }) => name === "a/folder")).toMatchObject({ bytes: 5002, files: 2, isComplete: true });
    expect(models.at(-1)).toMatchObject({ name: "b/quantized:Q4_0", lastUsed: then });
    await pullModel("b/quantized:Q4_0");
    expect((await cachedModels())[0]!.name).toBe("b/quantized:Q4_0");
  });

  it("are those of other tools, too, and say where they are not whole", async () => {
    hub.repos.set("a/folder", { files: folder });
    const { commit } = await pullModel("a/folder@v1");
    await rm(join(home, "hub/models--a--folder/snapshots", commit, "model.safetensors"));
    await writeFile(join(home, "hub/models--a--folder/blobs/123.incomplete"), "12345");
    await mkdir(join(home, "hub/models--only--dust"), { recursive: true });
    const index = JSON.stringify({ weight_map: { a: "a.safetensors", b: "b.safetensors" } });
    const shards = join(home, "hub/models--x--shards/snapshots/0123456789abcdef0123456789abcdef01234567");
    await mkdir(shards, { recursive: true });
    for (const [name, text] of Object.entries({
      "config.json": "{}",
      "model.safetensors.index.json": index,
      "a.safetensors": "",
    })) {
      await writeFile(join(shards, name), text);
    }
    const state = (await cachedModels()).map(({ name, problem }) => `${name}: ${problem}`);
    expect(state.sort()).toEqual([
      "a/folder: a download that was interrupted; pull it again to go on",
      "a/folder@v1: no weights that Wick reads",
      "x/shards@0123456789ab: lacks 1 of 2 files of weights",
    ]);
  });

  it("can be removed, whole or in part", async () => {
    hub.repos.set("b/quantized", { files: quantized });
    await pullModel("b/quantized:Q8_0");
    await pullModel("b/quantized:Q4_0");
    const { folder: snapshot } = await pullModel("b/quantized@v1:Q4_0");
    expect(await removeModel("b/quantized:Q8_0")).toEqual({ name: "b/quantized:Q8_0", bytes: 5000 });
    expect(await names()).toEqual(["b/quantized:Q4_0"]);
    expect(await readdir(join(snapshot, "../../blobs"))).toEqual([hashOf(quantized["m-Q4_0.gguf"])]);
    expect((await removeModel("b/quantized@v1")).bytes).toBe(5000);
    expect(await readdir(join(home, "hub"))).toEqual([".locks"]);
    await pullModel("b/quantized:Q4_0");
    await expect(removeModel("b/quantized:Q5_0")).rejects.toThrow(/in the cache has no "Q5_0"; it has Q4_0/);
    await expect(removeModel("b/quantized@v9")).rejects.toThrow(/b\/quantized@v9 is not in the cache/);
    expect((await removeModel("b/quantized")).bytes).toBe(5000);
    await expect(removeModel("b/quantized")).rejects.toThrow(/is not in the cache \(.*\); it is empty/);
    await expect(removeModel("./b")).rejects.toThrow(/is no name at the hub/);
  });

  it("stay while they are being downloaded", async () => {
    hub.repos.set("a/folder", { files: folder });
    await pullModel("a/folder");
    const lock = join(home, "hub/.locks/models--a--folder/some.wick.lock");
    {
      await using _ = await holdLock(lock);
      await expect(removeModel("a/folder")).rejects.toThrow(/is being downloaded/);
    }
    await removeModel("a/folder");
    expect(await names()).toEqual([]);
  });
});

describe("the settings", () => {
  it("are those of Hugging Face's tools", async () => {
    expect(await hubSettings()).toMatchObject({ cache: join(home, "hub"), token: null, offline: false });
    await mkdir(home, { recursive: true });
    await writeFile(join(home, "token"), "of-file\n");
    expect((await hubSettings()).token).toEqual({ value: "of-file", source: join(home, "token") });
    vi.stubEnv("HF_TOKEN", " of-variable ");
    vi.stubEnv("HF_HUB_CACHE", "/cache");
    vi.stubEnv("HF_HUB_OFFLINE", "TRUE");
    vi.stubEnv("HF_ENDPOINT", "https://mirror.example/");
    expect(await hubSettings()).toMatchObject({
      cache: "/cache",
      endpoint: "https://mirror.example",
      offline: true,
      token: { value: "of-variable", source: "HF_TOKEN" },
    });
    vi.stubEnv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
    expect((await hubSettings()).token).toBeNull();
  });
});

describe("loadModel", () => {
  const tiny = fileURLToPath(new URL("../../data/models/tiny/llama/", import.meta.url));

  it("takes a name, a folder with one GGUF, and tells a file that was altered since", async () => {
    const files: Record<string, Buffer> = {};
    for (const name of (await readdir(tiny)).filter((n) => !n.startsWith("golden")))
      files[name] = await readFile(join(tiny, name));
    hub.repos.set("tiny/llama", { files });
    const seen = new Set<string>();
    using model = await loadModel("tiny/llama", { onDownload: ({ file }) => seen.add(file) });
    expect(model.config.architecture).toBe("llama");
    expect(seen).toContain("config.json");
    vi.stubEnv("HF_HUB_OFFLINE", "1");
    using again = await loadModel("tiny/llama");
    expect(again.config).toEqual(model.config);
    const weights = Object.keys(files).find((name) => name.endsWith(".safetensors"))!;
    const blob = join(home, "hub/models--tiny--llama/blobs", hashOf(files[weights]!));
    await writeFile(blob, Buffer.alloc(files[weights]!.length));
    await expect(loadModel("tiny/llama")).rejects.toMatchObject({
      code: "DownloadDamaged",
      message: `${weights} of tiny/llama was altered in the cache; \`wick pull tiny/llama --check\` replaces it`,
    });
  });

  it("opens a folder by its only GGUF", async () => {
    await mkdir(at("ggufs"));
    await writeFile(at("ggufs", "a-Q4_0.gguf"), "GGUF");
    await expect(loadModel(at("ggufs"))).rejects.toThrow(/a-Q4_0.gguf/);
    await writeFile(at("ggufs", "b-Q8_0.gguf"), "GGUF");
    await expect(loadModel(at("ggufs"))).rejects.toThrow(/holds a-Q4_0.gguf, b-Q8_0.gguf: name the one to open/);
  });
});
