/** `wick devices`: what there is to compute on. */
import { cpus, totalmem } from "node:os";
import { Command } from "commander";
import { CpuBackend } from "../backend/cpu/backend.ts";
import { Device } from "../backend/device.ts";

export function devicesCommand(): Command {
  return new Command("devices")
    .description("Show the devices that tensors can live on")
    .option("--json", "print JSON", false)
    .addHelpText("after", "\nExamples:\n  wick devices\n  wick devices --json")
    .action(({ json }: { json: boolean }) => {
      const devices = [describeCpu()];
      if (json) console.log(JSON.stringify({ devices }, null, 2));
      else for (const { name, ...facts } of devices) console.log([name, ...rows(facts)].join("\n"));
    });
}

const rows = (facts: object): string[] => Object.entries(facts).map(([key, value]) => `  ${key.padEnd(10)} ${value}`);

function describeCpu() {
  const { backend } = Device.cpu();
  if (!(backend instanceof CpuBackend)) throw new TypeError("the cpu device is not a CpuBackend");
  return {
    name: "cpu",
    processor: cpus()[0]?.model.trim() ?? "unknown",
    threads: backend.threads,
    kernels: backend.engine.variant === "relaxed" ? "WebAssembly, relaxed SIMD" : "WebAssembly SIMD",
    memory: `up to 4 GiB of ${(totalmem() / 2 ** 30).toFixed(1)} GiB`,
  };
}
