/** Every kernel: its name, and what emits it, by what it depends on. */
import type { Assembler } from "./assembler.ts";
import type { Isa } from "./isa.ts";
import { type AttentionKind, emitAttention } from "./kernels/attention.ts";
import { emitConv, emitConvInPlace, emitSpread } from "./kernels/conv.ts";
import { emitConvChannels } from "./kernels/conv-channels.ts";
import { emitConvTiles } from "./kernels/conv-tile.ts";
import { emitPackWeights } from "./kernels/conv-weights.ts";
import { emitGates } from "./kernels/gates.ts";
import { emitLagging } from "./kernels/lagging.ts";
import { emitLines } from "./kernels/lines.ts";
import { binaryOps, emitMap, type MapOp } from "./kernels/map.ts";
import { formulas } from "./kernels/math.ts";
import { emitPack, type ProductType } from "./kernels/panels.ts";
import { emitNextNumber, emitProduct, emitWidening, type Panels } from "./kernels/product.ts";
import { emitRounding, type RoundingForm } from "./kernels/quant-activations.ts";
import { blockCodes, type NativeQuantType } from "./kernels/quant-blocks.ts";
import { mostRows, type Planes } from "./kernels/quant-code.ts";
import { emitQuantProduct, type ProductForm } from "./kernels/quant-product.ts";
import { emitQuantTiles, type TilesForm, tileForm } from "./kernels/quant-tiles.ts";
import { emitTurning } from "./kernels/quant-turning.ts";
import { emitRotary } from "./kernels/rotary.ts";
import { emitNorm, emitSoftmax, emitSumBlocks, emitSumRows, type NormKind } from "./kernels/rows.ts";
import { emitTiles, type TileWords } from "./kernels/tile.ts";
import { emitTurned, turnedHeight, turnedRows } from "./kernels/turned.ts";
import { emitWinograd } from "./kernels/winograd.ts";
import { emitWinogradWeights } from "./kernels/winograd-weights.ts";
import { type FloatType, floatTypes } from "./simd.ts";

export interface Kernel {
  /** What it is known by; no other kernel of an instruction set has the same. */
  readonly name: string;
  /** void kernel(const void* args, size_t lo, size_t hi, void* scratch), by the System V convention. */
  readonly emit: (a: Assembler, isa: Isa) => void;
}

const flags = (...given: readonly boolean[]): string => given.map(Number).join("");
const formOf = ({ dtype, planes, words }: Omit<RoundingForm, "halves">): string =>
  `${words ? "words" : `${planes} planes`} ${dtype}`;

export const kernels = {
  tiles: (words: TileWords = "floats", result: FloatType = "f32", isStreamed = false) => ({
    name: `tiles ${words} ${result}${isStreamed ? " streamed" : ""}`,
    emit: emitTiles(words, result, isStreamed),
  }),
  widening: (type: FloatType) => ({ name: `widening ${type}`, emit: emitWidening(type) }),
  nextNumber: { name: "next number", emit: emitNextNumber },
  convWeights: { name: "conv weights", emit: emitPackWeights },
  convChannels: { name: "conv channels", emit: emitConvChannels },
  winogradWeights: { name: "winograd weights", emit: emitWinogradWeights },
  winograd: { name: "winograd", emit: emitWinograd },
  spread: { name: "spread", emit: emitSpread },
  conv: { name: "conv", emit: emitConv },
  convInPlace: { name: "conv in place", emit: emitConvInPlace },
  convTiles: (isStreamed: boolean) => ({
    name: `conv tiles ${flags(isStreamed)}`,
    emit: emitConvTiles(isStreamed),
  }),
  lines: (type: FloatType) => ({ name: `lines ${type}`, emit: emitLines(type) }),
  turned: (type: FloatType, height: number) => ({ name: `turned ${type} ${height}`, emit: emitTurned(type, height) }),
  lagging: { name: "lagging", emit: emitLagging },
  product: (type: ProductType, panels: Panels) => ({
    name: `product ${type} ${panels}`,
    emit: emitProduct(type, panels),
  }),
  pack: (type: ProductType) => ({ name: `pack ${type}`, emit: emitPack(type) }),
  map: (op: MapOp, type: FloatType, hasGaps: boolean) => ({
    name: `${op} ${type}${hasGaps ? " rows" : ""}`,
    emit: emitMap(op, type, hasGaps),
  }),
  softmax: (type: FloatType) => ({ name: `softmax ${type}`, emit: emitSoftmax(type) }),
  norm: (type: FloatType, kind: NormKind) => ({
    name: `norm ${type} ${flags(kind.isCentred, kind.hasWeight, kind.hasBias)}`,
    emit: emitNorm(type, kind),
  }),
  sumBlocks: (type: FloatType) => ({ name: `sum blocks ${type}`, emit: emitSumBlocks(type) }),
  sumRows: (type: FloatType) => ({ name: `sum rows ${type}`, emit: emitSumRows(type) }),
  gates: (act: "silu" | "gelu", type: FloatType) => ({ name: `gates ${act} ${type}`, emit: emitGates(act, type) }),
  rotary: (type: FloatType, isInterleaved: boolean) => ({
    name: `rotary ${type} ${flags(isInterleaved)}`,
    emit: emitRotary(type, isInterleaved),
  }),
  attention: (kind: AttentionKind) => ({
    name: `attention ${kind.type} ${flags(kind.isPaged, kind.hasCap, kind.hasMask, kind.hasSinks)}`,
    emit: emitAttention(kind),
  }),
  turning: (type: NativeQuantType) => ({ name: `turning ${type}`, emit: emitTurning(type) }),
  rounding: (form: RoundingForm) => ({
    name: `round ${formOf(form)} ${flags(form.halves)}`,
    emit: (a: Assembler, isa: Isa) => emitRounding(a, isa, form),
  }),
  quantProduct: (form: ProductForm) => ({
    name: `quantized ${form.type} ${form.planes} ${form.dtype} ${form.rows} ${flags(form.adds, form.strips, form.isTurned)}`,
    emit: (a: Assembler, isa: Isa) => emitQuantProduct(a, isa, form),
  }),
  quantTiles: (form: TilesForm) => ({
    name: `quantized tiles ${form.type} ${form.planes} ${form.dtype} ${form.rest} ${flags(form.adds, form.matrix)}`,
    emit: (a: Assembler, isa: Isa) => emitQuantTiles(a, isa, form),
  }),
} as const satisfies Readonly<Record<string, Kernel | ((...options: never[]) => Kernel)>>;

