// kernels/checked.json: what was found of each file by each compiler on each target, a line for each file and compiler. What
// was noted of other sources, other arguments or targets that are no longer asked for is forgotten.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { amdTargets, nvidiaTargets, sourceHash } from "./compile.mjs";

const own = "kernels/checked.json";
const columns = ["kernels", "vgprs", "lds", "spilling", "seconds", "uses", "share"];
const secondsOf = (facts) => facts[columns.indexOf("seconds")] ?? 0;
const isTarget = (name) => amdTargets.includes(name) || nvidiaTargets.includes(name);
const sorted = (object) => Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));

/** A record as it is on disk; facts of a target are a list, named by `columns`. */
export function readRecord(path = own) {
  const { files, took } = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};
  return { files: files ?? {}, took: took ?? {} };
}

/** Every entry of a record, as `note` takes them. */
const entriesOf = ({ files }) =>
  Object.entries(files).flatMap(([file, { source, arguments: believed, compilers }]) =>
    Object.entries(compilers).flatMap(([compiler, targets]) =>
      Object.entries(targets).map(([target, facts]) => ({ file, source, believed, compiler, target, facts })),
    ),
  );

export class Record {
  #names;
  #argumentsHash;
  #notes = [];
  #runs = {};
  #seconds = new Map();

  constructor(names, argumentsHash) {
    this.#names = names;
    this.#argumentsHash = argumentsHash;
    for (const { file, facts } of entriesOf(readRecord())) this.#count(file, secondsOf(facts));
  }

  /** Takes over what a record of another machine says of the same sources. */
  merge(path) {
    const other = readRecord(path);
    const isSame = ({ file, source, believed }) =>
      this.#names.includes(file) && source === sourceHash(file) && believed === this.#argumentsHash(file);
    this.#notes.push(...entriesOf(other).filter(isSame));
    for (const [compiler, { run }] of Object.entries(other.took)) this.#runs[compiler] = run;
  }

  note(file, compiler, target, facts) {
    this.#count(file, facts.seconds ?? 0);
    this.#notes.push({
      ...{ file, compiler, target, source: sourceHash(file), believed: this.#argumentsHash(file) },
      facts: columns.map((column) => facts[column]).filter((fact) => fact !== undefined),
    });
  }

  #count(file, seconds) {
    const { sum, count } = this.#seconds.get(file) ?? { sum: 0, count: 0 };
    this.#seconds.set(file, { sum: sum + seconds, count: count + 1 });
  }

  /** About how long a file takes to compile: by what other targets took, or anything. */
  secondsOf(file) {
    const known = this.#seconds.get(file);
    return known ? Math.max(0.1, known.sum / known.count) : 1;
  }

  /** How long a run of these compilers took, with so many compilations at once. */
  took(compilers, seconds, jobs) {
    for (const compiler of compilers) this.#runs[compiler] = { seconds: Math.round(seconds), jobs };
  }

  /** Adds to what is on disk by now: other runs may go on beside this one. */
  save() {
    const { files, took } = readRecord();
    for (const { file, source, believed, compiler, target, facts } of this.#notes) {
      const old = files[file];
      const compilers = old?.source === source && old.arguments === believed ? old.compilers : {};
      compilers[compiler] = { ...compilers[compiler], [target]: facts };
      files[file] = { source, arguments: believed, compilers };
    }
    for (const targets of Object.values(files).flatMap(({ compilers }) => Object.values(compilers)))
      for (const target of Object.keys(targets)) if (!isTarget(target)) delete targets[target];
    const names = new Set(Object.values(files).flatMap(({ compilers }) => Object.keys(compilers)));
    const summary = [...names].map((compiler) => {
      const facts = Object.values(files).flatMap(({ compilers }) => Object.values(compilers[compiler] ?? {}));
      const seconds = Math.round(facts.reduce((sum, list) => sum + secondsOf(list), 0));
      return [compiler, { compilations: facts.length, seconds, run: this.#runs[compiler] ?? took[compiler]?.run }];
    });
    writeFileSync(own, this.#text(files, Object.fromEntries(summary)));
  }

  #text(files, took) {
    const line = ([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`;
    const entry = ([file, { source, arguments: believed, compilers }]) => {
      const lines = Object.entries(compilers).map(([name, targets]) => [name, sorted(targets)]);
      const all = Object.entries(sorted(Object.fromEntries(lines)));
      return `  ${JSON.stringify(file)}: {
   "source": "${source}",
   "arguments": "${believed}",
   "compilers": {
${all.map((one) => `    ${line(one)}`).join(",\n")}
   }
  }`;
    };
    const kept = Object.entries(sorted(files)).filter(([file]) => this.#names.includes(file));
    const runs = Object.entries(sorted(took)).map((one) => `  ${line(one)}`);
    return `{
 "columns": ${JSON.stringify(columns)},
 "took": {
${runs.join(",\n")}
 },
 "files": {
${kept.map(entry).join(",\n")}
 }
}
`;
  }
}
