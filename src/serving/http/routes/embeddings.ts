/** POST /v1/embeddings */
import type { Model } from "../../../models/model.ts";
import { readBody } from "../body.ts";
import { invalid } from "../errors.ts";
import type { Exchange } from "../exchange.ts";
import type { Fields } from "../fields.ts";
import { inputsOf } from "../sampling-fields.ts";
import type { AppContext, ServerContext } from "../server-context.ts";

const MOST_INPUTS = 2048;

export const embeddings = (server: ServerContext) => {
  const turns = new WeakMap<Model, Promise<unknown>>();
  return async (c: AppContext) => {
    const exchange = c.get("exchange");
    const fields = await readBody(c.req.raw, server.limits.bodyBytes);
    const inputs = inputsOf(fields.required("input"), "input");
    if (inputs.length > MOST_INPUTS) invalid("input", `input has ${inputs.length} texts; ${MOST_INPUTS} are the most`);
    if (inputs.some(({ length }) => length === 0)) invalid("input", "input has an empty text");
    const format = fields.choice("encoding_format", ["float", "base64"]) ?? "float";
    using _place = server.admission.enter(1);
    using lease = await server.registry.acquire(fields.text("model"), exchange.signal);
    exchange.model = lease.id;
    const { model } = lease;
    if (!model.config.encoder && model.transformer.ranks > 1) {
      invalid("model", `${lease.id} is split over several processes, and answers chats and completions only`);
    }
    const width = model.config.hiddenSize;
    fields.refuse(["dimensions"], (value) => value === width);
    const tokens = countTokens(model, inputs);
    exchange.promptTokens = tokens;
    server.metrics.promptTokens.add({ model: lease.id }, tokens);
    // One at a time: each takes the memory of a whole batch.
    const turn = (turns.get(model) ?? Promise.resolve()).then(() => vectorsOf(model, inputs, fields, exchange));
    turns.set(
      model,
      turn.catch(() => {}),
    );
    const vectors = await turn;
    return c.json({
      object: "list",
      model: lease.id,
      data: inputs.map((_, index) => {
        const vector = vectors.subarray(index * width, (index + 1) * width);
        return { object: "embedding", index, embedding: format === "base64" ? base64(vector) : Array.from(vector) };
      }),
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    });
  };
};

async function vectorsOf(
  model: Model,
  inputs: readonly (string | readonly number[])[],
  fields: Fields,
  { signal }: Exchange,
): Promise<Float32Array> {
  using vectors = await model.embed(inputs, {
    truncate: fields.flag("truncate") ?? false,
    // What the texts are for, by a name that the model knows.
    prompt: fields.text("prompt_name"),
    normalize: true,
    signal,
  });
  return (await vectors.data()) as Float32Array;
}

const countTokens = ({ tokenizer }: Model, inputs: readonly (string | readonly number[])[]): number =>
  inputs.reduce(
    (sum, input) =>
      sum + (typeof input === "string" ? (tokenizer?.encodeSegments([input]).ids.length ?? 0) : input.length),
    0,
  );

/** Little-endian, as the clients expect it and as every machine here has it. */
const base64 = ({ buffer, byteOffset, byteLength }: Float32Array): string =>
  Buffer.from(buffer, byteOffset, byteLength).toString("base64");
