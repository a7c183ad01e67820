/**
 * Golden checks of a model: a folder (or a file in one) beside `golden.json`, computed by Hugging Face transformers in
 * f32; quantized weights may differ from it by what their bits lose. Three forms are in use: a list of prompts with their
 * ids, continuations and last logits; continuations alone, with `golden.safetensors` holding the logits of a batch; or
 * the word that the model is an encoder, with its states and vectors in `golden.safetensors`.
 */
import { readdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Device } from "../backend/device.ts";
import { fail } from "../core/errors.ts";
import { isGguf, openSafetensors, openWeights } from "../formats/index.ts";
import { loadModel, type Model } from "../models/index.ts";
import { readJsonIfPresent } from "../models/json-fields.ts";
import { scope, Tensor } from "../ops/index.ts";
import { quantTypes } from "../quantized/index.ts";
import { compare, type Difference } from "./compare.ts";
import { encoderChecks } from "./encoders.ts";
import type { CaseResult, Report, VerifyOptions } from "./runner.ts";

/** What a model may differ by from its original in f32. */
export interface Allowance {
  /** Of a logit. */
  readonly abs: number;
  /** The share of greedy tokens that must be the same, each after the golden ones before it. */
  readonly same: number;
}
/** On every device: sums in another order differ by less. */
const EXACT: Allowance = { abs: 1e-3, same: 1 };
/** Weights of 8 bits are off by up to 1/256 of the largest in their block, logits by a hundredth of theirs. */
const EIGHT_BITS: Allowance = { abs: 0.2, same: 1 };
/** Weights of fewer bits may choose otherwise where two tokens are about as likely. */
const FEWER_BITS: Allowance = { abs: 2.5, same: 0.7 };

export interface Check {
  readonly id: string;
  /** What the report groups by. */
  readonly op: string;
  run(model: Model, allowed: Allowance): Promise<Difference>;
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

export async function verifyModel(
  path: string,
  device: readonly Device[],
  options: VerifyOptions = {},
): Promise<Report> {
  const folder = await folderOf(path);
  const all = await readChecks(folder);
  const { only, gpuLayers, signal } = options;
  for (const op of only ?? []) {
    if (!all.some((check) => check.op === op)) {
      const known = [...new Set(all.map((check) => check.op))].join(", ");
      fail("InvalidArgument", `verify: ${folder} has no checks "${op}"; it has ${known}`);
    }
  }
  const selected = only ? all.filter((check) => only.includes(check.op)) : all;
  const found = await modelIn(path);
  const allowed = await allowance(found);
  using model = await loadModel(found, { device, gpuLayers, dtype: "f32", signal, group: options.group });
  const cases: CaseResult[] = [];
  for (const check of selected) {
    options.signal?.throwIfAborted();
    cases.push(await runCheck(check, model, allowed));
    options.onProgress?.(cases.length, selected.length);
  }
  const passed = cases.filter((c) => c.ok).length;
  const names = model.devices.map(({ name }) => name).join();
  return { device: names, passed, failed: cases.length - passed, skipped: all.length - selected.length, cases };
}

/** By the smallest type among the weights. */
async function allowance(path: string): Promise<Allowance> {
  if (!(await isGguf(path))) return EXACT;
  await using file = await openWeights(path);
  const types = file.tensors.flatMap(({ quant }) => (quant ? [quantTypes[quant]] : []));
  if (types.length === 0) return EXACT;
  return types.every(({ bytes, size }) => bytes >= size) ? EIGHT_BITS : FEWER_BITS;
}

async function runCheck({ id, op, run }: Check, model: Model, allowed: Allowance): Promise<CaseResult> {
  try {
    const { error, ...difference } = await scope(() => run(model, allowed));
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
  if (isObject(golden) && golden.encoder === true) return encoderChecks(join(folder, "golden.safetensors"));
  return fail(
    "InvalidFile",
    `verify: ${path} must hold a list of prompts with their results, {"greedy": [ids, …]} or {"encoder": true}`,
  );
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
      run: (model, allowed) => compareOnHost(model.logits(prompt_ids), want(), allowed),
    },
    {
      id: `logits-cached-${i}`,
      op: "logits-cached",
      run: async (model, allowed) => {
        using cache = model.newCache();
        for (const id of prompt_ids.slice(0, -1)) model.logits([id], { cache }).dispose();
        return compareOnHost(model.logits([prompt_ids.at(-1)!], { cache }), want(), allowed);
      },
    },
    {
      id: `greedy-${i}`,
      op: "greedy",
      run: async (model, { same }) =>
        same < 1
          ? agreement(model, prompt_ids, greedy_ids, same)
          : sameIds((await greedy(model, [prompt_ids], greedy_ids.length))[0]!, greedy_ids),
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
      run: async (model, allowed) => compareOnHost(model.forward(await inputs()), await read("logits"), allowed),
    },
    {
      id: "logits-cached",
      op: "logits-cached",
      run: async (model, allowed) => {
        const rows = await inputs();
        using cache = model.newCache({ batch: rows.length });
        const steps = rows[0]!.map((_, t) =>
          model.forward(
            rows.map((row) => [row[t]!]),
            { cache },
          ),
        );
        return compareOnHost(Tensor.cat(steps, 1), await read("logits"), allowed);
      },
    },
    ...continuations.map(
      (want, i): Check => ({
        id: `greedy-${i}`,
        op: "greedy",
        run: async (model, { same }) =>
          same < 1
            ? agreement(model, (await inputs())[i]!, want, same)
            : sameIds((await greedy(model, await inputs(), want.length))[i]!, want),
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

/** How often the likeliest token is the golden one, after the prompt and the golden tokens before it. */
async function agreement(
  model: Model,
  prompt: readonly number[],
  continuation: readonly number[],
  least: number,
): Promise<Difference> {
  const logits = model.forward([...prompt, ...continuation.slice(0, -1)]);
  const best = Array.from((await logits.argmax(-1).data()) as Uint32Array).slice(prompt.length - 1);
  const differing = continuation.filter((id, i) => best[i] !== id).length;
  const share = differing / continuation.length;
  const error = `${differing} of ${continuation.length} tokens differ; no more than ${Math.round((1 - least) * 100)} % may`;
  return { maxAbs: share, maxRel: share, ...(share > 1 - least && { error }) };
}

export async function compareOnHost(got: Tensor, want: Tensor, { abs }: Allowance): Promise<Difference> {
  return compare(await got.toDevice("cpu"), want, { abs, rel: 0 });
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
