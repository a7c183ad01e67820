/**
 * Common cards by what limits them, as their makers' data sheets have it: memory, its bandwidth, dense products of halves
 * (bf16 or f16, without sparsity), and what joins several of them. Bandwidths of links are for one direction and all of a
 * card's links together. Sources: AMD's product pages and white papers of CDNA 2, CDNA 3 and CDNA 4
 * (amd.com/en/products/accelerators/instinct, amd.com/en/products/graphics), ROCm's table of GPUs
 * (rocm.docs.amd.com/en/latest/reference/gpu-specs.html), NVIDIA's data sheets of the A100, L4, L40S,
 * H100, H200 and DGX B200 (nvidia.com/en-us/data-center) and its white papers of Ampere, Ada Lovelace and Blackwell GPUs.
 */
import { fail } from "../../core/errors.ts";

/** What joins devices: so many bytes per second each way, and how long the first takes. */
export interface Link {
  readonly name: string;
  readonly bytesPerSecond: number;
  readonly seconds: number;
}

export interface Card {
  readonly name: string;
  readonly memory: number;
  readonly bytesPerSecond: number;
  /** Dense products of halves. */
  readonly flops: number;
  readonly link: Link;
}

const GB = 1e9;
/** What makers call GB of memory are 2³⁰ bytes. */
const GIB = 2 ** 30;
const TERA = 1e12;

/** Latencies are those of a step of a collective, from one device's kernel to the next one's: of the order, not measured. */
const link = (name: string, gigabytes: number, microseconds: number): Link => ({
  name,
  bytesPerSecond: gigabytes * GB,
  seconds: microseconds * 1e-6,
});

export const links = {
  "infinity-fabric": link("Infinity Fabric, 7 links of 64 GB/s", 448, 6),
  "infinity-fabric-4": link("Infinity Fabric, 7 links of 76.8 GB/s", 537.6, 6),
  "infinity-fabric-3": link("Infinity Fabric, 8 links of 50 GB/s", 400, 6),
  "infinity-fabric-bridge": link("Infinity Fabric, 3 links of 50 GB/s", 150, 6),
  nvlink3: link("NVLink 3", 300, 5),
  nvlink4: link("NVLink 4", 450, 5),
  nvlink5: link("NVLink 5", 900, 5),
  pcie3: link("PCIe 3.0 ×16", 15.75, 12),
  pcie4: link("PCIe 4.0 ×16", 31.5, 12),
  pcie4x8: link("PCIe 4.0 ×8", 15.75, 12),
  pcie5: link("PCIe 5.0 ×16", 63, 12),
  ethernet: link("Ethernet, 400 Gb/s a card", 50, 12),
  memory: link("the host's memory", 20, 20),
} as const satisfies Record<string, Link>;
export type LinkName = keyof typeof links;

const card = (name: string, gib: number, terabytes: number, teraflops: number, by: LinkName): Card => ({
  name,
  memory: gib * GIB,
  bytesPerSecond: terabytes * TERA,
  flops: teraflops * TERA,
  link: links[by],
});

export const cards: readonly Card[] = [
  card("MI355X", 288, 8, 2516.6, "infinity-fabric-4"),
  card("MI325X", 256, 6, 1307.4, "infinity-fabric"),
  card("MI300X", 192, 5.3, 1307.4, "infinity-fabric"),
  card("MI250X", 128, 3.2768, 383, "infinity-fabric-3"),
  card("MI210", 64, 1.6384, 181, "infinity-fabric-bridge"),
  card("R9700", 32, 0.64, 191, "pcie5"),
  card("RX9070XT", 16, 0.64, 195, "pcie5"),
  card("W7900", 48, 0.864, 122.6, "pcie4"),
  card("RX7900XTX", 24, 0.96, 122.8, "pcie4"),
  card("RX7900XT", 20, 0.8, 103, "pcie4"),
  card("RX7800XT", 16, 0.624, 74.7, "pcie4"),
  card("RX7600XT", 16, 0.288, 45.1, "pcie4x8"),
  card("RX6800XT", 16, 0.512, 41.5, "pcie4"),
  card("B200", 180, 8, 2250, "nvlink5"),
  card("H200", 141, 4.8, 989.4, "nvlink4"),
  card("H100", 80, 3.35, 989.4, "nvlink4"),
  card("A100", 80, 2.039, 312, "nvlink3"),
  card("L40S", 48, 0.864, 362, "pcie4"),
  card("L4", 24, 0.3, 121, "pcie4"),
  card("RTX5090", 32, 1.792, 209.5, "pcie5"),
  card("RTX4090", 24, 1.008, 165.2, "pcie4"),
  card("RTX3090", 24, 0.936, 71, "pcie4"),
];

const plain = (name: string): string =>
  name.toLowerCase().replace(/^(nvidia|amd|radeon|geforce|instinct)|[^a-z0-9]/g, "");

/** A card by its name, however that is written; one that a driver names holds it among other words. */
export function cardNamed(name: string): Card | null {
  const wanted = plain(name);
  const exact = cards.find((each) => plain(each.name) === wanted);
  const within = [...cards]
    .sort((a, b) => b.name.length - a.name.length)
    .find((each) => wanted.includes(plain(each.name)));
  return exact ?? within ?? null;
}

/** What a link is called, "448GB/s", "400Gb/s", either with a latency behind: "50GB/s,12us" is written "50GB/s@12us". */
export function linkNamed(text: string): Link {
  if (Object.hasOwn(links, text)) return links[text as LinkName];
  const [, number, unit, micro] = /^([\d.]+)\s*([GT][Bb])\/s(?:@([\d.]+)us)?$/.exec(text) ?? [];
  if (number === undefined || !(Number(number) > 0)) {
    return fail(
      "InvalidArgument",
      `plan: ${JSON.stringify(text)} is no link; write 448GB/s, 400Gb/s, 50GB/s@12us, or ${Object.keys(links).join(", ")}`,
    );
  }
  const scale = unit!.startsWith("T") ? 1000 : 1;
  const gigabytes = (Number(number) * scale) / (unit!.endsWith("b") ? 8 : 1);
  return link(text, gigabytes, micro === undefined ? 10 : Number(micro));
}
