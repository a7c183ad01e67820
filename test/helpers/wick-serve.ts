/** `wick serve` as a process of its own. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";

export interface ServeProcess extends AsyncDisposable {
  readonly address: string;
  readonly child: ChildProcess;
  /** What it has logged so far. */
  log(): string;
  /** Numbers of /metrics by name and labels. */
  metrics(headers?: Record<string, string>): Promise<Map<string, number>>;
  /** Tells it to end, and gives its exit code. */
  stop(signal?: NodeJS.Signals): Promise<number | null>;
}

/** `cli` is the path of the command, and `by` what starts it; resolves once it says where it listens. */
export async function startServe(
  cli: string,
  args: readonly string[],
  by: readonly string[] = [],
): Promise<ServeProcess> {
  const child = spawn(process.execPath, [cli, ...by, "serve", "--port", "0", "--device", "cpu", ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [said, logged] = ["", ""];
  child.stderr.on("data", (data) => {
    logged += String(data);
  });
  const exited = once(child, "exit") as Promise<[number | null]>;
  const address = await new Promise<string>((resolve, reject) => {
    child.stdout.on("data", (data) => {
      said += String(data);
      const found = /listening on (\S+)/.exec(said)?.[1];
      if (found !== undefined) resolve(found);
    });
    exited.then(([code]) => reject(new Error(`wick serve ended with ${code}: ${logged}`)), reject);
  });
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    return (await exited)[0];
  };
  return {
    address,
    child,
    log: () => logged,
    async metrics(headers = {}) {
      const text = await (await fetch(`${address}/metrics`, { headers })).text();
      const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
      return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.split(" ").at(-1))]));
    },
    stop,
    async [Symbol.asyncDispose]() {
      if (child.exitCode === null && child.signalCode === null) await stop("SIGKILL");
    },
  };
}
