/** Who may ask: keys, and the hosts and origins that a browser names. */
import { createHash, timingSafeEqual } from "node:crypto";
import { isIP } from "node:net";
import { hostname } from "node:os";
import { ApiError } from "./errors.ts";

export interface AccessOptions {
  /** Without any, everybody may. */
  readonly apiKeys: readonly string[];
  /** The address that is listened on. */
  readonly host: string;
  /** Further names by which clients reach the server. */
  readonly allowedHosts: readonly string[];
  /** Origins of pages that may use the server; "*" is all. */
  readonly corsOrigins: readonly string[];
}

const digest = (text: string): Buffer => createHash("sha256").update(text).digest();

const unbracketed = (host: string): string => host.replace(/^\[(.*)\]$/, "$1");
export const isLoopback = (host: string): boolean => {
  const name = unbracketed(host).toLowerCase();
  return name === "localhost" || name.endsWith(".localhost") || name === "::1" || /^127(\.\d{1,3}){3}$/.test(name);
};

/** The host of a Host header, without its port. */
const hostOf = (header: string): string | undefined =>
  /^(\[[\da-f:.]+\]|[\w.-]+)(?::\d{1,5})?$/i.exec(header)?.[1]?.toLowerCase().replace(/\.$/, "");

export class Access {
  readonly #options: AccessOptions;
  /** Of one length, whatever the keys' is. */
  readonly #keys: readonly Buffer[];

  constructor(options: AccessOptions) {
    this.#options = options;
    this.#keys = options.apiKeys.map(digest);
  }

  get needsKey(): boolean {
    return this.#keys.length > 0;
  }

  /** Every key is compared in full, so that the time tells nothing. */
  checkKey(headers: Headers): void {
    if (!this.needsKey) return;
    const given = /^Bearer +(\S.*)$/i.exec(headers.get("authorization") ?? "")?.[1];
    const found = digest(given ?? "");
    let matches = false;
    for (const key of this.#keys) matches = timingSafeEqual(key, found) || matches;
    if (given !== undefined && matches) return;
    const message =
      given === undefined
        ? "an API key is needed: authorization: Bearer KEY"
        : "the API key is not one of this server's";
    throw new ApiError(401, given === undefined ? "missing_api_key" : "invalid_api_key", message);
  }

  /**
   * A page elsewhere can point its own name at this machine and then read answers as its own: such requests carry that name in
   * Host. A name that is not ours is refused; with a key, and where the server is meant for other machines, any name may be ours.
   */
  checkHost(headers: Headers): void {
    const { host, allowedHosts } = this.#options;
    const name = hostOf(headers.get("host") ?? "");
    if (name !== undefined && allowedHosts.some((allowed) => allowed.toLowerCase() === name)) return;
    const isLocal = isLoopback(host);
    if (!isLocal && this.needsKey && allowedHosts.length === 0) return;
    const isOurs =
      name !== undefined &&
      (isLoopback(name) || (!isLocal && (isIP(unbracketed(name)) !== 0 || name === hostname().toLowerCase())));
    if (isOurs) return;
    throw new ApiError(403, "host_not_allowed", "this server does not answer to that Host; allow it by --allowed-host");
  }

  /** The origin that may read the answer, if it is another than the server's own. */
  checkOrigin(headers: Headers): string | null {
    const origin = headers.get("origin");
    if (origin === null) return null;
    if (this.#options.corsOrigins.includes("*") || this.#options.corsOrigins.includes(origin)) return origin;
    if (URL.canParse(origin) && new URL(origin).host === headers.get("host")?.toLowerCase()) return null;
    throw new ApiError(403, "origin_not_allowed", "this server takes no requests of that Origin; allow it by --cors");
  }
}
