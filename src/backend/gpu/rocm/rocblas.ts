import { fail } from "../../../core/errors.ts";
import { type BlasTrial, blasTrial } from "../blas-trial.ts";
import { Workspace, type WorkspaceSize } from "../blas-workspace.ts";
import { Cells, type Step, take } from "../calls.ts";
import type { Blas, BlasLibrary, BlasSource, GpuContext, Recordings } from "../driver.ts";
import { type Bound, type Library, type LibrarySpec, openLibrary, type Prototypes, symbolOf } from "../library.ts";
import { fileIdentity, realFile } from "../library-identity.ts";
import { type ColumnGemm, NativeBlas } from "../native-blas.ts";
import { cString } from "../native-driver.ts";
import { rocmFiles } from "./folders.ts";
import { kernelFiles } from "./kernel-files.ts";

// The soname is .0 up to ROCm 5.5 (and in Debian), .3 in 5.6 and 5.7, .4 in 6, .5 in 7.
const spec = (): LibrarySpec => ({
  title: "rocBLAS",
  env: "WICK_ROCBLAS_LIBRARY",
  ...rocmFiles("rocblas"),
  install: "install ROCm's package rocblas",
});
const files = { name: "rocblas", env: "ROCBLAS_TENSILE_LIBPATH" } as const;

// ROCm/rocBLAS library/include/internal/rocblas-{auxiliary,functions}.h, all of them in every release from 5.0 to 7;
// rocblas_int is 32-bit, rocblas_stride 64-bit.
const prototypes = {
  create: "int rocblas_create_handle(void *out)",
  destroy: "int rocblas_destroy_handle(void *handle)",
  setStream: "int rocblas_set_stream(void *handle, void *stream)",
  setAtomics: "int rocblas_set_atomics_mode(void *handle, int mode)",
  setWorkspace: "int rocblas_set_workspace(void *handle, void *workspace, size_t bytes)",
  versionSize: "int rocblas_get_version_string_size(void *size)",
  version: "int rocblas_get_version_string(void *text, size_t length)",
  gemm: "int rocblas_gemm_ex(void *handle, int opA, int opB, int32_t m, int32_t n, int32_t k, void *alpha, void *a, int aType, int32_t lda, void *b, int bType, int32_t ldb, void *beta, void *c, int cType, int32_t ldc, void *d, int dType, int32_t ldd, int computeType, int algo, int32_t solution, uint32_t flags)",
  stridedGemm:
    "int rocblas_gemm_strided_batched_ex(void *handle, int opA, int opB, int32_t m, int32_t n, int32_t k, void *alpha, void *a, int aType, int32_t lda, int64_t strideA, void *b, int bType, int32_t ldb, int64_t strideB, void *beta, void *c, int cType, int32_t ldc, int64_t strideC, void *d, int dType, int32_t ldd, int64_t strideD, int32_t batch, int computeType, int algo, int32_t solution, uint32_t flags)",
} as const;
type Call = keyof typeof prototypes;

// rocblas-types.h: rocblas_datatype, rocblas_operation, rocblas_gemm_algo, rocblas_gemm_flags, rocblas_atomics_mode,
// rocblas_status.
const types = { f16: 150, f32: 151, f64: 152, bf16: 168 } as const;
const computeTypes = { f16: types.f32, bf16: types.f32, f32: types.f32, f64: types.f64 } as const;
const operation = { none: 111, transpose: 112 } as const;
const algoStandard = 0;
const noFlags = 0;
const atomicsNotAllowed = 0;
const statuses: Readonly<Record<number, string>> = {
  1: "invalid handle",
  2: "not implemented",
  3: "invalid pointer",
  4: "invalid size",
  5: "memory error",
  6: "internal error",
  11: "invalid value",
  14: "not in this build",
  15: "the device lacks a needed feature",
};
const memoryError = 5;

const MiB = 2 ** 20;
/** What rocBLAS takes itself by default (handle.hpp: 128 MiB from gfx94 on, else 32 MiB), so that it chooses as it would. */
const workspaceOf = (arch: string): WorkspaceSize => {
  const bytes = /^gfx9[45]/.test(arch) ? 128 * MiB : 32 * MiB;
  return { bytes, limit: 4 * bytes };
};

/** A handle on cell stream. Atomic sums would differ from run to run; releases before 7 allow them by default. */
const setUp: readonly Step[] = [
  ["create", "&handle"],
  ["setStream", "handle", "stream"],
  ["setAtomics", "handle", atomicsNotAllowed],
];
const handleCells = { handle: [0n], stream: [0n] };

