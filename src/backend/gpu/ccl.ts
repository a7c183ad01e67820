/** NCCL, and RCCL, which has the same API under the same names: the calls, and what their numbers mean. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { type Bound, ffi, type Library, type LibrarySpec, type NativeFunction, openLibrary } from "./library.ts";

// nccl.h from 2.7 on, and rccl.h from ROCm 4 on. ncclComm_t and streams are pointers, the enums are int.
const prototypes = {
  version: "int ncclGetVersion(void *version)",
  uniqueId: "int ncclGetUniqueId(void *id)",
  destroy: "int ncclCommDestroy(void *comm)",
  asyncError: "int ncclCommGetAsyncError(void *comm, void *out)",
  allReduce: "int ncclAllReduce(void *from, void *to, size_t count, int type, int op, void *comm, void *stream)",
  allGather: "int ncclAllGather(void *from, void *to, size_t count, int type, void *comm, void *stream)",
  reduceScatter:
    "int ncclReduceScatter(void *from, void *to, size_t count, int type, int op, void *comm, void *stream)",
  broadcast: "int ncclBroadcast(void *from, void *to, size_t count, int type, int root, void *comm, void *stream)",
  send: "int ncclSend(void *at, size_t count, int type, int peer, void *comm, void *stream)",
  receive: "int ncclRecv(void *at, size_t count, int type, int peer, void *comm, void *stream)",
  groupStart: "int ncclGroupStart()",
  groupEnd: "int ncclGroupEnd()",
} as const;
const INIT = "int ncclCommInitRank(void *comm, int size, WickCclId id, int rank)";
const ERROR_TEXT = "const char *ncclGetErrorString(int code)";
/** Ends what a communicator waits for, from any thread. */
export const CCL_ABORT = "int ncclCommAbort(void *comm)";

/** Bytes of ncclUniqueId. */
export const CCL_ID_BYTES = 128;
/** ncclDataType_t, of what they add up themselves. */
export const cclTypes: Readonly<Partial<Record<DType, number>>> = {
  u8: 1,
  i32: 2,
  u32: 3,
  i64: 4,
  f16: 6,
  f32: 7,
  f64: 8,
  bf16: 9,
};
/** ncclUint8, for what is only moved. */
export const CCL_BYTE = 1;
/** ncclRedOp_t. */
export const cclReductions = { sum: 0, max: 2, min: 3 } as const;
/** ncclInProgress: no error, and not an end either. */
const IN_PROGRESS = 7;

export interface Ccl {
  readonly name: "NCCL" | "RCCL";
  /** Where the library is. */
  readonly library: string;
  readonly version: string;
  readonly api: Bound<typeof prototypes>;
  /** A name for a communicator that rank 0 makes and all ranks give. */
  uniqueId(): Uint8Array;
  /** The communicator of the device that is current on this thread; waits until all ranks have called. */
  init(size: number, id: Uint8Array, rank: number): { readonly code: number; readonly comm: bigint };
  describe(code: number): string;
  /** What went wrong since the last call; 0 where nothing did. */
  asyncError(comm: bigint): number;
}

let knowsId = false;

/** Throws `LibraryNotFound`. */
export function openCcl(name: Ccl["name"], spec: LibrarySpec, explicit?: string, near?: Library): Ccl {
  const library = openLibrary(spec, explicit, near);
  const api = library.bind(prototypes);
  // The only struct that is passed by value.
  if (!knowsId) ffi().struct("WickCclId", { bytes: ffi().array("uint8", CCL_ID_BYTES, "Typed") });
  knowsId = true;
  const initRank = library.func(INIT) as unknown as (...args: unknown[]) => number;
  const errorText: NativeFunction<string> = library.func<string>(ERROR_TEXT);
  library.func(CCL_ABORT);
  const describe = (code: number): string => `${errorText(code)} (${code})`;
  const number = new Int32Array(1);
  api.version(number);
  return {
    name,
    library: library.path,
    version: versionOf(number[0]!),
    api,
    uniqueId() {
      const id = new Uint8Array(CCL_ID_BYTES);
      const code = api.uniqueId(id);
      if (code !== 0) fail("CollectiveFailed", `${name}: ncclGetUniqueId failed: ${describe(code)}`);
      return id;
    },
    init(size, bytes, rank) {
      const comm = new BigUint64Array(1);
      return { code: initRank(comm, size, { bytes }, rank), comm: comm[0]! };
    },
    describe,
    asyncError(comm) {
      const out = new Int32Array(1);
      const code = api.asyncError(comm, out) || out[0]!;
      return code === IN_PROGRESS ? 0 : code;
    },
  };
}

/** 22803 is 2.28.3, and 2708 was 2.7.8. */
export const versionOf = (code: number): string =>
  code < 10_000
    ? `${Math.floor(code / 1000)}.${Math.floor(code / 100) % 10}.${code % 100}`
    : `${Math.floor(code / 10_000)}.${Math.floor(code / 100) % 100}.${code % 100}`;
