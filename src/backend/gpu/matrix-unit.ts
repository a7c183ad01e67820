/**
 * Which matrix unit a compiler takes for a device. kernels/tile.h chooses by what the compiler offers, and launches are
 * planned by what it chose: kernels/probe.hip says it in the name of its one kernel.
 */
import { fail } from "../../core/errors.ts";
import { type MatrixUnit, matrixUnit, matrixUnits } from "./attention-plan.ts";
import { isForAmdGpu, readCodeObject } from "./codeobject.ts";
import { programCode, type Toolchain } from "./program.ts";

export function compiledUnit(toolchain: Toolchain): MatrixUnit {
  const { arch } = toolchain.device;
  // NVIDIA's follow from the arch, and what serves several archs alike is told.
  if (arch.startsWith("sm_") || toolchain.compiler.codeArch(arch) !== arch) return matrixUnit(arch, "bf16");
  return unitOf(programCode("probe", "bytes", toolchain).code, arch);
}

/** The unit that the code of the probe for `arch` names. The simulator's code, which is for the host, has what it was told. */
export function unitOf(code: Uint8Array, arch: string): MatrixUnit {
  if (!isForAmdGpu(code)) return matrixUnit(arch, "bf16");
  const names = readCodeObject(code).map(({ name }) => name);
  const unit = matrixUnits.find((_, i) => names.includes(`matrix_unit_${i}`));
  return (
    unit ??
    fail("CompileFailed", `the probe for ${arch} should name a matrix unit, but has ${names.join() || "no kernel"}`)
  );
}
