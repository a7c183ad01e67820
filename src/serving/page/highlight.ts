/**
 * Colours for code: comments, strings, numbers and the words that most languages share. It knows no grammar; what it
 * does not know stays plain, and it takes one pass however odd the code is.
 */
import { h } from "./dom.ts";

const words =
  "abstract and as async await bool boolean break case catch char class const continue def default defer del do double " +
  "elif else end enum except export extends extern false finally float fn for from func function global go if impl " +
  "implements import in inline instanceof int interface is lambda let long loop match mod module mut namespace new nil " +
  "None not null of or override package pass private protected pub public raise readonly return self short signed sizeof " +
  "static string struct super switch template then this throw trait True true False try type typedef typename typeof " +
  "undefined union unsafe unsigned use using var virtual void where while with yield " +
  "SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN LEFT INNER ON GROUP ORDER BY LIMIT VALUES AND OR NOT NULL";
const keywords = new Set(words.split(" "));

/** How comments begin, by language; the others take both. */
const comments: readonly (readonly [RegExp, string])[] = [
  [/^(py|python|sh|bash|zsh|shell|console|rb|ruby|ya?ml|toml|r|make|makefile|dockerfile|perl|ini|cmake)$/i, "#.*"],
  [/^(sql|lua|haskell|hs|ada|elm)$/i, "--.*"],
  [/^(html|xml|svg|md|markdown)$/i, "<!--[^]*?(?:-->|$)"],
  [
    /^(c|cc|cpp|h|hpp|cs|java|js|jsx|ts|tsx|mjs|javascript|typescript|go|rust|rs|swift|kotlin|kt|scala|php|css|scss|hip|cuda|dart|zig|json5?|jsonc|proto)$/i,
    "//.*|/\\*[^]*?(?:\\*/|$)",
  ],
];
const plain = /^(te?xt|plain|plaintext|diff|log|)$/i;

export function highlighted(code: string, language: string): (Node | string)[] {
  if (plain.test(language)) return [code];
  const comment = comments.find(([names]) => names.test(language))?.[1] ?? "//.*|#\\s.*";
  const pattern = new RegExp(
    // What is never closed is bounded or runs to the end: no text makes it look twice at the same place for long.
    `(?<comment>${comment})|(?<string>"(?:[^"\\\\\\n]|\\\\.){0,500}"|'(?:[^'\\\\\\n]|\\\\.){0,200}'|\`(?:[^\`\\\\]|\\\\[^])*(?:\`|$))` +
      "|(?<number>\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b)" +
      "|(?<word>[A-Za-z_$][\\w$]*)",
    "g",
  );
  const parts: (Node | string)[] = [];
  let from = 0;
  for (const match of code.matchAll(pattern)) {
    const { comment: note, string, number, word } = match.groups!;
    const end = match.index + match[0].length;
    const kind =
      note !== undefined
        ? "comment"
        : string !== undefined
          ? "string"
          : number !== undefined
            ? "number"
            : keywords.has(word!) && code[match.index - 1] !== "."
              ? "keyword"
              : code[end] === "("
                ? "name"
                : null;
    if (kind === null) continue;
    parts.push(code.slice(from, match.index), h("span", { class: `code-${kind}` }, match[0]));
    from = end;
  }
  parts.push(code.slice(from));
  return parts.filter((part) => part !== "");
}
