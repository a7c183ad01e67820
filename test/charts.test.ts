/** The charts in docs/benchmarks: what the benches' JSON says, drawn by `npm run charts`. */
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { barChart, curveChart, formatted, powersTo, ticksTo } from "../scripts/chart-svg.mjs";
import { drawCharts } from "../scripts/charts.mjs";

const path = (name: string) => fileURLToPath(new URL(`../docs/benchmarks/${name}`, import.meta.url));
const textOf = (name: string) => readFileSync(path(name), "utf8");
const charts = drawCharts(textOf);

describe("the charts", () => {
  it.each(charts)("%s is what its JSON gives: `npm run charts` draws it", (name, svg) => {
    expect(textOf(name)).toBe(svg);
  });

  it("are all there is, and all are shown", () => {
    const stored = readdirSync(path("")).filter((name) => name.endsWith(".svg"));
    expect(stored.sort()).toEqual(charts.map(([name]) => name).sort());
    const page = textOf("../benchmarks.md");
    for (const name of stored) expect(page).toContain(`](benchmarks/${name})`);
  });

  it("have both themes, no scripts and no numbers that are none", () => {
    for (const [, svg] of charts) {
      expect(svg).toContain("prefers-color-scheme:dark");
      expect(svg).not.toMatch(/NaN|undefined|Infinity(?! Fabric)|<script|http(?!:..www.w3.org)/);
    }
  });
});

describe("a chart", () => {
  it("has round ticks that reach its largest value", () => {
    expect(ticksTo(4.45)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(ticksTo(120)).toEqual([0, 20, 40, 60, 80, 100, 120]);
    expect(ticksTo(0.62)).toEqual([0, 0.2, 0.4, 0.6, 0.8]);
    expect(ticksTo(1478).at(-1)).toBe(1500);
    expect(powersTo(290, 5342)).toEqual([200, 500, 1000, 2000, 5000, 10_000]);
    expect(powersTo(1, 100)).toEqual([1, 2, 5, 10, 20, 50, 100]);
  });

  it("writes numbers with three digits", () => {
    expect([0.3456, 4, 31.25, 409, 12_791.4].map(formatted)).toEqual(["0.35", "4.00", "31.3", "409", "12,791"]);
  });

  it("tells Wick's speed over each peer's, and leaves out what was not measured", () => {
    const rows = [{ label: "a < b & c", values: [30, 20, null] }];
    const svg = barChart({ title: "t", unit: "u", series: ["Wick", "p", "q"], rows });
    expect(svg).toContain("20.0 (1.50×)");
    expect(svg).toContain("a &lt; b &amp; c");
    expect(svg.match(/<rect[^>]*rx="2"/g)).toHaveLength(2);
  });

  it("names curves at their ends, apart from each other", () => {
    const curve = (name: string, y: number) => ({
      name,
      points: [
        [1, y],
        [64, y],
      ] as const,
    });
    const svg = curveChart({ title: "t", unit: "u", xUnit: "x", series: [curve("a", 10), curve("b", 10.1)] });
    const heights = ["a", "b"].map((name) => Number(new RegExp(`y="([\\d.]+)"[^>]*>${name}<`).exec(svg)![1]));
    expect(Math.abs(heights[0]! - heights[1]!)).toBeGreaterThan(12);
  });
});
