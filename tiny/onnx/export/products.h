// Sums of products as the operators that they are: matrix products, convolutions.
#pragma once
#include <optional>

#include "tiny/onnx/export/view.h"
#include "tiny/onnx/export/writer.h"

namespace tiny::onnx {

// What writes the operands of a product.
class OperandWriter {
 public:
  virtual ~OperandWriter() = default;
  virtual Name write(Node n) = 0;
  virtual Name write_map(const IndexMap& map) = 0;  // the values that it takes from its source
  virtual IndexMap map_of(Node n) = 0;
};

// `reduce` is a ReduceAxis. A sum of a product of floats, which is no memory of its own, becomes
// Conv, or Einsum of operands that are gathered where they are no plain axes of their sources.
// Nothing for other reductions.
std::optional<Name> write_product(Node reduce, GraphWriter& out, OperandWriter& operands);

}  // namespace tiny::onnx
