/** RoBERTa, and XLM-RoBERTa, which is the same with another vocabulary. */
import { encoderConfig, requireAbsolutePositions } from "../encoder/config.ts";
import type { Architecture } from "./architecture.ts";
import { bert } from "./bert.ts";

const { huggingFace, gguf } = bert;

export const roberta: Architecture = {
  ...bert,
  huggingFace: {
    ...huggingFace,
    names: {
      ...huggingFace.names,
      linear: { ...huggingFace.names.linear, classifier: "classifier.dense", labels: "classifier.out_proj" },
      // Its classifier takes the first token's state itself.
      others: new RegExp(`${huggingFace.names.others.source}|^pooler\\.`),
    },
    adjust: (fields, { contextLength }) => {
      requireAbsolutePositions(fields);
      const paddingToken = fields.tokens("pad_token_id")[0] ?? 1;
      const positionOffset = paddingToken + 1;
      return {
        contextLength: contextLength - positionOffset,
        encoder: { ...encoderConfig(fields, bert.encoder!), paddingToken, positionOffset },
      };
    },
  },
  // GGUF files hold it as a BERT whose positions start at 0, and as that it is run.
  gguf: { ...gguf, fits: () => false },
};
