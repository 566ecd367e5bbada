#include "tiny/tensor/pieces.h"

#include "tiny/ir/build.h"
#include "tiny/tensor/detail.h"

namespace tiny {

Tensor from_pieces(const Pieces& pieces, DType dtype, const Shape& shape,
                   const std::string& device) {
  detail::require_shape("from", shape);
  const int64_t count = numel(shape);
  if (count == 0) return Tensor::zeros(shape, dtype);
  if (const auto members = device_members(device_id(device)); !members.empty())
    return from_pieces(pieces, dtype, shape, device_name(members[0])).to(device);
  return Tensor(build::reshape(runtime_seam::upload_pieces(pieces, dtype, count, device), shape));
}

// The pages of a piece are given back when the next one is asked for.
Tensor from_file(const MappedFile& file, int64_t begin, DType dtype, const Shape& shape,
                 const std::string& device) {
  const int64_t size = dtype.size();
  file.bytes(begin, numel(shape) * size);  // it is all there
  int64_t released = 0;
  const auto piece = [&](int64_t first, int64_t count) {
    file.release(begin + released * size, (first - released) * size);
    released = first;
    return file.bytes(begin + first * size, count * size).data();
  };
  Tensor out = from_pieces(piece, dtype, shape, device);
  file.release(begin + released * size, (numel(shape) - released) * size);
  return out;
}

}  // namespace tiny
