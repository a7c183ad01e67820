/** Where the hub is, where its files are kept and by which right they are asked for: as the environment has it now. */
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { isOn, positive, variable } from "../../core/environment.ts";

export interface Token {
  readonly value: string;
  /** Where it was found, for messages. */
  readonly source: string;
}

export interface HubSettings {
  /** Without a slash at its end. */
  readonly endpoint: string;
  /** The folder that other tools share. */
  readonly cache: string;
  /** What comes from elsewhere than the hub. */
  readonly urlCache: string;
  readonly token: Token | null;
  readonly offline: boolean;
  /** How long an answer may take. */
  readonly answerMs: number;
  /** How long a download may give no byte. */
  readonly stallMs: number;
  /** The first pause before something is tried again; each is twice the one before. */
  readonly retryMs: number;
}

export const HUB = "https://huggingface.co";

export async function hubSettings(): Promise<HubSettings> {
  const caches = variable("XDG_CACHE_HOME") ?? join(homedir(), ".cache");
  const home = fromHome(variable("HF_HOME") ?? join(caches, "huggingface"));
  return {
    endpoint: (variable("HF_ENDPOINT") ?? HUB).replace(/\/+$/, ""),
    cache: fromHome(variable("HF_HUB_CACHE") ?? variable("HUGGINGFACE_HUB_CACHE") ?? join(home, "hub")),
    urlCache: join(caches, "wick", "models"),
    token: await readToken(fromHome(variable("HF_TOKEN_PATH") ?? join(home, "token"))),
    offline: isOn("HF_HUB_OFFLINE") || isOn("TRANSFORMERS_OFFLINE"),
    answerMs: 1000 * positive("HF_HUB_ETAG_TIMEOUT", "seconds", 10),
    stallMs: 1000 * positive("HF_HUB_DOWNLOAD_TIMEOUT", "seconds", 10),
    retryMs: 1000,
  };
}

const fromHome = (path: string): string => path.replace(/^~(?=[/\\]|$)/, homedir());

async function readToken(path: string): Promise<Token | null> {
  if (isOn("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return null;
  for (const name of ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] as const) {
    const value = variable(name)?.trim();
    if (value) return { value, source: name };
  }
  // Who has no right to read the file is not logged in.
  const value = (await readFile(path, "utf8").catch(() => "")).trim();
  return value ? { value, source: path } : null;
}