/** C and D are the same matrix: the product is written in place. */
function product<Pointer>(handle: Pointer, g: ColumnGemm<Pointer>): [call: Call, ...args: (Pointer | number)[]] {
  const [opA, opB] = [g.transA, g.transB].map((trans) => (trans ? operation.transpose : operation.none)) as [
    number,
    number,
  ];
  const t = types[g.type];
  const compute = computeTypes[g.type];
  // biome-ignore format: one line per operand
  return g.batch === 1
    ? ["gemm", handle, opA, opB, g.m, g.n, g.k,
        g.one, g.a, t, g.lda,
        g.b, t, g.ldb,
        g.beta, g.c, t, g.ldc,
        g.c, t, g.ldc,
        compute, algoStandard, 0, noFlags]
    : ["stridedGemm", handle, opA, opB, g.m, g.n, g.k,
        g.one, g.a, t, g.lda, g.strideA,
        g.b, t, g.ldb, g.strideB,
        g.beta, g.c, t, g.ldc, g.strideC,
        g.c, t, g.ldc, g.strideC,
        g.batch, compute, algoStandard, 0, noFlags];
}

const describe = (status: number): string => `rocblas_status ${status} (${statuses[status] ?? "unknown"})`;
const check = (status: number, call: string): void => {
  if (status !== 0) fail("DriverError", `${symbolOf(prototypes[call as Call])} failed: ${describe(status)}`);
};

export function rocblasSource(hip: Library, driverPrototypes: Prototypes, explicit?: string): BlasSource {
  return {
    name: "rocblas",
    isDefault: true,
    why: "",
    find: (context) => new Rocblas(context, hip, driverPrototypes, explicit),
  };
}

class Rocblas implements BlasLibrary {
  readonly library: string;
  readonly version: string;
  readonly problem: string;
  readonly trial: BlasTrial;
  readonly #api: Bound<typeof prototypes>;
  readonly #version: string;

  constructor(context: GpuContext, hip: Library, driverPrototypes: Prototypes, explicit?: string) {
    const library = openLibrary(spec(), explicit, hip);
    const { arch } = context.properties;
    const gpu = arch.split(":")[0]!;
    this.library = library.path;
    this.#api = library.bind(prototypes);
    this.#version = this.#readVersion();
    this.version = `rocBLAS ${this.#version}`;
    const title = `rocBLAS ${/^\d+\.\d+\.\d+/.exec(this.#version)?.[0] ?? this.#version}`;
    const file = realFile(library.path);
    const kernels = kernelFiles(files, file, arch);
    this.problem = kernels.areThere === false ? `${title} has no files for ${gpu}` : "";
    const workspace = workspaceOf(arch).bytes;
    this.trial = blasTrial(context, {
      title,
      identity: [file, fileIdentity(file), kernels.identity].join("\n"),
      driver: { path: realFile(hip.path), prototypes: driverPrototypes },
      library: { path: file, prototypes },
      workspaceBytes: workspace,
      cells: handleCells,
      setUp: [...setUp, ["setWorkspace", "handle", "workspace", workspace]],
      product: (g) => [product("handle", g)],
    });
  }

  open(context: GpuContext, recordings: Recordings): Blas {
    const api = this.#api;
    context.activate();
    const cells = new Cells({ ...handleCells, stream: [context.stream] });
    take(api, setUp, cells, check);
    const handle = cells.value("handle");
    const destroy = (): number => api.destroy(handle);
    // After the stream, and before the first product.
    const workspace = Workspace.orElse(
      destroy,
      context,
      recordings,
      workspaceOf(context.properties.arch),
      (at, bytes) => check(api.setWorkspace(handle, at, bytes), "setWorkspace"),
    );
    return new NativeBlas(
      {
        name: "rocBLAS",
        library: this.library,
        version: this.#version,
        workspace,
        isForAnyThread: true,
        outOfMemory: memoryError,
        describe,
        product(g) {
          const [call, ...args] = product(handle, g);
          return [api[call], ...args];
        },
        destroy,
      },
      context,
    );
  }

  #readVersion(): string {
    const size = new BigUint64Array(1);
    check(this.#api.versionSize(size), "versionSize");
    const text = new Uint8Array(Number(size[0]));
    check(this.#api.version(text, text.length), "version");
    return cString(text);
  }
}
