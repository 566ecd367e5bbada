#include "tiny/onnx/export/export.h"

#include <algorithm>
#include <set>

#include "tiny/base/error.h"
#include "tiny/onnx/export/graph_export.h"
#include "tiny/tensor/random.h"

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

// Memory of its own for each input, of any values: no two are the same node.
Tensor stand_in(const Tensor& example) {
  const Shape shape = to_shape(example.shape());
  check(numel(shape) > 0, "export_onnx: an input has no elements");
  const std::vector<std::byte> zeros(static_cast<size_t>(numel(shape)) *
                                     static_cast<size_t>(example.dtype().size()));
  return Tensor::from_bytes(zeros.data(), example.dtype(), shape, example.device());
}

// Computes what does not depend on the inputs, but for constants that have no memory: weights that
// are not drawn yet, products of weights.
void set_constants(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                   GraphExport& graph) {
  std::vector<Node> roots;
  for (const Tensor& t : outputs) roots.push_back(t.node());
  const std::vector<Node> order = topological(roots);
  NodeMap<bool> varies(order.size()), has_memory(order.size());
  for (const Tensor& t : inputs) {
    varies[t.node()] = true;
    if (t.node()->op == Op::Reshape) varies[t.node()->src(0)] = true;
  }
  std::vector<Node> constants;
  for (const Node n : order) {
    has_memory[n] = n->op == Op::Buffer || n->realized != nullptr;
    for (const Node s : n->srcs()) {
      varies[n] = varies[n] || varies[s];
      has_memory[n] = has_memory[n] || has_memory[s];
    }
  }
  const auto is_constant = [&](Node n) { return has_memory[n] && !varies[n]; };
  // The last ones, that something which varies takes; views are written as such.
  const auto add = [&](Node n) {
    while (n->realized == nullptr && (is_movement(n->op) || behind(n) != n)) n = n->src(0);
    if (is_constant(n) && n->realized == nullptr && n->op != Op::Buffer) constants.push_back(n);
  };
  for (const Node n : order)
    for (const Node s : n->srcs())
      if (varies[n] && is_constant(s)) add(s);
  for (const Node n : roots) add(n);
  std::sort(constants.begin(), constants.end());
  constants.erase(std::unique(constants.begin(), constants.end()), constants.end());
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
  std::vector<Tensor> inputs;
  for (const Tensor& example : examples) inputs.push_back(stand_in(example));
  std::vector<Tensor*> weights;
  for (const NamedTensor& t : options.weights) weights.push_back(t.tensor);
  Tensor::realize(weights);
  const RandomState before = random_state();
  const std::vector<Tensor> outputs = function(inputs);
  const RandomState after = random_state();
  check(before.key == after.key && before.counter == after.counter,
        "export_onnx: the function takes random numbers, which another program has not");
  require_names(options, inputs.size(), outputs.size());
  GraphWriter writer;
  GraphExport graph(writer);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Name name = port_name(options.inputs, i, "input");
    writer.graph().inputs.push_back(port(name, inputs[i]));
    graph.set_input(inputs[i].node(), name);
  }
  for (const NamedTensor& t : options.weights) graph.set_weight(t.tensor->node(), t.name);
  set_constants(inputs, outputs, graph);
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
