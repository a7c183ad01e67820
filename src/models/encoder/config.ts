/** What config.json says of an encoder besides what it says of any transformer. */
import { fail } from "../../core/errors.ts";
import type { EncoderForm } from "../architectures/architecture.ts";
import type { EncoderConfig } from "../config.ts";
import type { JsonFields } from "../json-fields.ts";

const CLASSIFIER = "ForSequenceClassification";

export function encoderConfig(fields: JsonFields, { classifierActivation }: EncoderForm): EncoderConfig {
  if (fields.flagOr("is_decoder", false)) {
    fail("InvalidFile", `${fields.source}: is_decoder makes a decoder of an encoder, which is not run`);
  }
  return {
    types: fields.countOr("type_vocab_size", 0, 0),
    positionOffset: 0,
    paddingToken: fields.tokens("pad_token_id")[0] ?? null,
    labels: isClassifier(fields) ? labelsOf(fields) : [],
    classifierDense: true,
    classifierPooling: "cls",
    classifierActivation,
  };
}

const isClassifier = (fields: JsonFields): boolean =>
  fields.has("architectures") && fields.textList("architectures").some((name) => name.endsWith(CLASSIFIER));

/** Files name the labels, unless there are the usual two. */
function labelsOf(fields: JsonFields): string[] {
  const named = fields.object("id2label");
  if (!named) return Array.from({ length: fields.countOr("num_labels", 2) }, (_, i) => `LABEL_${i}`);
  return Array.from({ length: Object.keys(named.values).length }, (_, i) => named.text(`${i}`));
}

/** Positions that are learned by how far tokens are apart are another model. */
export function requireAbsolutePositions(fields: JsonFields): void {
  const type = fields.textOr("position_embedding_type", "absolute");
  if (type !== "absolute") fail("InvalidFile", `${fields.source}: ${type} positions are not run; absolute ones are`);
}
