import { fail } from "../../core/errors.ts";
import type { JsonFields } from "../json-fields.ts";

/** Throws where a config sets one of these flags, which ask for mathematics that are not run. */
export function refuse(fields: JsonFields, ...flags: readonly string[]): void {
  for (const flag of flags) {
    if (fields.flagOr(flag, false)) {
      fail("InvalidFile", `${fields.source}: ${flag} is true, which is not run for a ${fields.text("model_type")}`);
    }
  }
}
