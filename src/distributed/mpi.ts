/** Collectives by MPI: they are begun and then asked for, so that a rank that is gone ends the wait. */
import type { Argument } from "../backend/gpu/library.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { CollectiveLibrary, Reduction, Span } from "./communicator.ts";
import type { MpiHandle, MpiProcess } from "./mpi-process.ts";

const TAG = 7;
/** Elements of one call; counts are 32-bit. */
const MOST = 2 ** 30;

/** What is begun, by the names that errors have. */
const calls = {
  allReduce: "MPI_Iallreduce",
  allGather: "MPI_Iallgather",
  reduceScatter: "MPI_Ireduce_scatter_block",
  broadcast: "MPI_Ibcast",
  send: "MPI_Isend",
  receive: "MPI_Irecv",
  barrier: "MPI_Ibarrier",
} as const;

/** Over all ranks, or some of them. */
export class Mpi implements CollectiveLibrary {
  readonly name: string;
  readonly recordable = false;
  readonly rank: number;
  readonly size: number;
  readonly #process: MpiProcess;
  readonly #comm: MpiHandle;

  constructor(process: MpiProcess, comm: MpiHandle = process.world) {
    this.#process = process;
    this.#comm = comm;
    this.name = process.name;
    this.rank = process.rankIn(comm);
    this.size = process.sizeOf(comm);
  }

  /** Those of its ranks that give the same number; all of them call it. */
  split(part: number): Mpi {
    return new Mpi(this.#process, this.#process.split(this.#comm, part));
  }

  /** Halves are added up in f32. */
  reduces(dtype: DType): boolean {
    return this.#process.knows(dtype);
  }

  allReduce(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [this.#process.type(from.dtype), this.#process.reduction(reduction)];
    inPieces(from, to, (a, b, count) => {
      this.#run("allReduce", a === b ? this.#process.inPlace : a, b, count, type, op);
    });
  }

  allGather(from: Span, to: Span): void {
    const [byte, bytes] = [this.#process.type("byte"), bytesOf(from)];
    this.#run("allGather", from.at, bytes, byte, to.at, bytes, byte);
  }

  reduceScatter(from: Span, to: Span, reduction: Reduction): void {
    const [type, op] = [this.#process.type(from.dtype), this.#process.reduction(reduction)];
    this.#run("reduceScatter", from.at, to.at, countOf(to), type, op);
  }

  broadcast(span: Span, root: number): void {
    this.#run("broadcast", span.at, bytesOf(span), this.#process.type("byte"), root);
  }

  send(span: Span, to: number): void {
    this.#run("send", span.at, bytesOf(span), this.#process.type("byte"), to, TAG);
  }

  receive(span: Span, from: number): void {
    this.#run("receive", span.at, bytesOf(span), this.#process.type("byte"), from, TAG);
  }

  sendReceive(span: Span, to: number, into: Span, from: number): void {
    const { api, request } = this.#process;
    const byte = this.#process.type("byte");
    const sent = new BigUint64Array(1);
    this.#process.check(api.send(span.at, bytesOf(span), byte, to, TAG, this.#comm, sent), calls.send);
    this.#process.wait(calls.receive, api.receive(into.at, bytesOf(into), byte, from, TAG, this.#comm, request));
    this.#process.wait(calls.send, 0, sent);
  }

  barrier(): void {
    this.#run("barrier");
  }

  /** Rank 0's text on every rank, before there is anything else to say it by. */
  text(own: string): string {
    const bytes = new Uint8Array(1024);
    bytes.set(new TextEncoder().encode(own));
    this.#run("broadcast", bytes, bytes.byteLength, this.#process.type("byte"), 0);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  /** MPI ends in this process with the communicator of all ranks; those of some are of no use then, either. */
  [Symbol.dispose](): void {
    if (this.#comm === this.#process.world) this.#process.api.finalize();
  }

  #run(call: keyof typeof calls, ...args: Argument[]): void {
    const { api, request } = this.#process;
    this.#process.wait(calls[call], api[call](...args, this.#comm, request));
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
