// The nodes of a tensor graph as nodes of an ONNX graph.
#pragma once
#include <map>
#include <string>

#include "tiny/onnx/export/products.h"

namespace tiny::onnx {

// The node whose values these are: gradients, copies and the like are no part of a file.
Node behind(Node n);

class GraphExport final : private OperandWriter {
 public:
  explicit GraphExport(GraphWriter& out) : out_(out) {}

  // The node is an input: a view of its memory, which may be viewed in other shapes as well.
  void set_input(Node n, const Name& name);
  // Memory that the graph reads from outside, with a name.
  void set_weight(Node n, const Name& name);
  // The node has these values, whatever it is computed from.
  void set_value(Node n, const Tensor& value) { values_[n] = value; }
  // Writes a node and what it needs. Throws Error for what ONNX has no operator for.
  Name write(Node root) override;

 private:
  Name write_node(Node n);
  Name write_leaf(Node n);
  Name write_memory(Node n);
  Name write_unary(Node n);
  Name write_binary(Node n);
  std::vector<Name> write_operands(Node n);
  Name write_integer_division(Node n, const Name& x, const Name& y);
  Name write_shift(Node n, const Name& x, const Name& y);
  Name write_reduce(Node n);
  Name write_gather(Node n);
  Name write_gather_along(Node n, size_t axis, const IndexMap& index);
  Name write_movement(Node n);
  Name write_map(const IndexMap& map) override;
  IndexMap map_of(Node n) override;

  GraphWriter& out_;
  std::map<Node, Name> names_, weight_names_;
  std::map<Node, Tensor> values_;
  std::map<Node, Node> views_;  // of inputs and named weights, by their memory
};

}  // namespace tiny::onnx
