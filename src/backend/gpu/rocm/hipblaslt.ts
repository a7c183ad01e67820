/**
 * hipBLASLt: products of f32, f16 and bf16 by the kernel that its heuristic names for the problem, which is asked once per
 * problem. The binding holds for ROCm 6.0 (hipBLASLt 0.6) to 7: before, compute types were another enum and data types
 * were hipBLAS's.
 */
import { fail } from "../../../core/errors.ts";
import { type BlasTrial, blasTrial } from "../blas-trial.ts";
import { Workspace } from "../blas-workspace.ts";
import { type Call, Cells, callOf, take } from "../calls.ts";
import type { Blas, BlasLibrary, BlasSource, GpuContext, Recordings } from "../driver.ts";
import { type Bound, callAsync, type Library, type LibrarySpec, openLibrary, type Prototypes } from "../library.ts";
import { fileIdentity, realFile } from "../library-identity.ts";
import { type BlasVendor, type ColumnGemm, NativeBlas } from "../native-blas.ts";
import { rocmFiles } from "./folders.ts";
import {
  allocFailed,
  check,
  describe,
  describeProblem,
  isSupported,
  keyOf,
  layouts,
  type Matmul,
  matmul,
  names,
  notSupported,
  problemCells,
  prototypes,
  type Supported,
  search,
  setUp,
  setUpCells,
  stateWord,
  tooOld,
  trialProblem,
  versionText,
  workspaceBytes,
} from "./hipblaslt-calls.ts";
import { kernelFiles } from "./kernel-files.ts";

const spec = (): LibrarySpec => ({
  title: "hipBLASLt",
  env: "WICK_HIPBLASLT_LIBRARY",
  ...rocmFiles("hipblaslt"),
  install: "install ROCm's package hipblaslt",
});
const files = { name: "hipblaslt", env: "HIPBLASLT_TENSILE_LIBPATH" } as const;

export function hipblasltSource(
  hip: Library,
  driverPrototypes: Prototypes,
  arch: string,
  explicit?: string,
): BlasSource {
  const gpu = arch.split(":")[0]!;
  const isDefault = /^gfx(942|950|12)/.test(gpu);
  return {
    name: "hipblaslt",
    isDefault,
    why: isDefault ? `preferred on ${gpu}` : "",
    find: (context) => new Hipblaslt(context, hip, driverPrototypes, explicit),
  };
}

class Hipblaslt implements BlasLibrary {
  readonly library: string;
  readonly version: string;
  readonly problem: string;
  readonly trial: BlasTrial;
  readonly #api: Bound<typeof prototypes>;

  constructor(context: GpuContext, hip: Library, driverPrototypes: Prototypes, explicit?: string) {
    const library = openLibrary(spec(), explicit, hip);
    const { arch } = context.properties;
    const file = realFile(library.path);
    this.library = library.path;
    this.#api = library.bind(prototypes);
    // Asking the library takes a handle; its file's name says enough until there is one.
    this.version = ["hipBLASLt", /\.so\.(\d+\.\d+)/.exec(file)?.[1] ?? ""].join(" ").trim();
    const kernels = kernelFiles(files, file, arch);
    this.problem = kernels.areThere === false ? `${this.version} has no files for ${arch.split(":")[0]}` : "";
    this.trial = blasTrial(context, {
      title: this.version,
      identity: [file, fileIdentity(file), kernels.identity].join("\n"),
      driver: { path: realFile(hip.path), prototypes: driverPrototypes },
      library: { path: file, prototypes },
      workspaceBytes,
      // Every trial product has the sizes of the first.
      cells: { ...setUpCells, ...problemCells(trialProblem) },
      setUp,
      product: (g) => [...describeProblem(g, g.type as Supported), search, ["matmul", ...matmul(names, g)]],
      check: { cell: "version", problem: ([version = 0n]) => tooOld(Number(version)) },
    });
  }

