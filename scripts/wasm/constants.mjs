// What src/backend/cpu/abi.ts says, for AssemblyScript.
import { writeFileSync } from "node:fs";
import { blockTypes, codes, memoryMap, shiftOf, words } from "../../dist/backend/cpu/abi.js";

const NOTICE = "// Written by scripts/wasm/constants.mjs from ../abi.ts; not in git.";

const lines = (record, line) => Object.entries(record).map(([name, value]) => line(name.toUpperCase(), value));

const constants = (type, record) => lines(record, (name, value) => `export const ${name}: ${type} = ${value};`);

const enumeration = (name, record) => {
  const title = name[0].toUpperCase() + name.slice(1);
  return [`export const enum ${title} {`, ...lines(record, (member, value) => `  ${member} = ${value},`), "}"];
};

/** The place of each word: pairs have one for either axis, strides the first of their four. */
function places(lengths) {
  const found = {};
  let next = 0;
  for (const [name, length] of Object.entries(lengths)) {
    const member = name.replace(/[A-Z]/g, "_$&");
    if (length === 2) Object.assign(found, { [`${member}_h`]: next, [`${member}_w`]: next + 1 });
    else found[member] = next;
    next += length;
  }
  return found;
}

/** log2 of the bytes per element; a chain of comparisons, which the optimizer folds where the dtype is known. */
const shifts = () => [
  "// @inline",
  "export function shiftOf(dtype: i32): i32 {",
  ...[0, 1, 3].map((shift) => {
    const names = Object.keys(codes.dtype).filter((name) => shiftOf(name) === shift);
    return `  if (${names.map((name) => `dtype === ${name.toUpperCase()}`).join(" || ")}) return ${shift};`;
  }),
  "  return 2;",
  "}",
];

/** A property of the block type T. */
const byType = (name, value) => [
  "// @inline",
  `export function ${name}<T>(): usize {`,
  ...Object.entries(blockTypes).map(([type, info]) => `  if (idof<T>() === idof<${type}>()) return ${value(info)};`),
  '  return ERROR("no block type");',
  "}",
];

export function writeConstants() {
  const { dtype, ...enums } = codes;
  const text = [
    NOTICE,
    ...constants("usize", memoryMap),
    ...constants("i32", dtype),
    ...shifts(),
    ...Object.entries(enums).flatMap(([name, record]) => enumeration(name, record)),
    ...Object.entries(words).flatMap(([name, lengths]) => enumeration(name, places(lengths))),
    ...Object.entries(blockTypes).map(
      ([type, { id }]) => `export class ${type} {\n  static readonly ID: i32 = ${id};\n}`,
    ),
    ...byType("blockSize", ({ size }) => size),
    ...byType("blockBytes", ({ bytes }) => bytes),
  ];
  writeFileSync("src/backend/cpu/wasm/abi.ts", `${text.join("\n")}\n`);
}
