/** What runs in a child process, by name. Each says what it is doing before it does it. */
import "../devices.ts";
import { type CacheFacts, cacheFacts } from "./cache.ts";
import { type Check, describeError, type Say } from "./check.ts";
import { type Compilation, type Compiled, compileProgram } from "./kernels.ts";
import { loadedLibraries } from "./loaded.ts";
import { type PlatformFacts, probe } from "./probe.ts";
import { type Surroundings, surroundings } from "./system.ts";

export interface DeviceInput {
  readonly device: string;
  /** Of the golden cases only these ops. */
  readonly only?: readonly string[];
}

/** Inputs and outputs of the tasks. */
export interface Tasks {
  system: { input: null; output: Surroundings };
  cache: { input: null; output: CacheFacts };
  probe: { input: PlatformFacts["platform"]; output: PlatformFacts };
  compile: { input: Compilation; output: Compiled };
  memory: { input: DeviceInput; output: Check[] };
  golden: { input: DeviceInput; output: Check[] };
  random: { input: DeviceInput; output: Check[] };
  "index-errors": { input: DeviceInput; output: Check[] };
  graphs: { input: DeviceInput; output: Check[] };
  speed: { input: DeviceInput; output: Check[] };
}
export type TaskName = keyof Tasks;

/** `found` hands over what is known so far, should the rest never come. */
export type Task<Name extends TaskName> = (
  input: Tasks[Name]["input"],
  say: Say,
  found: (part: Tasks[Name]["output"]) => void,
) => Promise<Tasks[Name]["output"]>;

export const tasks: { readonly [Name in TaskName]: Task<Name> } = {
  // A kernel driver that is stuck may keep who reads its files waiting.
  system: async (_, say) => {
    say("reading what the system tells");
    return surroundings();
  },
  cache: async (_, say) => {
    say("reading the kernel cache");
    return cacheFacts();
  },
  probe: async (name, say, found) => {
    // At each step: the libraries that are there when the process dies explain its death.
    const withLibraries = (facts: PlatformFacts): PlatformFacts => ({ ...facts, loaded: loadedLibraries() });
    const facts = probe(name, (doing, so) => {
      say(doing);
      found(withLibraries(so));
    });
    return withLibraries(facts);
  },
  compile: compileProgram,
  // Loaded when they are asked for: most children live for one task.
  memory: async ({ device }, say) => (await import("./memory.ts")).checkMemory(device, say),
  golden: async ({ device, only }, say) => (await import("./golden.ts")).checkGolden(device, say, only),
  random: async ({ device }, say) => (await import("./random.ts")).checkRandom(device, say),
  "index-errors": async ({ device }, say) => (await import("./index-errors.ts")).checkIndexErrors(device, say),
  graphs: async ({ device }, say) => (await import("./graphs.ts")).checkGraphs(device, say),
  speed: async ({ device }, say) => (await import("./speed.ts")).checkSpeed(device, say),
};

export type Message =
  | { readonly kind: "doing"; readonly doing: string; readonly done?: number; readonly total?: number }
  | { readonly kind: "found"; readonly part: unknown }
  | { readonly kind: "done"; readonly value: unknown }
  | { readonly kind: "failed"; readonly problem: string };

export interface Request {
  readonly task: TaskName;
  readonly input: unknown;
}

/** Runs a task and sends what comes of it. */
export async function perform({ task, input }: Request, send: (message: Message) => void): Promise<void> {
  const run = tasks[task] as (input: unknown, say: Say, found: (part: unknown) => void) => Promise<unknown>;
  try {
    const say: Say = (doing, done, total) =>
      send({ kind: "doing", doing, ...(done !== undefined && { done }), ...(total !== undefined && { total }) });
    send({ kind: "done", value: await run(input, say, (part) => send({ kind: "found", part })) });
  } catch (error) {
    send({ kind: "failed", problem: describeError(error) });
  }
}
