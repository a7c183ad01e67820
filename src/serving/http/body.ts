/** Reading what a client sends: JSON of a limited size and depth. */
import { ApiError } from "./errors.ts";
import { Fields } from "./fields.ts";

/** Deeper than any schema; what walks through a body recurses. */
const DEEPEST = 64;

export async function readBody(request: Request, limit: number): Promise<Fields> {
  const type = request.headers.get("content-type") ?? "";
  // Pages of other origins cannot send this type without being asked first.
  if (!/^application\/(?:[\w.+-]+\+)?json\s*(?:;|$)/i.test(type)) {
    throw new ApiError(415, "unsupported_media_type", "the body must be JSON: content-type: application/json");
  }
  const encoding = request.headers.get("content-encoding");
  if (encoding !== null && encoding !== "identity") {
    throw new ApiError(415, "unsupported_media_type", "the body must not be compressed");
  }
  const text = await readText(request, limit);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new ApiError(400, "invalid_json", "the body is not valid JSON");
  }
  if (isDeeper(value, DEEPEST)) {
    throw new ApiError(400, "invalid_json", `the body is nested deeper than ${DEEPEST} levels`);
  }
  return new Fields(value);
}

/**
 * What is too much is read and forgotten, as far as that is cheap: an answer to a client that still sends would be lost with its
 * connection.
 */
const FORGOTTEN = 16 * 2 ** 20;

async function readText(request: Request, limit: number): Promise<string> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of partsOf(request, limit + FORGOTTEN)) {
    size += part.length;
    if (size <= limit) parts.push(part);
    else parts.length = 0;
  }
  if (size > limit) {
    throw new ApiError(
      413,
      "request_too_large",
      `the body has more than ${limit} bytes, which this server does not take`,
    );
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(parts));
  } catch {
    throw new ApiError(400, "invalid_json", "the body is not valid UTF-8");
  }
}

async function* partsOf(request: Request, most: number): AsyncGenerator<Uint8Array> {
  if (!request.body) return;
  let size = 0;
  for await (const part of request.body as unknown as AsyncIterable<Uint8Array>) {
    yield part;
    size += part.length;
    if (size > most) return;
  }
}

/** Reads a body that nobody wants, so that its connection can go on. */
export async function forgetBody(request: Request): Promise<void> {
  if (request.bodyUsed) return;
  for await (const _ of partsOf(request, FORGOTTEN));
}

function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  return depth === 0 || Object.values(value).some((item) => isDeeper(item, depth - 1));
}