  open(context: GpuContext, recordings: Recordings): Blas {
    return new NativeBlas(new Vendor(context, recordings, this.#api, this.library), context);
  }
}

/** Problems whose kernel is kept: a prompt of another length is another problem. */
const maxPlans = 1024;

/** A problem's descriptors and the kernel that was found for it. */
interface Plan {
  readonly cells: Cells;
  readonly arguments: Matmul<bigint>;
}

class Vendor implements BlasVendor {
  readonly name = "hipBLASLt";
  readonly library: string;
  readonly version: string;
  readonly workspace: Workspace;
  readonly isForAnyThread = true;
  readonly outOfMemory = allocFailed;
  readonly describe = describe;
  readonly #api: Bound<typeof prototypes>;
  readonly #context: GpuContext;
  readonly #recordings: Recordings;
  readonly #cells = new Cells(setUpCells);
  /** By problem, the one used last at the end; null where the library has no kernel. */
  readonly #plans = new Map<string, Plan | null>();

  constructor(context: GpuContext, recordings: Recordings, api: Bound<typeof prototypes>, library: string) {
    this.#api = api;
    this.#context = context;
    this.#recordings = recordings;
    this.library = library;
    context.activate();
    take(api, setUp, this.#cells, check);
    const version = Number(this.#cells.value("version"));
    this.version = versionText(version);
    const problem = tooOld(version);
    if (problem) {
      this.destroy();
      fail("LibraryNotFound", `${library} ${problem}: install a newer ROCm, or set WICK_BLAS=rocblas`);
    }
    this.workspace = Workspace.orElse(
      () => this.destroy(),
      context,
      recordings,
      { bytes: workspaceBytes, limit: workspaceBytes },
      () => {},
    );
  }

  product(g: ColumnGemm<bigint>): Call | null {
    const plan = isSupported(g.type) ? this.#plan(g, g.type) : null;
    return plan && [this.#api.matmul, ...matmul(plan.arguments, g)];
  }

  async prepare(g: ColumnGemm<bigint>): Promise<void> {
    const key = keyOf(g);
    if (!isSupported(g.type) || this.#plans.has(key)) return;
    const cells = this.#describe(g, g.type);
    const status = await callAsync(...callOf(this.#api, search, cells));
    this.#keep(key, cells, status);
  }

  destroy(): number {
    for (const plan of this.#plans.values()) if (plan) this.#drop(plan.cells);
    this.#plans.clear();
    this.#api.preferenceDestroy(this.#cells.value("preference"));
    return this.#api.destroy(this.#cells.value("handle"));
  }

  #plan(g: ColumnGemm<bigint>, type: Supported): Plan | null {
    const key = keyOf(g);
    const known = this.#plans.get(key);
    if (known !== undefined) {
      this.#plans.delete(key);
      this.#plans.set(key, known);
      return known;
    }
    if (this.#recordings.recording) {
      fail(
        "InvalidArgument",
        `hipBLASLt has not yet met a ${type} product (${g.n}×${g.k})·(${g.k}×${g.m}), batch ${g.batch}, and cannot choose its kernel while work is recorded; multiply once before the capture`,
      );
    }
    const cells = this.#describe(g, type);
    const [fn, ...args] = callOf(this.#api, search, cells);
    return this.#keep(key, cells, fn(...args));
  }

  #describe(g: ColumnGemm<bigint>, type: Supported): Cells {
    const own = { handle: [this.#cells.value("handle")], preference: [this.#cells.value("preference")] };
    const cells = new Cells({ ...problemCells(g), ...own });
    take(this.#api, describeProblem(g, type), cells, (status, call) => {
      this.#drop(cells);
      check(status, call);
    });
    return cells;
  }

  #keep(key: string, cells: Cells, status: number): Plan | null {
    const state = Number(cells.words("result")[stateWord]! & 0xffffffffn);
    const isFound = status === 0 && Number(cells.value("found") & 0xffffffffn) > 0 && state === 0;
    if (!isFound) this.#drop(cells);
    if (status !== 0 && status !== notSupported) check(status, "heuristic");
    const plan = isFound ? { cells, arguments: this.#arguments(cells) } : null;
    const [oldest] = this.#plans;
    if (this.#plans.size >= maxPlans && oldest) {
      this.#plans.delete(oldest[0]);
      if (oldest[1]) this.#drop(oldest[1].cells);
    }
    this.#plans.set(key, plan);
    return plan;
  }

  #arguments(cells: Cells): Matmul<bigint> {
    const [handle, desc] = [cells.value("handle"), cells.value("desc")];
    const [aLayout, bLayout, dLayout] = layouts.map((layout) => cells.value(layout)) as [bigint, bigint, bigint];
    const algo = cells.address("result");
    return {
      handle,
      desc,
      aLayout,
      bLayout,
      dLayout,
      algo,
      workspace: this.workspace.at,
      stream: this.#context.stream,
    };
  }

  /** Destroys the descriptors that there are. */
  #drop(cells: Cells): void {
    for (const layout of layouts) if (cells.value(layout)) this.#api.layoutDestroy(cells.value(layout));
    if (cells.value("desc")) this.#api.descDestroy(cells.value("desc"));
  }
}
