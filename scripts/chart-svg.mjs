// Bar charts and curves as SVG text, without dependencies. A picture holds both themes and its own background, so that it
// can be read whatever the page around it looks like.

const WIDTH = 860;
const MARGIN = 24;
const FONT = 12;
/** About the width of a character of that size. */
const CHAR = 6.7;
const MOST_TICKS = 6;

/** Wick's colour first, then those of its peers: on light pages, on dark ones. */
const COLOURS = [
  ["#d9480f", "#ff922b"],
  ["#4263eb", "#748ffc"],
  ["#0c8599", "#3bc9db"],
  ["#9c36b5", "#da77f2"],
  ["#868e96", "#868e96"],
];
const THEMES = [
  { page: "#ffffff", edge: "#d0d7de", text: "#1f2328", muted: "#59636e", grid: "#e1e4e8" },
  { page: "#0d1117", edge: "#30363d", text: "#e6edf3", muted: "#9198a1", grid: "#262c36" },
];

const rules = (theme) => {
  const { page, edge, text, muted, grid } = THEMES[theme];
  const series = COLOURS.map((pair, i) => `.f${i}{fill:${pair[theme]}}.l${i}{stroke:${pair[theme]}}`);
  return `.page{fill:${page};stroke:${edge}}.value{stroke:${page}}text{fill:${text}}.muted{fill:${muted}}.grid{stroke:${grid}}.mark{stroke:${muted}}${series.join("")}`;
};
const STYLE = [
  `text{font:${FONT}px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}`,
  ".title{font-size:16px;font-weight:600}.strong{font-weight:600}.value{paint-order:stroke;stroke-width:3px}.end{text-anchor:end}.middle{text-anchor:middle}",
  ".grid{stroke-width:1}.mark{stroke-width:1.5;stroke-dasharray:4 3;fill:none}.line{stroke-width:2.5;fill:none}",
  rules(0),
  `@media (prefers-color-scheme:dark){${rules(1)}}`,
].join("");

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const round = (n) => +n.toFixed(1);
const attributes = (values) =>
  Object.entries(values)
    .map(([name, value]) => ` ${name}="${typeof value === "number" ? round(value) : escaped(value)}"`)
    .join("");
const shape = (tag, values) => `<${tag}${attributes(values)}/>`;
const text = (x, y, content, classes = "") =>
  `<text${attributes({ x, y, ...(classes ? { class: classes } : {}) })}>${escaped(content)}</text>`;
const widthOf = (content) => String(content).length * CHAR;

/** With three digits, fewer where they stand behind a zero, more where they stand before the point; thousands apart. */
export function formatted(value) {
  if (value >= 1000) return Math.round(value).toLocaleString("en-US");
  return value < 1 ? value.toFixed(2) : value.toPrecision(3);
}
const formattedTick = (value) => (value >= 1000 ? formatted(value) : String(value));
const formattedRatio = (ratio) => `${ratio.toFixed(ratio < 10 ? 2 : 1)}×`;

/** Round steps that divide 0 to `most` in a few parts. */
export function ticksTo(most) {
  const rough = most / MOST_TICKS;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  const count = Math.ceil(most / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, i) => +(i * step).toPrecision(6));
}

/** 1, 2 and 5 times powers of ten, from the last one below `least` to the first above `most`. */
export function powersTo(least, most) {
  const all = [];
  for (let unit = 10 ** Math.floor(Math.log10(least)); unit <= most * 10; unit *= 10)
    all.push(unit, 2 * unit, 5 * unit);
  const from = all.findLastIndex((n) => n <= least);
  return all.slice(from, all.findIndex((n) => n >= most) + 1);
}

/** The frame with its heading; `parts` begin below `top`. */
function picture({ title, note, legend }, height, parts) {
  const heading = [text(MARGIN, 36, title, "title"), ...(note ? [text(MARGIN, 56, note, "muted")] : [])];
  let x = MARGIN;
  for (const [i, name] of legend.entries()) {
    heading.push(shape("rect", { x, y: 69, width: 12, height: 12, rx: 3, class: `f${i}` }));
    heading.push(text(x + 18, 80, name, i === 0 ? "strong" : ""));
    x += 18 + widthOf(name) + 22;
  }
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${round(height)}" width="${WIDTH}" height="${round(height)}" role="img" aria-label="${escaped(title)}">`,
    `<style>${STYLE}</style>`,
    shape("rect", { x: 0.5, y: 0.5, width: WIDTH - 1, height: height - 1, rx: 10, class: "page" }),
    ...heading,
    ...parts,
    "</svg>",
    "",
  ].join("\n");
}
const top = 104;

/**
 * A group of bars for each of `rows`, { label, values }: a value per series, Wick's first, null where there is none. Behind
 * a peer's value stands Wick's speed over it. `mark`, { at, label }, is a line across all groups.
 */
