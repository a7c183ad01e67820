/** What a repository, or an address, has to give. */
import { createHash } from "node:crypto";
import { basename } from "node:path/posix";
import { fail } from "../../core/errors.ts";
import { splitNames } from "../../formats/gguf/split.ts";
import { JsonFields } from "../json-fields.ts";
import { type RequestOptions, request } from "./http.ts";
import type { RepoName } from "./name.ts";

export interface RemoteFile {
  /** Within the repository. */
  readonly path: string;
  readonly url: string;
  readonly size: number | null;
  /** What the blob is called in the cache: at the hub its SHA-256, or for small files Git's SHA-1. */
  readonly etag: string;
  /** Whether that is a hash of the content. */
  readonly isHash: boolean;
  /** What says that a file at an address is still the same. */
  readonly validator?: string | undefined;
}

export interface Listing {
  readonly commit: string;
  readonly paths: readonly string[];
  file(path: string): Promise<RemoteFile>;
}

export type Asking = Pick<RequestOptions, "settings" | "signal">;

const COMMIT = /^[0-9a-f]{40}$/;
export const HASH = /^([0-9a-f]{40}|[0-9a-f]{64})$/;
const encodePath = (path: string): string => path.split("/").map(encodeURIComponent).join("/");

/** Names that would lead out of the cache's folders are nobody's files. */
export const isInside = (path: string): boolean =>
  path !== "" && !path.split("/").some((name) => ["", ".", ".."].includes(name)) && !/[\\\0:]/.test(path);

export async function listRepo(name: RepoName, { settings, signal }: Asking): Promise<Listing> {
  const { repo, revision } = name;
  const asked = { settings, signal, subject: repo };
  const url = `${settings.endpoint}/api/models/${repo}/revision/${encodeURIComponent(revision)}?blobs=true`;
  const response = await request(url, asked);
  if (!response.ok) return refused(response, name, asked);
  const json: unknown = await response.json().catch((cause: Error) =>
    fail("NetworkError", `${repo}: ${settings.endpoint} answers with something other than JSON: ${cause.message}`, {
      cause,
    }),
  );
  const info = new JsonFields(json, url);
  const commit = info.text("sha");
  if (!COMMIT.test(commit)) fail("NetworkError", `${repo}: ${settings.endpoint} gives "${commit}" for a commit`);
  const siblings = info.objects("siblings").map((entry) => [entry.text("rfilename"), entry] as const);
  const entries = new Map(siblings.filter(([path]) => isInside(path)));
  return {
    commit,
    paths: [...entries.keys()],
    file: async (path) => {
      const entry = entries.get(path)!;
      const address = `${settings.endpoint}/${repo}/resolve/${commit}/${encodePath(path)}`;
      const lfs = entry.object("lfs");
      const etag = lfs?.textOr("sha256", lfs.textOr("oid", null)) ?? entry.textOr("blobId", null);
      const size = lfs?.countOr("size", null, 0) ?? entry.countOr("size", null, 0);
      if (etag !== null && HASH.test(etag) && size !== null) return { path, url: address, size, etag, isHash: true };
      return askForFile(path, address, name, asked);
    },
  };
}

/** Of a hub that lists names alone, the headers tell the rest. */
async function askForFile(path: string, url: string, name: RepoName, asked: RequestOptions): Promise<RemoteFile> {
  const response = await request(url, { ...asked, method: "HEAD", redirect: "manual" });
  if (response.status >= 400) return refused(response, name, asked);
  const { headers } = response;
  const to = headers.get("location");
  // A repository that was renamed; where its store is named instead, the hash comes with that.
  if (to !== null && !headers.has("x-linked-etag")) return askForFile(path, new URL(to, url).href, name, asked);
  const etag = unquoted(headers.get("x-linked-etag") ?? headers.get("etag") ?? "");
  if (!HASH.test(etag)) return fail("NetworkError", `${name.repo}: ${url} has no hash to check ${path} with`);
  const size = headers.get("x-linked-size") ?? headers.get("content-length");
  // Git's hash is of the size, too.
  if (size === null) return { path, url, size, etag, isHash: etag.length === 64 };
  return { path, url, size: Number(size), etag, isHash: true };
}

