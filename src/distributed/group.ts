/** The processes that run a model together, and what they say to each other by. */
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { Device } from "../backend/device.ts";
import { GpuBackend } from "../backend/gpu/backend.ts";
import { sizeOf } from "../core/dtype.ts";
import { positive } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import { numel } from "../core/layout.ts";
import type { Tensor } from "../ops/index.ts";
import { CclCommunicator } from "./ccl.ts";
import { type CollectiveLibrary, Communicator, type Span, type WithMemory } from "./communicator.ts";
import { Mpi } from "./mpi.ts";
import { MpiProcess } from "./mpi-process.ts";
import { type Ranks, ranksHere } from "./ranks.ts";
import { Rendezvous, requireSame } from "./rendezvous.ts";

export interface GroupOptions {
  readonly device: Device | string;
  /** How many ranks there must be. Default: as many as there are. */
  readonly size?: number | undefined;
  /**
   * Stages of a pipeline: neighbouring ranks, as many to each, have some of the layers, and share those among themselves.
   * Default 1: all ranks have a part of every layer.
   */
  readonly stages?: number | undefined;
  /** What must be the same on all ranks besides the release of Wick. */
  readonly arguments?: unknown;
  /** How long to wait for the others. Default: WICK_RENDEZVOUS_SECONDS, or 60. */
  readonly seconds?: number | undefined;
  /** Whether the loss of a rank is said on stderr at once, whatever the main thread is at. Default false. */
  readonly announces?: boolean | undefined;
}

/** A rank that has left in order does not come back: whoever waits for it is told after this. */
const LEFT_MS = 3000;

interface Communicators {
  readonly all: Communicator;
  readonly tensor: Communicator | null;
}

export class Group implements AsyncDisposable {
  readonly rank: number;
  readonly size: number;
  readonly localSize: number;
  /** Of a pipeline. */
  readonly stages: number;
  /** Of all ranks. */
  readonly communicator: Communicator;
  /** Of the ranks that share the layers of this one's stage; null where it has them alone. */
  readonly tensor: Communicator | null;
  readonly #meeting: Rendezvous;
  #topics = 0;

  constructor(
    ranks: Ranks,
    meeting: Rendezvous,
    stages: number,
    communicator: Communicator,
    tensor: Communicator | null,
  ) {
    this.rank = ranks.rank;
    this.size = ranks.size;
    this.localSize = ranks.localSize;
    this.stages = stages;
    this.communicator = communicator;
    this.tensor = tensor;
    this.#meeting = meeting;
  }

  /** Of this rank: its stage's number. */
  get stage(): number {
    return Math.floor(this.rank / (this.size / this.stages));
  }

  get device(): Device {
    return this.communicator.device;
  }

  /** Aborts when a rank is lost, with the error as its reason. */
  get signal(): AbortSignal {
    return this.#meeting.signal;
  }

  /** Throws where a rank is lost. */
  check(): void {
    this.#meeting.check();
  }

  /** What every rank gives here, by rank: small values, as JSON. All ranks exchange in the same order. */
  exchange<T>(value: T): Promise<T[]> {
    return this.#meeting.exchange(`exchange ${this.#topics++}`, value);
  }

