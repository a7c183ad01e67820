/** `wick models` and `wick remove`: what is in the cache, and taking it out. */
import { Command } from "commander";
import { formatBytes } from "../backend/usage.ts";
import { hubSettings } from "../models/hub/settings.ts";
import { type CachedModel, cachedModels, removeModel } from "../models/index.ts";
import { columns, printable } from "./columns.ts";

export function modelsCommand(): Command {
  return new Command("models")
    .description("List the downloaded models, those of other tools among them: sizes, and when they were last used")
    .option("--json", "print JSON", false)
    .addHelpText("after", "\nExamples:\n  wick models\n  wick models --json")
    .action(async ({ json }: { json: boolean }) => {
      const { cache } = await hubSettings();
      const models = await cachedModels();
      if (json) console.log(JSON.stringify({ cache, models }, null, 2));
      else console.log(format(models, cache).join("\n"));
    });
}

export function removeCommand(): Command {
  return new Command("remove")
    .description("Delete downloaded models")
    .argument("<names...>", "as `wick models` shows them; owner/name means all that is there of it")
    .option("--json", "print JSON", false)
    .addHelpText("after", "\nExamples:\n  wick remove Qwen/Qwen3-0.6B\n  wick remove unsloth/Qwen3-0.6B-GGUF:Q4_K_M")
    .action(async (names: string[], { json }: { json: boolean }) => {
      const removed = [];
      for (const name of names) removed.push(await removeModel(name));
      if (json) console.log(JSON.stringify({ removed }, null, 2));
      else for (const { name, bytes } of removed) console.log(`${name} removed, ${formatBytes(bytes)} freed`);
    });
}

function format(models: readonly CachedModel[], cache: string): string[] {
  if (models.length === 0) return [`No models in ${cache}; \`wick pull owner/name\` downloads one`];
  const rows = models.map(({ name, commit, bytes, lastUsed, problem }) => [
    printable(name),
    formatBytes(bytes),
    commit.slice(0, 12),
    ago(lastUsed, new Date()),
    problem ?? "",
  ]);
  const total = models.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    ...columns([["model", "size", "commit", "last used", ""], ...rows]),
    `${models.length} in ${cache}, ${formatBytes(total)}`,
  ];
}

/** How long it is ago, in the largest unit that fits. */
export function ago(then: Date, now: Date): string {
  const minutes = Math.floor((now.getTime() - then.getTime()) / 60_000);
  const units = [
    [1440, "day"],
    [60, "hour"],
    [1, "minute"],
  ] as const;
  for (const [size, unit] of units) {
    const count = Math.floor(minutes / size);
    if (count > 0) return `${count} ${unit}${count > 1 ? "s" : ""} ago`;
  }
  return "just now";
}
