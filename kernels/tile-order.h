// The order in which blocks make the tiles of a matrix.
#ifndef WICK_TILE_ORDER_H
#define WICK_TILE_ORDER_H
#include "gpu.h"
namespace gpu {

// Tile i of a result of `down` × `across` of them, in bands of so many rows of tiles: neighbours in time share lines of both operands.
struct TileAt {
  size_t row, column;
};
GPU_FN TileAt tile_at(size_t i, size_t down, size_t across) {
  constexpr size_t BAND = 8;
  const size_t band = divide(i, BAND * across), in = i - band * BAND * across;
  const size_t height = band * BAND + BAND <= down ? BAND : down - band * BAND, column = divide(in, height);
  return TileAt{band * BAND + in - column * height, column};
}

}  // namespace gpu
#endif
