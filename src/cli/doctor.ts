/** `wick doctor`: examines the installation and the devices, and writes a report for those who can help. */
import { writeFile } from "node:fs/promises";
import { Command, InvalidArgumentError } from "commander";
import { fail } from "../core/errors.ts";
import { anonymous } from "../doctor/anonymous.ts";
import type { Check, Verdict } from "../doctor/check.ts";
import type { Doing } from "../doctor/child.ts";
import { type DoctorOptions, examine, type Section, type SectionName, sectionNames } from "../doctor/doctor.ts";

interface Options {
  device?: string;
  only?: SectionName[];
  json?: string;
}

const sections = (text: string): SectionName[] =>
  text.split(",").map((name) => {
    const found = sectionNames.find((known) => known === name);
    if (!found) throw new InvalidArgumentError(`sections are ${sectionNames.join(", ")}.`);
    return found;
  });

/** `defaults` are for tests; options of the command line win. */
export function doctorCommand(defaults: DoctorOptions = {}): Command {
  return new Command("doctor")
    .description("Examine the GPU libraries and every device: kernels, results, memory, speed")
    .option("--device <name>", "examine only this device (default: every GPU and the CPU)")
    .option("--only <sections>", `only these, separated by commas: ${sectionNames.join(", ")}`, sections)
    .option("--json <file>", "also write a report to attach to a bug report; it names neither you nor this machine")
    .addHelpText(
      "after",
      `
Exits with 0 if everything that is present works, without any GPU, too.

Examples:
  wick doctor
  wick doctor --json wick-doctor.json
  wick doctor --device rocm:0 --only libraries,kernels`,
    )
    .action((options: Options) => run(options, defaults));
}

async function run({ json, ...options }: Options, defaults: DoctorOptions): Promise<void> {
  const abort = new AbortController();
  const stop = (): void => abort.abort();
  process.once("SIGINT", stop);
  const status = new StatusLine();
  let heading = "";
  try {
    const report = await examine({
      ...defaults,
      ...options,
      signal: abort.signal,
      onProgress: (name, doing) => status.show(name, doing),
      onSection: (section) => {
        status.clear();
        const about = section.device ?? "installation";
        if (about !== heading) console.log(`${heading && "\n"}${about}`);
        heading = about;
        console.log(format(section).join("\n"));
      },
    });
    console.log(`\n${report.summary}`);
    const ways = new Set(report.sections.flatMap((s) => (s.verdict === "problem" ? s.advice : [])));
    for (const way of ways) console.log(`  → ${way}`);
    if (json !== undefined) {
      const text = `${JSON.stringify(anonymous(report), null, 2)}\n`;
      await writeFile(json, text).catch((cause: Error) =>
        fail("InvalidArgument", `doctor: the report cannot be written to ${json}: ${cause.message}`, { cause }),
      );
      console.log(`The report is in ${json}.`);
    }
    if (report.verdict === "problem") process.exitCode = 1;
  } catch (error) {
    if (!abort.signal.aborted) throw error;
    process.exitCode = 130;
  } finally {
    status.clear();
    process.off("SIGINT", stop);
  }
}

const marks: Readonly<Record<Verdict, string>> = { ok: "ok", problem: "PROBLEM", skipped: "skipped" };

function format({ name, verdict, summary, checks, advice, seconds }: Section): string[] {
  const lines = [`  ${name.padEnd(14)}${marks[verdict].padEnd(9)}${summary} (${seconds.toFixed(1)} s)`];
  // Of the kernels only those that fail: there are many.
  const shown = checks.filter((check) => name !== "kernels" || check.verdict !== "ok");
  const width = shown.reduce((widest, check) => Math.max(widest, check.name.length), 0);
  for (const check of shown) lines.push(...formatCheck(check, width));
  for (const way of advice) lines.push(`    → ${way}`);
  return lines;
}

function formatCheck({ name, verdict, detail }: Check, width: number): string[] {
  const [first = "", ...more] = detail.split("\n");
  const mark = verdict === "ok" ? "" : `${marks[verdict]}: `;
  return [`    ${name.padEnd(width)}  ${mark}${first}`, ...more.map((line) => `      ${line}`)];
}

/** What is being done, on a terminal only. */
class StatusLine {
  #shown = false;

  show(section: string, { doing, done, total }: Doing): void {
    if (!process.stderr.isTTY) return;
    const count = done === undefined ? "" : ` (${done} of ${total})`;
    process.stderr.write(`\r  ${section}: ${doing}${count}\x1b[K`);
    this.#shown = true;
  }

  clear(): void {
    if (this.#shown) process.stderr.write("\r\x1b[K");
    this.#shown = false;
  }
}
