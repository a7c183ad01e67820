/**
 * Markdown to elements. Tokens become elements one by one, by a list of those that are allowed: there is no way from a
 * model's text to markup of its own, to an address other than the web's and mail's, or to a request.
 */
import markdownIt, { type Token } from "markdown-it";
import { codeBlock } from "./code-block.ts";
import { h } from "./dom.ts";

const parser = markdownIt({ html: false, linkify: true, maxNesting: 40 });
const allowed = /^(https?:\/\/|mailto:)/i;
parser.validateLink = (address) => allowed.test(address.trim());
// Bare names such as `main.rs` are files more often than hosts.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

const elements: Readonly<Record<string, keyof HTMLElementTagNameMap>> = {
  p: "p",
  em: "em",
  strong: "strong",
  s: "s",
  ul: "ul",
  ol: "ol",
  li: "li",
  blockquote: "blockquote",
  hr: "hr",
  table: "table",
  thead: "thead",
  tbody: "tbody",
  tr: "tr",
  th: "th",
  td: "td",
  // The page has headings of its own above them.
  h1: "h3",
  h2: "h4",
  h3: "h5",
  h4: "h6",
  h5: "h6",
  h6: "h6",
};

const linkTo = (address: string, title: string | null) =>
  h("a", { href: address, title: title ?? address, target: "_blank", rel: "noopener noreferrer nofollow" });

const attribute = (token: Token, name: string): string | null => token.attrGet(name)?.toString() ?? null;

/** An image would be a request to wherever the model says: it is shown as what it is called, and links to it. */
function imageLink(token: Token): HTMLElement {
  const address = attribute(token, "src") ?? "";
  const link = allowed.test(address) ? linkTo(address, null) : h("span");
  link.append(`🖼 ${token.content === "" ? "image" : token.content}`);
  return link;
}

function open(token: Token): HTMLElement | null {
  if (token.type === "link_open") return linkTo(attribute(token, "href") ?? "", attribute(token, "title"));
  const name = elements[token.tag];
  if (name === undefined || token.hidden) return null;
  const start = token.tag === "ol" ? attribute(token, "start") : null;
  const align = /right|center/.exec(attribute(token, "style") ?? "")?.[0];
  return h(name, { start, class: align === undefined ? undefined : `align-${align}` });
}

/** Appends what tokens say to `root`; `settled` says that a block of code is whole. */
function build(root: Node, tokens: readonly Token[], settled: boolean): void {
  const stack: Node[] = [root];
  for (const token of tokens) {
    const top = stack.at(-1)!;
    if (token.nesting === 1) {
      const element = open(token);
      if (element === null) stack.push(top);
      else if (token.type === "table_open") {
        top.appendChild(h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, element));
        stack.push(element);
      } else stack.push(top.appendChild(element));
    } else if (token.nesting === -1) stack.pop();
    else if (token.type === "inline") build(top, token.children ?? [], settled);
    else if (token.type === "fence" || token.type === "code_block")
      top.appendChild(codeBlock(token.info.trim().split(/\s/, 1)[0]!, token.content, settled));
    else if (token.type === "code_inline") top.appendChild(h("code", {}, token.content));
    else if (token.type === "softbreak" || token.type === "hardbreak") top.appendChild(h("br"));
    else if (token.type === "hr") top.appendChild(h("hr"));
    else if (token.type === "image") top.appendChild(imageLink(token));
    else top.appendChild(document.createTextNode(token.content));
  }
}

/** Where a line starts; lines end as markdown-it has them. */
function offsetOf(text: string, line: number): number {
  const ends = /\r\n?|\n/g;
  for (let i = 0; i < line; i++) if (ends.exec(text) === null) return text.length;
  return ends.lastIndex;
}

/**
 * A text that grows. Whatever follows, only the last block of it can change, so the blocks before it are built once and
 * stay: a long answer costs no more per word than a short one.
 */
export class MarkdownView {
  readonly element = h("div", { class: "markdown" });
  readonly #environment = {};
  #settled = 0;
  #settledNodes = 0;
  #shown = "";
  #whole = false;

  show(text: string, whole: boolean): void {
    if (text === this.#shown && whole === this.#whole) return;
    this.#whole = whole;
    if (!text.startsWith(this.#shown.slice(0, this.#settled))) {
      this.#settled = 0;
      this.#settledNodes = 0;
    }
    this.#shown = text;
    const tail = text.slice(this.#settled);
    const tokens = parser.parse(tail, this.#environment);
    const last = lastBlock(tokens);
    const fresh = document.createDocumentFragment();
    build(fresh, tokens.slice(0, last), true);
    const settledNow = fresh.childNodes.length;
    build(fresh, tokens.slice(last), whole);
    while (this.element.childNodes.length > this.#settledNodes) this.element.lastChild!.remove();
    this.element.append(fresh);
    this.#settledNodes += settledNow;
    if (last > 0) this.#settled += offsetOf(tail, tokens[last]!.map?.[0] ?? 0);
  }
}

/** The place of the token that opens the last block. */
function lastBlock(tokens: readonly Token[]): number {
  let depth = 0;
  for (let i = tokens.length - 1; i >= 0; i--) {
    depth -= tokens[i]!.nesting;
    if (depth === 0) return i;
  }
  return 0;
}
