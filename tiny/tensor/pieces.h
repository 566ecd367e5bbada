// Tensors whose values come piece by piece, so that the host never holds all of them twice.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "tiny/base/file.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// Gives `count` elements, row-major, from element `begin` on: contiguous memory of the host that is
// valid until the next call. Called for one piece after the other, each but the last of
// kPieceElements.
using Pieces = std::function<const void*(int64_t begin, int64_t count)>;
inline constexpr int64_t kPieceElements = int64_t{1} << 20;

// Equal to Tensor::from_bytes of the same values. First frees the memory of tensors that nobody
// refers to any more, and before large ones the memory that devices keep. Throws errors of
// `pieces`.
Tensor from_pieces(const Pieces& pieces, DType dtype, const Shape& shape,
                   const std::string& device = "");

// The values that a file holds from byte `begin` on, little-endian.
Tensor from_file(const MappedFile& file, int64_t begin, DType dtype, const Shape& shape,
                 const std::string& device = "");

namespace runtime_seam {
// As upload() (tensor.h), and frees what nobody refers to; defined with it.
Node upload_pieces(const Pieces& pieces, DType dtype, int64_t count, const std::string& device);
}  // namespace runtime_seam

}  // namespace tiny