const productTypes = ({ pairs }: Isa): readonly ProductType[] => [
  ...floatTypes,
  ...(pairs ? (["pairs"] as const) : []),
];
const either = [false, true] as const;
const upTo = (n: number): readonly number[] => Array.from({ length: n }, (_, i) => i);

/** Images are read where they are, and columns by halves, under masks alone. */
const maskedOnly: ReadonlySet<Kernel> = new Set([kernels.convInPlace, kernels.lagging]);

/** All that an instruction set has, but those for activations of 8 bits; what is much alike is beside each other. */
export function* everyKernel(isa: Isa): Generator<Kernel> {
  for (const kernel of Object.values(kernels)) {
    if (typeof kernel === "object" && (isa.masks || !maskedOnly.has(kernel))) yield kernel;
  }
  if (isa.masks) for (const isStreamed of either) yield kernels.convTiles(isStreamed);
  const heights = new Set(upTo(turnedRows(isa)).map((rows) => turnedHeight(rows + 1)));
  const ops = [...Object.keys(formulas), "affine", ...binaryOps] as MapOp[];
  for (const result of isa.masks ? floatTypes : (["f32"] as const)) {
    yield kernels.tiles("floats", result);
    if (result === "f32") yield kernels.tiles("floats", result, true);
    if (result !== "f32") yield kernels.widening(result);
    if (!isa.pairs || result === "f16") continue;
    for (const words of ["pairs", "small pairs"] as const) yield kernels.tiles(words, result);
    yield kernels.tiles("pairs", result, true);
  }
  for (const type of productTypes(isa)) {
    yield kernels.pack(type);
    yield kernels.product(type, "own");
    yield kernels.product(type, "packed before");
    if (type !== "f32") yield kernels.product(type, "widened");
  }
  for (const type of floatTypes) {
    yield kernels.lines(type);
    for (const height of heights) yield kernels.turned(type, height);
    yield kernels.softmax(type);
    for (const isCentred of either) {
      for (const hasWeight of either) {
        for (const hasBias of either) yield kernels.norm(type, { isCentred, hasWeight, hasBias });
      }
    }
    yield kernels.sumBlocks(type);
    yield kernels.sumRows(type);
    for (const act of ["silu", "gelu"] as const) yield kernels.gates(act, type);
    for (const isInterleaved of either) yield kernels.rotary(type, isInterleaved);
    for (const op of ops) for (const hasGaps of either) yield kernels.map(op, type, hasGaps);
  }
  for (const type of floatTypes) {
    for (const isPaged of either) {
      for (const hasCap of either) {
        // Masks do not go with pages.
        for (const hasMask of isPaged ? [false] : either) {
          for (const hasSinks of either) yield kernels.attention({ type, isPaged, hasCap, hasMask, hasSinks });
        }
      }
    }
  }
  const types = Object.keys(blockCodes) as NativeQuantType[];
  for (const type of types) yield kernels.turning(type);
  for (const halves of either) {
    for (const words of isa.vnni ? either : [true]) {
      for (const dtype of floatTypes) yield kernels.rounding({ dtype, halves, planes, words });
    }
  }
  for (const type of types) yield* quantized(isa, type);
}

/** Of activations, as they are rounded where nothing else is asked for. */
const planes: Planes = 2;
/** Rows of weights as they are, in whole strips of blocks, and turned. */
const orders = [
  [false, false],
  [true, false],
  [false, true],
] as const;

function* quantized(isa: Isa, type: NativeQuantType): Generator<Kernel> {
  for (const rows of upTo(mostRows(isa)).map((i) => i + 1)) {
    for (const [strips, isTurned] of orders) {
      for (const dtype of floatTypes) {
        for (const adds of either) {
          yield kernels.quantProduct({ type, dtype, planes, rows, adds, strips, isTurned });
        }
      }
    }
  }
  for (const matrix of isa.amx && !blockCodes[type].halves ? either : [false]) {
    for (const rest of upTo(matrix ? 1 : tileForm(isa).rows)) {
      for (const dtype of floatTypes) {
        for (const adds of either) yield kernels.quantTiles({ type, dtype, planes, rest, adds, matrix });
      }
    }
  }
}
