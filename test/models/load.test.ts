/** Loading opens each of a model's files once, and understands each header once. */
import { copyFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it, vi } from "vitest";
import { openWeights } from "../../src/formats/index.ts";
import { loadModel, writeModelGguf } from "../../src/models/index.ts";
import { fable, tiny, variant } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const seen = vi.hoisted(() => ({ opened: [] as string[], closed: 0, headers: 0 }));

type Fs = typeof import("node:fs/promises");
vi.mock(import("node:fs/promises"), async (original) => {
  const real = await original();
  const open: Fs["open"] = async (path, flags) => {
    seen.opened.push(String(path));
    const handle = await real.open(path, flags);
    const close = handle.close.bind(handle);
    handle.close = () => {
      seen.closed++;
      return close();
    };
    return handle;
  };
  const readFile = (async (path: string, encoding: BufferEncoding) => {
    const text = await real.readFile(path, encoding);
    seen.opened.push(path);
    seen.closed++;
    return text;
  }) as Fs["readFile"];
  return { ...real, open, readFile };
});
vi.mock(import("../../src/formats/gguf/header.ts"), async (original) => {
  const real = await original();
  const parseGguf: typeof real.parseGguf = (...args) => {
    seen.headers++;
    return real.parseGguf(...args);
  };
  return { ...real, parseGguf };
});
vi.mock(import("../../src/formats/safetensors/header.ts"), async (original) => {
  const real = await original();
  const parseHeader: typeof real.parseHeader = (...args) => {
    seen.headers++;
    return real.parseHeader(...args);
  };
  return { ...real, parseHeader };
});

const folder = temporaryFolder();
const bundled = fileURLToPath(new URL("../../models/fable-7m.Q8_0.gguf", import.meta.url));

/** The files that `run` opened, all of which must be closed again, and how many headers it parsed. */
async function opens(run: () => Promise<unknown>): Promise<{ files: string[]; headers: number }> {
  Object.assign(seen, { opened: [], closed: 0, headers: 0 });
  await run();
  expect(seen.closed).toBe(seen.opened.length);
  return { files: seen.opened.map((path) => basename(path)).sort(), headers: seen.headers };
}
const load = async (path: string) => (await loadModel(path)).dispose();

it("a GGUF file is opened once, whatever its name", async () => {
  expect(await opens(() => load(bundled))).toEqual({ files: ["fable-7m.Q8_0.gguf"], headers: 1 });
  await copyFile(bundled, folder("unnamed"));
  expect(await opens(() => load(folder("unnamed")))).toEqual({ files: ["unnamed"], headers: 1 });
});

it("each file of a folder is opened once", async () => {
  const files = ["config.json", "model.safetensors", "tokenizer.json"];
  expect(await opens(() => load(fable))).toEqual({ files, headers: 1 });
});

it("a folder written as GGUF is read from files that are opened once", async () => {
  const { files, headers } = await opens(() => writeModelGguf(fable, folder("fable.gguf"), { type: "Q8_0" }));
  const read = files.filter((name) => !name.startsWith("fable.gguf") && !name.startsWith("."));
  expect(read).toEqual(["config.json", "model.safetensors", "tokenizer.json"]);
  expect(headers).toBe(1);
});

it("a file of weights is opened once, whichever format it has", async () => {
  const weights = join(tiny("llama"), "model.safetensors");
  const show = async (path: string) => await (await openWeights(path))[Symbol.asyncDispose]();
  expect(await opens(() => show(weights))).toEqual({ files: ["model.safetensors"], headers: 1 });
  expect(await opens(() => show(folder("unnamed")))).toEqual({ files: ["unnamed"], headers: 1 });
});

it("what cannot be loaded is closed", async () => {
  const bad = await variant(tiny("llama"), folder("bad"), { intermediate_size: 160 });
  const refused = await opens(() => expect(load(bad)).rejects.toThrow(/the config asks for/));
  expect(refused.files).toEqual(["config.json", "model.safetensors"]);
  await writeFile(folder("no-model"), "none");
  expect((await opens(() => expect(load(folder("no-model"))).rejects.toThrow(/is no model/))).files).toEqual([
    "no-model",
  ]);
  await opens(() => expect(load(join(tiny("llama"), "model.safetensors"))).rejects.toThrow(/is no model/));
});
