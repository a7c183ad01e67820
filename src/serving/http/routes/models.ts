/** GET /v1/models, and one of them. */
import { ApiError } from "../errors.ts";
import type { ModelStatus } from "../registry.ts";
import type { AppContext, ServerContext } from "../server-context.ts";

const started = Math.floor(Date.now() / 1000);

/** `wick` is what other servers do not tell: the page shows it while a model loads. */
const entryOf = ({ id, state, phase, progress, error, known, isDefault }: ModelStatus) => ({
  id,
  object: "model",
  created: started,
  owned_by: "wick",
  wick: {
    state,
    phase,
    progress: state === "ready" ? 1 : Math.round(progress * 1000) / 1000,
    context_length: known?.contextLength ?? null,
    kind: known?.kind ?? null,
    error,
    default: isDefault,
  },
});

export const listModels = (server: ServerContext) => (c: AppContext) =>
  c.json({ object: "list", data: server.registry.status.map(entryOf) });

export const showModel = (server: ServerContext) => (c: AppContext) => {
  const id = c.req.param("id");
  const found = server.registry.status.find((status) => status.id === id);
  if (found) return c.json(entryOf(found));
  throw new ApiError(404, "model_not_found", `there is no model ${JSON.stringify(id)} here`, { param: "model" });
};
