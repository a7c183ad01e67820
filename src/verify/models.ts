/**
 * Golden checks of a model: a folder (or a file in one) beside `golden.json`, computed by Hugging Face transformers in
 * f32. Two forms are in use: a list of prompts with their ids, continuations and last logits; or continuations alone,
 * with `golden.safetensors` holding the logits of a batch.
 */
import { readdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Device } from "../backend/device.ts";
import { fail } from "../core/errors.ts";
import { openSafetensors } from "../formats/index.ts";
import { loadModel, type Model } from "../models/index.ts";
import { readJsonIfPresent } from "../models/json-fields.ts";
import { scope, Tensor } from "../tensor/index.ts";
import { compare, type Difference } from "./compare.ts";
import type { CaseResult, Report, VerifyOptions } from "./runner.ts";

/** On every device: sums in another order differ by less. */
const TOLERANCE = { abs: 1e-3, rel: 0 };

interface Check {
  readonly id: string;
  /** What the report groups by. */
  readonly op: string;
  run(model: Model): Promise<Difference>;
}

interface GoldenPrompt {
  readonly prompt: string;
  readonly prompt_ids: readonly number[];
  readonly greedy_ids: readonly number[];
  readonly last_logits: readonly number[];
}
interface GoldenBatch {
  readonly greedy: readonly (readonly number[])[];
}

/** Whether `path` names a model to verify, and not a folder of golden ops. */
export async function isModel(path: string): Promise<boolean> {
  return (await exists(join(await folderOf(path), "golden.json"))) && !(await exists(join(path, "cases.json")));
}

export async function verifyModel(path: string, device: Device, options: VerifyOptions = {}): Promise<Report> {
  const folder = await folderOf(path);
  const all = await readChecks(folder);
  const { only } = options;
  for (const op of only ?? []) {
    if (!all.some((check) => check.op === op)) {
      const known = [...new Set(all.map((check) => check.op))].join(", ");
      fail("InvalidArgument", `verify: ${folder} has no checks "${op}"; it has ${known}`);
    }
  }
  const selected = only ? all.filter((check) => only.includes(check.op)) : all;
  using model = await loadModel(await modelIn(path), { device, dtype: "f32", signal: options.signal });
  const cases: CaseResult[] = [];
  for (const check of selected) {
    options.signal?.throwIfAborted();
    cases.push(await runCheck(check, model));
    options.onProgress?.(cases.length, selected.length);
  }
  const passed = cases.filter((c) => c.ok).length;
  return { device: device.name, passed, failed: cases.length - passed, skipped: all.length - selected.length, cases };
}

async function runCheck({ id, op, run }: Check, model: Model): Promise<CaseResult> {
  try {
    const { error, ...difference } = await scope(() => run(model));
    return { id, op, ok: error === undefined, ...difference, ...(error !== undefined && { error }) };
  } catch (error) {
    return { id, op, ok: false, maxAbs: 0, maxRel: 0, error: error instanceof Error ? error.message : String(error) };
  }
}

async function readChecks(folder: string): Promise<Check[]> {
  const path = join(folder, "golden.json");
  const golden = await readJsonIfPresent(path);
  if (Array.isArray(golden) && golden.every(isGoldenPrompt)) return golden.flatMap(promptChecks);
  if (isGoldenBatch(golden)) return batchChecks(golden, join(folder, "golden.safetensors"));
  return fail("InvalidFile", `verify: ${path} must hold a list of prompts with their results, or {"greedy": [ids, …]}`);
}

function promptChecks(golden: GoldenPrompt, i: number): Check[] {
  const { prompt, prompt_ids, greedy_ids, last_logits } = golden;
  const want = (): Tensor => Tensor.from([...last_logits], { shape: [1, last_logits.length] });
  return [
    {
      id: `tokenizer-${i}`,
      op: "tokenizer",
      run: async (model) => sameIds(model.encode(prompt), prompt_ids),
    },
    {
      id: `logits-${i}`,
      op: "logits",
      run: (model) => compareOnHost(model.logits(prompt_ids), want()),
    },
    {
      id: `logits-cached-${i}`,
      op: "logits-cached",
      run: async (model) => {
        using cache = model.newCache();
        for (const id of prompt_ids.slice(0, -1)) model.logits([id], { cache }).dispose();
        return compareOnHost(model.logits([prompt_ids.at(-1)!], { cache }), want());
      },
    },
    {
      id: `greedy-${i}`,
      op: "greedy",
      run: async (model) => sameIds((await greedy(model, [prompt_ids], greedy_ids.length))[0]!, greedy_ids),
    },
  ];
}

