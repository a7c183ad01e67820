// Builds the server's page: one program, one sheet of styles and an icon, named by what they hold so that browsers may
// keep them for ever, and the page that refers to them.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { rolldown } from "rolldown";

const root = fileURLToPath(new URL("..", import.meta.url));
const source = join(root, "src/serving/page");

async function program() {
  const bundle = await rolldown({ input: join(source, "main.ts"), platform: "browser" });
  const { output } = await bundle.generate({ format: "iife", minify: true });
  await bundle.close();
  if (output.length !== 1) throw new Error(`the page is ${output.length} programs`);
  const [{ code, moduleIds }] = output;
  return { code, licenses: licensesOf(moduleIds) };
}

/** What the packages in the program want to be told to whoever gets it. */
function licensesOf(modules) {
  const folders = modules.map((path) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0]).filter(Boolean);
  const texts = [...new Set(folders)].sort().map((folder) => {
    const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (file === undefined) throw new Error(`${name} has no licence to pass on`);
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

function styles() {
  const folder = join(source, "styles");
  const sheets = readdirSync(folder).sort();
  const text = sheets.map((name) => readFileSync(join(folder, name), "utf8")).join("\n");
  return text
    .replaceAll(/\/\*.*?\*\//gs, "")
    .replaceAll(/\s*\n\s*/g, "\n")
    .trim();
}

/** Writes the page's files into a folder, in place of what it held. */
export async function buildPage(folder) {
  const { code, licenses } = await program();
  const files = {
    "app.js": `/*! Licences of what this holds of others: licenses.txt in the package wick, beside this file. */\n${code}`,
    "app.css": styles(),
    "icon.svg": readFileSync(join(source, "icon.svg"), "utf8"),
  };
  let page = readFileSync(join(source, "index.html"), "utf8");
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries(files)) {
    const hash = createHash("sha256").update(text).digest("hex").slice(0, 10);
    const hashed = name.replace(".", `-${hash}.`);
    writeFileSync(join(folder, hashed), text);
    page = page.replace(`"./${name}"`, `"./${hashed}"`);
  }
  writeFileSync(join(folder, "index.html"), page);
  writeFileSync(join(folder, "licenses.txt"), licenses);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildPage(join(root, "dist/serving/page"));
