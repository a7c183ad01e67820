/** Selecting, gathering, scattering. */
import { sizeOf } from "../../../core/dtype.ts";
import { all, blocks, dtype, type Family, ids, type Launch, layout, perThread, type Sizes } from "./family.ts";

const scatterTail =
  "inp* out* left src_dim dst_dim right num_dims info* ids_stride src_stride dst_stride blocks:u32 error*";

const scattered = (s: Sizes): Launch => (s.blocks ? blocks(s.left! * s.right!) : perThread(s.left! * s.right!));

/** Whether scatter and index_add give each lane (a place on the other dims) to a block rather than to a thread. */
export const scatterByBlocks = (lanes: number, length: number): boolean => lanes < 16384 && length > 32;

export const indexing: readonly Family[] = [
  {
    file: "indexing",
    pattern: "is_{I}_{T}",
    over: { I: ids, T: all },
    args: `${layout} ids* inp* out* left src_dim ids_dim right left_stride dim_stride error*`,
    launch: (s, b) => perThread(s.numel!, (2 * 16) / sizeOf(dtype(b))),
  },
  {
    file: "indexing",
    pattern: "gather_{I}_{T}",
    over: { I: ids, T: all },
    args: "numel ids* inp* out* left src_dim ids_dim right num_dims info* src_stride error*",
    launch: (s) => perThread(s.numel!),
  },
  {
    file: "indexing",
    pattern: "{op}_{I}_{T}",
    over: { op: ["s", "sa"], I: ids, T: all },
    args: `ids* ${scatterTail}`,
    launch: scattered,
  },
  {
    file: "indexing",
    pattern: "ia_{I}_{T}",
    over: { I: ids, T: all },
    args: `ids* ids_dim ${scatterTail}`,
    launch: scattered,
  },
];
