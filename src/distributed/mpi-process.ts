/**
 * MPI in this process, by whichever library the mpirun in use belongs to. Open MPI's handles are addresses of its variables,
 * MPICH's (and those of the libraries that keep its ABI) are numbers.
 */
import { type Bound, type Library, openLibrary } from "../backend/gpu/library.ts";
import type { DType } from "../core/dtype.ts";
import { suggest } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import type { Reduction } from "./communicator.ts";

type MpiType = "f32" | "f64" | "i16" | "i32" | "i64" | "u8" | "u32" | "byte";
export type MpiHandle = number | bigint;

/** How a family of libraries names what it predefines. */
interface Family {
  readonly name: string;
  /** What its handles are in C. */
  readonly handle: "void *" | "int ";
  readonly world: string | number;
  readonly types: Readonly<Record<MpiType, string | number>>;
  readonly reductions: Readonly<Record<Reduction, string | number>>;
  readonly inPlace: bigint;
  readonly statusIgnored: bigint;
  readonly errorsReturn: string | number;
}

const openMpi: Family = {
  name: "Open MPI",
  handle: "void *",
  world: "ompi_mpi_comm_world",
  types: {
    f32: "ompi_mpi_float",
    f64: "ompi_mpi_double",
    i16: "ompi_mpi_int16_t",
    i32: "ompi_mpi_int32_t",
    i64: "ompi_mpi_int64_t",
    u8: "ompi_mpi_uint8_t",
    u32: "ompi_mpi_uint32_t",
    byte: "ompi_mpi_byte",
  },
  reductions: { sum: "ompi_mpi_op_sum", max: "ompi_mpi_op_max", min: "ompi_mpi_op_min" },
  inPlace: 1n,
  statusIgnored: 0n,
  errorsReturn: "ompi_mpi_errors_return",
};

const mpich: Family = {
  name: "MPICH",
  handle: "int ",
  world: 0x44000000,
  types: {
    f32: 0x4c00040a,
    f64: 0x4c00080b,
    i16: 0x4c000238,
    i32: 0x4c000439,
    i64: 0x4c00083a,
    u8: 0x4c00013b,
    u32: 0x4c00043d,
    byte: 0x4c00010d,
  },
  reductions: { max: 0x58000001, min: 0x58000002, sum: 0x58000003 },
  inPlace: 0xffff_ffff_ffff_ffffn,
  statusIgnored: 1n,
  errorsReturn: 0x54000001,
};

const prototypes = (h: string) => ({
  initialized: "int MPI_Initialized(void *flag)",
  init: "int MPI_Init_thread(void *argc, void *argv, int required, void *provided)",
  finalize: "int MPI_Finalize()",
  version: "int MPI_Get_library_version(void *text, void *length)",
  errorText: "int MPI_Error_string(int code, void *text, void *length)",
  setErrors: `int MPI_Comm_set_errhandler(${h}comm, ${h}handler)`,
  rank: `int MPI_Comm_rank(${h}comm, void *out)`,
  size: `int MPI_Comm_size(${h}comm, void *out)`,
  allReduce: `int MPI_Iallreduce(void *from, void *to, int count, ${h}type, ${h}op, ${h}comm, void *request)`,
  allGather: `int MPI_Iallgather(void *from, int count, ${h}type, void *to, int each, ${h}same, ${h}comm, void *request)`,
  reduceScatter: `int MPI_Ireduce_scatter_block(void *from, void *to, int count, ${h}type, ${h}op, ${h}comm, void *request)`,
  broadcast: `int MPI_Ibcast(void *at, int count, ${h}type, int root, ${h}comm, void *request)`,
  send: `int MPI_Isend(void *at, int count, ${h}type, int to, int tag, ${h}comm, void *request)`,
  receive: `int MPI_Irecv(void *at, int count, ${h}type, int from, int tag, ${h}comm, void *request)`,
  barrier: `int MPI_Ibarrier(${h}comm, void *request)`,
  split: `int MPI_Comm_split(${h}comm, int color, int key, void *out)`,
  test: "int MPI_Test(void *request, void *flag, void *status)",
});
type Api = Bound<ReturnType<typeof prototypes>>;

/** All calls come from the thread that began: Open MPI leaves things of that thread behind, which end with the process. */
const FUNNELED = 1;
/** Asked so often at once; then the processor is left to others between questions, for longer and longer. */
const SPINS = 2000;
const FIRST_PAUSE_MS = 0.02;
const LONGEST_PAUSE_MS = 1;

/** What stops a wait, by throwing: asked while it goes on. `waited` is in milliseconds. */
export type Interrupt = (waited: number) => void;

/**
 * UCX, which MPICH and others may be made with, would answer SIGSEGV, by which WebAssembly is told of what is out of its bounds,
 * and watch what all threads get of the system.
 */
const ucx = { UCX_ERROR_SIGNALS: "SIGILL,SIGBUS,SIGFPE", UCX_MEM_EVENTS: "n" };

const folders = [
  "/usr/lib/x86_64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/lib64",
  "/usr/local/lib",
  "/opt/homebrew/lib",
];

