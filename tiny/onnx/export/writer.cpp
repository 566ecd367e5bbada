#include "tiny/onnx/export/writer.h"

#include <cmath>
#include <cstring>

namespace tiny::onnx {

Attribute GraphWriter::integer(const std::string& name, int64_t value) {
  Attribute a;
  a.name = name;
  a.type = 2;
  a.integer = value;
  return a;
}

Attribute GraphWriter::list(const std::string& name, const Shape& values) {
  Attribute a;
  a.name = name;
  a.type = 7;
  a.integers = values;
  return a;
}

Name GraphWriter::add(const std::string& op, const std::vector<Name>& inputs,
                      const std::vector<Attribute>& attributes) {
  Name out = fresh("v");
  graph_.nodes.push_back({"", op, "", "", inputs, {out}, attributes});
  return out;
}

Name GraphWriter::integers(const Shape& values) { return integers(values, {std::ssize(values)}); }

Name GraphWriter::integers(const Shape& values, const Shape& shape) {
  const auto [at, is_new] = integers_.try_emplace({values, shape}, "");
  if (!is_new) return at->second;
  at->second = fresh("i");
  TensorData data;
  data.name = at->second;
  data.type = type_of_dtype(kI64);
  data.dims = shape;
  data.integers = values;
  graph_.initializers.push_back(std::move(data));
  return at->second;
}

Name GraphWriter::scalar(DType dtype, double value) {
  // By bits: a NaN equals no key, and -0 is not 0.
  double key = 0;
  std::memcpy(&key, &value, sizeof key);
  if (value == value && !(value == 0 && std::signbit(value))) {
    const auto at = scalars_.find({dtype.scalar, key});
    if (at != scalars_.end()) return at->second;
  }
  const Name name = weights(Tensor::full({}, value, kF64).to(dtype), fresh("c"));
  if (value == value && !(value == 0 && std::signbit(value))) scalars_[{dtype.scalar, key}] = name;
  return name;
}

Name GraphWriter::weights(const Tensor& x, const std::string& name) {
  TensorData data;
  data.name = name.empty() ? fresh("w") : name;
  data.type = type_of_dtype(x.dtype());
  data.dims = to_shape(x.shape());
  bytes_.emplace_back(static_cast<size_t>(x.numel() * x.dtype().size()));
  x.to_bytes(bytes_.back().data());
  data.has_raw = true;
  data.raw = bytes_.back();
  graph_.initializers.push_back(data);
  return data.name;
}

Name GraphWriter::reshape(const Name& x, const Shape& shape) {
  // Sizes of 0 would be copied.
  return add("Reshape", {x, integers(shape)}, {integer("allowzero", 1)});
}

Name GraphWriter::transpose(const Name& x, const std::vector<size_t>& order) {
  Shape perm(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) return add("Transpose", {x}, {list("perm", perm)});
  return x;
}

Name GraphWriter::cast(const Name& x, DType dtype) {
  return add("Cast", {x}, {integer("to", type_of_dtype(dtype))});
}

}  // namespace tiny::onnx
