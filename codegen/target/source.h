// The output of code generation: the text of one kernel in some language, and its launch sizes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tiny/ir/dtype.h"

namespace tiny {

// Source of one kernel, ready for a compiler. `entry` is the exported symbol.
struct Source {
  std::string entry;
  std::string text;
  enum class Language { LlvmIr, C, Cuda, Hip, Wgsl } language = Language::C;
  bool is_gemm = false;  // matrix products and convolutions: worth the compiler's slower pipeline
};

// A TMA descriptor: a tensor, and the box of it that one bulk copy moves into shared memory, rows
// of 128 bytes swizzled. Elements outside the tensor are copied as zeros. Descriptors come before
// the buffers' addresses among a kernel's arguments.
//
// In im2col mode (`windows`) the tensor is images: axes channel, the spatial ones from the
// innermost on, image. A copy names the pixel that the first window begins at and an offset in
// windows, and gets that element of box[1] windows, in the order of images and pixels: beginnings
// advance by `steps` from lower to size - 1 + upper along each spatial axis.
struct TensorMap {
  int slot = 0;        // the buffer in which it lies, from its start
  int64_t offset = 0;  // bytes
  int element_bytes = 2;
  DType dtype = kF16;       // f32 is rounded to TF32 when it is copied
  int rank = 0;             // up to 5; the first axis is contiguous
  int64_t sizes[5] = {};    // elements
  int64_t strides[5] = {};  // bytes, multiples of 16 but the first
  int box[5] = {};          // elements
  bool windows = false;
  int lower[3] = {}, upper[3] = {}, steps[3] = {};  // of axes 1, 2, ... rank - 2
  bool once = false;  // each element is copied by one block: what lies beside it is not fetched too
};

// How a kernel is launched. On the CPU grid[0] is the extent of the parallel range, cut into
// calls `entry(void** args, int64_t begin, int64_t end)` of at least `chunk` iterations;
// on a GPU grid and block are launch sizes.
struct LaunchSize {
  int64_t grid[3] = {1, 1, 1};
  int64_t block[3] = {1, 1, 1};
  int64_t shared_bytes = 0;
  int64_t chunk = 1;
  std::vector<TensorMap> maps = {};
  int cluster = 1;  // neighbours of the grid's first axis that run together
  // The kernel itself waits, before it reads or writes memory, for those that a graph has before it
  // ("Programmatic Dependent Launch" in the CUDA programming guide): it may start when their blocks
  // have ended, while what they wrote is on its way to memory.
  bool waits = false;
};

}  // namespace tiny