/** The file is read by each check that needs it, so that none depends on another. */
function batchChecks({ greedy: continuations }: GoldenBatch, path: string): Check[] {
  const read = async (name: string): Promise<Tensor> => {
    await using file = await openSafetensors(path);
    return file.read(name);
  };
  const inputs = async (): Promise<number[][]> => {
    const ids = (await (await read("input_ids")).toArray()) as bigint[][];
    return ids.map((row) => row.map(Number));
  };
  return [
    {
      id: "logits",
      op: "logits",
      run: async (model) => compareOnHost(model.forward(await inputs()), await read("logits")),
    },
    {
      id: "logits-cached",
      op: "logits-cached",
      run: async (model) => {
        const rows = await inputs();
        using cache = model.newCache({ batch: rows.length });
        const steps = rows[0]!.map((_, t) =>
          model.forward(
            rows.map((row) => [row[t]!]),
            { cache },
          ),
        );
        return compareOnHost(Tensor.cat(steps, 1), await read("logits"));
      },
    },
    ...continuations.map(
      (want, i): Check => ({
        id: `greedy-${i}`,
        op: "greedy",
        run: async (model) => sameIds((await greedy(model, await inputs(), want.length))[i]!, want),
      }),
    ),
  ];
}

async function greedy(model: Model, prompts: readonly (readonly number[])[], maxTokens: number): Promise<number[][]> {
  const out: number[][] = prompts.map(() => []);
  for await (const piece of model.generateBatch(prompts, { maxTokens, ignoreEos: true })) {
    out[piece.sequence]!.push(piece.token);
  }
  return out;
}

async function compareOnHost(got: Tensor, want: Tensor): Promise<Difference> {
  return compare(await got.toDevice("cpu"), want, TOLERANCE);
}

function sameIds(got: readonly number[], want: readonly number[]): Difference {
  const at = want.findIndex((id, i) => got[i] !== id);
  if (at < 0 && got.length === want.length) return { maxAbs: 0, maxRel: 0 };
  const wrong = Number.POSITIVE_INFINITY;
  const error =
    at < 0
      ? `${got.length} tokens, expected ${want.length}`
      : `token ${at} is ${got[at] ?? "missing"}, expected ${want[at]}`;
  return { maxAbs: wrong, maxRel: wrong, error };
}

const exists = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  );

async function folderOf(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined);
  return found?.isFile() ? dirname(path) : path;
}

/** The model to load: the path itself, or the only GGUF of a folder without config.json. */
async function modelIn(path: string): Promise<string> {
  if ((await folderOf(path)) !== path || (await exists(join(path, "config.json")))) return path;
  const files = (await readdir(path)).filter((name) => name.endsWith(".gguf"));
  if (files.length === 1) return join(path, files[0]!);
  return fail(
    "InvalidFile",
    `verify: ${path} has golden.json, but ${files.length === 0 ? "neither config.json nor a GGUF" : `${files.sort().join(", ")}: name one of them`}`,
  );
}

const isIds = (v: unknown): v is number[] => Array.isArray(v) && v.every((n) => Number.isSafeInteger(n));
const isNumbers = (v: unknown): v is number[] => Array.isArray(v) && v.every((n) => typeof n === "number");
const isObject = (v: unknown): v is Record<string, unknown> => typeof v === "object" && v !== null;

function isGoldenPrompt(v: unknown): v is GoldenPrompt {
  if (!isObject(v)) return false;
  const { prompt, prompt_ids, greedy_ids, last_logits } = v;
  return typeof prompt === "string" && isIds(prompt_ids) && isIds(greedy_ids) && isNumbers(last_logits);
}

function isGoldenBatch(v: unknown): v is GoldenBatch {
  if (!isObject(v)) return false;
  const { greedy: rows } = v;
  return Array.isArray(rows) && rows.length > 0 && rows.every(isIds);
}
