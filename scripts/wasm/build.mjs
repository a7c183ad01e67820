// Compiles the CPU kernels twice: with relaxed SIMD (fused multiply-add) and without, for engines that lack it.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { isMainThread, Worker, workerData } from "node:worker_threads";
import asc from "assemblyscript/asc";
import binaryen from "binaryen";
import { memoryMap, pages } from "../../dist/backend/cpu/abi.js";
import { writeConstants } from "./constants.mjs";

const { CONSTANTS, DATA } = memoryMap;

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
  if (CONSTANTS + 16 * places.size > DATA) throw new Error(`${places.size} vector constants: make room for more`);
  const words = [...places.keys()].flatMap((lanes) => lanes.split(" ").map(Number));
  const bytes = Buffer.from(Uint32Array.from(words).buffer);
  const escaped = [...bytes].map((byte) => `\\${byte.toString(16).padStart(2, "0")}`).join("");
  const data = ` (data $constants (i32.const ${CONSTANTS}) "${escaped}")\n`;
  return binaryen.parseText(`${text.slice(0, text.lastIndexOf(")"))}${data})`);
}

/** asc's own -O3 takes three times as long, for code that is no faster but for softmax, by 5 %. */
function optimized(binary) {
  const module = binaryen.readBinary(binary);
  module.setFeatures(binaryen.Features.All);
  binaryen.setOptimizeLevel(3);
  binaryen.setShrinkLevel(0);
  // As asc has them: kernels are many small functions in loops.
  binaryen.setFastMath(true);
  binaryen.setAlwaysInlineMaxSize(12);
  binaryen.setFlexibleInlineMaxSize(70);
  binaryen.setOneCallerInlineMaxSize(200);
  binaryen.setAllowInliningFunctionsWithLoops(true);
  // The first pass leaves what only a second one finds.
  module.optimize();
  module.optimize();
  return module;
}

/**
 * A source as AssemblyScript has it: its decorators cannot stand at functions in TypeScript, so they are comments in the
 * files, which other tools can read then.
 */
function source(name, folder) {
  try {
    return readFileSync(resolve(folder, name), "utf8").replace(/^\/\/ (?=@inline$)/gm, "");
  } catch (error) {
    if (error.code === "ENOENT") return null; // asc tries several names
    throw error;
  }
}

async function compile(variant) {
  const outFile = `dist/wasm/kernels.${variant}.wasm`;
  let binary;
  const { error, stderr } = await asc.main(
    [
      "src/backend/cpu/wasm/index.ts",
      ...["--outFile", outFile, "--runtime", "stub", "--use", "abort="],
      ...["--importMemory", "--sharedMemory"],
      ...["--initialMemory", String(pages.initial), "--maximumMemory", String(pages.maximum)],
      ...["--memoryBase", String(DATA)],
      ...["--enable", variant === "relaxed" ? "simd,threads,relaxed-simd,bulk-memory" : "simd,threads,bulk-memory"],
      ...["--use", `RELAXED=${variant === "relaxed" ? 1 : 0}`],
      ...["-O0", "--noAssert", "--exportTable"],
    ],
    {
      readFile: source,
      writeFile: (_, contents) => {
        binary = contents;
      },
    },
  );
  if (error) throw new Error(stderr.toString());
  const moved = constantsToMemory(optimized(binary));
  moved.setFeatures(binaryen.Features.All);
  if (!moved.validate()) throw new Error(`${outFile} does not validate`);
  mkdirSync("dist/wasm", { recursive: true });
  writeFileSync(outFile, moved.emitBinary());
}

/** In a thread of its own, whose messages count only if it fails: asc warns of locals that the optimizer then removes. */
function compileBeside(variant) {
  const worker = new Worker(new URL(import.meta.url), { workerData: variant, stderr: true });
  const messages = [];
  worker.stderr.on("data", (chunk) => messages.push(chunk));
  worker.on("error", (error) => {
    process.stderr.write(Buffer.concat(messages));
    throw error;
  });
}

if (isMainThread) {
  writeConstants();
  for (const variant of ["simd", "relaxed"]) compileBeside(variant);
} else await compile(workerData);
