/**
 * A server that behaves as the hub does: its API lists a repository's files with their hashes, small files come from
 * itself, large ones by a redirect to another host, in ranges; and it has every fault that is asked of it.
 */
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { HubSettings } from "../../src/models/hub/settings.ts";

export interface FakeRepo {
  readonly files: Readonly<Record<string, string | Uint8Array>>;
  /** Only with this token. */
  readonly gated?: string;
  readonly private?: string;
  /** Whether the API tells names alone, as some mirrors do. */
  readonly plain?: boolean;
  /** In place of the sizes that the files have. */
  readonly sizes?: Readonly<Record<string, number>>;
  /** In place of the hashes that they have. */
  readonly hashes?: Readonly<Record<string, string>>;
}

export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly host: "hub" | "cdn";
  readonly range?: string;
  readonly authorization?: string;
}

/** What happens to the next requests for paths that contain `at`. */
export interface Fault {
  readonly at: string;
  readonly times?: number;
  /** Answered instead. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** The connection ends after so many bytes of the body … */
  readonly cutAfter?: number;
  /** … or nothing more comes. */
  readonly stallAfter?: number;
  /** A pause before the answer. */
  readonly delayMs?: number;
  /** Each byte of the body is another one. */
  readonly garbled?: boolean;
  /** The whole file is sent, whatever part was asked for. */
  readonly ignoresRange?: boolean;
}

/** Files above it are stored apart. */
const LARGE = 1000;
const sha256 = (data: Uint8Array) => createHash("sha256").update(data).digest("hex");
const sha1 = (data: Uint8Array) => createHash("sha1").update(`blob ${data.byteLength}\0`).update(data).digest("hex");
const known = new Map<string | Uint8Array, string>();
export const hashOf = (data: string | Uint8Array): string => {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  const hash = known.get(data) ?? (bytes.byteLength > LARGE ? sha256(bytes) : sha1(bytes));
  known.set(data, hash);
  return hash;
};

export class FakeHub {
  readonly repos = new Map<string, FakeRepo>();
  readonly seen: Seen[] = [];
  readonly #faults: (Fault & { left: number })[] = [];
  readonly #hub = createServer((q, a) => void this.#answer("hub", q, a));
  readonly #cdn = createServer((q, a) => void this.#answer("cdn", q, a));

