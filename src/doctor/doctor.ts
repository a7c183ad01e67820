/**
 * Examines an installation, section by section: libraries, kernel cache, then every device. All that touches a vendor's
 * library runs in child processes, so that each section ends with a verdict whatever the library does.
 */

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Device } from "../backend/device.ts";
import { type PlatformName, simulatorOrdinals } from "../backend/gpu/platforms.ts";
import type { Program } from "../backend/gpu/program.ts";
import { formatBytes } from "../backend/usage.ts";
import { variable } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import { judgePlatform } from "./advice.ts";
import type { CacheFacts } from "./cache.ts";
import { type Check, overall, type Verdict } from "./check.ts";
import { Child, type ChildOptions, type Doing, type Outcome } from "./child.ts";
import { compileAll } from "./compile-all.ts";
import { systemChecks } from "./describe-system.ts";
import { adviceFor } from "./findings.ts";
import type { GpuVendor, Hardware } from "./hardware.ts";
import type { PlatformFacts } from "./probe.ts";
import type { Surroundings, SystemFacts } from "./system.ts";
import type { Tasks } from "./tasks.ts";

/** Sections about one device, in the order they run; the CPU has some of them. */
const deviceSections = ["kernels", "memory", "golden", "random", "index-errors", "graphs", "speed"] as const;
const cpuSections: readonly string[] = ["memory", "golden", "index-errors"];
export const sectionNames = ["system", "libraries", "cache", ...deviceSections] as const;
export type SectionName = (typeof sectionNames)[number];

export interface Section {
  readonly name: SectionName;
  /** The device that it is about, if it is about one. */
  readonly device?: string;
  readonly verdict: Verdict;
  readonly summary: string;
  readonly checks: readonly Check[];
  /** What the owner can do. */
  readonly advice: readonly string[];
  readonly seconds: number;
}

export interface Report {
  readonly wick: string;
  readonly time: string;
  /** Absent where looking for it failed. */
  readonly system?: SystemFacts;
  readonly hardware: Readonly<Partial<Record<GpuVendor, Hardware>>>;
  readonly platforms: readonly PlatformFacts[];
  readonly cache: CacheFacts;
  readonly devices: readonly string[];
  readonly sections: readonly Section[];
  readonly verdict: Verdict;
  readonly summary: string;
}

export interface DoctorOptions {
  /** Examines only this device; by default all GPUs and the CPU. */
  readonly device?: string;
  readonly only?: readonly SectionName[];
  readonly signal?: AbortSignal;
  readonly onSection?: (section: Section) => void;
  readonly onProgress?: (section: SectionName, doing: Doing) => void;
  /** Of the kernels and the golden cases only these. */
  readonly programs?: (program: Program) => boolean;
  readonly ops?: readonly string[];
  /** The compiled entry of child processes. */
  readonly entry?: string;
}

const PROBE_SECONDS = 120;
const SECTION_SECONDS = 600;
const SYSTEM_SECONDS = 60;
const unknownHardware: Hardware = { pci: [], driver: null, nodes: [], environment: {} };

export async function examine(options: DoctorOptions = {}): Promise<Report> {
  const visit = new Visit(options);
  try {
    return await visit.run();
  } finally {
    visit.end();
  }
}

interface Part {
  readonly checks: readonly Check[];
  readonly summary?: string;
  readonly advice?: readonly string[];
}

class Visit {
  readonly #options: DoctorOptions;
  readonly #child: ChildOptions;
  readonly #env: { WICK_CACHE?: string } = {};
  readonly #sections: Section[] = [];
  readonly #platforms: PlatformFacts[] = [];
  #around: Surroundings | undefined;
  /** Stands in for a cache that cannot be written, so that sections share what was compiled. */
  #standIn: string | undefined;

