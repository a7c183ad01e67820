// The options that give kernels the numbers they share with their launches, for those who compile them by hand:
//
//   nvcc … $(node scripts/kernels/defines.mjs sm_90 linear gemm)
import { runnerImport } from "vite";

const [arch, ...files] = process.argv.slice(2);
const { definesOf } = (await runnerImport("./src/backend/gpu/catalogue.ts")).module;
console.log([...new Set(files.flatMap((file) => definesOf(file, arch)))].join(" "));
