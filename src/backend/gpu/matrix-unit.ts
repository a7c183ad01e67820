/**
 * Which matrix unit a compiler takes for a device. kernels/gpu/matrix.h chooses by what the compiler offers, and launches are
 * planned by what it chose: kernels/probe.hip says it in the name of its one kernel.
 */
import { fail } from "../../core/errors.ts";
import { type MatrixUnit, matrixUnit, matrixUnits } from "./attention-plan.ts";
import { isForAmdGpu, readCodeObject } from "./codeobject.ts";
import { probeProgram, programCode, programCodeAsync, type Toolchain } from "./program.ts";

/** Whether the compiler must be asked: NVIDIA's follow from the arch, and what serves several archs alike is told. */
const isAsked = ({ device: { arch }, compiler }: Toolchain): boolean =>
  !arch.startsWith("sm_") && compiler.codeArch(arch) === arch;

export function compiledUnit(toolchain: Toolchain): MatrixUnit {
  const { arch } = toolchain.device;
  return isAsked(toolchain) ? unitOf(programCode(probeProgram, toolchain).code, arch) : matrixUnit(arch, "bf16");
}

/** Has the answer in the cache, while this thread goes on. */
export async function prepareUnit(toolchain: Toolchain): Promise<void> {
  if (isAsked(toolchain)) await programCodeAsync(probeProgram, toolchain);
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
