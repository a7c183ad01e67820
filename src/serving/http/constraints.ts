/** What the tokens of an answer must make: the constraint of each answer to a request. */
import type { AnswerForm } from "../../models/chat/answer-form.ts";
import type { Turn } from "../../models/chat/chat.ts";
import type { TokenConstraint } from "../request.ts";
import type { ToolFields } from "./chat-fields.ts";
import { ApiError } from "./errors.ts";
import type { Format } from "./format-fields.ts";
import type { Lease } from "./registry.ts";

export class Constraints implements Disposable {
  readonly answerForm: Partial<AnswerForm> | undefined;
  static async open(
    _lease: Lease,
    { format, tools }: { format: Format | null; tools?: ToolFields },
  ): Promise<Constraints> {
    if (format || (tools && typeof tools.choice !== "string")) throw new ApiError(400, "unsupported", "not yet");
    return new Constraints();
  }
  next(_turn?: Turn): TokenConstraint | undefined {
    return undefined;
  }
  [Symbol.dispose](): void {}
}
