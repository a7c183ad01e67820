/** What a problem resembles, and what its owner can do: found on real installations and in their maintainers' trackers. */
import type { Hardware } from "./hardware.ts";
import { installationsOf } from "./loaded.ts";
import type { PlatformFacts } from "./probe.ts";
import type { SystemFacts } from "./system.ts";

export interface Situation {
  /** What the failing checks say. */
  readonly problems: readonly string[];
  readonly facts?: PlatformFacts | undefined;
  readonly hardware?: Hardware | undefined;
  readonly system?: SystemFacts | undefined;
}

type Finding = (situation: Situation) => string | null;

/** A finding by the words of a problem. */
const says =
  (words: RegExp, advice: string): Finding =>
  ({ problems }) =>
    problems.some((problem) => words.test(problem)) ? advice : null;

const findings: readonly Finding[] = [
  says(
    /undeclared identifier '__builtin|unknown builtin/,
    "the run-time compiler is older than the kernels need, or of another release than the runtime: install one ROCm from 5.2 on",
  ),
  says(
    /cannot compile for|does not know gfx|unknown target CPU|[Ii]nvalid target ID/,
    "the run-time compiler does not know this GPU: install a newer ROCm",
  ),
  says(
    /crashed with SIG(SEGV|ABRT|BUS|ILL) while (compiling|asking hiprtc)|(compile|hiprtc).* died by SIG/,
    "the run-time compiler itself crashed: install another release of ROCm, and report it with this report",
  ),
  says(
    /crashed with SIG\w+ while (opening rocBLAS|running golden case (matmul|conv)|a product|matmul)|rocBLAS error|Tensile/,
    "rocBLAS ends the process on a GPU that it has no files for: set WICK_BLAS=none, and Wick's own kernels multiply",
  ),
  says(
    /Memory access fault by GPU|HSA_STATUS_ERROR|HW Exception by GPU|Queue .* aborting/,
    "the GPU faulted, and ROCm ends the process then: see dmesg for amdgpu, and report it with this report",
  ),
  says(
    /#160151/,
    "every difference in f16 is wrong with this compiler: install a ROCm whose LLVM has llvm-project #180169, or an older one",
  ),
  says(
    /\b(gives|is|got|came back as) (-0, not 0|0, not -0)\b/,
    "zeros of the other sign alone are harmless: LLVM 19 folds products so (mended by llvm-project #214544)",
  ),
  says(
    /GLIBC(XX)?_[\d.]+' not found|undefined symbol|symbol lookup error|version `\S+' not found/,
    "libraries of two releases, or for another distribution, are mixed: see LD_LIBRARY_PATH, and install one ROCm",
  ),
  says(
    /no answer within/,
    "the GPU or its driver hangs: see dmesg for resets; ending other programs on the GPU or a restart helps",
  ),
  says(
    /ROCk module is NOT loaded|Unable to open \/dev\/kfd|hsa_init failed/,
    "the kernel driver cannot be reached: check that amdgpu is loaded and that this user may open /dev/kfd",
  ),
  says(
    /hipErrorInsufficientDriver|\(35\)|hipErrorNotInitialized/,
    "the kernel driver is too old for this ROCm: update the kernel or install amdgpu-dkms",
  ),
  mixedInstallations,
  unusedInstallation,
  otherGeneration,
  sharedMemory,
];

export function adviceFor(situation: Situation): string[] {
  return findings.flatMap((finding) => finding(situation) ?? []);
}

function mixedInstallations({ facts }: Situation): string | null {
  const folders = installationsOf(facts?.loaded ?? []);
  if (folders.length < 2) return null;
  return `libraries of ${folders.length} ROCm installations are loaded together (${folders.join(", ")}): remove one, the distribution's own libhsa-runtime64-1 perhaps, or correct LD_LIBRARY_PATH`;
}

/** A distribution's own runtime hides AMD's where the loader knows only the first. */
function unusedInstallation({ facts, system }: Situation): string | null {
  const runtime = facts?.loaded?.find(({ path }) => path.includes("/libamdhip64.so"))?.path;
  const [first] = Object.entries(system?.rocm ?? {});
  if (!runtime || !first || Object.keys(system!.rocm).some((folder) => runtime.startsWith(`${folder}/`))) return null;
  const [folder, version] = first;
  return `ROCm ${version} in ${folder} is not used, ${runtime} is: set ROCM_PATH=${folder} to change that`;
}

/** HSA_OVERRIDE_GFX_VERSION makes the runtime take the GPU for another. Within a generation that works. */
function otherGeneration({ hardware }: Situation): string | null {
  for (const [name, value] of Object.entries(hardware?.environment ?? {})) {
    if (!name.startsWith("HSA_OVERRIDE_GFX_VERSION")) continue;
    const major = value.split(".")[0]!;
    const other = hardware?.targets?.find((target) => target.slice("gfx".length, -2) !== major);
    if (other) return `${name}=${value} has code made for gfx${major}… run on ${other}, another generation: unset it`;
  }
  return null;
}

function sharedMemory({ problems, hardware }: Situation): string | null {
  const isShort = problems.some((problem) => /OutOfMemory|out of memory/.test(problem));
  const shared = hardware?.cards?.some(({ vramBytes = 0, gttBytes = 0 }) => gttBytes > vramBytes);
  return isShort && shared
    ? "this GPU has little memory of its own: give it more in the BIOS (UMA frame buffer), or let it map more of the host's (ttm.pages_limit)"
    : null;
}