  /** Throws `RanksDiffer` on every rank where their values do; `what` names them. */
  requireSame(what: string, value: unknown): Promise<void> {
    return requireSame(this.#meeting, `same ${this.#topics++}`, what, value);
  }

  /** Of rank 0: tells the others something small, in order; `listen` is how they hear it. */
  tell(value: unknown): void {
    this.#meeting.tell(value);
  }

  /** Of the others: hands on what rank 0 tells, until `take` gives false. */
  listen(take: (value: unknown) => Promise<boolean>): Promise<void> {
    return this.#meeting.listen(take);
  }

  /** Ends the other ranks, too, with these words about this one. */
  fail(message: string): void {
    this.#meeting.fail(message);
  }

  /** All ranks are waited for, so that none is missed by another. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.signal.aborted) {
      await this.exchange("end").catch(() => {});
      if (!this.signal.aborted) {
        if (this.tensor !== this.communicator) this.tensor?.[Symbol.dispose]();
        this.communicator[Symbol.dispose]();
      }
    }
    await this.#meeting[Symbol.asyncDispose]();
  }
}

/** Meets the other ranks that were started with this process; throws on every rank where that cannot be. */
export async function joinGroup(options: GroupOptions): Promise<Group> {
  const ranks = ranksHere();
  const asked = options.size;
  if (!ranks) {
    return fail(
      "RendezvousFailed",
      `${asked ?? "several"} ranks were asked for, but this process was started alone; start it by \`wick launch -n ${asked ?? "N"} …\`, mpirun, srun or torchrun`,
    );
  }
  // MPICH's mpirun sends it to the others where a rank ends. Node.js would open its debugger's port, and some crash at that.
  if (familyOf(ranks) === "mpich") process.on("SIGUSR1", () => {});
  const device = Device.from(options.device);
  const isGpu = device.backend instanceof GpuBackend;
  const overMpi = !isGpu || ranks.master === null || ranks.job === null;
  const own = overMpi ? new MpiProcess(familyOf(ranks)) : null;
  if (own) own.interrupt = unmet(ranks, nearSeconds(options));
  const mpi = own && new Mpi(own);
  const meeting = await meet(ranks, mpi, options);
  if (own) own.interrupt = interruptOf(ranks, meeting);
  try {
    await requireSame(meeting, "version", "the release of Wick", wickVersion());
    await requireSame(meeting, "arguments", "the arguments", options.arguments ?? null);
    if (asked !== undefined && asked !== ranks.size) {
      const { stages = 1 } = options;
      const split = stages > 1 ? ` (${stages} stages of ${asked / stages})` : "";
      fail("RanksDiffer", `${asked} ranks${split} were asked for, but ${ranks.source} started ${ranks.size}`);
    }
    const stages = checkedStages(options.stages ?? 1, ranks);
    const { all, tensor } = await communicatorsFor(device, ranks, stages, meeting, mpi);
    return new Group(ranks, meeting, stages, all, tensor);
  } catch (error) {
    meeting.fail(error instanceof Error ? `failed: ${error.message}` : "failed");
    throw error;
  }
}

const familyOf = ({ source }: Ranks): "openmpi" | "mpich" | null =>
  source === "Open MPI's mpirun" ? "openmpi" : source === "MPICH's mpirun" ? "mpich" : null;

async function meet(ranks: Ranks, mpi: Mpi | null, options: GroupOptions): Promise<Rendezvous> {
  const { seconds, announces } = options;
  const more = { seconds, announces };
  const { rank, size, master, job } = ranks;
  if (mpi && (mpi.size !== size || mpi.rank !== rank)) {
    const why = familyOf(ranks)
      ? "the library is not that of the mpirun; set WICK_MPI_LIBRARY"
      : "on the CPU ranks are started by MPI's mpirun, or by an srun that knows MPI";
    return fail(
      "RendezvousFailed",
      `${ranks.source} says that this is rank ${rank} of ${size}, ${mpi.name} that it is rank ${mpi.rank} of ${mpi.size}: ${why}`,
    );
  }
  if (master && job !== null) return Rendezvous.open({ rank, size, ...master, job, ...more });
  if (!mpi) return fail("RendezvousFailed", "nobody says where rank 0 is: set MASTER_ADDR and MASTER_PORT");
  const near = { announces, seconds: nearSeconds(options) };
  const isLocal = ranks.localSize === size;
  const word = randomUUID();
  if (rank === 0) {
    const host = isLocal ? "127.0.0.1" : hostname();
    const own = { rank, size, host, bind: isLocal ? host : "0.0.0.0", port: 0, job: word, ...near };
    return Rendezvous.open(own, (port) => void mpi.text(JSON.stringify({ host, port, job: word })));
  }
  const told = JSON.parse(mpi.text("")) as { host: string; port: number; job: string };
  return Rendezvous.open({ rank, size, ...told, ...near });
}

function checkedStages(stages: number, { size, source }: Ranks): number {
  if (Number.isInteger(stages) && stages > 0 && size % stages === 0) return stages;
  return fail(
    "RanksDiffer",
    `a pipeline of ${stages} stages needs as many ranks for each of them, but ${source} started ${size}`,
  );
}

/** Ranks that MPI has brought together are there: whoever does not come to rank 0 within these is gone. */
const NEAR_SECONDS = 9;
const nearSeconds = ({ seconds }: GroupOptions): number =>
  seconds ?? positive("WICK_RENDEZVOUS_SECONDS", "seconds", NEAR_SECONDS);

/** Before the ranks have met nobody can say who it is that does not answer. */
const unmet =
  ({ rank }: Ranks, seconds: number) =>
  (waited: number): void => {
    if (waited < 1000 * seconds) return;
    fail("RendezvousFailed", `rank ${rank} has waited ${seconds} s for another that MPI had begun with`);
  };

const interruptOf =
  ({ rank }: Ranks, meeting: Rendezvous) =>
  (waited: number): void => {
    meeting.tick();
    meeting.check();
    if (waited > LEFT_MS && meeting.othersHaveLeft) fail("RankLost", `rank ${rank} waits for a rank that has ended`);
  };

async function communicatorsFor(
  device: Device,
  { rank, size }: Ranks,
  stages: number,
  meeting: Rendezvous,
  mpi: Mpi | null,
): Promise<Communicators> {
  const memory = inPlace(device);
  const { backend } = device;
  const shares = size / stages;
  const stage = Math.floor(rank / shares);
  const over = (library: CollectiveLibrary, own: number, ranks: number): Communicator =>
    new Communicator(own, ranks, device, library, memory);
  if (backend instanceof GpuBackend) {
    const ccl = backend.platform.collectives();
    // The library waits for the others by itself, and cannot be told that one is gone before it has begun.
    const opened = async (what: string, first: number, ranks: number): Promise<CclCommunicator> => {
      const made = rank === first ? Buffer.from(ccl.uniqueId()).toString("base64") : "";
      const ids = await meeting.exchange(what, made);
      const id = new Uint8Array(Buffer.from(ids[first]!, "base64"));
      return new CclCommunicator(ccl, backend, id, rank - first, ranks, meeting);
    };
    const all = await opened("unique id", 0, size);
    const some = stages > 1 && shares > 1 ? await opened("unique id of a stage", stage * shares, shares) : null;
    backend.trusts = () => {
      all.check();
      some?.check();
    };
    const communicator = over(all, rank, size);
    return {
      all: communicator,
      tensor: stages === 1 ? communicator : some && over(some, rank % shares, shares),
    };
  }
  if (!mpi) return fail("LibraryNotFound", `${device.name}: no library of collectives`);
  const all = over(mpi, rank, size);
  if (stages === 1) return { all, tensor: all };
  return { all, tensor: shares > 1 ? over(mpi.split(stage), rank % shares, shares) : null };
}

/** Libraries work on the device's memory itself. */
const inPlace = (device: Device): WithMemory => {
  const native = device.backend.nativeMemory;
  if (!native) fail("UnsupportedOp", `${device.name}: its memory is known to the device alone; use another device`);
  return (tensors, work) => work(...tensors.map((tensor) => spanOf(tensor, native!.address(tensor.storage))));
};

const spanOf = ({ shape, dtype, layout }: Tensor, base: bigint): Span => ({
  at: base + BigInt(layout.offset * sizeOf(dtype)),
  count: numel(shape),
  dtype,
});

function wickVersion(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}
