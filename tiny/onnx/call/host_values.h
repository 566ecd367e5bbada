// Values of small graphs on the host. ONNX models compute shapes with tensors (Shape, Gather,
// Concat, Reshape, ...); an operator that needs such a value asks here, and no device is.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny::onnx {

// A row-major array: of floats `reals`, else `integers` (bool: 0 and 1; u64: its bits).
struct HostArray {
  DType dtype;
  Shape shape;
  std::vector<double> reals = {};
  std::vector<int64_t> integers = {};

  HostArray(DType type, Shape dims);  // zeros
  size_t size() const { return static_cast<size_t>(numel(shape)); }
};

// Of bytes as Tensor::to_bytes gives them.
HostArray host_array(const std::byte* bytes, DType dtype, const Shape& shape);

// Values that are known on the host: those of tensors made from it, and what follows from them.
class HostValues {
 public:
  // `outer`: values that are known besides; it lives as long as this.
  explicit HostValues(const HostValues* outer = nullptr) : outer_(outer) {}

  // `x`, in memory of a device, has these values.
  void know(const Tensor& x, HostArray value);

  // Evaluates the graph of x. Empty where it reads memory whose values are not known, is larger
  // than the arithmetic of shapes, or divides by zero.
  std::optional<HostArray> find(const Tensor& x);

 private:
  const HostArray* known(Node n) const;

  struct Known {
    NodeRef node;
    HostArray value;
  };
  const HostValues* outer_;
  std::map<Node, Known> known_;
};

}  // namespace tiny::onnx
