#include "tiny/onnx/call/call.h"

#include <cstring>

#include "tiny/ir/build.h"

namespace tiny::onnx {

namespace {

// AttributeProto.AttributeType.
constexpr int64_t kRealKind = 1, kIntegerKind = 2, kTextKind = 3, kGraphKind = 5, kRealsKind = 6,
                  kIntegersKind = 7, kTextsKind = 8;

const char* name_of_attribute_type(int64_t type) {
  static const char* const kNames[] = {"undefined",      "a float", "an integer", "a string",
                                       "a tensor",       "a graph", "floats",     "integers",
                                       "strings",        "tensors", "graphs",     "a sparse tensor",
                                       "sparse tensors", "a type",  "types"};
  return type >= 0 && type < std::ssize(kNames) ? kNames[type] : "of an unknown type";
}

template <class T> std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

}  // namespace

bool Call::wants(size_t output) const {
  return output < node_.outputs.size() && !node_.outputs[output].empty();
}

const Tensor& Call::operator[](size_t i) const {
  check(has(i), node_.op, ": input ", i, " is left out");
  return inputs_[i];
}

const Attribute* Call::find(const char* name, int64_t type) const {
  for (const Attribute* a : attributes_) {
    if (a->name != name) continue;
    // Files of the first IR versions do not tell the type.
    check(type == 0 || a->type == 0 || a->type == type, node_.op, ": the attribute ", name, " is ",
          name_of_attribute_type(a->type), ", expected ", name_of_attribute_type(type));
    return a;
  }
  return nullptr;
}

int64_t Call::integer(const char* name, int64_t otherwise) const {
  const Attribute* a = find(name, kIntegerKind);
  return a ? a->integer : otherwise;
}

double Call::real(const char* name, double otherwise) const {
  const Attribute* a = find(name, kRealKind);
  return a ? static_cast<double>(a->real) : otherwise;
}

std::string Call::text(const char* name, const std::string& otherwise) const {
  const Attribute* a = find(name, kTextKind);
  return a ? a->text : otherwise;
}

Shape Call::integers(const char* name, const Shape& otherwise) const {
  const Attribute* a = find(name, kIntegersKind);
  return a ? a->integers : otherwise;
}

std::vector<double> Call::reals(const char* name) const {
  const Attribute* a = find(name, kRealsKind);
  return a ? std::vector<double>(a->reals.begin(), a->reals.end()) : std::vector<double>();
}

std::vector<std::string> Call::texts(const char* name) const {
  const Attribute* a = find(name, kTextsKind);
  return a ? a->texts : std::vector<std::string>();
}

const Graph& Call::graph(const char* name) const {
  const Attribute* a = find(name, kGraphKind);
  check(a && a->graph, node_.op, ": the attribute ", name, " is left out");
  return *a->graph;
}

Shape Call::host_integers(size_t i) const {
  const HostArray values = around_.values_of((*this)[i]);
  require(!values.dtype.is_float(), "input ", i, " is ", values.dtype, ", expected integers");
  return values.integers;
}

std::vector<double> Call::host_reals(size_t i) const {
  const HostArray values = around_.values_of((*this)[i]);
  if (values.dtype.is_float()) return values.reals;
  return {values.integers.begin(), values.integers.end()};
}

std::vector<Size> Call::host_sizes(size_t i) const {
  require((*this)[i].dtype().is_int(), "input ", i, " is ", (*this)[i].dtype(),
          ", expected integers");
  return around_.sizes_of((*this)[i]);
}

std::optional<Shape> Call::axes(size_t input, const char* attribute) const {
  if (has_attribute(attribute)) return integers(attribute);
  if (has(input)) return host_integers(input);
  return std::nullopt;
}

Tensor Call::constant(const Shape& values) const { return constant(values, {std::ssize(values)}); }

Tensor Call::constant(const Shape& values, const Shape& shape) const {
  return around_.constant(kI64, shape, bytes_of(values));
}

Tensor Call::constant(const std::vector<double>& values, const Shape& shape, DType dtype) const {
  if (dtype == kF64) return around_.constant(kF64, shape, bytes_of(values));
  const std::vector<float> narrow(values.begin(), values.end());
  const Tensor out = around_.constant(kF32, shape, bytes_of(narrow));
  return dtype == kF32 ? out : out.to(dtype);
}

int64_t axis_of(const Tensor& x, int64_t axis) { return normalize_axis("axis", axis, x.rank()); }

Shape bounds(const std::vector<Size>& sizes) {
  Shape out;
  for (const Size& size : sizes) out.push_back(size.value);
  return out;
}

Tensor limited(const Tensor& x, const std::vector<Size>& sizes) {
  Tensor out = x;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const Node length = sizes[axis].length;
    if (length != nullptr && out.node()->length(axis) == nullptr)
      out = Tensor(build::limit(out.node(), axis, length));
  }
  return out;
}

Tensor from_front(const Tensor& index, int64_t size) {
  if (index.dtype().is_unsigned()) return index;
  return where(index < 0, index + size, index);
}

Shape ones_but(int rank, int64_t axis, int64_t size) {
  Shape out(static_cast<size_t>(rank), 1);
  out[axis] = size;
  return out;
}

Tensor along_axis(const Tensor& x, int64_t axis, int rank) {
  if (x.rank() == 0) return x;
  return x.reshape(ones_but(rank, axis, x.numel()));
}

}  // namespace tiny::onnx