  constructor(options: DoctorOptions) {
    this.#options = options;
    this.#child = {
      env: this.#env,
      ...(options.entry !== undefined && { entry: options.entry }),
      ...(options.signal && { signal: options.signal }),
    };
  }

  async run(): Promise<Report> {
    const wanted = this.#options.device === undefined ? null : platformOf(this.#options.device);
    if (wanted !== "cpu") await this.#lookAround();
    const gpus = wanted === "cpu" ? [] : await this.#libraries(wanted);
    const cache = await this.#cache();
    if (wanted !== "cpu") await this.#section("cache", undefined, () => this.#judgeCache(cache));
    const devices = wanted === null || wanted === "cpu" ? [...gpus, "cpu"] : gpus;
    for (const device of devices) await this.#examineDevice(device);
    const verdict = overall(this.#sections.map((s) => s.verdict));
    return {
      wick: packageVersion(),
      time: new Date().toISOString(),
      ...(this.#around && { system: this.#around.system }),
      hardware: this.#around?.hardware ?? {},
      platforms: this.#platforms,
      cache,
      devices,
      sections: this.#sections,
      verdict,
      summary: this.#summary(devices),
    };
  }

  end(): void {
    if (this.#standIn !== undefined) rmSync(this.#standIn, { recursive: true, force: true });
  }

  /** What the system tells; later sections go without where it does not. */
  async #lookAround(): Promise<void> {
    const outcome = await this.#once("system", "system", SYSTEM_SECONDS);
    if (outcome.ok) this.#around = outcome.value;
    await this.#section("system", undefined, () => ({
      checks: outcome.ok
        ? systemChecks(outcome.value)
        : [{ name: "system", verdict: "problem", detail: outcome.problem }],
    }));
  }

  async #cache(): Promise<CacheFacts> {
    const outcome = await this.#once("cache", "cache", SYSTEM_SECONDS);
    if (outcome.ok) return outcome.value;
    const folder = variable("WICK_CACHE") ?? "the default folder";
    return { folder, entries: 0, bytes: 0, damaged: 0, problem: outcome.problem };
  }

  /** A task in a child of its own. */
  async #once<Name extends "system" | "cache">(
    task: Name,
    section: SectionName,
    seconds: number,
  ): Promise<Outcome<Tasks[Name]["output"]>> {
    const child = new Child(this.#child);
    const outcome = await child.run(task, null, {
      seconds,
      onProgress: (doing) => this.#options.onProgress?.(section, doing),
    });
    child.close();
    this.#options.signal?.throwIfAborted();
    return outcome;
  }

  /** Probes the platforms and gives the GPUs that are worth examining. */
  async #libraries(wanted: PlatformName | null): Promise<string[]> {
    const { device } = this.#options;
    const found: string[] = [];
    await this.#section("libraries", undefined, async () => {
      const checks: Check[] = [];
      const advice: string[] = [];
      for (const name of wanted ? [wanted] : (["rocm", "cuda"] as const)) {
        const hardware = (name !== "sim" && this.#around?.hardware[name]) || unknownHardware;
        const child = new Child(this.#child);
        const outcome = await child.run("probe", name, {
          seconds: PROBE_SECONDS,
          onProgress: (doing) => this.#options.onProgress?.("libraries", doing),
        });
        child.close();
        this.#options.signal?.throwIfAborted();
        const facts = outcome.ok
          ? outcome.value
          : { ...(outcome.part ?? { platform: name, devices: [] }), problem: outcome.problem };
        this.#platforms.push(facts);
        const judged = judgePlatform(name, outcome, hardware, wanted !== null, this.#around?.system);
        checks.push(...judged.checks);
        advice.push(...judged.advice);
        found.push(...facts.devices.filter((d) => d.problem === undefined && d.arch !== undefined).map((d) => d.name));
      }
      if (device !== undefined && found.length > 0 && !found.includes(fullName(device))) {
        checks.push({ name: device, verdict: "problem", detail: `there is no such device, only ${found.join(", ")}` });
      }
      return { checks, advice };
    });
    return device === undefined ? found : found.filter((name) => name === fullName(device));
  }

  #judgeCache(cache: CacheFacts): Part {
    const contents = `${cache.folder}: ${cache.entries} entries, ${formatBytes(cache.bytes)}`;
    if (cache.problem !== undefined) {
      this.#standIn = mkdtempSync(join(tmpdir(), "wick-doctor-"));
      this.#env.WICK_CACHE = this.#standIn;
      return {
        checks: [{ name: "folder", verdict: "problem", detail: `${contents}; cannot be written: ${cache.problem}` }],
        advice: [
          "kernels are compiled anew at every start: make the folder writable, or set WICK_CACHE to one that is",
        ],
      };
    }
    const damaged = cache.damaged > 0 ? `; ${cache.damaged} are damaged and will be compiled anew when needed` : "";
    return { checks: [{ name: "folder", verdict: "ok", detail: `${contents}, writable${damaged}` }] };
  }

  async #examineDevice(device: string): Promise<void> {
    const child = new Child(this.#child);
    const { ops, programs, onProgress } = this.#options;
    for (const name of deviceSections) {
      if (device === "cpu" && !cpuSections.includes(name)) continue;
      const watch = (doing: Doing): void => onProgress?.(name, doing);
      await this.#section(name, device, async () => {
        if (name === "kernels") {
          return compileAll(device, { child: this.#child, onProgress: watch, ...(programs && { only: programs }) });
        }
        const input = { device, ...(name === "golden" && ops && { only: ops }) };
        const outcome = await child.run(name, input, { seconds: SECTION_SECONDS, onProgress: watch });
        this.#options.signal?.throwIfAborted();
        const checks: readonly Check[] = outcome.ok
          ? outcome.value
          : [{ name, verdict: "problem", detail: outcome.problem }];
        // A device that faulted once may go on faulting in this process.
        if (checks.some((c) => c.verdict === "problem")) child.close();
        return { checks };
      });
    }
    child.close();
  }

  async #section(name: SectionName, device: string | undefined, run: () => Part | Promise<Part>): Promise<void> {
    const { only, signal, onSection } = this.#options;
    // The libraries are always looked for: they tell which devices there are.
    if (only && !only.includes(name) && name !== "libraries") return;
    signal?.throwIfAborted();
    const start = performance.now();
    const { checks, summary, advice = [] } = await run();
    const verdict = overall(checks.map((c) => c.verdict));
    // What is wrong with the libraries may show only later.
    const isWorthALook = verdict === "problem" || name === "libraries";
    const resembling = isWorthALook ? this.#resembling(checks, device) : [];
    const section: Section = {
      name,
      ...(device !== undefined && { device }),
      verdict,
      summary: summary ?? countVerdicts(checks),
      checks,
      advice: [...new Set([...advice, ...resembling])],
      seconds: (performance.now() - start) / 1000,
    };
    this.#sections.push(section);
    onSection?.(section);
  }

  /** What the problems of a section are known to come from. */
  #resembling(checks: readonly Check[], device: string | undefined): string[] {
    const problems = checks.filter((c) => c.verdict === "problem").map((c) => c.detail);
    const platforms = this.#platforms.filter((p) => device === undefined || device.startsWith(p.platform));
    const system = this.#around?.system;
    return platforms.flatMap((facts) => {
      const hardware = facts.platform === "sim" ? undefined : this.#around?.hardware[facts.platform];
      return adviceFor({ problems, facts, hardware, system });
    });
  }

  #summary(devices: readonly string[]): string {
    const problems = this.#sections.filter((s) => s.verdict === "problem");
    if (problems.length > 0) {
      const where = problems.map((s) => (s.device ? `${s.name} on ${s.device}` : s.name));
      return `${problems.length} of ${this.#sections.length} sections have problems: ${where.join(", ")}`;
    }
    const gpus = devices.filter((d) => d !== "cpu");
    if (gpus.length === 0) return "no GPU was found; the CPU works";
    return `everything that is here works: ${devices.join(", ")}`;
  }
}

