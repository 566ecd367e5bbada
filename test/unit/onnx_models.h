// Small ONNX models, built in memory and written to a file of the test.
#pragma once
#include <concepts>
#include <string>
#include <vector>

#include "test/temporary_folder.h"
#include "tiny/onnx/module.h"

namespace tiny::test {

template <std::integral T> onnx::Attribute attribute(const std::string& name, T value) {
  return {.name = name, .type = 2, .integer = value};
}
inline onnx::Attribute attribute(const std::string& name, float value) {
  return {.name = name, .type = 1, .real = value};
}
inline onnx::Attribute attribute(const std::string& name, const char* value) {
  return {.name = name, .type = 3, .text = value};
}
inline onnx::Attribute attribute(const std::string& name, const Shape& values) {
  return {.name = name, .type = 7, .integers = values};
}
inline onnx::Attribute attribute(const std::string& name, const onnx::TensorData& value) {
  return {.name = name, .type = 4, .tensor = std::make_shared<onnx::TensorData>(value)};
}
inline onnx::Attribute attribute(const std::string& name, const onnx::Graph& value) {
  return {.name = name, .type = 5, .graph = std::make_shared<onnx::Graph>(value)};
}

inline onnx::TensorData integers(const std::string& name, const Shape& values) {
  return {.name = name, .type = 7, .dims = {std::ssize(values)}, .integers = values};
}
inline onnx::TensorData reals(const std::string& name, const std::vector<float>& values,
                              const Shape& shape) {
  return {.name = name, .type = 1, .dims = shape, .floats = values};
}

inline onnx::GraphNode operation(const std::string& op, const std::vector<std::string>& inputs,
                                 const std::vector<std::string>& outputs,
                                 const std::vector<onnx::Attribute>& attributes = {}) {
  return {"", op, "", "", inputs, outputs, attributes};
}

// A dimension is a number, or -1 with a name.
inline onnx::ValueInfo value(const std::string& name, int64_t type,
                             const std::vector<onnx::Dimension>& shape) {
  return {name, onnx::ValueInfo::Kind::Tensor, type, shape};
}

inline onnx::Model model_of(onnx::Graph graph, int64_t opset = 17) {
  onnx::Model out;
  out.ir_version = 8;
  out.producer = "test";
  out.opsets[""] = opset;
  out.graph = std::move(graph);
  out.graph.name = "g";
  return out;
}

// Written and loaded again.
class ModelFile {
 public:
  explicit ModelFile(const onnx::Model& model) { onnx::write_model(path(), model); }
  std::string path() const { return folder_.file("model.onnx"); }
  onnx::Module load() const { return onnx::load(path()); }

 private:
  TemporaryFolder folder_{"onnx_model"};
};

}  // namespace tiny::test
