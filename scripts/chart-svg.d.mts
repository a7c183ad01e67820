export function formatted(value: number): string;
export function ticksTo(most: number): number[];
export function powersTo(least: number, most: number): number[];
export interface Heading {
  readonly title: string;
  readonly note?: string;
  readonly unit: string;
}
export interface BarChart extends Heading {
  readonly series: readonly string[];
  readonly rows: readonly { readonly label: string; readonly values: readonly (number | null)[] }[];
  readonly mark?: { readonly at: number; readonly label: string };
}
export interface Curve {
  readonly name: string;
  readonly points: readonly (readonly [x: number, y: number])[];
}
export interface CurveChart extends Heading {
  readonly xUnit: string;
  readonly series: readonly Curve[];
  readonly guide?: Curve;
  readonly powers?: boolean;
  readonly even?: boolean;
}
export function barChart(chart: BarChart): string;
export function curveChart(chart: CurveChart): string;
