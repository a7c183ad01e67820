// Maps of matrices, as a driver makes them for Hopper's copy engine: where one lies and what its boxes are, for kernels/gpu/boxes.h.
#include <string.h>

#include "runtime.h"

using namespace sim;

SIM_API int wickSimBoxMap(void* to, uint64_t at, uint64_t rows, uint64_t halves, uint64_t pieces, uint64_t pieceBytes,
                          uint64_t boxRows, uint64_t boxPieces) {
  if (!to || uintptr_t(to) % 64 || at % 16 || !halves || rows % halves || pieceBytes % 16 || boxRows > 256) return 1;
  const uint64_t words[] = {at, rows / halves, halves, pieces, pieceBytes, boxRows, boxPieces};
  memcpy(to, words, sizeof words);
  return 0;
}