function countVerdicts(checks: readonly Check[]): string {
  const count = (verdict: Verdict): number => checks.filter((c) => c.verdict === verdict).length;
  const words: Readonly<Record<Verdict, string>> = { ok: "ok", problem: "with a problem", skipped: "skipped" };
  return (["ok", "problem", "skipped"] as const)
    .filter((verdict) => count(verdict) > 0)
    .map((verdict) => `${count(verdict)} ${words[verdict]}`)
    .join(", ");
}

/** The platform that a device's name means; the name of none is an `UnknownDevice` error. */
function platformOf(device: string): PlatformName | "cpu" {
  if (device === "cpu") return "cpu";
  if (device.endsWith("+miopen")) {
    fail(
      "UnknownDevice",
      `the doctor examines Wick's own kernels: ask for ${device.slice(0, -"+miopen".length)}; MIOpen's results are compared by wick verify --device ${device}`,
    );
  }
  const [, kind, number = "32"] = /^(rocm|cuda|sim)(?::(\d+))?$/.exec(device) ?? [];
  // Opens nothing: these names are refused.
  if (!kind || (kind === "sim" && !(number in simulatorOrdinals))) Device.from(device);
  return kind as PlatformName;
}

/** "rocm" is rocm:0, and "sim" is sim:32. */
const fullName = (device: string): string =>
  device.includes(":") ? device : device === "sim" ? "sim:32" : `${device}:0`;

function packageVersion(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
