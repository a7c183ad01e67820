/** Failures as clients of OpenAI's API know them: a status, and { error: { message, type, param, code } }. */
import { WickError } from "../../core/errors.ts";

const typeOf = {
  400: "invalid_request_error",
  401: "authentication_error",
  403: "permission_error",
  404: "invalid_request_error",
  405: "invalid_request_error",
  408: "timeout_error",
  413: "invalid_request_error",
  415: "invalid_request_error",
  429: "rate_limit_error",
  500: "server_error",
  503: "server_error",
} as const;
export type ErrorStatus = keyof typeof typeOf;

export interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

export class ApiError extends Error {
  readonly status: ErrorStatus;
  readonly code: string;
  /** The field of the request that is wrong. */
  readonly param: string | null;
  /** After how many seconds another try is worth it. */
  readonly retryAfter: number | undefined;

  constructor(
    status: ErrorStatus,
    code: string,
    message: string,
    options: { readonly param?: string | null; readonly retryAfter?: number; readonly cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = options.param ?? null;
    this.retryAfter = options.retryAfter;
  }

  get body(): ErrorBody {
    const { message, status, param, code } = this;
    return { error: { message: shortened(message), type: typeOf[status], param, code } };
  }

  get response(): Response {
    const headers = new Headers({ "content-type": "application/json" });
    if (this.retryAfter !== undefined) headers.set("retry-after", String(this.retryAfter));
    return new Response(JSON.stringify(this.body), { status: this.status, headers });
  }
}

/** A field of the request that cannot be taken. */
export const invalid = (param: string | null, message: string, code = "invalid_value"): never => {
  throw new ApiError(400, code, message, { param });
};

/** Messages may quote what a client sent. */
const LONGEST = 1000;
const shortened = (text: string): string => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

/** What a client is told of a failure: of its own mistakes all, of what is inside nothing but a code. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (!(error instanceof WickError)) {
    return new ApiError(500, "internal_error", "something went wrong in the server; its log has more", {
      cause: error,
    });
  }
  switch (error.code) {
    case "InvalidArgument":
    case "InvalidIndex":
    case "ValueOutOfRange":
      return new ApiError(400, snake(error.code), error.message, { cause: error });
    case "OutOfMemory":
      return new ApiError(503, "out_of_memory", "the device has no memory left for this request; try again later", {
        retryAfter: 1,
        cause: error,
      });
    case "QueueFull":
      return new ApiError(429, "too_many_requests", error.message, { retryAfter: 1, cause: error });
    case "EngineClosed":
      return new ApiError(503, "shutting_down", error.message, { retryAfter: 5, cause: error });
    default:
      return new ApiError(500, snake(error.code), `the server failed (${error.code}); its log has more`, {
        cause: error,
      });
  }
}

/** The code of a `WickError` as this API writes codes. */
export const snake = (code: string): string => code.replace(/(?<!^)(?=[A-Z])/g, "_").toLowerCase();
