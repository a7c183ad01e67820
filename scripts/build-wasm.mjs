// Compiles the CPU kernels twice: with relaxed SIMD (fused multiply-add) and without, for engines that lack it.
import { mkdirSync, writeFileSync } from "node:fs";
import { isMainThread, Worker, workerData } from "node:worker_threads";
import asc from "assemblyscript/asc";
import binaryen from "binaryen";

/** Where the vector constants lie; the compiler's own static data follows. */
const CONSTANTS = 65536;
const CONSTANTS_END = CONSTANTS + 4096;

/**
 * Moves vector constants into memory. V8 builds a constant anew at every use, in three instructions that compete with
 * the arithmetic; a load is one, and polynomials become twice as fast. Zeros stay: they are free.
 */
function constantsToMemory(module) {
  const places = new Map();
  const text = module.emitText().replace(/\(v128\.const i32x4 ([^)]*)\)/g, (constant, lanes) => {
    if (/^(0x0+ ?)+$/.test(lanes)) return constant;
    if (!places.has(lanes)) places.set(lanes, CONSTANTS + 16 * places.size);
    return `(v128.load (i32.const ${places.get(lanes)}))`;
  });
  if (CONSTANTS + 16 * places.size > CONSTANTS_END)
    throw new Error(`${places.size} vector constants: make room for more`);
  const words = [...places.keys()].flatMap((lanes) => lanes.split(" ").map(Number));
  const bytes = Buffer.from(Uint32Array.from(words).buffer);
  const escaped = [...bytes].map((byte) => `\\${byte.toString(16).padStart(2, "0")}`).join("");
  const data = ` (data $constants (i32.const ${CONSTANTS}) "${escaped}")\n`;
  return binaryen.parseText(`${text.slice(0, text.lastIndexOf(")"))}${data})`);
}

async function compile(variant) {
  const outFile = `dist/wasm/kernels.${variant}.wasm`;
  let binary;
  const { error, stderr } = await asc.main(
    [
      "src/backend/cpu/wasm/index.ts",
      ...["--outFile", outFile, "--runtime", "stub", "--use", "abort="],
      ...["--importMemory", "--sharedMemory", "--initialMemory", "16", "--maximumMemory", "65536"],
      ...["--memoryBase", String(CONSTANTS_END)],
      ...["--enable", variant === "relaxed" ? "simd,threads,relaxed-simd,bulk-memory" : "simd,threads,bulk-memory"],
      ...["--use", `RELAXED=${variant === "relaxed" ? 1 : 0}`],
      ...["-O3", "--noAssert", "--exportTable"],
    ],
    {
      writeFile: (_, contents) => {
        binary = contents;
      },
    },
  );
  if (error) throw new Error(stderr.toString());
  const moved = constantsToMemory(binaryen.readBinary(binary));
  moved.setFeatures(binaryen.Features.All);
  if (!moved.validate()) throw new Error(`${outFile} does not validate`);
  mkdirSync("dist/wasm", { recursive: true });
  writeFileSync(outFile, moved.emitBinary());
}

// A thread each: the optimizer takes half a minute, in which it uses one core.
if (isMainThread) for (const workerData of ["simd", "relaxed"]) new Worker(new URL(import.meta.url), { workerData });
else await compile(workerData);
