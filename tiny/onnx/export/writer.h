// The ONNX graph that an export makes, node by node.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tiny/onnx/format/model.h"
#include "tiny/tensor/tensor.h"

namespace tiny::onnx {

using Name = std::string;

class GraphWriter {
 public:
  // A node of one result, and the name of that.
  Name add(const std::string& op, const std::vector<Name>& inputs,
           const std::vector<Attribute>& attributes = {});
  // i64, 1-d or of this shape; one initializer for the same numbers.
  Name integers(const Shape& values);
  Name integers(const Shape& values, const Shape& shape);
  Name scalar(DType dtype, double value);
  // The values of a tensor, which are read.
  Name weights(const Tensor& x, const std::string& name);

  Name reshape(const Name& x, const Shape& shape);
  Name transpose(const Name& x, const std::vector<size_t>& order);
  Name cast(const Name& x, DType dtype);

  // The version that all nodes so far need.
  void need_version(int64_t version) { version_ = std::max(version_, version); }
  int64_t version() const { return version_; }
  Graph& graph() { return graph_; }

  static Attribute integer(const std::string& name, int64_t value);
  static Attribute list(const std::string& name, const Shape& values);

 private:
  Name fresh(const char* prefix) { return prefix + std::to_string(next_++); }

  Graph graph_;
  std::map<std::pair<Shape, Shape>, Name> integers_;
  std::map<std::pair<Scalar, double>, Name> scalars_;
  std::deque<std::vector<std::byte>> bytes_;  // of weights
  int64_t version_ = 17;
  int next_ = 0;
};

}  // namespace tiny::onnx
