/** Which instructions the CPU device computes with: the best that the machine has, or what WICK_CPU asks for. */
import { chosen } from "../../../core/environment.ts";
import { fail, WickError } from "../../../core/errors.ts";
import { type Features, queryFeatures } from "./cpuid.ts";
import { type Isa, type IsaName, isaOf } from "./isa.ts";

export type Tier = "wasm" | IsaName;

/** Calls follow the System V convention of these systems. */
const isKnownSystem = (): boolean =>
  process.arch === "x64" && (process.platform === "linux" || process.platform === "darwin");

let features: Features | null | undefined;
let isToldOf = false;

/** What the processor can do; null where machine code cannot run, which is said once. */
function machineFeatures(): Features | null {
  if (features !== undefined) return features;
  features = null;
  if (!isKnownSystem()) return null;
  try {
    features = queryFeatures();
  } catch (error) {
    if (!(error instanceof WickError)) throw error;
    tellOnce(error.message);
  }
  return features;
}

function tellOnce(why: string): void {
  if (isToldOf) return;
  isToldOf = true;
  process.emitWarning(`${why}; the CPU device computes in WebAssembly`, { code: "NO_NATIVE_CODE" });
}

/** The tiers that this machine has, the best one first. */
export function tiers(): readonly Tier[] {
  const found = machineFeatures();
  const native = (["avx512", "avx2"] as const).filter((name) => found?.[name]);
  return [...native, "wasm"];
}

/** The instructions to compute with; null: WebAssembly's. */
export function chooseIsa(asked: Tier | undefined = chosen("WICK_CPU")): Isa | null {
  if (asked === "wasm") return null;
  const [best] = tiers();
  const name = asked ?? best!;
  if (name === "wasm") return null;
  if (!tiers().includes(name)) {
    const found = tiers().join(", ");
    fail(
      "InvalidArgument",
      `WICK_CPU=${name}: this machine computes with ${found}; take one of those, or unset WICK_CPU`,
    );
  }
  return isaOf(name, features!);
}