  async open(): Promise<void> {
    for (const server of [this.#hub, this.#cdn]) {
      await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    }
  }

  async close(): Promise<void> {
    for (const server of [this.#hub, this.#cdn]) {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    }
  }

  reset(): void {
    this.repos.clear();
    this.seen.length = 0;
    this.#faults.length = 0;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${portOf(this.#hub)}`;
  }

  get cdn(): string {
    return `http://localhost:${portOf(this.#cdn)}`;
  }

  fault(fault: Fault): void {
    this.#faults.push({ ...fault, left: fault.times ?? 1 });
  }

  commit(repo: string): string {
    const files = Object.entries(this.repos.get(repo)!.files).map(([path, data]) => `${path} ${hashOf(data)}`);
    return createHash("sha1").update(files.join("\n")).digest("hex");
  }

  /** How often a path was asked for, in whatever part. */
  count(part: string, host?: Seen["host"]): number {
    return this.seen.filter(
      (seen) => seen.path.includes(part) && seen.method === "GET" && (host ?? seen.host) === seen.host,
    ).length;
  }

  settings(cache: string, changes: Partial<HubSettings> = {}): HubSettings {
    return {
      endpoint: this.endpoint,
      cache,
      urlCache: `${cache}-urls`,
      token: null,
      offline: false,
      answerMs: 2000,
      stallMs: 2000,
      retryMs: 5,
      ...changes,
    };
  }

  async #answer(host: Seen["host"], request: IncomingMessage, response: ServerResponse): Promise<unknown> {
    const { method = "GET", url = "", headers } = request;
    const path = decodeURIComponent(url);
    const { range, authorization } = headers;
    this.seen.push({ method, path, host, ...(range && { range }), ...(authorization && { authorization }) });
    const fault = this.#faults.find(({ at, left }) => left > 0 && path.includes(at));
    if (fault) fault.left--;
    if (fault?.delayMs) await new Promise((done) => setTimeout(done, fault.delayMs));
    if (fault?.status) return end(response, fault.status, fault.headers);
    if (host === "cdn") return this.#store(path, request, response, fault);
    const [, repo, rest] = /^\/(?:api\/models\/)?([^/]+\/[^/]+)(\/.*)$/.exec(path) ?? [];
    const found = this.repos.get(repo ?? "");
    if (!found || (found.private && authorization !== `Bearer ${found.private}`)) {
      return end(response, 401, { "x-error-code": "RepoNotFound", "x-error-message": "Repository not found" });
    }
    if (path.startsWith("/api/")) return this.#api(repo!, found, rest!, response);
    const [, , , file = ""] = /^\/(resolve)\/([^/]+)\/(.*)$/.exec(rest!) ?? [];
    if (found.gated && authorization !== `Bearer ${found.gated}`) {
      return end(response, authorization ? 403 : 401, { "x-error-code": "GatedRepo", "x-error-message": "restricted" });
    }
    const data = found.files[file];
    if (data === undefined) return end(response, 404, { "x-error-code": "EntryNotFound" });
    const bytes = Buffer.from(data);
    response.setHeader("x-repo-commit", this.commit(repo!));
    if (bytes.byteLength <= LARGE) return send(request, response, bytes, fault, hashOf(data));
    const linked = { "x-linked-etag": `"${hashOf(data)}"`, "x-linked-size": `${bytes.byteLength}` };
    return end(response, 302, {
      ...linked,
      location: `${this.cdn}/store/${repo}/${encodeURIComponent(file)}?signed=1`,
    });
  }

  #api(repo: string, found: FakeRepo, rest: string, response: ServerResponse): unknown {
    const commit = this.commit(repo);
    if (rest.startsWith("/refs")) {
      const branches = [{ name: "main", ref: "refs/heads/main", targetCommit: commit }];
      return end(response, 200, {}, JSON.stringify({ branches, tags: [{ name: "v1" }] }));
    }
    const [, revision] = /^\/revision\/([^?]+)/.exec(rest) ?? [];
    if (!["main", "v1", "refs/pr/1", commit].includes(revision!)) {
      return end(response, 404, { "x-error-code": "RevisionNotFound" });
    }
    const siblings = Object.entries(found.files).map(([rfilename, data]) => {
      if (found.plain) return { rfilename };
      const size = found.sizes?.[rfilename] ?? Buffer.from(data).byteLength;
      const hash = found.hashes?.[rfilename] ?? hashOf(data);
      if (hash.length === 40) return { rfilename, size, blobId: hash };
      return { rfilename, size, blobId: "0".repeat(40), lfs: { sha256: hash, size, pointerSize: 134 } };
    });
    return end(
      response,
      200,
      { "content-type": "application/json" },
      JSON.stringify({ id: repo, sha: commit, siblings }),
    );
  }

  #store(path: string, request: IncomingMessage, response: ServerResponse, fault: Fault | undefined): unknown {
    const [, repo, file] = /^\/store\/([^/]+\/[^/]+)\/([^?]+)/.exec(path) ?? [];
    const data = this.repos.get(repo ?? "")?.files[file ?? ""];
    if (data === undefined) return end(response, 404);
    return send(request, response, Buffer.from(data), fault, hashOf(data));
  }
}

const portOf = (server: Server): number => (server.address() as AddressInfo).port;

function end(
  response: ServerResponse,
  status: number,
  headers: Readonly<Record<string, string>> = {},
  body = "",
): unknown {
  response.writeHead(status, headers);
  return response.end(body);
}

function send(
  request: IncomingMessage,
  response: ServerResponse,
  bytes: Buffer,
  fault: Fault | undefined,
  etag: string,
): unknown {
  const asked = /^bytes=(\d+)-$/.exec(request.headers.range ?? "");
  const ifRange = request.headers["if-range"];
  const start = asked && !fault?.ignoresRange && (!ifRange || ifRange === `"${etag}"`) ? Number(asked[1]) : 0;
  const headers = { etag: `"${etag}"`, "content-length": `${bytes.byteLength - start}`, "accept-ranges": "bytes" };
  if (start > 0 && start >= bytes.byteLength) return end(response, 416);
  if (start > 0) {
    response.writeHead(206, {
      ...headers,
      "content-range": `bytes ${start}-${bytes.byteLength - 1}/${bytes.byteLength}`,
    });
  } else response.writeHead(200, headers);
  if (request.method === "HEAD") return response.end();
  const sent = fault?.garbled ? Buffer.from(bytes.subarray(start)).map((byte) => byte ^ 1) : bytes.subarray(start);
  if (fault?.cutAfter !== undefined) {
    return response.write(sent.subarray(0, fault.cutAfter), () => response.destroy());
  }
  return fault?.stallAfter === undefined ? response.end(sent) : response.write(sent.subarray(0, fault.stallAfter));
}
