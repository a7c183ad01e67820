/**
 * Tile registers in memory: what kernels with AMX compute can be looked at where the processor has none. Rows of tiles are as
 * far apart as the distances that kernels put into the index register, which are known here by the register.
 */
import type { Assembler } from "../../src/backend/cpu/native/assembler.ts";
import type { Kernel } from "../../src/backend/cpu/native/catalogue.ts";
import type { Isa } from "../../src/backend/cpu/native/isa.ts";
import { gpr, record } from "../../src/backend/cpu/native/kernels/quant-code.ts";
import { Native } from "../../src/backend/cpu/native/native.ts";
import { type Mem, mem, type Tile, zmm } from "../../src/backend/cpu/native/operands.ts";

/** Where they are in the thread's memory. */
const TILES_AT = 3 * 2 ** 20;
const ROW = 64;

interface Shape {
  readonly rows: number;
  readonly bytes: number;
}

/** The assembler emits other instructions for those with tiles. */
function inMemory(a: Assembler): Assembler {
  let shapes: Shape[] = [];
  const data = a.data.bind(a);
  let latest = new Uint8Array();
  const row = ({ id }: Tile, r: number): Mem => mem(gpr.frame, TILES_AT + 1024 * id + ROW * r);
  const far = ({ base, index, disp }: Mem, r: number): Mem =>
    mem(base, disp + r * (index === gpr.out ? record.bytes : 128));
  const [x, y] = [zmm(30), zmm(31)];
  const move = (bytes: number, to: Mem, from: Mem) => {
    const part = bytes === 32 ? x.y : x;
    a.vmovups(part, from);
    a.vmovups(to, part);
  };
  const instead: Partial<Record<keyof Assembler, unknown>> = {
    data: (bytes: Uint8Array) => {
      latest = bytes as typeof latest;
      return data(bytes);
    },
    ldtilecfg: () => {
      shapes = Array.from({ length: 8 }, (_, t) => ({ rows: latest[48 + t]!, bytes: latest[16 + 2 * t]! }));
    },
    tilerelease: () => {},
    tilezero: (tile: Tile) => {
      a.vpxord(x, x, x);
      for (let r = 0; r < shapes[tile.id]!.rows; r++) a.vmovups(row(tile, r), x);
    },
    tileloadd: (tile: Tile, from: Mem) => {
      const { rows, bytes } = shapes[tile.id]!;
      for (let r = 0; r < rows; r++) move(bytes, row(tile, r), far(from, r));
    },
    tilestored: (to: Mem, tile: Tile) => {
      const { rows, bytes } = shapes[tile.id]!;
      for (let r = 0; r < rows; r++) move(bytes, far(to, r), row(tile, r));
    },
    tdpbsud: (sum: Tile, signed: Tile, unsigned: Tile) => {
      for (let r = 0; r < shapes[sum.id]!.rows; r++) {
        a.vmovups(x, row(sum, r));
        for (let k = 0; k < shapes[unsigned.id]!.rows; k++) {
          a.vmovups(y, row(unsigned, k));
          a.vpdpbusd(x, y, row(signed, r).plus(4 * k).each);
        }
        a.vmovups(row(sum, r), x);
      }
    },
  };
  for (const [name, value] of Object.entries(instead)) Object.defineProperty(a, name, { value });
  return a;
}

/** With VNNI, and AMX by its means. */
export class NativeWithTiles extends Native {
  constructor(isa: Isa) {
    super({ ...isa, amx: true });
  }

  override kernel({ name, emit }: Kernel): number {
    return super.kernel({ name: `${name}, tiles in memory`, emit: (a, isa) => emit(inMemory(a), isa) });
  }
}
