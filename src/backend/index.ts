/** For those who write a device: what it must give, and what Wick gives it. */
import "../core/globals.ts";

export { Layout } from "../core/layout.ts";
export type * from "./backend.ts";
export { Storage } from "./storage.ts";
