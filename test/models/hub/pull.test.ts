/** Models by name: downloaded once, whole or not at all, whatever the network does. */
import { type FileHandle, open, readdir, readFile, readlink, rm, stat, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import type { ErrorCode } from "../../../src/index.ts";
import { holdLock } from "../../../src/models/hub/lock.ts";
import { type PullOptions, pullModel } from "../../../src/models/hub/pull.ts";
import type { HubSettings } from "../../../src/models/hub/settings.ts";
import { FakeHub, hashOf } from "../../helpers/fake-hub.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const hub = new FakeHub();
const at = temporaryFolder();
let cache = "";
let round = 0;

beforeAll(() => hub.open());
afterAll(() => hub.close());
beforeEach(() => {
  hub.reset();
  cache = at(`cache-${round++}`);
});

const weights = Buffer.alloc(1_500_000, "weights of a model, ");
const others = weights.subarray(5);
const small = { "config.json": '{"a":1}', "tokenizer.json": "{}" };
const files = { ...small, "README.md": "# Read", "pytorch_model.bin": weights, "model.safetensors": weights };
const folder = "models--owner--name";

const pull = (name = "owner/name", options: PullOptions = {}, changes: Partial<HubSettings> = {}) =>
  pullModel(name, options, hub.settings(cache, changes));
const failure = async (running: Promise<unknown>): Promise<{ code?: ErrorCode; message: string }> => {
  const error: unknown = await running.then(
    () => ({ message: "no error" }),
    (thrown: unknown) => thrown,
  );
  return error as { code?: ErrorCode; message: string };
};
const expectFailure = async (running: Promise<unknown>, code: ErrorCode, message: RegExp) => {
  expect(await failure(running)).toMatchObject({ code, message: expect.stringMatching(message) as string });
};
/** Names in the folder of blobs, of what is not whole. */
const partial = async () =>
  (await readdir(join(cache, folder, "blobs")).catch(() => [])).filter((name) => name.endsWith(".incomplete"));
const snapshots = () => readdir(join(cache, folder, "snapshots")).catch(() => []);

describe("a pull", () => {
  it("brings what is needed, laid out as other tools have it, and only once", async () => {
    hub.repos.set("owner/name", { files });
    const seen: string[] = [];
    const { path, commit, bytes } = await pull("owner/name", {
      onDownload: ({ file, bytesDone, bytesTotal }) => bytesDone === bytesTotal && seen.push(file),
    });
    expect(commit).toBe(hub.commit("owner/name"));
    expect(path).toBe(join(cache, folder, "snapshots", commit));
    expect((await readdir(path)).sort()).toEqual(["config.json", "model.safetensors", "tokenizer.json"]);
    expect([...new Set(seen)].sort()).toEqual(["config.json", "model.safetensors", "tokenizer.json"]);
    expect(bytes).toBe(weights.length + 9);
    expect(await readlink(join(path, "model.safetensors"))).toBe(join("..", "..", "blobs", hashOf(weights)));
    expect(await readlink(join(path, "config.json"))).toBe(join("..", "..", "blobs", hashOf('{"a":1}')));
    expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
    expect(await readFile(join(cache, folder, "refs", "main"), "utf8")).toBe(commit);
    expect(await readdir(join(cache, ".locks", folder))).toEqual([]);
    hub.seen.length = 0;
    expect((await pull()).path).toBe(path);
    expect(hub.seen.map((request) => request.path)).toEqual(["/api/models/owner/name/revision/main?blobs=true"]);
    hub.seen.length = 0;
    expect((await pull(`hf:owner/name@${commit}`)).path).toBe(path);
    expect(hub.seen).toEqual([]);
  });

  it("takes the shards that the index names, and hubs that tell names alone", async () => {
    const index = { weight_map: { a: "model-00001-of-00002.safetensors", b: "sub/two.safetensors" } };
    const shards = { "model-00001-of-00002.safetensors": weights, "sub/two.safetensors": others };
    const listing = { ...small, ...shards, "model.safetensors.index.json": JSON.stringify(index), "c.safetensors": "" };
    hub.repos.set("owner/name", { files: listing, plain: true });
    const { path, files: got } = await pull();
    expect(got).toHaveLength(5);
    expect(await readFile(join(path, "sub/two.safetensors"))).toEqual(others);
    expect(await readlink(join(path, "sub/two.safetensors"))).toContain(join("..", "..", "..", "blobs"));
    expect(hub.count("c.safetensors")).toBe(0);
  });

  it("of the tokenizer alone leaves the weights, and is no model yet", async () => {
    hub.repos.set("owner/name", { files });
    expect((await pull("owner/name", { tokenizerOnly: true })).files).toEqual(["config.json", "tokenizer.json"]);
    expect((await pull("owner/name", { tokenizerOnly: true }, { offline: true })).files).toHaveLength(2);
    expect((await pull("owner/name", { configOnly: true })).files).toEqual(["config.json"]);
    await expectFailure(
      pull("owner/name", {}, { offline: true }),
      "NoUsableWeights",
      /in the cache has no weights .*; HF_HUB_OFFLINE is set/,
    );
    expect((await pull()).files).toHaveLength(3);
  });

  it("takes a quantization, in all its parts", async () => {
    const parts = { "q/m-Q8_0-00001-of-00002.gguf": weights, "q/m-Q8_0-00002-of-00002.gguf": "GGUF" };
    hub.repos.set("owner/name", { files: { ...parts, "m-Q4_0.gguf": weights } });
    const { path, files: got } = await pull("owner/name@v1:q8_0");
    expect(path.endsWith(join("q", "m-Q8_0-00001-of-00002.gguf"))).toBe(true);
    expect(got).toEqual(Object.keys(parts));
    expect(hub.count("Q4_0")).toBe(0);
    expect(await readdir(join(cache, folder, "refs"))).toEqual(["v1"]);
    await expectFailure(pull("owner/name:Q5_K_M"), "QuantizationNotFound", /has no "Q5_K_M"; it has Q4_0, Q8_0/);
  });

  it("sends the token to the hub and to nobody else", async () => {
    hub.repos.set("owner/name", { files, private: "secret" });
    await pull("owner/name", {}, { token: { value: "secret", source: "HF_TOKEN" } });
    const by = (host: string) => new Set(hub.seen.filter((seen) => seen.host === host).map((s) => s.authorization));
    expect(by("hub")).toEqual(new Set(["Bearer secret"]));
    expect(by("cdn")).toEqual(new Set([undefined]));
  });

  it("of another revision keeps what is the same", async () => {
    hub.repos.set("owner/name", { files });
    await pull();
    hub.repos.set("owner/name", { files: { ...files, "config.json": "{}" } });
    hub.seen.length = 0;
    const { commit } = await pull();
    expect(hub.count("model.safetensors")).toBe(0);
    expect(await readFile(join(cache, folder, "refs", "main"), "utf8")).toBe(commit);
    expect(await snapshots()).toHaveLength(2);
  });
});

describe("an address", () => {
  it("is downloaded, and kept by what the server says of it", async () => {
    hub.repos.set("owner/name", {
      files: { "m-00001-of-00002.gguf": weights, "m-00002-of-00002.gguf": others },
    });
    const url = `${hub.cdn}/store/owner/name/m-00001-of-00002.gguf`;
    hub.fault({ at: "m-00001", times: 2, cutAfter: 300_000 });
    const { path, files: got } = await pull(url);
    expect(got).toHaveLength(2);
    expect(await readFile(path)).toEqual(weights);
    const downloads = hub.count("m-0000");
    await pull(url);
    expect(hub.count("m-0000")).toBe(downloads);
    expect((await pull(url, {}, { offline: true })).path).toBe(path);
  });

  it("that leads nowhere, or to a page, is an error", async () => {
    await expectFailure(pull(`${hub.cdn}/store/a/b/c.gguf`), "ModelNotFound", /c\.gguf does not exist \(404\)/);
    hub.fault({ at: "d.gguf", status: 403 });
    await expectFailure(pull(`${hub.cdn}/store/a/b/d.gguf`), "AccessDenied", /d\.gguf is refused \(403\)/);
    hub.fault({ at: "e.gguf", status: 200, headers: { "content-type": "text/html" } });
    await expectFailure(pull(`${hub.cdn}/store/a/b/e.gguf`), "NoUsableWeights", /is a web page/);
  });
});

describe("a download that breaks", () => {
  beforeEach(() => {
    hub.repos.set("owner/name", { files });
  });
  const ranges = () => hub.seen.filter(({ host }) => host === "cdn").map(({ range }) => range);

  it("goes on where it was", async () => {
    hub.fault({ at: "/store/", times: 2, cutAfter: 600_000 });
    const { path } = await pull();
    expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
    expect(ranges()[0]).toBeUndefined();
    expect(
      ranges()
        .slice(1)
        .every((range) => /^bytes=\d+-$/.test(range!)),
    ).toBe(true);
    expect(ranges()).toHaveLength(3);
  });

  it("goes on when nothing comes any more", async () => {
    hub.fault({ at: "/store/", stallAfter: 600_000 });
    const { path } = await pull("owner/name", {}, { stallMs: 100 });
    expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
  });

  it("begins anew where the server knows no ranges", async () => {
    hub.fault({ at: "/store/", cutAfter: 600_000 });
    hub.fault({ at: "/store/", ignoresRange: true });
    const { path } = await pull();
    expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
    expect(ranges()).toHaveLength(2);
  });

  it("is given up when it never goes on, and taken up by the next run", async () => {
    hub.fault({ at: "/store/", cutAfter: 600_000 });
    hub.fault({ at: "/store/", times: 50, cutAfter: 0 });
    await expectFailure(pull(), "NetworkError", /localhost:\d+ is not reached|127.0.0.1:\d+ is not reached/);
    expect(await partial()).toEqual([`${hashOf(weights)}.incomplete`]);
    expect(await readdir(join(cache, folder))).not.toContain("refs");
    hub.reset();
    hub.repos.set("owner/name", { files });
    await pull();
    expect(ranges()).toHaveLength(1);
    expect(ranges()[0]).toMatch(/^bytes=\d{6,}-$/);
    expect(await partial()).toEqual([]);
  });

  it("leaves a state to go on from when it is aborted", async () => {
    const abort = new AbortController();
    hub.fault({ at: "/store/", stallAfter: 1_200_000 });
    const pulling = pull("owner/name", {
      signal: abort.signal,
      onDownload: ({ file, bytesDone }) => file === "model.safetensors" && bytesDone > 1e6 && abort.abort(),
    });
    await expect(pulling).rejects.toThrow(/abort/);
    expect(await partial()).toContain(`${hashOf(weights)}.incomplete`);
    expect(await readdir(join(cache, ".locks", folder))).toEqual([]);
    await pull();
    expect(ranges().at(-1)).toMatch(/^bytes=\d{6,}-$/);
  });
});

describe("what is not as promised", () => {
  it("is discarded, and nothing of it kept", async () => {
    hub.repos.set("owner/name", { files });
    hub.fault({ at: "/store/", garbled: true });
    await expectFailure(pull(), "DownloadDamaged", /model.safetensors came with another hash than .* was discarded/);
    expect(await readdir(join(cache, folder, "blobs"))).not.toContain(hashOf(weights));
    expect(await partial()).toEqual([]);
    await pull();
  });

  it("is found in small files and in longer ones than were announced, too", async () => {
    hub.repos.set("owner/name", { files, hashes: { "config.json": "1".repeat(40) } });
    await expectFailure(pull(), "DownloadDamaged", /config.json came with another hash/);
    hub.repos.set("owner/name", { files, sizes: { "model.safetensors": 1000 } });
    await expectFailure(pull(), "DownloadDamaged", /model.safetensors came with 1500000 bytes instead of 1000/);
  });

  it("is not what an earlier run left behind, when the rest is right", async () => {
    hub.repos.set("owner/name", { files });
    hub.fault({ at: "/store/", times: 9, cutAfter: 0 });
    await failure(pull());
    hub.reset();
    hub.repos.set("owner/name", { files });
    const left = join(cache, folder, "blobs", `${hashOf(weights)}.incomplete`);
    for (const bytes of [1000, weights.length, weights.length + 10]) {
      await writeFile(left, Buffer.alloc(bytes));
      const { path } = await pull();
      expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
      await expectFailure(pull("owner/name:Q4_0"), "NoUsableWeights", /has no GGUF files/);
      await rm(join(cache, folder, "blobs", hashOf(weights)));
    }
  });

  it("is replaced in the cache: what is cut off always, what is altered when asked to check", async () => {
    hub.repos.set("owner/name", { files });
    const { path } = await pull();
    const blob = join(cache, folder, "blobs", hashOf(weights));
    await writeFile(blob, weights.subarray(0, 1000));
    await pull();
    expect(await readFile(join(path, "model.safetensors"))).toEqual(weights);
    await writeFile(blob, Buffer.alloc(weights.length));
    await pull();
    expect((await readFile(blob))[0]).toBe(0);
    await pull("owner/name", { check: true });
    expect(await readFile(blob)).toEqual(weights);
  });

  it("does not lead out of the cache", async () => {
    hub.repos.set("owner/name", {
      files: { ...files, "../../../config.json": "{}", "/abs.json": "", "a/../../tokenizer.json": "" },
    });
    const { files: got } = await pull();
    expect([...got].sort()).toEqual(["config.json", "model.safetensors", "tokenizer.json"]);
    hub.repos.set("owner/name", { files, hashes: { "config.json": "../../../../evil" } });
    await pull("owner/name@v1");
    expect(await stat(join(cache, "..", "evil")).catch(() => null)).toBeNull();
  });
});

describe("a hub that does not give", () => {
  beforeEach(() => {
    hub.repos.set("owner/name", { files });
  });

  it("says that there is no such model, or no such revision", async () => {
    await expectFailure(
      pull("owner/other"),
      "ModelNotFound",
      /^there is no file or folder owner\/other here, and http.* has no model owner\/other; if it is private, set HF_TOKEN$/,
    );
    await expectFailure(pull("hf:owner/other"), "ModelNotFound", /^http.* has no model owner\/other/);
    await expectFailure(pull("owner/name@v9"), "ModelNotFound", /owner\/name has no revision "v9"; it has main, v1$/);
    const token = { value: "mine", source: "HF_TOKEN" };
    await expectFailure(pull("a/b", {}, { token }), "ModelNotFound", /the token in HF_TOKEN has no access to it/);
    await expectFailure(pull("models"), "InvalidArgument", /models is no name at the hub and no address/);
  });

  it("says what a gated model asks for", async () => {
    hub.repos.set("owner/name", { files, gated: "right" });
    await expectFailure(
      pull(),
      "AccessDenied",
      /owner\/name is gated: accept its terms at http.*\/owner\/name, and set HF_TOKEN to a token of yours \(http.*\/settings\/tokens\)/,
    );
    const token = { value: "wrong", source: "/home/token" };
    await expectFailure(pull("owner/name", {}, { token }), "AccessDenied", /the token in \/home\/token has no access/);
    expect(await snapshots()).toEqual([]);
    await pull("owner/name", {}, { token: { value: "right", source: "HF_TOKEN" } });
  });

  it.each<[number, Record<string, string>, ErrorCode, RegExp]>([
    [
      401,
      { "x-error-message": "Invalid credentials in Authorization header" },
      "AccessDenied",
      /does not know the token in HF_TOKEN/,
    ],
    [403, { "x-error-message": "Forbidden" }, "AccessDenied", /is refused \(403\): Forbidden/],
    [418, {}, "NetworkError", /answers 418/],
  ])("refuses with %i", async (status, headers, code, message) => {
    hub.fault({ at: "/api/", status, headers });
    await expectFailure(pull("owner/name", {}, { token: { value: "x", source: "HF_TOKEN" } }), code, message);
  });

  it("is waited for, as long as it asks for", async () => {
    hub.fault({ at: "/api/", status: 429, headers: { "retry-after": "0" } });
    hub.fault({ at: "/store/", times: 2, status: 503 });
    hub.fault({ at: "/resolve/", status: 429, headers: { "retry-after": new Date().toUTCString() } });
    await pull();
  });

  it("is not waited for too long", async () => {
    hub.fault({ at: "/api/", status: 429, headers: { "retry-after": "3600" } });
    await expectFailure(
      pull(),
      "NetworkError",
      /answers 429, too many requests .* try again in 3600 s, or set HF_TOKEN/,
    );
    hub.fault({ at: "/api/", times: 9, status: 500 });
    await expectFailure(pull(), "NetworkError", /answers 500, it has a problem of its own; try again later/);
    hub.reset();
    hub.fault({ at: "/api/", delayMs: 500 });
    await expectFailure(pull("owner/name", {}, { answerMs: 50 }), "NetworkError", /no answer within 0.05 s/);
    hub.fault({ at: "/api/", status: 200 });
    await expectFailure(pull(), "NetworkError", /something other than JSON/);
  });

  it("may have none of the weights that are read", async () => {
    hub.repos.set("owner/name", { files: { "config.json": "{}", "pytorch_model.bin": "" } });
    await expectFailure(
      pull(),
      "NoUsableWeights",
      /no weights that Wick reads .* it has config.json, pytorch_model.bin/,
    );
    const index = JSON.stringify({ weight_map: { a: "gone.safetensors" } });
    hub.repos.set("owner/name", { files: { "config.json": "{}", "model.safetensors.index.json": index } });
    await expectFailure(pull(), "NoUsableWeights", /model.safetensors.index.json names gone.safetensors, which is not/);
  });
});

describe("without a network", () => {
  const unplugged = { endpoint: "http://127.0.0.1:4" };

  it("a model is as the cache has it", async () => {
    hub.repos.set("owner/name", { files });
    const { path } = await pull();
    const reasons: string[] = [];
    const onUnreached = (why: string) => reasons.push(why);
    expect((await pull("owner/name", { onUnreached }, unplugged)).path).toBe(path);
    expect(reasons).toEqual([expect.stringMatching(/127.0.0.1:4 is not reached: .*ECONNREFUSED/)]);
    expect((await pull("owner/name", { onUnreached }, { offline: true })).path).toBe(path);
    expect(reasons).toHaveLength(1);
    await expectFailure(
      pull("owner/other", {}, unplugged),
      "NetworkError",
      /^owner\/other is no file or folder here, and not in the cache; 127\S+ is not reached: .*ECONNREFUSED.*\. The cache \(.*\) has owner\/name$/,
    );
  });

  it("what lacks files is not taken for whole", async () => {
    const offline = { offline: true };
    await expectFailure(
      pull("owner/name", {}, offline),
      "NetworkError",
      /not in the cache; HF_HUB_OFFLINE is set.* has nothing/,
    );
    const index = { weight_map: { a: "a.safetensors", b: "b.safetensors" } };
    const sharded = {
      ...small,
      "model.safetensors.index.json": JSON.stringify(index),
      "a.safetensors": weights,
      "b.safetensors": "b",
    };
    hub.repos.set("owner/name", { files: sharded });
    hub.fault({ at: "/store/", times: 20, cutAfter: 0 });
    await failure(pull());
    const commit = hub.commit("owner/name");
    await expectFailure(
      pull(`owner/name@${commit}`, {}, offline),
      "NetworkError",
      /lacks a.safetensors.* in the cache/,
    );
  });
});

describe("two at once", () => {
  it("download a file once", async () => {
    hub.repos.set("owner/name", { files });
    hub.fault({ at: "/store/", delayMs: 150 });
    const [a, b] = await Promise.all([pull(), pull()]);
    expect(a.path).toBe(b.path);
    expect(hub.count("model.safetensors", "cdn")).toBe(1);
  });

  it("the one takes over where the other died", async () => {
    hub.repos.set("owner/name", { files });
    const lock = join(cache, ".locks", folder, `${hashOf(weights)}.wick.lock`);
    await holdLock(lock).then((held) => held[Symbol.asyncDispose]());
    await writeFile(lock, JSON.stringify({ id: "x", pid: 2 ** 22 + 1, host: hostname() }));
    await pull();
    // Of another machine that was alive a moment ago, nobody can say that it is not.
    const abort = AbortSignal.timeout(150);
    await writeFile(lock, JSON.stringify({ id: "x", pid: 1, host: "elsewhere" }));
    await expect(holdLock(lock, abort)).rejects.toThrow(/abort|timeout/i);
  });
});

describe("a full disk", () => {
  it("is noticed before the download", async () => {
    hub.repos.set("owner/name", { files, sizes: { "model.safetensors": 2 ** 52 } });
    await expectFailure(pull(), "DiskFull", /needs 4096.0 TiB more, and .* has .* free; `wick models` shows/);
    expect(hub.count("/resolve/")).toBe(0);
  });

  it("is told, and what has come is kept", async () => {
    hub.repos.set("owner/name", { files });
    const handle = await open(at("any"), "w");
    const prototype = Object.getPrototypeOf(handle) as FileHandle;
    await handle.close();
    const { write } = prototype;
    const spy = vi.spyOn(prototype, "write").mockImplementation(function (this: FileHandle, ...args: unknown[]) {
      if ((args[3] as number) > 5e5) {
        return Promise.reject(Object.assign(new Error("ENOSPC: no space left"), { code: "ENOSPC", syscall: "write" }));
      }
      return (write as (...all: unknown[]) => Promise<never>).apply(this, args);
    });
    try {
      await expectFailure(pull(), "DiskFull", /no room is left; what has come is kept/);
    } finally {
      spy.mockRestore();
    }
    expect(await partial()).toHaveLength(1);
    await pull();
  });

  it("or a folder that cannot be written says so", async () => {
    hub.repos.set("owner/name", { files });
    await writeFile(cache, "a file");
    await expectFailure(pull(), "AccessDenied", /cannot be used: .*HF_HUB_CACHE sets another folder/);
  });
});
