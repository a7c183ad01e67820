// kernels/checked.json: what was found of each file by each compiler on each target, a line for each file and compiler. What
// was noted of other sources or other arguments is forgotten.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { sourceHash } from "./compile.mjs";

const path = "kernels/checked.json";
const columns = ["kernels", "vgprs", "lds", "spilling", "seconds", "uses"];
const sorted = (object) => Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));

/** The record as it is on disk; facts of a target are a list, named by `columns`. */
export function readRecord() {
  const { files, took } = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};
  return { files: files ?? {}, took: took ?? {} };
}

export class Record {
  #names;
  #argumentsHash;
  #files;
  #took;

  constructor(names, argumentsHash) {
    const { files, took } = readRecord();
    this.#names = names;
    this.#argumentsHash = argumentsHash;
    this.#files = files;
    this.#took = took;
  }

  note(file, compiler, target, facts) {
    const about = { source: sourceHash(file), arguments: this.#argumentsHash(file) };
    const old = this.#files[file];
    const compilers = old?.source === about.source && old.arguments === about.arguments ? old.compilers : {};
    const list = columns.map((column) => facts[column]).filter((fact) => fact !== undefined);
    this.#files[file] = {
      ...about,
      compilers: { ...compilers, [compiler]: { ...compilers[compiler], [target]: list } },
    };
  }

  /** About how long a file takes to compile: by what other targets took, or anything. */
  secondsOf(file) {
    const all = Object.values(this.#files[file]?.compilers ?? {}).flatMap((targets) => Object.values(targets));
    const known = all.map((facts) => facts[columns.indexOf("seconds")]).filter((seconds) => seconds !== undefined);
    return known.length === 0 ? 1 : Math.max(0.1, known.reduce((sum, seconds) => sum + seconds, 0) / known.length);
  }

  /** How long the compilations of these compilers took one by one, and the last run with so many at once. */
  tookFor(compilers, seconds, jobs) {
    for (const compiler of compilers) {
      const facts = Object.values(this.#files).flatMap((file) => Object.values(file.compilers[compiler] ?? {}));
      const work = facts.reduce((sum, list) => sum + (list[columns.indexOf("seconds")] ?? 0), 0);
      const run = { seconds: Math.round(seconds), jobs };
      this.#took[compiler] = { compilations: facts.length, seconds: Math.round(work), run };
    }
  }

  save() {
    const line = ([compiler, targets]) => `    ${JSON.stringify(compiler)}: ${JSON.stringify(sorted(targets))}`;
    const entry = ([file, { source, arguments: believed, compilers }]) =>
      `  ${JSON.stringify(file)}: {\n   "source": "${source}",\n   "arguments": "${believed}",\n   "compilers": {\n${Object.entries(sorted(compilers)).map(line).join(",\n")}\n   }\n  }`;
    const files = Object.entries(sorted(this.#files)).filter(([file]) => this.#names.includes(file));
    const took = Object.entries(sorted(this.#took)).map(
      ([name, run]) => `  ${JSON.stringify(name)}: ${JSON.stringify(run)}`,
    );
    writeFileSync(
      path,
      `{\n "columns": ${JSON.stringify(columns)},\n "took": {\n${took.join(",\n")}\n },\n "files": {\n${files.map(entry).join(",\n")}\n }\n}\n`,
    );
  }
}
