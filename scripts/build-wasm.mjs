// Compiles the CPU kernels twice: with relaxed SIMD (fused multiply-add) and without, for engines that lack it.
import { mkdirSync } from "node:fs";
import asc from "assemblyscript/asc";

mkdirSync("dist/wasm", { recursive: true });
for (const variant of ["simd", "relaxed"]) {
  const { error, stderr } = await asc.main([
    "src/backend/cpu/wasm/index.ts",
    "--outFile",
    `dist/wasm/kernels.${variant}.wasm`,
    ...["--runtime", "stub", "--use", "abort="],
    ...[
      "--importMemory",
      "--sharedMemory",
      "--initialMemory",
      "16",
      "--maximumMemory",
      "65536",
      "--memoryBase",
      "65536",
    ],
    ...["--enable", variant === "relaxed" ? "simd,threads,relaxed-simd,bulk-memory" : "simd,threads,bulk-memory"],
    ...["--use", `RELAXED=${variant === "relaxed" ? 1 : 0}`],
    ...["-O3", "--noAssert", "--exportTable"],
  ]);
  if (error) {
    console.error(stderr.toString());
    process.exit(1);
  }
}
