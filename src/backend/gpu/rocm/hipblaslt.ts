/**
 * hipBLASLt: products of f32, f16 and bf16 by the kernel that its heuristic names for the problem, which is asked once per
 * problem. The binding holds for ROCm 6.0 (hipBLASLt 0.6) to 7: before, compute types were another enum and data types
 * were hipBLAS's.
 */
import { fail } from "../../../core/errors.ts";
import { type BlasTrial, blasTrial } from "../blas-trial.ts";
import { Workspace } from "../blas-workspace.ts";
import { type Call, Cells, callOf, type Step, take, type Words, word } from "../calls.ts";
import type { Blas, BlasLibrary, BlasSource, GpuContext, Recordings } from "../driver.ts";
import {
  type Bound,
  callAsync,
  type Library,
  type LibrarySpec,
  openLibrary,
  type Prototypes,
  symbolOf,
} from "../library.ts";
import { fileIdentity, realFile } from "../library-identity.ts";
import { type BlasVendor, type ColumnGemm, NativeBlas } from "../native-blas.ts";
import { rocmFiles } from "./folders.ts";
import { kernelFiles } from "./kernel-files.ts";

const spec = (): LibrarySpec => ({
  title: "hipBLASLt",
  env: "WICK_HIPBLASLT_LIBRARY",
  ...rocmFiles("hipblaslt"),
  install: "install ROCm's package hipblaslt",
});
const files = { name: "hipblaslt", env: "HIPBLASLT_TENSILE_LIBPATH" } as const;

// ROCm/hipBLASLt library/include/hipblaslt.h at rocm-6.0.2, 6.1.2, 6.2.2 and 0.11; ROCm/rocm-libraries
// projects/hipblaslt/library/include/hipblaslt/hipblaslt.h. Enums are int.
const prototypes = {
  create: "int hipblasLtCreate(void *out)",
  destroy: "int hipblasLtDestroy(void *handle)",
  version: "int hipblasLtGetVersion(void *handle, void *version)",
  descCreate: "int hipblasLtMatmulDescCreate(void *out, int computeType, int scaleType)",
  descDestroy: "int hipblasLtMatmulDescDestroy(void *desc)",
  descSet: "int hipblasLtMatmulDescSetAttribute(void *desc, int attribute, void *value, size_t bytes)",
  layoutCreate:
    "int hipblasLtMatrixLayoutCreate(void *out, int type, uint64_t rows, uint64_t columns, int64_t leadingDimension)",
  layoutDestroy: "int hipblasLtMatrixLayoutDestroy(void *layout)",
  layoutSet: "int hipblasLtMatrixLayoutSetAttribute(void *layout, int attribute, void *value, size_t bytes)",
  preferenceCreate: "int hipblasLtMatmulPreferenceCreate(void *out)",
  preferenceDestroy: "int hipblasLtMatmulPreferenceDestroy(void *preference)",
  preferenceSet:
    "int hipblasLtMatmulPreferenceSetAttribute(void *preference, int attribute, void *value, size_t bytes)",
  heuristic:
    "int hipblasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int asked, void *results, void *found)",
  matmul:
    "int hipblasLtMatmul(void *handle, void *desc, void *alpha, void *a, void *aLayout, void *b, void *bLayout, void *beta, void *c, void *cLayout, void *d, void *dLayout, void *algo, void *workspace, size_t workspaceBytes, void *stream)",
} as const;

/** hipblasLtGetVersion: major · 100000 + minor · 100 + patch. */
const oldestVersion = 600;
const versionText = (n: number): string => `${Math.floor(n / 100_000)}.${Math.floor(n / 100) % 1000}.${n % 100}`;

// hip/library_types.h hipDataType: HIP_R_32F, HIP_R_16F, HIP_R_16BF.
const types = { f32: 0, f16: 2, bf16: 14 } as const;
// hipblas-common.h: HIPBLAS_COMPUTE_32F, HIPBLAS_OP_N, HIPBLAS_OP_T.
const computeF32 = 2;
const operation = { none: 111, transpose: 112 } as const;
// hipblaslt.h: HIPBLASLT_MATMUL_DESC_TRANSA and _TRANSB, HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT and _STRIDED_BATCH_OFFSET,
// HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES.
const attribute = { transA: 0, transB: 1, batchCount: 0, batchOffset: 1, maxWorkspace: 1 } as const;
/** hipblasLtMatmulHeuristicResult_t in words: algo (16 bytes and a size), workspaceSize, state and wavesCount, reserved. */
const resultWords = 7;
const stateWord = 4;

const statuses: Readonly<Record<number, string>> = {
  1: "NOT_INITIALIZED",
  2: "ALLOC_FAILED",
  3: "INVALID_VALUE",
  4: "MAPPING_ERROR",
  5: "EXECUTION_FAILED",
  6: "INTERNAL_ERROR",
  7: "NOT_SUPPORTED",
  8: "ARCH_MISMATCH",
  9: "HANDLE_IS_NULLPTR",
  10: "INVALID_ENUM",
  11: "UNKNOWN",
};
const allocFailed = 2;
const notSupported = 7;

