// What decides the speed of kernels, as a table for the terminal and as a page.
import { readFileSync, writeFileSync } from "node:fs";
import { shareOf } from "./expected.mjs";

/** "4×16 + 2×2": so many accesses of so many bytes. */
const accesses = (widths) => widths.map(([bytes, count]) => `${count}×${bytes}`).join(" + ") || "–";
/** Scalar registers are spilt into vector registers, not to memory. */
const spillsOf = ({ vgprSpills, sgprSpills }) =>
  [vgprSpills || "", sgprSpills ? `${sgprSpills} s` : ""].filter(Boolean).join(" + ") || "–";
const share = (value) => value?.toFixed(2) ?? "–";

const judged = (row) => (row ? share(shareOf(row.hot, row.waves)) : "–");

/** Every kernel that was compiled, a line each. */
export function tableOf(rows) {
  const head = [
    ...["compiler", "arch", "kernel", "vgpr", "agpr", "sgpr", "lds", "scratch", "spills", "waves"],
    ...["matrix", "dot", "vector", "scalar", "shared", "counted", "alone", "share", "loads", "stores"],
  ];
  const lines = rows
    .toSorted((a, b) => String([a.name, a.arch, a.compiler]).localeCompare(String([b.name, b.arch, b.compiler])))
    .map((row) => [
      ...[
        row.compiler,
        row.arch,
        row.name,
        row.vgprs,
        row.agprs,
        row.sgprs,
        row.lds,
        row.scratch,
        spillsOf(row),
        row.waves,
      ],
      ...[row.hot.matrix, row.hot.dot, row.hot.vector, row.hot.scalar, row.hot.shared],
      ...[share(row.hot.counted), share(row.hot.alone), judged(row), accesses(row.hot.loads), accesses(row.hot.stores)],
    ]);
  const widths = [9, 8, 28];
  const cell = (text, i) => (widths[i] ? String(text).padEnd(widths[i]) : String(text).padStart(i > 17 ? 14 : 7));
  return [head, ...lines].map((line) => line.map(cell).join(" ")).join("\n");
}

/** What the page has: a target of each generation with a matrix unit, by one compiler, and the kernels that matter there. */
const compiler = "clang-19";
const targets = ["gfx90a", "gfx942", "gfx1100", "gfx1200"];
const groups = [
  { title: "Products of halves", kernels: /^product(_small)?_[km][kn]_bf16$/ },
  { title: "Convolutions", kernels: /^conv_(product|spread)\w*_f16$/ },
  { title: "Attention", kernels: /^attention(_decode)?(_masked)?_(64|128)_bf16$/ },
  { title: "Quantized weights", kernels: /^(linear_q(8_0|4_k)_b[18]|mul_mat_q(8_0|4_k)\w*)$/ },
  { title: "Other", kernels: /^(gemm_f32|linear_bf16\w*|rmsnorm_bf16|softmax_bf16|swiglu_bf16|add_bf16|sum_bf16\w*)$/ },
];
const marker = "<!-- What follows is written by npm run kernels -- --report docs/kernels.md -->";

const columns = [
  ["target", ({ arch }) => arch],
  ["VGPR", ({ vgprs }) => vgprs],
  ["AGPR", ({ agprs }) => agprs || "–"],
  ["SGPR", ({ sgprs }) => sgprs],
  ["LDS KB", ({ lds }) => (lds ? (lds / 1024).toFixed(1) : "–")],
  ["waves", ({ waves }) => waves],
  ["spills", spillsOf],
  ["loads", ({ hot }) => accesses(hot.loads)],
  ["stores", ({ hot }) => accesses(hot.stores)],
  ["matrix", ({ hot }) => hot.matrix || "–"],
  ["dot", ({ hot }) => hot.dot || "–"],
  ["vector", ({ hot }) => hot.vector],
  ["scalar", ({ hot }) => hot.scalar],
  ["LDS", ({ hot }) => hot.shared || "–"],
  ["counted", ({ hot }) => share(hot.counted)],
  ["alone", ({ hot }) => share(hot.alone)],
  ["share", judged],
];
const line = (cells) => `| ${cells.join(" | ")} |`;

/** The tables of the page: the shares at a glance, then everything. */
export function reportOf(rows) {
  const shown = rows.filter((row) => row.compiler === compiler && targets.includes(row.arch));
  const names = (pattern) => [...new Set(shown.map(({ name }) => name))].filter((name) => pattern.test(name)).sort();
  const find = (name, arch) => shown.find((row) => row.name === name && row.arch === arch);
  const multiplying = names(/./).filter(
    (name) =>
      groups.some(({ kernels }) => kernels.test(name)) && shown.some((row) => row.name === name && row.hot.matrix > 0),
  );
  const glance = [
    line(["kernel", ...targets]),
    line(["---", ...targets.map(() => "--:")]),
    ...multiplying.map((name) => line([`\`${name}\``, ...targets.map((arch) => judged(find(name, arch)))])),
  ];
  const details = groups.flatMap(({ title, kernels }) => {
    const found = names(kernels);
    if (found.length === 0) return [];
    const lines = found.flatMap((name) =>
      targets.flatMap((arch) => {
        const row = find(name, arch);
        return row ? [line([`\`${name}\``, ...columns.map(([, of]) => of(row))])] : [];
      }),
    );
    const heads = ["kernel", ...columns.map(([head]) => head)];
    return ["", `### ${title}`, "", line(heads), line(heads.map((_, i) => (i < 2 ? "---" : "--:"))), ...lines];
  });
  return ["## The matrix unit's share of hot loops", "", ...glance, "", "## Kernel by kernel", ...details, ""].join(
    "\n",
  );
}

/** Writes the tables into the page, after what is said there about them. */
export function writeReport(path, rows) {
  const [before] = readFileSync(path, "utf8").split(marker);
  writeFileSync(path, `${before}${marker}\n\n${reportOf(rows)}`);
}
