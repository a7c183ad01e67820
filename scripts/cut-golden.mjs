// Cuts the golden cases that are shipped with the package, in golden/, out of all of them: of each op and set of dtypes
// a small one, a larger one and one that reads a view. Usage: node scripts/cut-golden.mjs
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const path = (name) => fileURLToPath(new URL(`../${name}`, import.meta.url));
/** The larger case of a group has at most this many bytes of tensors. */
const LARGER = 3 * 1024;
const LIMIT = 2 ** 20;
// Blocks of quantized weights differ by type, so few of them would say little.
const leftOut = new Set(["quantize", "dequantize", "qmatmul"]);

const cases = JSON.parse(readFileSync(path("test/data/golden/cases.json"), "utf8"));
const file = readFileSync(path("test/data/golden/tensors.safetensors"));
const headerBytes = Number(file.readBigUInt64LE(0));
const header = JSON.parse(file.subarray(8, 8 + headerBytes).toString("utf8"));
const data = file.subarray(8 + headerBytes);

const tensorsOf = (c) => [...new Set([...Object.values(c.inputs).map((i) => i.tensor), ...c.outputs])];
const bytesOf = (c) => tensorsOf(c).reduce((sum, t) => sum + header[t].data_offsets[1] - header[t].data_offsets[0], 0);
const readsView = (c) => Object.values(c.inputs).some((i) => i.view);
const groupOf = (c) => JSON.stringify([c.op, ...tensorsOf(c).map((t) => header[t].dtype)]);

const groups = new Map();
for (const c of cases) {
  if (!leftOut.has(c.op)) groups.set(groupOf(c), [...(groups.get(groupOf(c)) ?? []), c]);
}
const chosen = new Set();
for (const group of groups.values()) {
  const bySize = group.toSorted((a, b) => bytesOf(a) - bytesOf(b));
  chosen.add(bySize[0]);
  for (const c of [bySize.findLast((c) => bytesOf(c) <= LARGER), bySize.find(readsView)]) {
    if (c && bytesOf(c) <= LARGER) chosen.add(c);
  }
}

const kept = cases.filter((c) => chosen.has(c));
const names = [...new Set(kept.flatMap(tensorsOf))];
let end = 0;
const entries = {};
const parts = [];
for (const name of names) {
  const { dtype, shape, data_offsets: offsets } = header[name];
  parts.push(data.subarray(...offsets));
  entries[name] = { dtype, shape, data_offsets: [end, end + offsets[1] - offsets[0]] };
  end += offsets[1] - offsets[0];
}
// The header is padded with spaces so that the data begins at a multiple of 8 bytes.
const text = JSON.stringify(entries);
const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
const size = Buffer.alloc(8);
size.writeBigUInt64LE(BigInt(head.length));
const tensors = Buffer.concat([size, head, ...parts]);
const listing = `[\n${kept.map((c) => JSON.stringify(c)).join(",\n")}\n]\n`;
const total = tensors.length + listing.length;
if (total > LIMIT) throw new Error(`${total} bytes are more than the ${LIMIT} that may be shipped`);

mkdirSync(path("golden"), { recursive: true });
writeFileSync(path("golden/cases.json"), listing);
writeFileSync(path("golden/tensors.safetensors"), tensors);
console.log(`golden/: ${kept.length} of ${cases.length} cases, ${total} bytes`);
