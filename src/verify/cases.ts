/** A folder of golden cases: `cases.json` names ops, inputs and tolerances; `tensors.safetensors` holds the values. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fail } from "../core/errors.ts";

export type ViewStep = ["transpose", number, number] | ["narrow", number, number, number] | ["broadcast", number[]];

export interface Case {
  readonly id: string;
  readonly op: string;
  readonly inputs: Readonly<Record<string, { readonly tensor: string; readonly view?: readonly ViewStep[] }>>;
  readonly params: Readonly<Record<string, unknown>>;
  readonly outputs: readonly string[];
  readonly tolerance: { readonly rel: number; readonly abs: number };
}

export async function readCases(folder: string): Promise<Case[]> {
  const path = join(folder, "cases.json");
  const text = await readFile(path, "utf8").catch((cause: Error) =>
    fail(
      "InvalidFile",
      `verify: cannot read ${path} (${cause.message}); give a folder with cases.json and tensors.safetensors`,
      { cause },
    ),
  );
  try {
    const cases: unknown = JSON.parse(text);
    if (Array.isArray(cases) && cases.every(isCase)) return cases;
  } catch (cause) {
    fail("InvalidFile", `verify: ${path} is not JSON`, { cause });
  }
  return fail(
    "InvalidFile",
    `verify: ${path} must hold an array of cases with id, op, inputs, params, outputs and tolerance`,
  );
}

const isObject = (v: unknown): v is Record<string, unknown> => typeof v === "object" && v !== null && !Array.isArray(v);

function isCase(v: unknown): v is Case {
  return (
    isObject(v) &&
    typeof v.id === "string" &&
    typeof v.op === "string" &&
    isObject(v.inputs) &&
    Object.values(v.inputs).every((i) => isObject(i) && typeof i.tensor === "string") &&
    isObject(v.params) &&
    Array.isArray(v.outputs) &&
    isObject(v.tolerance) &&
    typeof v.tolerance.rel === "number" &&
    typeof v.tolerance.abs === "number"
  );
}
