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
  return output[0].code;
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
  const files = {
    "app.js": await program(),
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
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildPage(join(root, "dist/serving/page"));
