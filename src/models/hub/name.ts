/** What people call a model: a name at the hub, an address, or a place on this machine. */
import { fileURLToPath } from "node:url";
import { fail, shown } from "../../core/errors.ts";
import { HUB } from "./settings.ts";

/** A model at the hub: `owner/name`, `hf:owner/name@revision`, `owner/name:Q4_K_M`. */
export interface RepoName {
  readonly kind: "repo";
  readonly repo: string;
  readonly revision: string;
  /** Behind the colon: a quantization, or a file of the repository. */
  readonly wanted?: string;
}

export type RemoteName = RepoName | { readonly kind: "url"; readonly url: string };
export type ModelName = RemoteName | { readonly kind: "path"; readonly path: string };

const part = "[A-Za-z0-9_][\\w.-]*";
const REPO = new RegExp(`^(${part}(?:/${part})?)(?:@([^:]+))?(?::(.+))?$`);
const FILE = /\.(gguf|safetensors|json|bin|npz?)$/i;
const HUB_HOSTS = [new URL(HUB).host, "hf.co"];

/** Whether a name can mean nothing on this machine. */
export const isRemote = (text: string): boolean => /^(hf:|https?:\/\/)/i.test(text);

/** A text that could be both a name and a path is a name: whether such a file is there must have been asked before. */
export function parseModelName(text: string, endpoint: string): ModelName {
  if (/^file:\/\//i.test(text)) return { kind: "path", path: fileURLToPath(text) };
  if (/^https?:\/\//i.test(text)) return parseAddress(text, endpoint);
  if (/^hf:/i.test(text)) {
    return parseRepo(text.replace(/^hf:(\/\/)?(models\/)?/i, "")) ?? malformed(text);
  }
  const onHub = /^(?:huggingface\.co|hf\.co)\/(.+)$/.exec(text)?.[1];
  const name = parseRepo(onHub ?? text);
  // A single word is more likely a folder that is not there than one of the hub's few names without an owner.
  return name?.repo.includes("/") && !FILE.test(name.repo) ? name : { kind: "path", path: text };
}

function parseRepo(text: string): RepoName | undefined {
  const [, repo, revision = "main", wanted] = REPO.exec(text) ?? [];
  // Both would be other places in the cache.
  if (repo === undefined || /--|\.\./.test(repo) || !isRevision(revision)) return undefined;
  return { kind: "repo", repo, revision, ...(wanted !== undefined && { wanted }) };
}

/** Revisions are names of files in the cache, with slashes as folders. */
const isRevision = (text: string): boolean => /^[\w.+-]+(\/[\w.+-]+)*$/.test(text) && !text.split("/").includes("..");

/** Pages and files of the hub are asked for by name, from `endpoint`. */
function parseAddress(text: string, endpoint: string): ModelName {
  const url = URL.canParse(text) ? new URL(text) : malformed(text);
  if (![...HUB_HOSTS, new URL(endpoint).host].includes(url.host)) return { kind: "url", url: url.href };
  const [owner, name, view, revision, ...path] = url.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  if (view !== undefined && !["tree", "blob", "resolve", "raw"].includes(view)) return { kind: "url", url: url.href };
  const at = revision === undefined ? "" : `@${revision}`;
  const file = path.length === 0 ? "" : `:${path.join("/")}`;
  return parseRepo(`${[owner, name].filter(Boolean).join("/")}${at}${file}`) ?? malformed(text);
}

const malformed = (text: string): never =>
  fail(
    "InvalidArgument",
    `${shown(text)} is no model's name; write owner/name, hf:owner/name@revision, owner/name:Q4_K_M, a path or a URL`,
  );

/** The name as it can be given again. */
export const formatRepo = ({ repo, revision, wanted }: RepoName): string =>
  `${repo}${revision === "main" ? "" : `@${revision}`}${wanted === undefined ? "" : `:${wanted}`}`;
