// Emits every kernel for every instruction set into dist, where processes read them: see src/backend/cpu/native/stored.ts.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { isaKey } from "../dist/backend/cpu/native/isa.js";
import { pack, storedIsas } from "../dist/backend/cpu/native/stored.js";

const folder = new URL("../dist/backend/cpu/native/code/", import.meta.url);
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder);
for (const isa of storedIsas) writeFileSync(new URL(`${isaKey(isa)}.bin`, folder), pack(isa));

// Whoever compiles the sources again without this script loses that line, and with it what would no longer be theirs.
const stored = new URL("../dist/backend/cpu/native/stored.js", import.meta.url);
const before = readFileSync(stored, "utf8");
const after = before.replace("const isPacked = false;", "const isPacked = true;");
if (!after.includes("const isPacked = true;")) throw new Error("dist/backend/cpu/native/stored.js: no isPacked");
writeFileSync(stored, after);
