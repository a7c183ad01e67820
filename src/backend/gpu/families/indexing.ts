/** Selecting, gathering, scattering. */
import { sizeOf } from "../../../core/dtype.ts";
import { all, blocks, family, ids, perThread } from "./family.ts";

/** Vectors of 16 bytes that a thread of index_select moves. */
const SELECT_VECTORS = 2;

/** Whether a scatter gives each lane (a place on the other dims) to a block rather than to a thread. */
export const scatterByBlocks = (lanes: number, length: number): boolean => lanes < 16384 && length > 32;

export const indexing = [
  family({
    file: "indexing",
    pattern: "index_select_{I}_{T}",
    over: { I: ids, T: all },
    args: "x* ids* out* left x_dim ids_dim right ids_stride left_stride dim_stride error*",
    defines: { SELECT_VECTORS },
    launch: (s, b) => perThread(s.left * s.ids_dim * s.right, (SELECT_VECTORS * 16) / sizeOf(b.T)),
  }),
  family({
    file: "indexing",
    pattern: "gather_{I}_{T}",
    over: { I: ids, T: all },
    args: "x* ids* out* numel num_dims info* x_dim x_stride error*",
    launch: (s) => perThread(s.numel),
  }),
  family({
    file: "indexing",
    pattern: "{op}_{I}_{T}",
    over: { op: ["scatter", "scatter_add"], I: ids, T: all },
    args: "x* ids* out* lanes x_dim out_dim num_dims info* ids_stride x_stride out_stride blocks:u32 error*",
    launch: (s) => (s.blocks ? blocks(s.lanes) : perThread(s.lanes)),
  }),
] as const;
