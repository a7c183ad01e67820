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

async function readText(request: Request, limit: number): Promise<string> {
  const tooLarge = () =>
    new ApiError(413, "request_too_large", `the body has more than ${limit} bytes, which this server does not take`);
  if (Number(request.headers.get("content-length") ?? 0) > limit) throw tooLarge();
  if (!request.body) return "";
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of request.body as unknown as AsyncIterable<Uint8Array>) {
    size += part.length;
    if (size > limit) throw tooLarge();
    parts.push(part);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(parts));
  } catch {
    throw new ApiError(400, "invalid_json", "the body is not valid UTF-8");
  }
}

function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  return depth === 0 || Object.values(value).some((item) => isDeeper(item, depth - 1));
}
