/** `wick devices`: what there is to compute on. GPUs are looked for in child processes: their libraries may crash. */
import { cpus, totalmem } from "node:os";
import { Command } from "commander";
import { CpuBackend } from "../backend/cpu/backend.ts";
import { hasLibc } from "../backend/cpu/libc.ts";
import { isaText } from "../backend/cpu/native/isa.ts";
import { Device } from "../backend/device.ts";
import type { PlatformName } from "../backend/gpu/platforms.ts";
import { visibilityMasks } from "../backend/gpu/visible-devices.ts";
import { formatBytes } from "../backend/usage.ts";
import { type CacheFacts, cacheFacts } from "../doctor/cache.ts";
import { Child, type ChildOptions } from "../doctor/child.ts";
import type { DeviceFacts, Found, PlatformFacts } from "../doctor/probe.ts";

const PROBE_SECONDS = 60;

interface Options {
  json: boolean;
  sim: boolean;
}

export function devicesCommand(child: ChildOptions = {}): Command {
  return new Command("devices")
    .description("Show the devices that tensors can live on, and why others cannot be used")
    .option("--json", "print JSON", false)
    .option("--sim", "show the simulated devices, too", false)
    .addHelpText("after", "\nExamples:\n  wick devices\n  wick devices --json")
    .action(async ({ json, sim }: Options) => {
      const names: PlatformName[] = ["rocm", "cuda", ...(sim ? (["sim"] as const) : [])];
      // The CPU first: what is wrong with its settings is said at once.
      const cpu = describeCpu();
      const platforms = await Promise.all(names.map((name) => look(name, child)));
      const cache = cacheFacts();
      console.log(
        json ? JSON.stringify(asJson(cpu, platforms, cache), null, 2) : format(cpu, platforms, cache).join("\n"),
      );
    });
}

async function look(name: PlatformName, options: ChildOptions): Promise<PlatformFacts> {
  const child = new Child(options);
  const outcome = await child.run("probe", name, { seconds: PROBE_SECONDS });
  child.close();
  return outcome.ok
    ? outcome.value
    : { ...(outcome.part ?? { platform: name, devices: [] }), problem: `its libraries ${outcome.problem}` };
}

type CpuFacts = ReturnType<typeof describeCpu>;

function describeCpu() {
  const { backend } = Device.cpu();
  if (!(backend instanceof CpuBackend)) throw new TypeError("the cpu device is not a CpuBackend");
  return {
    name: "cpu",
    processor: cpus()[0]?.model.trim() ?? "unknown",
    threads: backend.threads,
    kernels: [
      ...(backend.native ? [isaText(backend.native.isa)] : []),
      backend.engine.variant === "relaxed" ? "WebAssembly, relaxed SIMD" : "WebAssembly SIMD",
    ].join(", "),
    memory: `${hasLibc() ? "all" : "up to 4 GiB"} of ${(totalmem() / 2 ** 30).toFixed(1)} GiB`,
  };
}

function asJson(cpu: CpuFacts, platforms: readonly PlatformFacts[], cache: CacheFacts): object {
  return {
    devices: [
      cpu,
      ...platforms.flatMap((p) =>
        p.devices.map((d) => ({
          ...d,
          library: p.library,
          compiler: p.compiler,
          ...(p.miopen && { miopen: p.miopen }),
        })),
      ),
    ],
    absent: platforms.filter(isAbsent).map(({ platform, code, library, problem = noDevice }) => ({
      platform,
      ...(code && { code }),
      ...(library && { library }),
      problem,
    })),
    visibility: visibility(platforms),
    kernelCache: { ...cache, writable: cache.problem === undefined },
  };
}

const noDevice = "no device";
const isAbsent = (p: PlatformFacts): boolean => p.problem !== undefined || p.devices.length === 0;
const titles: Record<PlatformName, string> = { rocm: "AMD ROCm", cuda: "NVIDIA CUDA", sim: "simulator" };

function format({ name, ...cpu }: CpuFacts, platforms: readonly PlatformFacts[], cache: CacheFacts): string[] {
  const lines = [name, ...rows(cpu)];
  for (const facts of platforms) {
    for (const device of facts.devices) lines.push(device.name, ...rows(describeGpu(device, facts)));
    if (!isAbsent(facts)) continue;
    const why = facts.problem ?? `${facts.library} (${facts.release}) finds ${noDevice}${hiding(facts)}`;
    lines.push(
      `${facts.devices.length === 0 ? "no " : ""}${titles[facts.platform]}: ${why}${facts.code ? ` [${facts.code}]` : ""}`,
    );
  }
  const masks = visibility(platforms);
  if (masks.length > 0)
    lines.push(`${masks.join(", ")}: the vendors' libraries show only these devices, counted anew from 0`);
  const state = cache.problem === undefined ? "writable" : `not writable: ${cache.problem}`;
  const damaged = cache.damaged > 0 ? `, ${cache.damaged} damaged` : "";
  lines.push(
    `kernel cache ${cache.folder}: ${cache.entries} programs${damaged}, ${formatBytes(cache.bytes)}, ${state}`,
  );
  return lines;
}

/** The simulator is not hidden by the variables of real devices. */
const masksOf = ({ platform }: PlatformFacts): string[] => (platform === "sim" ? [] : visibilityMasks(platform));
const visibility = (platforms: readonly PlatformFacts[]): string[] => [...new Set(platforms.flatMap(masksOf))];

function hiding(facts: PlatformFacts): string {
  const masks = masksOf(facts);
  return masks.length === 0 ? "" : `; ${masks.join(" and ")} may hide what there is`;
}

function describeGpu(device: DeviceFacts, { library, compiler, miopen }: PlatformFacts): Record<string, string> {
  const { product, arch, waveSize, multiprocessors, totalBytes, freeBytes, problem } = device;
  return {
    ...(problem !== undefined && { problem }),
    ...(product !== undefined && {
      product,
      arch: `${arch}, wave ${waveSize}, ${multiprocessors} multiprocessors`,
      memory: `${formatBytes(totalBytes ?? 0)}${freeBytes === undefined ? "" : `, ${formatBytes(freeBytes)} free`}`,
      ...(device.memoryUse && { uses: device.memoryUse }),
      driver: `${device.driverVersion}, runtime ${device.runtimeVersion} (${library})`,
    }),
    ...(compiler && {
      compiler: `${formatFound(compiler)}${device.compiles === false ? `, which does not know ${arch}` : ""}`,
    }),
    ...(device.blas && { BLAS: formatFound(device.blas) }),
    ...(device.recordingProblem !== undefined && {
      graphs: `decoding is not recorded: ${device.recordingProblem}`,
    }),
    ...(miopen && { MIOpen: `${formatFound(miopen)}${"problem" in miopen ? "" : `, used by ${device.name}+miopen`}` }),
  };
}

const formatFound = (found: Found): string =>
  "problem" in found
    ? `none: ${found.problem}`
    : `${found.version} (${found.path})${found.why ? `, ${found.why}` : ""}`;

const rows = (facts: object): string[] => Object.entries(facts).map(([key, value]) => `  ${key.padEnd(10)} ${value}`);
