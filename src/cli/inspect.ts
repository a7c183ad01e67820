/** `wick inspect`: what a file of weights holds. */
import { Command } from "commander";
import { formatBytes } from "../backend/usage.ts";
import { formatShape, numel } from "../core/layout.ts";
import type { GgufScalar, GgufTyped, GgufTypedArray } from "../formats/gguf/values.ts";
import { openWeights, type WeightsFile } from "../formats/weights-file.ts";
import { columns, printable } from "./columns.ts";
import { located } from "./model-options.ts";

/** Of longer arrays the first are shown, of longer strings the start. */
const SHOWN_VALUES = 6;
const SHOWN_CHARACTERS = 100;

export function inspectCommand(): Command {
  return new Command("inspect")
    .description("Show the metadata and tensors of a GGUF or safetensors file")
    .argument(
      "<file>",
      "a GGUF file, a safetensors file or index, a folder with safetensors, or a model's name at the hub",
    )
    .option("--json", `print JSON; of arrays longer than ${SHOWN_VALUES} the first values and the length`, false)
    .addHelpText(
      "after",
      "\nExamples:\n  wick inspect model.gguf\n  wick inspect ./Llama-3.2-1B --json\n  wick inspect Qwen/Qwen3-0.6B",
    )
    .action(async (name: string, { json }: { json: boolean }) => {
      const path = await located(name);
      if (path === undefined) return;
      await using file = await openWeights(path);
      console.log(json ? JSON.stringify(describe(file), null, 2) : format(file).join("\n"));
    });
}

interface Total {
  readonly type: string;
  tensors: number;
  elements: number;
  bytes: number;
}

function totals({ tensors }: WeightsFile): Total[] {
  const byType = new Map<string, Total>();
  for (const { type, shape, byteLength } of tensors) {
    const total = byType.get(type) ?? { type, tensors: 0, elements: 0, bytes: 0 };
    total.tensors++;
    total.elements += numel(shape);
    total.bytes += byteLength;
    byType.set(type, total);
  }
  return [...byType.values()].sort((a, b) => b.bytes - a.bytes);
}

function describe(file: WeightsFile): object {
  return {
    path: file.path,
    format: file.format,
    ...file.gguf,
    // A list, because a key may be "__proto__".
    metadata: [...file.metadata].map(([key, value]) => ({ key, ...describeValue(value) })),
    tensors: file.tensors.map(({ name, type, shape, byteLength }) => ({ name, type, shape, byteLength })),
    totals: totals(file),
  };
}

function describeValue({ type, value }: GgufTyped): object {
  if (typeof value !== "object") return { type, value: jsonScalar(value) };
  const some = first(value).map((item) => (typeof item === "object" ? describeValue(item) : jsonScalar(item)));
  return { type, length: value.length, value: some };
}

/** JSON has neither bigints nor NaN and infinities. */
const jsonScalar = (value: unknown): unknown =>
  typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value)) ? String(value) : value;

function format(file: WeightsFile): string[] {
  const bytes = file.tensors.reduce((sum, { byteLength }) => sum + byteLength, 0);
  const elements = file.tensors.reduce((sum, { shape }) => sum + numel(shape), 0);
  const kind = file.gguf ? `GGUF version ${file.gguf.version}, alignment ${file.gguf.alignment}` : "safetensors";
  return [
    `${printable(file.path)}: ${kind}`,
    "",
    `Metadata: ${file.metadata.size} entries`,
    ...columns([...file.metadata].map(([key, value]) => [printable(key), value.type, formatValue(value.value)])),
    "",
    `Tensors: ${file.tensors.length} with ${grouped(elements)} elements in ${formatBytes(bytes)}`,
    ...columns(
      file.tensors.map(({ name, type, shape, byteLength }) => [
        printable(name),
        type,
        formatShape(shape),
        formatBytes(byteLength),
      ]),
    ),
    "",
    "Totals by type",
    ...columns(
      totals(file).map((total) => [
        total.type,
        `${total.tensors} tensors`,
        `${grouped(total.elements)} elements`,
        formatBytes(total.bytes),
      ]),
    ),
  ];
}

const grouped = (n: number): string => n.toLocaleString("en-US");

function formatValue(value: GgufTyped["value"]): string {
  if (typeof value === "string") return elided(value);
  if (typeof value !== "object") return String(value);
  const some = first(value).map((item) => formatValue(typeof item === "object" ? item.value : item));
  if (value.length > SHOWN_VALUES) some.push("…");
  return `${value.length} values: [${some.join(", ")}]`;
}

const first = (values: ArrayLike<GgufScalar | GgufTypedArray>): (GgufScalar | GgufTypedArray)[] =>
  Array.from({ length: Math.min(values.length, SHOWN_VALUES) }, (_, i) => values[i]!);

function elided(text: string): string {
  const shown = text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text;
  return printable(JSON.stringify(shown)) + (shown === text ? "" : ` (${text.length} characters)`);
}
