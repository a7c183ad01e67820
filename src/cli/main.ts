#!/usr/bin/env node
/** The `wick` command. Exit codes: 0 all is well, 1 the work failed, 2 it was called wrongly. */
import { readFileSync } from "node:fs";
import { Command, CommanderError } from "commander";
import { WickError } from "../core/errors.ts";
import { benchCommand } from "./bench.ts";
import { chatCommand } from "./chat.ts";
import { devicesCommand } from "./devices.ts";
import { doctorCommand } from "./doctor.ts";
import { embedCommand } from "./embed.ts";
import { generateCommand } from "./generate.ts";
import { inspectCommand } from "./inspect.ts";
import { kernelsCommand } from "./kernels.ts";
import { modelsCommand, removeCommand } from "./models.ts";
import { pullCommand } from "./pull.ts";
import { quantizeCommand } from "./quantize.ts";
import { serveCommand } from "./serve.ts";
import { tokenizeCommand } from "./tokenize.ts";
import { tuneCommand } from "./tune.ts";
import { verifyCommand } from "./verify.ts";

const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  version: string;
};

const program = new Command("wick")
  .description("Tensors and transformer inference for TypeScript, on AMD GPUs, NVIDIA GPUs and the CPU")
  .version(version)
  .exitOverride();
const commands = [
  generateCommand(),
  chatCommand(),
  embedCommand(),
  serveCommand(version),
  pullCommand(),
  modelsCommand(),
  removeCommand(),
  benchCommand(),
  inspectCommand(),
  tokenizeCommand(),
  quantizeCommand(),
  verifyCommand(),
  devicesCommand(),
  kernelsCommand(),
  tuneCommand(),
  doctorCommand(),
];
for (const command of commands) program.addCommand(command.exitOverride());

// A reader that closes early, as `wick devices | head -1`, is no error.
process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) {
    process.exitCode = error.exitCode === 0 ? 0 : 2;
  } else {
    console.error(error instanceof WickError ? `wick: ${error.message} [${error.code}]` : error);
    process.exitCode = error instanceof WickError && ["InvalidArgument", "UnknownDevice"].includes(error.code) ? 2 : 1;
  }
}
