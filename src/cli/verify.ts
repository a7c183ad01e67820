/** `wick verify`: runs golden cases on a device and says which pass. */
import { Command, InvalidArgumentError } from "commander";
import { Device } from "../backend/device.ts";
import { type CaseResult, verify } from "../verify/runner.ts";
import { devicesNamed, located } from "./model-options.ts";
import { addRankOptions, joinRanks, type RankOptions } from "./ranks.ts";

interface Options extends RankOptions {
  device: string;
  gpuLayers?: number;
  only?: string[];
  json: boolean;
  threads?: number;
}

const list = (text: string): string[] => text.split(",").filter((s) => s !== "");
const count = (text: string): number => {
  const n = Number(text);
  if (!Number.isInteger(n) || n < 1) throw new InvalidArgumentError("must be a whole number from 1 up.");
  return n;
};

const layers = (text: string): number => (text.trim() === "0" ? 0 : count(text));

export function verifyCommand(): Command {
  const command = new Command("verify")
    .description("Compare with golden results: of ops (cases.json, tensors.safetensors) or of a model (golden.json)")
    .argument(
      "<folder>",
      "the folder with the cases, or with a model beside its golden.json; or a model's name at the hub",
    )
    .option("--device <names>", "the device to run on; several share a model's layers: rocm:0,cpu", "cpu")
    .option("--gpu-layers <n>", "of a model: layers on GPUs, the others on the CPU", layers)
    .option(
      "--only <ops>",
      "run only these ops (of a model: logits, logits-cached, greedy, tokenizer; hidden, embedding), separated by commas",
      list,
    )
    .option("--threads <n>", "CPU threads (default: WICK_THREADS or all cores)", count)
    .option("--json", "print the report as JSON", false);
  return addRankOptions(command)
    .addHelpText(
      "after",
      "\nExamples:\n  wick verify golden\n  wick verify golden --device cpu --only softmax,rope\n  wick verify golden --json > report.json\n  wick verify models/tiny/llama\n  mpirun -n 2 wick verify models/tiny/llama --tensor-parallel 2",
    )
    .action(
      async (name: string, { device, gpuLayers, only, json, threads, tensorParallel, pipelineParallel }: Options) => {
        const folder = await located(name);
        if (folder === undefined) return;
        if (threads !== undefined) Device.cpu({ threads });
        const group = await joinRanks({ tensorParallel, pipelineParallel, device, threads });
        const live = !json && process.stderr.isTTY;
        const report = await verify(folder, group?.device ?? devicesNamed(device), {
          gpuLayers,
          ...(only && { only }),
          ...(group && { group }),
          onCompile: () => {
            if (live) process.stderr.write("compiling what the cases need");
          },
          onProgress: (done, total) => {
            if (live) process.stderr.write(`\r\x1b[K${done} of ${total} cases${done === total ? "\r\x1b[K" : ""}`);
          },
        });
        if (json) console.log(JSON.stringify(report, null, 1));
        else
          console.log(
            [
              ...table(report.cases),
              `${report.passed} passed, ${report.failed} failed, ${report.skipped} skipped on ${report.device}`,
            ].join("\n"),
          );
        if (report.failed > 0) process.exitCode = 1;
      },
    );
}

function table(cases: readonly CaseResult[]): string[] {
  const byOp = new Map<string, CaseResult[]>();
  for (const c of cases) byOp.set(c.op, [...(byOp.get(c.op) ?? []), c]);
  const lines = [
    `${"op".padEnd(22)}${"passed".padStart(8)}${"failed".padStart(8)}${"max abs".padStart(11)}${"max rel".padStart(11)}`,
  ];
  for (const [op, group] of byOp) {
    const passed = group.filter((c) => c.ok).length;
    const worst = (key: "maxAbs" | "maxRel") => Math.max(...group.map((c) => c[key])).toExponential(1);
    lines.push(
      op.padEnd(22) +
        String(passed).padStart(8) +
        String(group.length - passed).padStart(8) +
        worst("maxAbs").padStart(11) +
        worst("maxRel").padStart(11),
    );
  }
  for (const c of cases) if (!c.ok) lines.push(`FAILED ${c.id}: ${c.error}`);
  return lines;
}
