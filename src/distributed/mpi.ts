/**
 * MPI, by whichever library the mpirun in use belongs to. Open MPI's handles are addresses of its variables, MPICH's (and
 * those of the libraries that keep its ABI) are numbers. Collectives are begun and then asked for, so that a rank that is
 * gone ends the wait.
 */
import { type Argument, type Bound, type Library, openLibrary } from "../backend/gpu/library.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { CollectiveLibrary, Reduction, Span } from "./communicator.ts";

type MpiType = "f32" | "f64" | "i16" | "i32" | "i64" | "u8" | "u32" | "byte";
type MpiHandle = number | bigint;

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
  test: "int MPI_Test(void *request, void *flag, void *status)",
});
type Api = Bound<ReturnType<typeof prototypes>>;

/** All calls come from the thread that began: Open MPI leaves things of that thread behind, which end with the process. */
const FUNNELED = 1;
const TAG = 7;
/** Asked so often at once; then the processor is left to others between questions, for longer and longer. */
const SPINS = 2000;
const FIRST_PAUSE_MS = 0.02;
const LONGEST_PAUSE_MS = 1;
/** Elements of one call; counts are 32-bit. */
const MOST = 2 ** 30;

/** What stops a wait, by throwing: asked while it goes on. `waited` is in milliseconds. */
export type Interrupt = (waited: number) => void;

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

export class Mpi implements CollectiveLibrary {
  readonly name: string;
  readonly recordable = false;
  readonly rank: number;
  readonly size: number;
  readonly #family: Family;
  readonly #api: Api;
  readonly #world: MpiHandle;
  readonly #handleOf: (named: string | number) => MpiHandle;
  readonly #request = new BigUint64Array(1);
  readonly #flag = new Int32Array(1);
  readonly #sleep = new Int32Array(new SharedArrayBuffer(4));
  /** Asked while it waits. */
  interrupt: Interrupt = () => {};

  /** Begins MPI in this process, which waits for the other ranks; it can be done once. */
  constructor(asked: "openmpi" | "mpich" | null) {
    const library = open(asked);
    this.#family = library.has(openMpi.world as string) ? openMpi : mpich;
    this.#api = library.bind(prototypes(this.#family.handle));
    this.#handleOf = (named) => (typeof named === "string" ? library.address(named) : named);
    this.#world = this.#handleOf(this.#family.world);
    this.#check(this.#api.init(null, null, FUNNELED, new Int32Array(1)), "MPI_Init_thread");
    this.#check(this.#api.setErrors(this.#world, this.#handleOf(this.#family.errorsReturn)), "MPI_Comm_set_errhandler");
    const out = new Int32Array(1);
    this.#check(this.#api.rank(this.#world, out), "MPI_Comm_rank");
    this.rank = out[0]!;
    this.#check(this.#api.size(this.#world, out), "MPI_Comm_size");
    this.size = out[0]!;
    this.name = this.#readVersion();
  }

  /** Halves are added up in f32. */
  reduces(dtype: DType): boolean {
    return dtype in this.#family.types;
  }

  allReduce(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [this.#type(from.dtype), this.#reduction(reduction)];
    inPieces(from, to, (a, b, count) => {
      const source = a === b ? this.#family.inPlace : a;
      this.#wait("MPI_Iallreduce", this.#api.allReduce(source, b, count, type, op, this.#world, this.#request));
    });
  }

  allGather(from: Span, to: Span): void {
    const byte = this.#type("byte");
    const bytes = bytesOf(from);
    this.#wait(
      "MPI_Iallgather",
      this.#api.allGather(from.at, bytes, byte, to.at, bytes, byte, this.#world, this.#request),
    );
  }

  reduceScatter(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [this.#type(from.dtype), this.#reduction(reduction)];
    const args = [from.at, countOf(to), type, op] as const;
    this.#wait(
      "MPI_Ireduce_scatter_block",
      this.#api.reduceScatter(args[0], to.at, args[1], args[2], args[3], this.#world, this.#request),
    );
  }

