// The text table: one row per workload, one column per library, Wick first.
const UNIT = { flops: "GFLOP/s", bytes: "GB/s" };
const CASE_WIDTH = 36;
const MIN_WIDTH = 16;
const NUMBER_WIDTH = 10;

const fixed = (value) => value.toFixed(value < 10 ? 2 : 1);
const title = ({ name, threads }, run) => (threads && threads !== run.threads ? `${name} (${threads}t)` : name);
const columns = (run) =>
  run.libraries.map((library) => ({ ...library, width: Math.max(MIN_WIDTH, title(library, run).length + 2) }));

export function printHeader(run) {
  const threads = `${run.threads} thread${run.threads > 1 ? "s" : ""}`;
  console.log(`\nNode ${run.node}, ${run.cpu}, ${run.cores} cores, ${threads}`);
  for (const { name, version, threads: used, error } of run.libraries) {
    if (error) console.log(`  ${name} n/a (${error})`);
    else console.log(`  ${name} ${version}${used === run.threads ? "" : ` (${used} thread: all it has in Node)`}`);
  }
  console.log(
    "(n×) = Wick's speed over that library's; ceiling = multiply-add rate or copy bandwidth of the machine\n",
  );
  const names = columns(run).map((library) => title(library, run).padStart(library.width));
  const rest = ["vs best", "ceiling", "of it"].map((name) => name.padStart(NUMBER_WIDTH));
  console.log(["".padEnd(CASE_WIDTH), "unit   ", ...names, ...rest].join(" "));
}

let lastOp;

export function printRow({ op, label, unit, ceiling, results }, run) {
  if (op !== lastOp) console.log();
  lastOp = op;
  const wick = results.wick?.rate;
  const peers = Object.entries(results).filter(([name, { rate }]) => name !== "wick" && rate);
  const best = Math.max(...peers.map(([, { rate }]) => rate));
  const ratio = (rate) => `${fixed(wick / rate)}×`;
  const cells = columns(run).map(({ name, width }) => {
    const { rate } = results[name];
    if (!rate) return "n/a".padStart(width);
    return (name === "wick" || !wick ? fixed(rate) : `${fixed(rate)} (${ratio(rate)})`).padStart(width);
  });
  const rest = [
    wick && peers.length ? ratio(best) : "–",
    fixed(ceiling),
    wick ? `${((100 * wick) / ceiling).toFixed(0)} %` : "–",
  ];
  const name = `${op} ${label}`.padEnd(CASE_WIDTH);
  console.log([name, UNIT[unit].padEnd(7), ...cells, ...rest.map((cell) => cell.padStart(NUMBER_WIDTH))].join(" "));
  // Libraries that failed as a whole are explained in the header.
  for (const library of run.libraries) {
    const { error } = results[library.name];
    if (error && !library.error) console.log(`    ${library.name} n/a (${error})`);
  }
}