/** What PyTorch gives it. The heuristic never names a kernel that needs more, so it does not grow. */
const workspaceBytes = 76 * 2 ** 20;
const workspaceSize = { bytes: workspaceBytes, limit: workspaceBytes };

/** Problems whose kernel is kept: a prompt of another length is another problem. */
const maxPlans = 1024;

const setUp: readonly Step[] = [
  ["create", "&handle"],
  ["version", "handle", "&version"],
  ["preferenceCreate", "&preference"],
  ["preferenceSet", "preference", attribute.maxWorkspace, "&maxWorkspace", 8],
];
const setUpCells: Words = { handle: [0n], version: [0n], preference: [0n], maxWorkspace: [BigInt(workspaceBytes)] };

const layouts = ["aLayout", "bLayout", "dLayout"] as const;
type Supported = keyof typeof types;
const isSupported = (type: string): type is Supported => Object.hasOwn(types, type);

/** The steps that describe a problem; C and D are the same matrix. */
function describeProblem(g: ColumnGemm<unknown>, type: Supported): Step[] {
  const t = types[type];
  return [
    ["descCreate", "&desc", computeF32, types.f32],
    ["descSet", "desc", attribute.transA, "&opA", 4],
    ["descSet", "desc", attribute.transB, "&opB", 4],
    ["layoutCreate", "&aLayout", t, g.transA ? g.k : g.m, g.transA ? g.m : g.k, g.lda],
    ["layoutCreate", "&bLayout", t, g.transB ? g.n : g.k, g.transB ? g.k : g.n, g.ldb],
    ["layoutCreate", "&dLayout", t, g.m, g.n, g.ldc],
    ...(g.batch === 1
      ? []
      : layouts.flatMap((layout): Step[] => [
          ["layoutSet", layout, attribute.batchCount, "&batch", 4],
          ["layoutSet", layout, attribute.batchOffset, `&${layout}Stride`, 8],
        ])),
  ];
}

const problemCells = (g: ColumnGemm<unknown>): Words => {
  const code = (trans: boolean): bigint[] => [word(trans ? operation.transpose : operation.none)];
  return {
    desc: [0n],
    opA: code(g.transA),
    opB: code(g.transB),
    aLayout: [0n],
    bLayout: [0n],
    dLayout: [0n],
    batch: [word(g.batch)],
    aLayoutStride: [word(g.strideA)],
    bLayoutStride: [word(g.strideB)],
    dLayoutStride: [word(g.strideC)],
    result: Array.from({ length: resultWords }, () => 0n),
    found: [0n],
  };
};

// biome-ignore format: one line per operand
const search: Step = ["heuristic", "handle", "desc",
  "aLayout", "bLayout", "dLayout", "dLayout",
  "preference", 1, "&result", "&found"];

interface Matmul<Pointer> {
  readonly handle: Pointer;
  readonly desc: Pointer;
  readonly aLayout: Pointer;
  readonly bLayout: Pointer;
  readonly dLayout: Pointer;
  readonly algo: Pointer;
  readonly workspace: Pointer;
  readonly stream: Pointer;
}

/** The arguments of a product. The algorithm is what the search's result begins with. */
function matmul<Pointer>(x: Matmul<Pointer>, g: ColumnGemm<Pointer>): (Pointer | number)[] {
  // biome-ignore format: one line per operand
  return [x.handle, x.desc,
    g.one, g.a, x.aLayout,
    g.b, x.bLayout,
    g.zero, g.c, x.dLayout,
    g.c, x.dLayout,
    x.algo, x.workspace, workspaceBytes, x.stream];
}

const names: Matmul<string> = {
  handle: "handle",
  desc: "desc",
  aLayout: "aLayout",
  bLayout: "bLayout",
  dLayout: "dLayout",
  algo: "&result",
  workspace: "workspace",
  stream: "stream",
};

const describe = (status: number): string => `HIPBLAS_STATUS_${statuses[status] ?? "UNKNOWN"} (${status})`;
const check = (status: number, call: string): void => {
  if (status === 0) return;
  fail(
    "DriverError",
    `${symbolOf(prototypes[call as keyof typeof prototypes])} failed: ${describe(status)}; WICK_BLAS=rocblas avoids it`,
  );
};

/** Why a version is not used; empty from the oldest one on. */
const tooOld = (version: number): string =>
  version >= oldestVersion
    ? ""
    : `is version ${versionText(version)}; ${versionText(oldestVersion)} (ROCm 6.0) is the oldest that Wick can use`;

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

/** The cells of a product that transposes nothing and has no batch: all that cells say of a problem. */
const trialProblem: ColumnGemm<unknown> = {
  type: "f32",
  m: 0,
  n: 0,
  k: 0,
  a: 0,
  transA: false,
  lda: 0,
  strideA: 0,
  b: 0,
  transB: false,
  ldb: 0,
  strideB: 0,
  c: 0,
  ldc: 0,
  strideC: 0,
  batch: 1,
  one: 0,
  zero: 0,
};

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
      workspaceSize,
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

const keyOf = (g: ColumnGemm<unknown>): string =>
  `${g.type} ${g.transA} ${g.transB} ${g.m} ${g.n} ${g.k} ${g.lda} ${g.ldb} ${g.ldc} ${g.batch} ${g.strideA} ${g.strideB} ${g.strideC}`;
