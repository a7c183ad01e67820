/** Numbers in Prometheus's text format: counters and histograms that are kept here, gauges that are asked when they are read. */
type Labels = Readonly<Record<string, string>>;

const escaped = (value: string): string =>
  value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"');
const labelled = (labels: Labels): string => {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escaped(value)}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
};

export interface Metric {
  readonly name: string;
  readonly help: string;
  readonly type: "counter" | "gauge" | "histogram";
  lines(): string[];
}

export class Counter implements Metric {
  readonly type = "counter";
  readonly name: string;
  readonly help: string;
  readonly #values = new Map<string, number>();

  constructor(name: string, help: string) {
    this.name = name;
    this.help = help;
  }

  add(labels: Labels, by = 1): void {
    const key = labelled(labels);
    this.#values.set(key, (this.#values.get(key) ?? 0) + by);
  }

  lines(): string[] {
    return [...this.#values].map(([labels, value]) => `${this.name}${labels} ${value}`);
  }
}

interface Observed {
  readonly labels: Labels;
  readonly counts: number[];
  sum: number;
  count: number;
}

export class Histogram implements Metric {
  readonly type = "histogram";
  readonly name: string;
  readonly help: string;
  readonly #bounds: readonly number[];
  readonly #values = new Map<string, Observed>();

  constructor(name: string, help: string, bounds: readonly number[]) {
    this.name = name;
    this.help = help;
    this.#bounds = bounds;
  }

  observe(labels: Labels, value: number): void {
    const key = labelled(labels);
    let found = this.#values.get(key);
    if (!found) {
      found = { labels, counts: this.#bounds.map(() => 0), sum: 0, count: 0 };
      this.#values.set(key, found);
    }
    for (const [i, bound] of this.#bounds.entries()) if (value <= bound) found.counts[i]!++;
    found.sum += value;
    found.count++;
  }

  lines(): string[] {
    return [...this.#values.values()].flatMap(({ labels, counts, sum, count }) => [
      ...counts.map((n, i) => `${this.name}_bucket${labelled({ ...labels, le: String(this.#bounds[i]) })} ${n}`),
      `${this.name}_bucket${labelled({ ...labels, le: "+Inf" })} ${count}`,
      `${this.name}_sum${labelled(labels)} ${sum}`,
      `${this.name}_count${labelled(labels)} ${count}`,
    ]);
  }
}

export type Reading = readonly [labels: Labels, value: number];

/** What is known elsewhere. */
export const reading = (
  name: string,
  help: string,
  type: "counter" | "gauge",
  read: () => readonly Reading[],
): Metric => ({
  name,
  help,
  type,
  lines: () => read().map(([labels, value]) => `${name}${labelled(labels)} ${value}`),
});

export const exposition = (metrics: readonly Metric[]): string =>
  metrics
    .flatMap((metric) => [
      `# HELP ${metric.name} ${metric.help}`,
      `# TYPE ${metric.name} ${metric.type}`,
      ...metric.lines(),
    ])
    .join("\n")
    .concat("\n");
