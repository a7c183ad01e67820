#!/usr/bin/env node
/** The `wick` command. Exit codes: 0 all is well, 1 the work failed, 2 it was called wrongly. */
import { readFileSync } from "node:fs";
import { Command, CommanderError } from "commander";
import "../devices.ts";
import { WickError } from "../core/errors.ts";
import { leaveRanks, tellError } from "./joined.ts";

const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  version: string;
};

const program = new Command("wick")
  .description("Tensors and transformer inference for TypeScript, on AMD GPUs, NVIDIA GPUs and the CPU")
  .version(version)
  .enablePositionalOptions()
  .exitOverride();
/** A command is loaded when it is asked for, and all of them for the help. */
const commands: Readonly<Record<string, () => Promise<Command>>> = {
  generate: async () => (await import("./generate.ts")).generateCommand(),
  chat: async () => (await import("./chat.ts")).chatCommand(),
  serve: async () => (await import("./serve.ts")).serveCommand(version),
  launch: async () => (await import("./launch.ts")).launchCommand(Object.keys(commands)),
  embed: async () => (await import("./embed.ts")).embedCommand(),
  pull: async () => (await import("./pull.ts")).pullCommand(),
  models: async () => (await import("./models.ts")).modelsCommand(),
  remove: async () => (await import("./models.ts")).removeCommand(),
  bench: async () => (await import("./bench.ts")).benchCommand(),
  plan: async () => (await import("./plan.ts")).planCommand(),
  inspect: async () => (await import("./inspect.ts")).inspectCommand(),
  tokenize: async () => (await import("./tokenize.ts")).tokenizeCommand(),
  quantize: async () => (await import("./quantize.ts")).quantizeCommand(),
  verify: async () => (await import("./verify.ts")).verifyCommand(),
  devices: async () => (await import("./devices.ts")).devicesCommand(),
  kernels: async () => (await import("./kernels.ts")).kernelsCommand(),
  tune: async () => (await import("./tune.ts")).tuneCommand(),
  doctor: async () => (await import("./doctor.ts")).doctorCommand(),
};
const asked = process.argv[2] ?? "";
const load = Object.hasOwn(commands, asked) ? [commands[asked]!] : Object.values(commands);
for (const command of load) program.addCommand((await command()).exitOverride());

// A reader that closes early, as `wick devices | head -1`, is no error.
process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));

try {
  await program.parseAsync();
  await leaveRanks();
} catch (error) {
  if (error instanceof CommanderError) {
    process.exitCode = error.exitCode === 0 ? 0 : 2;
  } else {
    tellError(error);
    process.exitCode = error instanceof WickError && ["InvalidArgument", "UnknownDevice"].includes(error.code) ? 2 : 1;
  }
  await leaveRanks(error);
}
