/** `wick pull`: a model from the hub into the cache. */
import { Command } from "commander";
import { formatBytes } from "../backend/usage.ts";
import { pullModel } from "../models/index.ts";
import { MODEL_NAMES, withDownloads } from "./model-options.ts";

export function pullCommand(): Command {
  return new Command("pull")
    .description("Download a model from the Hugging Face hub, or what is missing of it")
    .argument("<name>", "owner/name, hf:owner/name@revision, owner/name:Q4_K_M or the URL of a GGUF file")
    .option("--check", "compare files that are there with their hashes, and replace those that differ", false)
    .option("--json", "print JSON", false)
    .addHelpText(
      "after",
      `
Only the files that are needed are downloaded, into the cache that Hugging Face's own tools use (HF_HOME, HF_HUB_CACHE).
Ctrl-C stops (exit code 130); the same command goes on from there. Private and gated models need HF_TOKEN.
${MODEL_NAMES}

Examples:
  wick pull Qwen/Qwen3-0.6B
  wick pull unsloth/Qwen3-0.6B-GGUF:Q4_K_M
  wick pull hf:Qwen/Qwen3-0.6B@main --check`,
    )
    .action(async (name: string, { check, json }: { check: boolean; json: boolean }) => {
      const pulled = await withDownloads((options) => pullModel(name, { ...options, check }));
      if (!pulled) return;
      const { path, commit, files, bytes } = pulled;
      if (json) console.log(JSON.stringify({ name, path, commit, files, bytes }, null, 2));
      else console.log(`${name}: ${files.length} files, ${formatBytes(bytes)}, in ${path}`);
    });
}
