/** `wick tune`: measures a GPU's BLAS library beside Wick's own kernels, and notes which is faster for which product. */
import { Command, InvalidArgumentError, Option } from "commander";
import type { GpuBackend } from "../backend/gpu/backend.ts";
import type { GemmType } from "../backend/gpu/driver.ts";
import { measureProduct } from "../backend/gpu/measure-product.ts";
import { fasterOf, type ProductShape, type ProductTimes, shapeText, type Tuning } from "../backend/gpu/tuning.ts";
import { fail } from "../core/errors.ts";
import { gpuOf } from "../doctor/gpu-of.ts";
import { columns } from "./columns.ts";
import { count, deviceNamed, loadWithProgress } from "./model-options.ts";
import { ProgressBar } from "./progress.ts";

interface Options {
  device: string;
  shape?: Sizes[];
  dtype?: GemmType;
  trans: string;
  batch: number;
  model?: string;
  rows?: number[];
  json: boolean;
}

type Sizes = readonly [m: number, n: number, k: number];

interface Measured {
  readonly shape: ProductShape;
  /** Null where the library does not compute it. */
  readonly times: ProductTimes | null;
}

const dtypes = ["f32", "f16", "bf16", "f64"] as const satisfies GemmType[];
const ROWS = [16, 64, 256, 1024];

export function tuneCommand(): Command {
  return new Command("tune")
    .description(
      "Measure matrix products by a GPU's BLAS library and by Wick's own kernels; the faster is used from then on",
    )
    .option("--device <name>", "rocm:0, cuda:0; auto is the best present", "auto")
    .option("--shape <m,n,k>", "a product (m, k) · (k, n); may be given several times", collectSizes)
    .addOption(
      new Option("--dtype <dtype>", "what to multiply in (default: bf16, or as the model computes)").choices(dtypes),
    )
    .addOption(
      new Option("--trans <ab>", "with --shape: which operands lie transposed in memory; weights do")
        .choices(["nn", "nt", "tn", "tt"])
        .default("nt"),
    )
    .option("--batch <n>", "with --shape: how many such products at once", count(1), 1)
    .option("--model <name>", "the products of this model with prompts of --rows tokens")
    .option("--rows <list>", `with --model: lengths of prompts (default: ${ROWS.join()})`, numbersOf)
    .option("--json", "print JSON", false)
    .addHelpText(
      "after",
      `
Times are kept in the folder of compiled kernels (WICK_CACHE), for this card, this release of the library and this
version of the kernels. A product that was not measured takes the word of the one whose m is the next power of two, or
is the library's. WICK_BLAS overrides all of it.

Examples:
  wick tune --shape 4096,4096,4096 --shape 1000,1001,999 --dtype f16
  wick tune --model ./Llama-3.2-1B --dtype bf16 --rows 64,512,2048`,
    )
    .action(run);
}

const numbersOf = (text: string): number[] => text.split(",").map(count(1));

function collectSizes(text: string, before: Sizes[] = []): Sizes[] {
  const sizes = numbersOf(text);
  if (sizes.length !== 3) throw new InvalidArgumentError("must be three numbers, as in 512,4096,4096.");
  return [...before, sizes as unknown as Sizes];
}

async function run(options: Options): Promise<void> {
  const { name } = deviceNamed(options.device);
  const gpu = gpuOf(name);
  if (!gpu) return fail("InvalidArgument", `tune: ${name} is no GPU; give --device`);
  const { tuning } = gpu;
  if (!tuning) {
    const why = gpu.blasProblem || "WICK_BLAS has chosen";
    return fail("DeviceUnavailable", `tune: there is nothing to choose between on ${name}: ${why}`);
  }
  const shapes = [
    ...given(options),
    ...(options.model === undefined ? [] : await ofModel(tuning, options.model, options)),
  ];
  if (shapes.length === 0) fail("InvalidArgument", "tune: give --shape or --model");
  const { measured, problem } = await measure(gpu, tuning, shapes);
  const library = gpu.blas!.version;
  console.log(options.json ? json(name, library, tuning, measured) : table(name, library, tuning, measured).join("\n"));
  if (problem !== undefined) fail("InvalidArgument", `tune: ${tuning.path} cannot be written: ${problem}`);
}

const given = ({ shape = [], dtype = "bf16", trans, batch }: Options): ProductShape[] =>
  shape.map(([m, n, k]) => ({ type: dtype, m, n, k, transA: trans[0] === "t", transB: trans[1] === "t", batch }));

/** What the model multiplies when it reads prompts of these lengths, seen as it does. */
async function ofModel(tuning: Tuning, model: string, { device, dtype, rows }: Options): Promise<ProductShape[]> {
  if (dtype === "f64") return fail("InvalidArgument", "tune: models do not compute in f64");
  using loaded = await loadWithProgress({ model, device, ...(dtype && { dtype }) });
  const { vocabSize, contextLength } = loaded.config;
  const lengths = rows ?? ROWS.filter((length) => length < contextLength);
  return await tuning.watch(async () => {
    for (const length of lengths) {
      const prompt = Array.from({ length }, (_, i) => (7919 * (i + 1)) % vocabSize);
      for await (const _ of loaded.generateBatch([prompt], { maxTokens: 1, ignoreEos: true }));
    }
  });
}

async function measure(
  gpu: GpuBackend,
  tuning: Tuning,
  shapes: readonly ProductShape[],
): Promise<{ measured: Measured[]; problem: string | undefined }> {
  const bar = new ProgressBar("measuring", process.stderr, (n) => `${n}`);
  const measured: Measured[] = [];
  let problem: string | undefined;
  try {
    for (const shape of shapes) {
      bar.update(measured.length, shapes.length);
      const times = await measureProduct(gpu, shape);
      if (times) problem = tuning.note(shape, times) ?? problem;
      measured.push({ shape, times });
    }
  } finally {
    bar.clear();
  }
  return { measured, problem };
}

const rate = ({ m, n, k, batch }: ProductShape, us: number): string => ((2e-6 * batch * m * n * k) / us).toFixed(1);

function table(device: string, library: string, { path }: Tuning, measured: readonly Measured[]): string[] {
  const row = ({ shape, times }: Measured): string[] => {
    if (!times) return [shapeText(shape), "", "", "not by the library"];
    const { own, library: theirs } = times;
    const cells = [own, theirs].map((us) => `${us.toFixed(1)} µs ${rate(shape, us)} TFLOP/s`);
    return [shapeText(shape), ...cells, fasterOf(times)];
  };
  return [
    `${device}, ${library}`,
    ...columns([["product", "own", "library", "faster"], ...measured.map(row)]),
    `kept in ${path}`,
  ];
}

function json(device: string, library: string, { path }: Tuning, measured: readonly Measured[]): string {
  const products = measured.map(({ shape, times }) => ({
    ...shape,
    microseconds: times,
    faster: times && fasterOf(times),
  }));
  return JSON.stringify({ device, library, path, products }, null, 2);
}
