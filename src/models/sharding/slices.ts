/** Which part of every tensor of a file is a rank's, by the roles that the tensors have. */
import { fail } from "../../core/errors.ts";
import { formatShape, numel, type Shape } from "../../core/layout.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/weights-file.ts";
import type { ModelConfig } from "../config.ts";
import type { Rows } from "../weights/model-tensors.ts";
import {
  type FusedRoles,
  fusedName,
  matrixName,
  normName,
  stackNames,
  vectorName,
  type WeightsForm,
} from "../weights/naming.ts";
import type { HeadRole, LinearRole, NormRole, Place, VectorRole } from "../weights/weights.ts";
import type { Cut, ShardedRole, Sharding, Share } from "./cuts.ts";
import { blockOf, type Slice } from "./sliced-file.ts";

/** What a tensor is cut by: of each of the matrices over each other in it. */
export interface Named {
  readonly cuts: readonly (Cut | undefined)[];
  /** How many matrices there are one after the other, of experts or heads. */
  readonly count: number;
  readonly transposed: boolean;
  /** Where q, k and v are one: the rows of each head's follow each other. */
  readonly byHead: boolean;
}

/** Zeros that an input needs before and behind it, where its columns were read in whole blocks. */
export interface Padding {
  readonly before: number;
  readonly behind: number;
}

const fusedRoles = { "q,k,v": ["q", "k", "v"], "gate,up": ["gate", "up"] } as const;

/** The tensors of a model that are cut, by their names without ".weight" or ".bias". */
export function namedCuts(config: ModelConfig, form: WeightsForm, sharding: Sharding): Map<string, Named> {
  const { names } = form;
  const found = new Map<string, Named>();
  const add = (name: string | undefined, roles: readonly ShardedRole[], more: Partial<Named> = {}): void => {
    const cuts = roles.map((role) => sharding[role]);
    if (name === undefined || cuts.every((cut) => cut === undefined)) return;
    found.set(name, { cuts, count: 1, transposed: false, byHead: false, ...more });
  };
  add(names.embedding.token, ["token"]);
  add(matrixName(names, "head", {}), ["head"]);
  const transposed = form.transposed ?? false;
  for (let layer = 0; layer < config.layers; layer++) {
    const place: Place = { layer };
    for (const role of Object.keys(names.linear) as LinearRole[]) {
      if (role === "head") continue;
      add(matrixName(names, role, place), [role], { transposed });
      add(matrixName(names, role, { layer, shared: true }), [role], { transposed });
    }
    for (const [roles, parts] of Object.entries(fusedRoles)) {
      const name = fusedName(
        names,
        parts.map((role) => ({ role, outputs: 0 })),
        place,
      );
      add(name, parts, { transposed, byHead: roles === "q,k,v" && (form.fusedByHead ?? false) });
    }
    for (const role of Object.keys(names.norm) as NormRole[]) add(normName(names, role, place), [role]);
    for (const role of Object.keys(names.vector) as VectorRole[]) add(vectorName(names, role, place), [role]);
    addStacks(config, form, place, add);
  }
  return found;
}

function addStacks(
  { experts, heads }: ModelConfig,
  { names }: WeightsForm,
  place: Place,
  add: (name: string, roles: readonly ShardedRole[], more: Partial<Named>) => void,
): void {
  for (const roles of Object.keys(names.experts) as (LinearRole | HeadRole | FusedRoles)[]) {
    const parts = (fusedRoles as Record<string, readonly ShardedRole[]>)[roles] ?? [roles as ShardedRole];
    const ofHeads = roles === "keyUp" || roles === "valueUp";
    const count = ofHeads ? heads : (experts?.count ?? 0);
    for (const found of stackNames(names, roles, count, place)) {
      if (typeof found === "string") add(found, parts, { count });
      else for (const name of found) add(name, parts, {});
    }
  }
}

/** What the tensor is named without what it is of the matrix. */
const plainName = (name: string): [name: string, isBias: boolean] =>
  name.endsWith(".bias") ? [name.slice(0, -5), true] : [name.replace(/\.weight$/, ""), false];

const namedOf = (named: ReadonlyMap<string, Named>, name: string): [Named | undefined, boolean] => {
  const [plain, isBias] = plainName(name);
  return [named.get(plain) ?? named.get(name), isBias];
};

/** The largest block of the matrices whose columns are cut into stretches of a width. */
export function widthBlock(file: StoredWeights, named: ReadonlyMap<string, Named>): number {
  const blocks = file.tensors.flatMap((tensor) => {
    const [own, isBias] = namedOf(named, tensor.name);
    return own?.cuts[0] === "widthInputs" && !isBias ? [blockOf(tensor)] : [];
  });
  return Math.max(1, ...blocks);
}

/** A rank's part of every tensor that is cut, by its name, and what inputs must be padded by. */
export function slicesOf(
  file: StoredWeights,
  named: ReadonlyMap<string, Named>,
  share: Share,
): { slices: Map<string, Slice | null>; paddings: Map<string, Padding> } {
  const slices = new Map<string, Slice | null>();
  const paddings = new Map<string, Padding>();
  for (const tensor of file.tensors) {
    const [own, isBias] = namedOf(named, tensor.name);
    if (!own) continue;
    const cut = new TensorCut(file.path, tensor, own, share, isBias);
    slices.set(tensor.name, cut.slice());
    if (cut.padding) paddings.set(plainName(tensor.name)[0], cut.padding);
  }
  return { slices, paddings };
}