const unquoted = (etag: string): string => etag.replace(/^W\//, "").replaceAll('"', "");

/** A file at an address, with its other parts where it is one of several. */
export async function listAddress(url: string, { settings, signal }: Asking): Promise<Listing> {
  const asked = { settings, signal, subject: url, method: "HEAD" } as const;
  const name = decodeURIComponent(basename(new URL(url).pathname)) || "model";
  const files = new Map<string, RemoteFile>();
  for (const path of splitNames(name) ?? [name]) {
    const address = url.replace(encodeURIComponent(name), encodeURIComponent(path));
    const response = await request(address, asked);
    // Some servers do not answer HEAD; the download itself will tell.
    if (!response.ok && response.status !== 405) refusedAddress(address, response.status);
    const { headers } = response;
    if (response.ok && headers.get("content-type")?.startsWith("text/html")) {
      fail("NoUsableWeights", `${address} is a web page; name the address of a GGUF file`);
    }
    const length = headers.get("content-length");
    const strong = headers.get("etag")?.startsWith("W/") ? null : headers.get("etag");
    const validator = strong ?? headers.get("last-modified") ?? undefined;
    files.set(path, {
      path,
      url: address,
      size: response.ok && length !== null ? Number(length) : null,
      etag: `url-${createHash("sha256").update(`${address} ${validator} ${length}`).digest("hex")}`,
      isHash: false,
      validator,
    });
  }
  const all = [...files.values()].map(({ etag }) => etag).join();
  return {
    commit: createHash("sha1").update(all).digest("hex"),
    paths: [...files.keys()].filter(isInside),
    file: async (path) => files.get(path)!,
  };
}

export function refusedAddress(url: string, status: number): never {
  if (status === 404 || status === 410) return fail("ModelNotFound", `${url} does not exist (${status})`);
  return fail("AccessDenied", `${url} is refused (${status}); download it by other means and name the file`);
}

/** Why the hub does not give something. It answers 401 also for what does not exist. */
export async function refused(response: Response, name: RepoName, asked: RequestOptions): Promise<never> {
  const { repo, revision } = name;
  const { status, headers } = response;
  const { endpoint, token } = asked.settings;
  const page = `${endpoint}/${repo}`;
  const code = headers.get("x-error-code");
  const said = headers.get("x-error-message");
  if (code === "GatedRepo") {
    const logIn = token
      ? `the token in ${token.source} has no access to it`
      : `set HF_TOKEN to a token of yours (${endpoint}/settings/tokens)`;
    return fail("AccessDenied", `${repo} is gated: accept its terms at ${page}, and ${logIn}`);
  }
  if (code === "RevisionNotFound") {
    const known = await revisions(repo, asked);
    return fail("ModelNotFound", `${repo} has no revision "${revision}"${known}`);
  }
  if (token && status === 401 && said?.includes("Invalid credentials")) {
    return fail("AccessDenied", `${repo}: ${endpoint} does not know the token in ${token.source}; renew or remove it`);
  }
  if (status === 404 || status === 401 || code === "RepoNotFound") {
    const private_ = token
      ? `; if it is private, the token in ${token.source} has no access to it`
      : "; if it is private, set HF_TOKEN";
    return fail("ModelNotFound", `${endpoint} has no model ${repo}${private_}`);
  }
  if (status === 403) return fail("AccessDenied", `${repo} is refused (403)${said ? `: ${said}` : ""}; see ${page}`);
  return fail("NetworkError", `${repo}: ${endpoint} answers ${status}${said ? `: ${said}` : ""}`);
}

/** What else there is; nothing where that cannot be found out either. */
async function revisions(repo: string, asked: RequestOptions): Promise<string> {
  const response = await request(`${asked.settings.endpoint}/api/models/${repo}/refs`, { ...asked, method: "GET" });
  const json: unknown = response.ok ? await response.json().catch(() => null) : null;
  if (typeof json !== "object" || json === null) return "";
  const refs = new JsonFields(json, repo);
  const names = ["branches", "tags"].flatMap((kind) => refs.objects(kind).map((ref) => ref.text("name")));
  return names.length === 0 ? "" : `; it has ${names.slice(0, 20).join(", ")}`;
}
