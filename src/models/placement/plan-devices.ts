/** The devices of a plan: those that are named with their figures, cards by their names, or what is here. */
import { availableParallelism, totalmem } from "node:os";
import { Device } from "../../backend/device.ts";
import { fail } from "../../core/errors.ts";
import { type Card, cardNamed, cards, type Link, linkNamed, links } from "./cards.ts";

export interface PlanDevice extends Card {
  /** It takes only what others have no room for. */
  readonly isCpu: boolean;
}

const UNITS: Readonly<Record<string, number>> = { M: 1, G: 2, T: 3 };

/** Figures that follow a name, by their form. */
const forms: readonly { readonly form: RegExp; readonly read: (match: RegExpExecArray) => Partial<Card> }[] = [
  {
    form: /^([\d.]+)([MGT])i?B$/,
    read: ([, number, unit]) => ({ memory: Number(number) * 1024 ** (UNITS[unit!]! + 1) }),
  },
  {
    form: /^([\d.]+)([MGT])B\/s$/,
    read: ([, number, unit]) => ({ bytesPerSecond: Number(number) * 1000 ** (UNITS[unit!]! + 1) }),
  },
  {
    form: /^([\d.]+)([GTP])FLOPS$/i,
    read: ([, number, unit]) => ({ flops: Number(number) * 1000 ** ("GTP".indexOf(unit!.toUpperCase()) + 3) }),
  },
  { form: /^link=(.+)$/, read: ([, text]) => ({ link: linkNamed(text!) }) },
];

/** "8xMI300X,192GB,5.3TB/s,link=448GB/s", groups joined by "+" or ";": "2xRTX4090+cpu,64GB,60GB/s"; or "auto". */
export function planDevices(text: string): PlanDevice[] {
  if (text.trim() === "auto") return here();
  const devices = text.split(/[;+]/).flatMap((group) => groupOf(group.trim()));
  const cpus = devices.filter(({ isCpu }) => isCpu);
  if (cpus.length > 1) fail("InvalidArgument", "plan: there is one CPU");
  return devices;
}

function groupOf(text: string): PlanDevice[] {
  const [head = "", ...figures] = text.split(",").map((part) => part.trim());
  const [, times, name = ""] = /^(?:(\d+)\s*[x×]\s*)?(.+)$/.exec(head) ?? [];
  const count = times === undefined ? 1 : Number(times);
  if (name === "" || count < 1 || count > 4096) {
    fail("InvalidArgument", `plan: ${JSON.stringify(text)} names no devices; write 8xMI300X or 2xcard,24GB,1TB/s`);
  }
  const given: Partial<Card> = Object.assign({}, ...figures.map((figure) => read(figure, text)));
  const isCpu = name.toLowerCase() === "cpu";
  const known: Partial<Card> = isCpu ? cpuHere() : (cardNamed(name) ?? {});
  const { memory, bytesPerSecond } = { ...known, ...given };
  if (memory === undefined || bytesPerSecond === undefined) {
    return fail(
      "InvalidArgument",
      `plan: ${JSON.stringify(name)} is no card that is known (${cards.map((each) => each.name).join(", ")}); say its memory and bandwidth: ${name},24GB,1TB/s,100TFLOPS,link=pcie4`,
    );
  }
  // Cards without a figure for products multiply some 200 times for each byte they read, as those of the table do.
  const usual = { name, link: links.pcie4 as Link, flops: 200 * bytesPerSecond };
  const device: PlanDevice = { ...usual, memory, bytesPerSecond, ...known, ...given, isCpu };
  return Array.from({ length: count }, (_, i) => ({ ...device, name: count === 1 ? name : `${name}:${i}` }));
}

function read(figure: string, text: string): Partial<Card> {
  for (const { form, read } of forms) {
    const match = form.exec(figure);
    if (match) return read(match);
  }
  return fail(
    "InvalidArgument",
    `plan: ${JSON.stringify(figure)} in ${JSON.stringify(text)} is no figure; write 192GB, 5.3TB/s, 1300TFLOPS or link=448GB/s`,
  );
}

/** A desktop's bandwidth and arithmetic, where nothing is said of them. */
const cpuHere = (): Card => ({
  name: "cpu",
  memory: totalmem(),
  bytesPerSecond: 40e9,
  flops: 5e10 * availableParallelism(),
  link: links.memory,
});

/** The GPUs and the CPU of this machine with what they can give now; of unknown cards the rates are a guess. */
function here(): PlanDevice[] {
  return Device.present().map((device) => {
    const isCpu = device.name === "cpu";
    const known = isCpu ? cpuHere() : cardNamed(device.backend.describe?.() ?? "");
    const memory = device.available().bytes;
    const usual = { bytesPerSecond: 5e11, flops: 1e14, link: links.pcie4 as Link };
    return { ...usual, ...known, name: device.name, memory, isCpu };
  });
}