  broadcast(span: Span, root: number): void {
    const byte = this.#type("byte");
    this.#wait("MPI_Ibcast", this.#api.broadcast(span.at, bytesOf(span), byte, root, this.#world, this.#request));
  }

  send(span: Span, to: number): void {
    const byte = this.#type("byte");
    this.#wait("MPI_Isend", this.#api.send(span.at, bytesOf(span), byte, to, TAG, this.#world, this.#request));
  }

  receive(span: Span, from: number): void {
    const byte = this.#type("byte");
    this.#wait("MPI_Irecv", this.#api.receive(span.at, bytesOf(span), byte, from, TAG, this.#world, this.#request));
  }

  barrier(): void {
    this.#wait("MPI_Ibarrier", this.#api.barrier(this.#world, this.#request));
  }

  /** Rank 0's text on every rank, before there is anything else to say it by. */
  text(own: string): string {
    const bytes = new Uint8Array(1024);
    bytes.set(new TextEncoder().encode(own));
    const byte = this.#type("byte");
    const args: Argument[] = [bytes, bytes.byteLength, byte, 0, this.#world, this.#request];
    this.#wait("MPI_Ibcast", this.#api.broadcast(...args));
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  [Symbol.dispose](): void {
    this.#api.finalize();
  }

  #type(type: DType | "byte"): MpiHandle {
    return this.#handleOf(this.#family.types[type as MpiType]);
  }

  #reduction(reduction: Reduction): MpiHandle {
    return this.#handleOf(this.#family.reductions[reduction]);
  }

  /** Until the request is done, or whoever is asked throws. */
  #wait(call: string, code: number): void {
    this.#check(code, call);
    const { statusIgnored } = this.#family;
    const [test, request, flag] = [this.#api.test, this.#request, this.#flag];
    let pause = FIRST_PAUSE_MS;
    let begin = 0;
    for (let asked = 1; ; asked++) {
      this.#check(test(request, flag, statusIgnored), call);
      if (flag[0] !== 0) return;
      if (asked < SPINS) continue;
      begin ||= performance.now();
      this.interrupt(performance.now() - begin);
      Atomics.wait(this.#sleep, 0, 0, pause);
      pause = Math.min(pause * 1.1, LONGEST_PAUSE_MS);
    }
  }

  #check(code: number, call: string): void {
    if (code === 0) return;
    const text = new Uint8Array(1024);
    const length = new Int32Array(1);
    const known = this.#api.errorText(code, text, length) === 0;
    const why = known ? new TextDecoder().decode(text.subarray(0, length[0])) : "unknown";
    // A rank that is gone is the better reason.
    this.interrupt(0);
    fail("CollectiveFailed", `${call} failed: error ${code}: ${why}`);
  }

  #readVersion(): string {
    const text = new Uint8Array(8192);
    const length = new Int32Array(1);
    if (this.#api.version(text, length) !== 0) return this.#family.name;
    const said = new TextDecoder().decode(text.subarray(0, length[0]));
    const version = /(?:v|Version:\s*)(\d+(?:\.\d+)+)/i.exec(said)?.[1];
    return version === undefined ? this.#family.name : `${this.#family.name} ${version}`;
  }
}

const bytesOf = ({ count, dtype }: Span): number => limited(count * sizeOf(dtype), "bytes");
const countOf = ({ count }: Span): number => limited(count, "elements");

function limited(number: number, what: string): number {
  if (number < 2 ** 31) return number;
  return fail("InvalidArgument", `MPI moves at most ${2 ** 31 - 1} ${what} in one call; ${number} were given`);
}

function inPieces(from: Span, to: Span, run: (from: bigint, to: bigint, count: number) => void): void {
  const size = sizeOf(from.dtype);
  for (let done = 0; done < from.count; done += MOST) {
    const offset = BigInt(done * size);
    run(from.at + offset, to.at + offset, Math.min(MOST, from.count - done));
  }
}
