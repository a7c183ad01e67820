/** `wick kernels`: the catalogue of GPU kernels, and compiling them ahead of time. */
import { Command, Option } from "commander";
import { type Arg, type Kernel, kernels } from "../backend/gpu/catalogue.ts";
import { programs } from "../backend/gpu/program.ts";
import { fail } from "../core/errors.ts";
import { computeTypes } from "../models/load.ts";
import { type PrecompileOptions, precompile } from "./precompile.ts";

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
    .description("Print the catalogue of GPU kernels: families, dtypes and arguments; or compile them ahead of time")
    .option("--json", "print JSON, with the name of every kernel", false)
    .option("--precompile", "fill the kernel cache (WICK_CACHE), as for a container's image", false)
    .option("--arch <arch>", "with --precompile: what to compile for; no GPU needs to be here (gfx1100, sm_90)")
    .option("--device <name>", "with --precompile: compile for a device that is here (default: the best)")
    .option("--model <name>", "with --precompile: only what this model uses (default: every kernel)")
    .addOption(
      new Option("--dtype <dtype>", "with --model: what it computes in (default: as it was saved)").choices(
        computeTypes,
      ),
    )
    .option("--only <files>", "with --precompile: only kernels of these files, as in softmax,reduce")
    .addHelpText(
      "after",
      "\nExamples:\n  wick kernels\n  wick kernels --json\n  wick kernels --precompile --model ./Llama-3.2-1B --arch gfx1100",
    )
    .action(
      async ({ json, precompile: isAhead, ...options }: { json: boolean; precompile: boolean } & PrecompileOptions) => {
        if (isAhead) return precompile(options);
        const stray = Object.keys(options)[0];
        if (stray !== undefined) fail("InvalidArgument", `kernels: --${stray} goes with --precompile`);
        const families = familiesOf(kernels.values());
        const total = { families: families.length, programs: programs().length, kernels: kernels.size };
        console.log(
          json ? JSON.stringify({ ...total, catalogue: families }, null, 2) : format(families, total).join("\n"),
        );
      },
    );
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
