// A run of a model: its nodes become tensors, one after the other.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tiny/onnx/call/call.h"
#include "tiny/onnx/call/host_values.h"
#include "tiny/onnx/format/model.h"

namespace tiny::onnx {

// Tensors of host values, made once: each run finds those of earlier ones, also while a Jit
// captures.
class ConstantPool {
 public:
  explicit ConstantPool(std::string device) : device_(std::move(device)) {}
  Tensor get(DType dtype, const Shape& shape, std::vector<std::byte> bytes);
  // What is known of them on the host.
  HostValues& values() { return values_; }

 private:
  struct Key {
    Scalar scalar;
    Shape shape;
    std::vector<std::byte> bytes;
    auto operator<=>(const Key&) const = default;
  };
  const std::string device_;
  std::map<Key, Tensor> tensors_;
  HostValues values_;
};

using Names = std::unordered_map<std::string, Tensor>;

class Session final : public Surroundings {
 public:
  Session(const Model& model, const std::string& folder, ConstantPool& constants)
      : model_(model),
        folder_(folder),
        constants_(constants),
        values_(&constants.values()),
        others_{HostValues(&constants.values()), HostValues(&constants.values())} {}

  // Results of the model's graph, where these names have values.
  Tensors run_model(Names names);

  HostArray values_of(const Tensor& x) override;
  bool is_known(const Tensor& x) override;
  std::vector<Size> sizes_of(const Tensor& x) override;
  Tensor constant(DType dtype, const Shape& shape, std::vector<std::byte> bytes) override;
  Tensors run(const Graph& graph, const Tensors& inputs) override;
  Tensor tensor_of(const TensorData& data) override;
  Tensor tensor_of(const SparseData& data) override;

 private:
  // The names that nodes of a function, or of the model, see: those of the graphs around them.
  struct Frame {
    const Opsets* opsets;
    std::vector<Names> scopes;
    std::vector<const Attribute*> attributes;  // of the function's call
  };

  void know_lengths(const Tensor& x);
  Size size_of(size_t i, const HostArray& values, const HostArray& near, const HostArray& far);
  Tensor find(const std::string& name) const;
  void run_nodes(const std::vector<GraphNode>& nodes);
  Tensors run_node(const GraphNode& node);
  Tensors call_operator(const GraphNode& node, const Tensors& inputs);
  Tensors call_function(const Function& function, const GraphNode& node, const Tensors& inputs);
  std::vector<const Attribute*> attributes_of(const GraphNode& node);

  const Model& model_;
  const std::string& folder_;
  ConstantPool& constants_;
  // What is known where each length of the inputs is its bound; and, to tell what depends on
  // lengths, where they are two other numbers.
  HostValues values_;
  std::array<HostValues, 2> others_;
  std::vector<NodeRef> lengths_;
  std::vector<Frame> frames_;
  // Attributes of nodes in functions, under the name that the node gives them.
  std::vector<std::unique_ptr<Attribute>> renamed_;
};

// The function of the file that the node calls; nullptr for an operator.
const Function* find_function(const Model& model, const GraphNode& node);
// Throws Error unless the node calls a function of the file, or an operator that is had.
void require_operator(const Model& model, const Opsets& opsets, const GraphNode& node);

}  // namespace tiny::onnx
