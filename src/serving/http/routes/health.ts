/** GET /health, as those who route to a server ask it: whether it lives, and whether it takes requests. */
import type { AppContext, ServerContext } from "../server-context.ts";

/** Not while the first model loads, nor once the server is about to end. */
export const ready =
  ({ registry, admission }: ServerContext) =>
  (c: AppContext) => {
    const status = admission.isClosed ? "draining" : registry.wasReady ? "ok" : "loading";
    return c.json({ status }, status === "ok" ? 200 : 503);
  };

export const live = () => (c: AppContext) => c.json({ status: "ok" });