export function barChart({ title, note, unit, series, rows, mark }) {
  const [bar, gap] = [13, 11];
  const labels = Math.max(...rows.map(({ label }) => widthOf(label)));
  const left = MARGIN + labels + 12;
  const right = WIDTH - MARGIN - 100;
  const ticks = ticksTo(Math.max(mark?.at ?? 0, ...rows.flatMap(({ values }) => values.map((v) => v ?? 0))));
  const at = (value) => left + ((right - left) * value) / ticks.at(-1);

  const bars = [];
  let y = top;
  for (const { label, values } of rows) {
    const shown = values.map((value, i) => ({ value, i })).filter(({ value }) => value !== null);
    const middle = y + (shown.length * bar) / 2 + FONT / 3;
    bars.push(text(left - 12, middle, label, "end"));
    for (const { value, i } of shown) {
      bars.push(
        shape("rect", {
          x: left,
          y: y + 1,
          width: Math.max(at(value) - left, 1),
          height: bar - 2,
          rx: 2,
          class: `f${i}`,
        }),
      );
      const ratio = i > 0 && values[0] !== null ? ` (${formattedRatio(values[0] / value)})` : "";
      bars.push(
        text(at(value) + 6, y + bar - 3, `${formatted(value)}${ratio}`, i === 0 ? "value strong" : "value muted"),
      );
      y += bar;
    }
    y += gap;
  }
  const bottom = y - gap / 2;
  const grid = ticks.flatMap((tick) => [
    shape("line", { x1: at(tick), y1: top - 6, x2: at(tick), y2: bottom, class: "grid" }),
    text(at(tick), bottom + 16, formattedTick(tick), "middle muted"),
  ]);
  const marks = mark
    ? [
        shape("path", { d: `M${round(at(mark.at))} ${top - 6}V${round(bottom)}`, class: "mark" }),
        text(at(mark.at), top - 12, mark.label, "middle muted"),
      ]
    : [];
  const axis = text(right, bottom + 34, unit, "end muted");
  return picture({ title, note, legend: series.length > 1 ? series : [] }, bottom + 48, [
    ...grid,
    ...marks,
    ...bars,
    axis,
  ]);
}

/** Positions of labels, moved apart where they would cover each other. */
function apart(wanted, distance) {
  const order = wanted.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  for (let k = 1; k < order.length; k++) order[k].y = Math.max(order[k].y, order[k - 1].y + distance);
  const placed = [];
  for (const { y, i } of order) placed[i] = y;
  return placed;
}

/**
 * A line for each of `series`, { name, points: [x, y][] }, Wick's first, over a logarithmic x axis, or with `even` one of
 * equal steps; each is named at its end. `guide` is one more line, dashed. With `powers` the y axis is logarithmic, too.
 */
export function curveChart({ title, note, unit, xUnit, series, guide, powers = false, even = false }) {
  const height = 356;
  const lines = guide ? [...series, guide] : series;
  const [left, right] = [MARGIN + 48, WIDTH - MARGIN - Math.max(...lines.map(({ name }) => widthOf(name))) - 14];
  const [upper, lower] = [96, height - 56];
  const xs = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const ys = lines.flatMap(({ points }) => points.map(([, y]) => y));
  const ticks = powers ? powersTo(Math.min(...ys), Math.max(...ys)) : ticksTo(Math.max(...ys));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const share = powers ? (y) => Math.log(y / low) / Math.log(high / low) : (y) => y / high;
  const place = even ? (x) => x : Math.log2;
  const [first, last] = [place(xs[0]), place(xs.at(-1))];
  const xAt = (x) => left + ((right - left) * (place(x) - first)) / (last - first);
  const yAt = (y) => lower - (lower - upper) * share(y);
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${round(xAt(x))} ${round(yAt(y))}`).join("");

  const grid = ticks.flatMap((tick) => [
    shape("line", { x1: left, y1: yAt(tick), x2: right, y2: yAt(tick), class: "grid" }),
    text(left - 8, yAt(tick) + 4, formattedTick(tick), "end muted"),
  ]);
  // Sizes that lie close together share a place; the first of them is named.
  let named = Number.NEGATIVE_INFINITY;
  for (const x of xs) {
    if (xAt(x) - named < widthOf(formattedTick(x)) + 8) continue;
    named = xAt(x);
    grid.push(text(named, lower + 18, formattedTick(x), "middle muted"));
  }
  const ends = apart(
    lines.map(({ points }) => yAt(points.at(-1)[1]) + 4),
    FONT + 3,
  );
  // Wick is drawn last, over the others.
  const drawn = lines.map(({ name, points }, i) => {
    const isGuide = i >= series.length;
    const dots = isGuide
      ? []
      : points.map(([x, y]) => shape("circle", { cx: xAt(x), cy: yAt(y), r: 3.5, class: `f${i}` }));
    return [
      shape("path", { d: path(points), class: isGuide ? "mark" : `line l${i}` }),
      ...dots,
      text(xAt(points.at(-1)[0]) + 10, ends[i], name, isGuide ? "muted" : i === 0 ? "f0 strong" : `f${i}`),
    ].join("\n");
  });
  const axes = [text(left - 8, upper - 12, unit, "muted"), text(right, lower + 36, xUnit, "end muted")];
  return picture({ title, note, legend: [] }, height, [...grid, ...drawn.reverse(), ...axes]);
}
