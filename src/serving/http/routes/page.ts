/** The page at `/`, from memory: its files are read once, and no request can name another. */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { extname, join } from "node:path";
import type { AppContext } from "../server-context.ts";

const types: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

/** Nothing from elsewhere, nothing inline, no text that becomes a program, and nobody's frame. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

interface PageFile {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly headers: Readonly<Record<string, string>>;
}

export type Page = ReadonlyMap<string, PageFile>;

/** The files by the paths they are asked for; none where the page was not built. */
export function readPage(folder: string): Page {
  const files = new Map<string, PageFile>();
  let names: string[] = [];
  try {
    names = readdirSync(folder);
  } catch {
    return files;
  }
  for (const name of names) {
    const type = types[extname(name)];
    if (type === undefined) continue;
    const body = new Uint8Array(readFileSync(join(folder, name)));
    const isIndex = name === "index.html";
    const headers = {
      "content-type": type,
      "content-security-policy": POLICY,
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
      etag: `"${createHash("sha256").update(body).digest("base64url").slice(0, 24)}"`,
      // The others have a hash of their content in their names.
      "cache-control": isIndex ? "no-cache" : "public, max-age=31536000, immutable",
    };
    files.set(`/${name}`, { body, headers });
    if (isIndex) files.set("/", { body, headers });
  }
  return files;
}

export const showFile =
  ({ body, headers }: PageFile) =>
  (c: AppContext) =>
    c.req.header("if-none-match") === headers.etag
      ? new Response(null, { status: 304, headers })
      : new Response(body, { headers });
