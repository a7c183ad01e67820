/** Where the parts of a model lie: its embedding, each of its layers, and what makes logits of the last one's states. */
import type { Device } from "../../backend/device.ts";
import type { Place } from "../weights/weights.ts";

export interface Sites {
  /** Of the tables that tokens and positions are looked up in. */
  readonly input: Device;
  readonly layers: readonly Device[];
  /** Of the final norm and the head, and so of logits, states and the tokens chosen. */
  readonly output: Device;
}

export const sitesOn = (device: Device, layers: number): Sites => ({
  input: device,
  layers: new Array<Device>(layers).fill(device),
  output: device,
});

export const sitesOf = (where: Device | Sites, layers: number): Sites =>
  "layers" in where ? where : sitesOn(where, layers);

/** The device of what a model has in a layer, or once. */
export const siteOf = ({ layers, output }: Sites, { layer }: Place): Device =>
  layer === undefined ? output : layers[layer]!;

/** Each device once, in the order of the layers. */
export const devicesOf = ({ input, layers, output }: Sites): Device[] => [...new Set([...layers, input, output])];

/** Neighbouring layers on one device. */
export interface Stretch {
  readonly device: Device;
  readonly first: number;
  readonly count: number;
}

export function stretchesOf(layers: readonly Device[]): Stretch[] {
  const starts = [...layers.keys()].filter((i) => layers[i] !== layers[i - 1]);
  return starts.map((first, i) => ({
    device: layers[first]!,
    first,
    count: (starts[i + 1] ?? layers.length) - first,
  }));
}