function open(family: "openmpi" | "mpich" | null): Library {
  const names = {
    openmpi: ["libmpi.so.40", "libmpi.so.80", "libmpi.40.dylib", "libmpi.so"],
    mpich: ["libmpich.so.12", "libmpi.so.12", "libmpi.12.dylib", "libmpich.so", "libmpi.so"],
  };
  return openLibrary({
    title: "MPI",
    env: "WICK_MPI_LIBRARY",
    names: family ? names[family] : [...names.openmpi, ...names.mpich],
    folders,
    install: "install Open MPI (openmpi-bin) or MPICH (mpich), the one whose mpirun starts the ranks",
    global: true,
  });
}

export class MpiProcess {
  /** For people: "Open MPI 4.1.4". */
  readonly name: string;
  readonly api: Api;
  readonly world: MpiHandle;
  readonly inPlace: bigint;
  /** What a call that begins something writes, and `wait` waits for. */
  readonly request = new BigUint64Array(1);
  readonly #family: Family;
  readonly #handleOf: (named: string | number) => MpiHandle;
  readonly #flag = new Int32Array(1);
  readonly #sleep = new Int32Array(new SharedArrayBuffer(4));
  /** Asked while it waits. */
  interrupt: Interrupt = () => {};

  /** Begins MPI in this process, which waits for the other ranks; it can be done once. */
  constructor(asked: "openmpi" | "mpich" | null) {
    suggest(ucx);
    const library = open(asked);
    this.#family = library.has(openMpi.world as string) ? openMpi : mpich;
    this.api = library.bind(prototypes(this.#family.handle));
    this.#handleOf = (named) => (typeof named === "string" ? library.address(named) : named);
    this.world = this.#handleOf(this.#family.world);
    this.inPlace = this.#family.inPlace;
    this.check(this.api.init(null, null, FUNNELED, new Int32Array(1)), "MPI_Init_thread");
    this.#returnErrors(this.world);
    this.name = this.#readVersion();
  }

  /** Whether it adds up numbers of the type by itself. */
  knows(type: DType): boolean {
    return type in this.#family.types;
  }

  type(type: DType | "byte"): MpiHandle {
    return this.#handleOf(this.#family.types[type as MpiType]);
  }

  reduction(reduction: Reduction): MpiHandle {
    return this.#handleOf(this.#family.reductions[reduction]);
  }

  rankIn(comm: MpiHandle): number {
    const out = new Int32Array(1);
    this.check(this.api.rank(comm, out), "MPI_Comm_rank");
    return out[0]!;
  }

  sizeOf(comm: MpiHandle): number {
    const out = new Int32Array(1);
    this.check(this.api.size(comm, out), "MPI_Comm_size");
    return out[0]!;
  }

  /** A communicator of the ranks that give the same number, in their order; all ranks of `comm` call it. */
  split(comm: MpiHandle, part: number): MpiHandle {
    const out = new BigUint64Array(1);
    this.check(this.api.split(comm, part, this.rankIn(comm), out), "MPI_Comm_split");
    const own = this.#family.handle === "int " ? new Int32Array(out.buffer)[0]! : out[0]!;
    this.#returnErrors(own);
    return own;
  }

  /** Until the request is done, or whoever is asked throws. */
  wait(call: string, code: number, request = this.request): void {
    this.check(code, call);
    const { statusIgnored } = this.#family;
    const [test, flag] = [this.api.test, this.#flag];
    let pause = FIRST_PAUSE_MS;
    let begin = 0;
    for (let asked = 1; ; asked++) {
      this.check(test(request, flag, statusIgnored), call);
      if (flag[0] !== 0) return;
      if (asked < SPINS) continue;
      begin ||= performance.now();
      this.interrupt(performance.now() - begin);
      Atomics.wait(this.#sleep, 0, 0, pause);
      pause = Math.min(pause * 1.1, LONGEST_PAUSE_MS);
    }
  }

  check(code: number, call: string): void {
    if (code === 0) return;
    const text = new Uint8Array(1024);
    const length = new Int32Array(1);
    const known = this.api.errorText(code, text, length) === 0;
    const why = known ? new TextDecoder().decode(text.subarray(0, length[0])) : "unknown";
    // A rank that is gone is the better reason.
    this.interrupt(0);
    fail("CollectiveFailed", `${call} failed: error ${code}: ${why}`);
  }

  #returnErrors(comm: MpiHandle): void {
    this.check(this.api.setErrors(comm, this.#handleOf(this.#family.errorsReturn)), "MPI_Comm_set_errhandler");
  }

  #readVersion(): string {
    const text = new Uint8Array(8192);
    const length = new Int32Array(1);
    if (this.api.version(text, length) !== 0) return this.#family.name;
    const said = new TextDecoder().decode(text.subarray(0, length[0]));
    const version = /(?:v|Version:\s*)(\d+(?:\.\d+)+)/i.exec(said)?.[1];
    return version === undefined ? this.#family.name : `${this.#family.name} ${version}`;
  }
}
