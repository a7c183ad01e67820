/** The plain part of YAML that manifests are written in: maps, lists, scalars, JSON in a line. Anything else is an error. */
export type Yaml = string | number | boolean | null | readonly Yaml[] | { readonly [name: string]: Yaml };

interface Line {
  readonly indent: number;
  readonly text: string;
  readonly at: number;
}

export function parseYaml(source: string): Yaml {
  const lines = source
    .split("\n")
    .map((line, i) => ({ indent: line.search(/\S|$/), text: line.trim(), at: i + 1 }))
    .filter(({ text }) => text !== "" && !text.startsWith("#"));
  if (/\t/.test(source)) throw new Error("a tab");
  const [value, rest] = block(lines, lines[0]?.indent ?? 0);
  if (rest.length > 0) throw new Error(`line ${rest[0]!.at}: ${rest[0]!.text}`);
  return value;
}

/** Everything at one indentation and below it, and what is left. */
function block(lines: readonly Line[], indent: number): [Yaml, readonly Line[]] {
  return lines[0]?.text.startsWith("- ") ? sequence(lines, indent) : mapping(lines, indent);
}

function sequence(lines: readonly Line[], indent: number): [Yaml, readonly Line[]] {
  const items: Yaml[] = [];
  let rest = lines;
  while (rest[0]?.indent === indent && rest[0].text.startsWith("- ")) {
    const { text, at } = rest[0];
    const inner = { indent: indent + 2, text: text.slice(2).trim(), at };
    if (/^[\w./-]+:( |$)/.test(inner.text)) {
      const [value, after] = mapping([inner, ...rest.slice(1)], indent + 2);
      items.push(value);
      rest = after;
    } else {
      items.push(scalar(inner));
      rest = rest.slice(1);
    }
  }
  return [items, rest];
}

function mapping(lines: readonly Line[], indent: number): [Yaml, readonly Line[]] {
  const entries: Record<string, Yaml> = {};
  let rest = lines;
  while (rest[0]?.indent === indent && !rest[0].text.startsWith("- ")) {
    const line = rest[0];
    const [, name, text] = /^([\w./-]+):(?: (.*))?$/.exec(line.text) ?? [];
    if (name === undefined) throw new Error(`line ${line.at}: ${line.text}`);
    if (name in entries) throw new Error(`line ${line.at}: a second ${name}`);
    rest = rest.slice(1);
    if (text !== undefined) entries[name] = scalar({ ...line, text: text.trim() });
    else {
      const next = rest[0];
      if (next === undefined || next.indent <= indent) throw new Error(`line ${line.at}: ${name} has no value`);
      [entries[name], rest] = block(rest, next.indent) as [Yaml, readonly Line[]];
    }
  }
  return [entries, rest];
}

function scalar({ text, at }: Line): Yaml {
  if (/^[[{"]/.test(text)) return JSON.parse(text) as Yaml;
  if (/^[&*!|>'%@`]/.test(text) || / #|: /.test(text)) throw new Error(`line ${at}: ${text}`);
  if (text === "true" || text === "false") return text === "true";
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
}
