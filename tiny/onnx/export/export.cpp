#include "tiny/onnx/export/export.h"

#include <set>

#include "tiny/base/error.h"
#include "tiny/onnx/export/graph_export.h"
#include "tiny/run/traced.h"

namespace tiny::onnx {

namespace {

Name port_name(const std::vector<std::string>& names, size_t i, const char* standard) {
  return i < names.size() ? names[i] : cat(standard, '_', i);
}

ValueInfo port(const Name& name, const Tensor& x) {
  ValueInfo info;
  info.name = name;
  info.kind = ValueInfo::Kind::Tensor;
  info.type = type_of_dtype(x.dtype());
  info.shape.emplace();
  for (const int64_t size : x.shape()) info.shape->push_back({size, ""});
  return info;
}

// Computes what does not depend on the inputs, but for constants that have no memory: weights that
// are not drawn yet, products of weights.
void set_constants(const Traced& traced, GraphExport& graph) {
  const std::vector<Node> constants = constants_of(traced, /*small=*/false);
  std::vector<Tensor> values;
  std::vector<Tensor*> pointers;
  for (const Node n : constants) values.emplace_back(n);
  for (Tensor& t : values) pointers.push_back(&t);
  Tensor::realize(pointers);
  for (size_t i = 0; i < values.size(); ++i) graph.set_value(constants[i], values[i]);
}

void require_names(const ExportOptions& options, size_t inputs, size_t outputs) {
  check(options.inputs.size() <= inputs && options.outputs.size() <= outputs,
        "export_onnx: ", options.inputs.size(), " names for ", inputs, " inputs, ",
        options.outputs.size(), " for ", outputs, " outputs");
  std::set<std::string> all;
  for (const auto* list : {&options.inputs, &options.outputs})
    for (const std::string& name : *list)
      check(!name.empty() && all.insert(name).second, "export_onnx: the name \"", name,
            "\" is empty or there twice");
}

}  // namespace

void export_graph(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                  const std::vector<Tensor>& examples, const std::string& path,
                  const ExportOptions& options) {
  const NoGrad no_grad;
  std::vector<Tensor*> weights;
  for (const NamedTensor& t : options.weights) weights.push_back(t.tensor);
  Tensor::realize(weights);
  const Traced traced = trace_function(function, examples, "export_onnx");
  const std::vector<Tensor>&inputs = traced.inputs, &outputs = traced.outputs;
  require_names(options, inputs.size(), outputs.size());
  GraphWriter writer;
  GraphExport graph(writer);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Name name = port_name(options.inputs, i, "input");
    writer.graph().inputs.push_back(port(name, inputs[i]));
    graph.set_input(inputs[i].node(), name);
  }
  for (const NamedTensor& t : options.weights) graph.set_weight(t.tensor->node(), t.name);
  set_constants(traced, graph);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Name name = port_name(options.outputs, i, "output");
    writer.graph().nodes.push_back(
        {"", "Identity", "", "", {graph.write(outputs[i].node())}, {name}, {}});
    // Behind what it takes: nodes stand in order.
    writer.graph().outputs.push_back(port(name, outputs[i]));
  }
  Model model;
  model.ir_version = 8;
  model.producer = "tiny";
  model.opsets[""] = writer.version();
  model.graph = std::move(writer.graph());
  model.graph.name = "graph";
  write_model(path, model);
}

}  // namespace tiny::onnx
