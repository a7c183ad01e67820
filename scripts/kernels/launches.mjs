// The launches of kernels whose shared memory is given at launch: it decides how many blocks a compute unit holds.
import { runnerImport } from "vite";

const source = async (name) => (await runnerImport(`./src/backend/gpu/${name}.ts`)).module;
const { ATTENTION_BLOCK, matrixUnit, planDecode, planLatent, planPrefill, sharedBudget } =
  await source("attention-plan");
const { planBlock } = await source("families/product");

/** Threads and bytes of shared memory of a block; undefined where the code object says all there is to know. */
export function plannedLaunch(name, arch) {
  const [, kind, d, dtype] = /^(attention(?:_decode)?)(?:_masked)?_(\d+)_(\w+)$/.exec(name) ?? [];
  if (kind) {
    const plan = kind === "attention" ? planPrefill : planDecode;
    const { threads, shared } = plan(matrixUnit(arch, dtype), dtype, Number(d), sharedBudget(arch));
    return { threads: threads ?? ATTENTION_BLOCK, shared };
  }
  const [, latent] = /^attention_latent_(\w+)$/.exec(name) ?? [];
  if (latent) {
    const { threads, shared } = planLatent(matrixUnit(arch, latent), latent);
    return { threads, shared };
  }
  const [, size] =
    /^(?:product(?=\w*_[km][kn]_)|conv_(?:product|spread))(_small|_wide|_square|_half|_pair|_split|)_/.exec(name) ?? [];
  const unit = matrixUnit(arch, "bf16");
  if (size === undefined || unit === "fma") return undefined;
  const { threads, shared_bytes } = planBlock(size, unit).launch;
  return { threads, shared: shared_bytes };
}
