// Gives damaged GGUF files to the parser: `npm run build && npm run fuzz [-- COUNT [FIRST_SEED]]`. Each must parse or
// be refused with a WickError, soon, and without taking more memory than the file is large plus a constant.
import { parseGguf } from "../dist/formats/gguf/header.js";
import { WickError } from "../dist/index.js";
import { memorySource, mutated } from "./gguf-mutations.mjs";

const count = Number(process.argv[2] ?? 1_000_000);
const first = Number(process.argv[3] ?? 1);
const SLOW_MS = 1000;
/** Everything: the process itself, the library, and garbage not yet collected. */
const MAX_RSS = 512 * 2 ** 20;

const before = process.memoryUsage.rss();
const started = performance.now();
const problems = new Map();
let valid = 0;
for (let seed = first; seed < first + count; seed++) {
  const bytes = mutated(seed);
  const source = memorySource(bytes);
  const at = performance.now();
  try {
    // Every other file is read a few bytes at a time, so that fields lie across the ends of what is held.
    await parseGguf(source, undefined, seed % 2 === 0 ? undefined : 1 + (seed % 40));
    valid++;
  } catch (error) {
    if (!(error instanceof WickError)) {
      console.error(`seed ${seed}:`, error);
      process.exit(1);
    }
    // The kind of problem, without the names and numbers of this file.
    const kind = error.message.replace(/"(?:[^"\\]|\\.)*"/g, '"…"').replace(/\d+/g, "0");
    problems.set(kind, (problems.get(kind) ?? 0) + 1);
  }
  const took = performance.now() - at;
  if (took > SLOW_MS) throw new Error(`seed ${seed}: took ${took.toFixed(0)} ms for ${bytes.length} bytes`);
  if (seed % 2 === 0 && source.bytesRead > bytes.length)
    throw new Error(`seed ${seed}: read ${source.bytesRead} of ${bytes.length} bytes`);
  if (seed % 10_000 === 0 && process.memoryUsage.rss() > MAX_RSS)
    throw new Error(`seed ${seed}: memory grew too large`);
  if (seed % 100_000 === 0) console.log(`${seed - first + 1} of ${count}`);
}
const seconds = (performance.now() - started) / 1000;
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
console.log(
  `${count} damaged files in ${seconds.toFixed(1)} s (${(count / seconds).toFixed(0)} per second): ` +
    `${count - valid} refused in ${problems.size} ways, ${valid} valid, none crashed; ` +
    `memory ${mib(before)} before, ${mib(process.memoryUsage.rss())} after, ${mib(process.resourceUsage().maxRSS * 1024)} at most`,
);
for (const [kind, n] of [...problems].sort((a, b) => b[1] - a[1])) console.log(`${String(n).padStart(8)}  ${kind}`);
