#include "tiny/models/files/formats/output.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/tensor/pieces.h"

namespace tiny {

namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.numel()) * tensor.dtype().size());
  tensor.to_bytes(bytes.data());
  return bytes;
}

void require_finite(const std::string& name, const StoredType& type, std::span<const float> values,
                    int64_t first) {
  const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
  if (bad != values.end())
    throw Error(cat("tensor ", name, ": element ", first + (bad - values.begin()), " is ", *bad,
                    ", which ", type.name, " cannot hold"));
}

void convert(const OutputTensor& to, const StoredType& from_type, const Tensor& tensor,
             const ByteSink& sink) {
  const std::vector<std::byte> held = bytes_of(tensor);
  std::vector<float> values;
  std::vector<std::byte> encoded;
  const int64_t count = tensor.numel();
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - begin);
    values.resize(static_cast<size_t>(size));
    from_type.decode(held.data() + begin * from_type.bytes, size, values.data());
    if (to.type->elements > 1) require_finite(to.name, *to.type, values, begin);
    encoded.resize(static_cast<size_t>(size / to.type->elements * to.type->bytes));
    to.type->encode(values.data(), size, encoded.data());
    sink(text_of(encoded));
  }
}

}  // namespace

OutputTensor output_tensor(const std::string& name, const Tensor& tensor, const StoredType* type) {
  const StoredType* from = find_stored_type(tensor.dtype());
  check(from != nullptr, "tensor ", name, ": files have no type for ", tensor.dtype());
  if (type == nullptr) type = from;
  OutputTensor out{name, type, to_shape(tensor.shape()), {}};
  if (type == from) {
    out.write = [tensor](const ByteSink& sink) { sink(text_of(bytes_of(tensor))); };
    return out;
  }
  check(from->decode != nullptr && type->encode != nullptr, "tensor ", name, ": ", tensor.dtype(),
        " cannot be written as ", type->name);
  check(type->bytes_of(out.shape).has_value(), "tensor ", name, ": rows of ",
        out.shape.empty() ? 1 : out.shape.back(), " elements cannot be written as ", type->name,
        ", whose blocks have ", type->elements);
  out.write = [to = OutputTensor(out), from, tensor](const ByteSink& sink) {
    convert(to, *from, tensor, sink);
  };
  return out;
}

OutputTensor output_bytes(const std::string& name, const StoredType& type, const Shape& shape,
                          std::span<const std::byte> bytes) {
  const std::optional<int64_t> expected = type.bytes_of(shape);
  check(expected && *expected == static_cast<int64_t>(bytes.size()), "tensor ", name,
        ": a tensor of shape ", to_text(shape), " as ", type.name, " has ",
        expected ? cat(*expected) : "no whole number of", " bytes, not ", bytes.size());
  return {name, &type, shape, [bytes](const ByteSink& sink) { sink(text_of(bytes)); }};
}

}  // namespace tiny
