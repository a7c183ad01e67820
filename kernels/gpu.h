// All that kernels are written against, in the headers of gpu/, which are the ones that know the compiler: hiprtc or clang for
// AMD, nvrtc or nvcc for NVIDIA, and a host C++ compiler for the simulator. They include no system header: run-time compilers
// have none. All names live in namespace gpu, where the kernels are, too, so that nothing collides with what a run-time
// compiler declares by itself (hiprtc's implicit header, for one).
//
// Conventions of every kernel
// - Arguments: operands, what is read before what is written, under the names x (or lhs, rhs; a, b; q, k, v; w; ids …) and out;
//   then sizes, strides and info; then other numbers; at last `error`, where bad ids are noted.
// - size_t and pointers are 64-bit, indices are 64-bit; strides are signed (int64 in a size_t array).
// - `info` points to dims ‖ strides (‖ strides of further operands), counted in elements; null = all contiguous.
// - Numbers that a kernel and its launch must agree on are macros: src/backend/gpu/families/ states them, and every compilation is
//   given them. Blocks have GPU_BLOCK threads unless a kernel says otherwise.
// - Blocks are one-dimensional; a launch has at least one element. Grid sizes are capped, so kernels loop over blocks.
// - Halves are stored as 16 bits and computed in f32.
#ifndef WICK_GPU_H
#define WICK_GPU_H
#include "gpu/compiler.h"
#include "gpu/threads.h"
#include "gpu/dtypes.h"
#include "gpu/words.h"
#include "gpu/memory.h"
#include "gpu/warp.h"
#include "gpu/math.h"
#include "gpu/arithmetic.h"
#include "gpu/layout.h"

#endif  // WICK_GPU_H
