// Emits every kernel for every instruction set into dist, where processes read them: see src/backend/cpu/native/stored.ts.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { isaKey } from "../dist/backend/cpu/native/isa.js";
import { pack, storedIsas } from "../dist/backend/cpu/native/stored.js";

const folder = new URL("../dist/backend/cpu/native/code/", import.meta.url);
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder);
for (const isa of storedIsas) writeFileSync(new URL(`${isaKey(isa)}.bin`, folder), pack(isa));
