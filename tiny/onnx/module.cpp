#include "tiny/onnx/module.h"

#include <algorithm>
#include <filesystem>

#include "tiny/base/error.h"
#include "tiny/onnx/session.h"

namespace tiny::onnx {

namespace {

// Rows of operators begin at version 1 where that meant the same, as files of such operators say.
constexpr int64_t kOldest = 1, kNewest = 21;
// Values of initializers that are kept on the host as well: shapes, scales, axes.
constexpr int64_t kMaxKnown = 4096;

Port port_of(const ValueInfo& info, const std::string& path) {
  using Kind = ValueInfo::Kind;
  check(info.kind != Kind::Sequence && info.kind != Kind::Optional && info.kind != Kind::Map,
        "onnx: ", path, ": \"", info.name,
        "\" is a sequence, an optional value or a map: these are refused");
  Port out{info.name, kVoid, info.shape};
  if (info.kind != Kind::Tensor || info.type == 0) return out;
  const auto dtype = dtype_of_type(info.type);
  check(dtype.has_value(), "onnx: ", path, ": \"", info.name, "\" is a tensor of ",
        name_of_type(info.type), ", which is refused");
  out.dtype = *dtype;
  return out;
}

// Throws Error unless the tensor is what the file declares. `names`: sizes of named dimensions, of
// the inputs so far.
void require_port(const Port& port, const Tensor& x, std::map<std::string, int64_t>& names) {
  check(x.defined(), "onnx: the input \"", port.name, "\" is left out");
  check(port.dtype == kVoid || x.dtype() == port.dtype, "onnx: the input \"", port.name, "\" is ",
        x.dtype(), ", expected ", port_text(port));
  if (!port.shape) return;
  const Ints shape = x.capacity();
  bool fits = shape.size() == port.shape->size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    const Dimension& d = (*port.shape)[i];
    if (d.value >= 0)
      fits = d.value == shape[i] && x.node()->length(static_cast<int>(i)) == nullptr;
    else if (!d.name.empty())
      fits = names.emplace(d.name, shape[i]).first->second == shape[i];
  }
  check(fits, "onnx: the input \"", port.name, "\" has the shape ", to_text(shape), ", expected ",
        port_text(port));
}

}  // namespace

std::string port_text(const Port& port) {
  std::string out = port.name + ' ' + (port.dtype == kVoid ? "any" : port.dtype.name());
  if (!port.shape) return out;
  out += " (";
  for (const Dimension& d : *port.shape) {
    if (out.back() != '(') out += ',';
    out += d.value >= 0 ? cat(d.value) : d.name.empty() ? "?" : d.name;
  }
  return out + ')';
}

struct Module::State {
  Model model;
  std::string folder;
  ConstantPool constants;
  std::vector<Port> inputs, outputs;
  std::vector<std::string> names;  // of the weights
  std::vector<Tensor> weights;

  State(Model m, const std::string& device) : model(std::move(m)), constants(device) {
    folder = std::filesystem::path(model.path).parent_path().string();
    require_opset();
    read_weights(device);
    const std::string& path = model.path;
    for (const ValueInfo& info : model.graph.inputs)
      if (!contains(names, info.name)) inputs.push_back(port_of(info, path));
    for (const ValueInfo& info : model.graph.outputs) outputs.push_back(port_of(info, path));
    require_operators();
  }

  void require_opset() const {
    const auto at = model.opsets.find("");
    check(at == model.opsets.end() || (at->second >= kOldest && at->second <= kNewest),
          "onnx: ", model.path, ": version ", at->second, " of the default domain, expected ",
          kOldest, " to ", kNewest);
  }

  void require_operators() const {
    for (const GraphNode& node : model.graph.nodes) {
      try {
        require_operator(model, model.opsets, node);
      } catch (const Error& e) {
        throw Error(cat("onnx: ", model.path, ": ", node.op, ": ", e.what()));
      }
    }
  }