class TensorCut {
  readonly #path: string;
  readonly #tensor: WeightsTensor;
  readonly #named: Named;
  readonly #share: Share;
  readonly #isBias: boolean;
  padding: Padding | null = null;

  constructor(path: string, tensor: WeightsTensor, named: Named, share: Share, isBias: boolean) {
    this.#path = path;
    this.#tensor = tensor;
    this.#named = named;
    this.#share = share;
    this.#isBias = isBias;
  }

  slice(): Slice | null {
    const { cuts, transposed, count } = this.#named;
    const { shape } = this.#tensor;
    const [cut] = cuts;
    const ofInputs = cut === "headInputs" || cut === "widthInputs";
    // What is added to a sum of parts is one rank's.
    if (ofInputs && this.#isBias) return this.#share.rank === 0 ? this.#whole() : null;
    if (cut === "headStack") return this.#sliceStack();
    if (shape.length === 1) return this.#sliceRows(1);
    // The outputs of a stack's biases, and of matrices that are stored as (inputs, outputs), are columns.
    const columns = this.#isBias ? true : transposed !== ofInputs;
    return columns ? this.#sliceColumns() : this.#sliceRows(count);
  }

  #whole(): Slice {
    const { shape } = this.#tensor;
    return { rows: [{ start: 0, rows: rowsIn(shape) }], columns: null, shape };
  }

  /** Rows of each of `count` matrices of all parts over each other. */
  #sliceRows(count: number): Slice {
    const { shape } = this.#tensor;
    const each = rowsIn(shape) / count;
    const own = this.#rowsOf(each);
    const rows = Array.from({ length: count }, (_, i) =>
      own.map(({ start, rows }) => ({ start: start + i * each, rows })),
    ).flat();
    const left = own.reduce((sum, { rows }) => sum + rows, 0);
    return { rows, columns: null, shape: shape.length === 1 ? [left] : [...shape.slice(0, -2), left, shape.at(-1)!] };
  }

  #sliceStack(): Slice {
    const { shape } = this.#tensor;
    const { heads, allHeads } = this.#share;
    if (shape[0] !== allHeads) return this.#fail(`it has no matrix for each of ${allHeads} heads`);
    const rows = [scaled(heads, rowsIn(shape) / allHeads)];
    return { rows, columns: null, shape: [heads.count, ...shape.slice(1)] };
  }

  /** In whole blocks: what lies before and behind the rank's own columns in them meets zeros. */
  #sliceColumns(): Slice {
    const { shape } = this.#tensor;
    const block = blockOf(this.#tensor);
    const own = this.#rowsOf(shape.at(-1)!);
    const [{ start, rows }] = own as [Rows];
    const first = Math.floor(start / block) * block;
    const last = Math.ceil((start + rows) / block) * block;
    if (first !== start || last !== start + rows) {
      if (own.length > 1) return this.#fail("its parts do not end where blocks do");
      this.padding = { before: start - first, behind: last - start - rows };
    }
    const columns = own.length > 1 ? own : [{ start: first, rows: last - first }];
    const left = columns.reduce((sum, { rows }) => sum + rows, 0);
    return { ...this.#whole(), columns, shape: [...shape.slice(0, -1), left] };
  }

  /** The rows of a rank, of all parts over each other. */
  #rowsOf(total: number): Rows[] {
    const { cuts, byHead } = this.#named;
    const { allHeads, allKvHeads } = this.#share;
    if (byHead) {
      return [scaled(this.#share.heads, total / allHeads)];
    }
    // Parts of one kind are as long as each other; q is as many heads longer than k and v.
    const isAttention = cuts.includes("kvHeads") && cuts.length > 1;
    const unit = isAttention ? total / (allHeads + 2 * allKvHeads) : 0;
    let before = 0;
    return cuts.flatMap((cut) => {
      const length = isAttention ? unit * (cut === "heads" ? allHeads : allKvHeads) : total / cuts.length;
      const own = this.#stretches(cut, length).map(({ start, rows }) => ({ start: before + start, rows }));
      before += length;
      return joined(own);
    });
  }

  #stretches(cut: Cut | undefined, total: number): Rows[] {
    const { heads, kvHeads, allHeads, allKvHeads } = this.#share;
    switch (cut) {
      case "heads":
      case "headInputs":
        return [scaled(heads, total / allHeads)];
      case "kvHeads": {
        const each = total / allKvHeads;
        return kvHeads.map((head) => ({ start: head * each, rows: each }));
      }
      case "width":
      case "widthInputs": {
        const { start, count } = this.#share.width(total);
        return [{ start, rows: count }];
      }
      case "vocabulary": {
        const { start, count } = this.#share.vocabulary();
        return [{ start, rows: count }];
      }
      default:
        return [{ start: 0, rows: total }];
    }
  }

  #fail(why: string): never {
    const { name, shape } = this.#tensor;
    return fail("CannotShard", `${this.#path}: tensor "${name}" ${formatShape(shape)} cannot be split: ${why}`);
  }
}

/** A vector's rows are its elements. */
const rowsIn = (shape: Shape): number => numel(shape.length > 1 ? shape.slice(0, -1) : shape);

const scaled = ({ start, count }: { start: number; count: number }, unit: number): Rows => ({
  start: start * unit,
  rows: count * unit,
});

/** Neighbours are read in one go. */
function joined(rows: readonly Rows[]): Rows[] {
  const out: Rows[] = [];
  for (const next of rows) {
    const last = out.at(-1);
    if (last && last.start + last.rows === next.start) out[out.length - 1] = { ...last, rows: last.rows + next.rows };
    else out.push(next);
  }
  return out;
}
