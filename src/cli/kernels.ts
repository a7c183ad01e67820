/** `wick kernels`: the catalogue of GPU kernels. */
import { Command } from "commander";
import { type Arg, type Kernel, kernels } from "../backend/gpu/catalogue.ts";
import { programs } from "../backend/gpu/program.ts";

interface Family {
  readonly file: string;
  /** How its kernels' names are made. */
  readonly pattern: string;
  /** Dtypes, or what else the programs of the file are made for. */
  readonly units: string[];
  readonly args: readonly Arg[];
  readonly kernels: string[];
}

export function kernelsCommand(): Command {
  return new Command("kernels")
    .description("Print the catalogue of GPU kernels: families, dtypes and arguments")
    .option("--json", "print JSON, with the name of every kernel", false)
    .addHelpText("after", "\nExamples:\n  wick kernels\n  wick kernels --json")
    .action(({ json }: { json: boolean }) => {
      const families = familiesOf(kernels.values());
      const total = { families: families.length, programs: programs().length, kernels: kernels.size };
      console.log(
        json ? JSON.stringify({ ...total, catalogue: families }, null, 2) : format(families, total).join("\n"),
      );
    });
}

function familiesOf(all: Iterable<Kernel>): Family[] {
  const found = new Map<string, Family>();
  for (const { name, family, file, unit, args } of all) {
    const key = `${file} ${family} ${args.map(formatArg).join()}`;
    const entry = found.get(key) ?? { file, pattern: family, units: [], args, kernels: [] };
    if (!entry.units.includes(unit)) entry.units.push(unit);
    entry.kernels.push(name);
    found.set(key, entry);
  }
  return [...found.values()];
}

const formatArg = ({ name, kind }: Arg): string => {
  if (kind === "ptr") return `${name}*`;
  return kind === "size" ? name : `${name}:${kind}`;
};

function format(
  families: readonly Family[],
  total: Readonly<Record<"families" | "programs" | "kernels", number>>,
): string[] {
  const lines: string[] = [];
  let file = "";
  for (const family of families) {
    if (family.file !== file) {
      file = family.file;
      lines.push(`kernels/${file}.hip`);
    }
    lines.push(`  ${family.pattern}  ${family.kernels.length} kernels: ${family.units.join(" ")}`);
    lines.push(`    (${family.args.map(formatArg).join(", ")})`);
  }
  lines.push(`${total.kernels} kernels of ${total.families} families in ${total.programs} programs`);
  lines.push("Arguments: name* is a pointer, name a 64-bit size or stride, T the kernel's dtype.");
  return lines;
}