  void read_weights(const std::string& device) {
    for (const TensorData& data : model.graph.initializers) {
      const std::vector<std::byte> bytes = element_bytes(data, folder);
      const DType dtype = *dtype_of_type(data.type);
      add_weight(data.name, Tensor::from_bytes(bytes.data(), dtype, data.dims, device));
      if (numel(data.dims) <= kMaxKnown)
        constants.values().know(weights.back(), host_array(bytes.data(), dtype, data.dims));
    }
    for (const SparseData& sparse : model.graph.sparse_initializers)
      add_weight(sparse.values.name, dense(sparse));
  }

  void add_weight(const std::string& name, Tensor value) {
    check(!contains(names, name), "onnx: ", model.path, ": the initializer \"", name,
          "\" is there twice");
    names.push_back(name);
    weights.push_back(std::move(value));
  }

  Tensor dense(const SparseData& sparse) {
    Session session(model, folder, constants);
    return session.tensor_of(sparse);
  }

  std::vector<Tensor> run(Names given) {
    for (size_t i = 0; i < names.size(); ++i) given.emplace(names[i], weights[i]);
    Session session(model, folder, constants);
    return session.run_model(std::move(given));
  }
};

Module::Module(Model model, const std::string& device)
    : state_(std::make_unique<State>(std::move(model), device)) {}
Module::Module(Module&&) noexcept = default;
Module::~Module() = default;

const std::vector<Port>& Module::inputs() const { return state_->inputs; }
const std::vector<Port>& Module::outputs() const { return state_->outputs; }
const std::string& Module::producer() const { return state_->model.producer; }

int64_t Module::opset() const {
  const auto at = state_->model.opsets.find("");
  return at == state_->model.opsets.end() ? 1 : at->second;
}

std::vector<Tensor> Module::run(const std::vector<Tensor>& inputs) {
  check(inputs.size() == state_->inputs.size(), "onnx: ", inputs.size(), " inputs for the ",
        state_->inputs.size(), " of the model");
  Names given;
  std::map<std::string, int64_t> named_sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_port(state_->inputs[i], inputs[i], named_sizes);
    given[state_->inputs[i].name] = inputs[i];
  }
  return state_->run(std::move(given));
}

std::map<std::string, Tensor> Module::run(const std::map<std::string, Tensor>& inputs) {
  Names given(inputs.begin(), inputs.end());
  std::map<std::string, int64_t> named_sizes;
  for (const Port& port : state_->inputs) {
    const auto at = inputs.find(port.name);
    require_port(port, at == inputs.end() ? Tensor() : at->second, named_sizes);
  }
  for (const auto& [name, x] : inputs) {
    const auto is_it = [&key = name](const ValueInfo& info) { return info.name == key; };
    const auto& all = state_->model.graph.inputs;
    check(std::ranges::any_of(all, is_it), "onnx: the model has no input \"", name, "\"");
  }
  const std::vector<Tensor> results = state_->run(std::move(given));
  std::map<std::string, Tensor> out;
  for (size_t i = 0; i < results.size(); ++i) out[state_->outputs[i].name] = results[i];
  return out;
}

Tensor Module::forward(const Tensor& x) {
  check(inputs().size() == 1 && outputs().size() == 1, "onnx: forward of a model with ",
        inputs().size(), " inputs and ", outputs().size(), " outputs: run() takes them");
  return run(std::vector<Tensor>{x})[0];
}

void Module::to(DType dtype) {
  throw Error(cat("onnx: a model keeps the dtypes of its file, it cannot become ", dtype));
}

void Module::state(StateDict& out, const std::string& prefix) {
  for (size_t i = 0; i < state_->names.size(); ++i)
    out.push_back({prefix + state_->names[i], &state_->weights[i]});
}

Module load(const std::string& path, const std::string& device) {
  return Module(read_model(path), device);
}

}  // namespace tiny::onnx
