#include "tiny/onnx/session.h"

#include <algorithm>
#include <cstring>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

constexpr size_t kMaxFrames = 64;  // functions that call functions
// Up to so many integers are an expression of constants, in no memory of any device.
constexpr size_t kExpressionSize = 32;

// How an error calls a node.
std::string shown(const GraphNode& node) {
  return node.name.empty() ? node.op : cat(node.op, " \"", node.name, "\"");
}

int64_t version_of(const Opsets& opsets) {
  const auto at = opsets.find("");
  return at == opsets.end() ? 1 : at->second;
}

// 1-d or 0-d integers as first + step i where they are that, else chosen by position.
Tensor expression_of(const HostArray& values) {
  const std::vector<int64_t>& v = values.integers;
  const auto is_line = [&] {
    for (size_t i = 2; i < v.size(); ++i)
      if (v[i] - v[i - 1] != v[1] - v[0]) return false;
    return true;
  };
  Tensor out = Tensor::full({std::ssize(v)}, v[0], kI64);
  if (v.size() > 1) {
    const Tensor at = Tensor::arange(std::ssize(v));
    if (is_line() && v[1] == v[0])
      static_cast<void>(at);  // all alike
    else if (is_line())
      out = at * (v[1] - v[0]) + v[0];
    else
      for (size_t i = 1; i < v.size(); ++i) out = where(at == static_cast<int64_t>(i), v[i], out);
  }
  return out.reshape(values.shape).to(values.dtype);
}

}  // namespace

// --- ConstantPool --------------------------------------------------------------------------------

Tensor ConstantPool::get(DType dtype, const Shape& shape, std::vector<std::byte> bytes) {
  const auto [at, is_new] =
      tensors_.try_emplace(Key{dtype.scalar, shape, std::move(bytes)}, Tensor());
  if (!is_new) return at->second;
  const HostArray values = host_array(at->first.bytes.data(), dtype, shape);
  if (dtype.is_int() && values.size() > 0 && values.size() <= kExpressionSize) {
    at->second = expression_of(values);
  } else {
    at->second = Tensor::from_bytes(at->first.bytes.data(), dtype, shape, device_);
    values_.know(at->second, values);
  }
  return at->second;
}

// --- Values --------------------------------------------------------------------------------------

bool Session::is_known(const Tensor& x) { return values_.find(x).has_value(); }

HostArray Session::values_of(const Tensor& x) {
  if (auto known = values_.find(x)) {
    for (HostValues& other : others_) {
      if (lengths_.empty()) break;
      const auto there = other.find(x);
      check(there && there->integers == known->integers && there->reals == known->reals,
            "a value depends on a length that is a Variable: only sizes of tensors may");
    }
    return *std::move(known);
  }
  Tensor read = x;
  std::vector<std::byte> bytes(static_cast<size_t>(x.numel()) *
                               static_cast<size_t>(x.dtype().size()));
  read.to_bytes(bytes.data());
  HostArray out = host_array(bytes.data(), x.dtype(), sizes(x));
  for (HostValues* values : {&values_, &others_[0], &others_[1]}) values->know(x, out);
  return out;
}

// --- Lengths -------------------------------------------------------------------------------------

namespace {

// What length number i is taken for besides its bound: numbers that no other length has.
int64_t other_length(int64_t bound, size_t i, size_t which) {
  const auto number = static_cast<int64_t>(i);
  return which == 0 ? bound - 1 - number : 1 + number;
}

HostArray one_integer(int64_t value) {
  HostArray out(kI64, {});
  out.integers[0] = value;
  return out;
}

}  // namespace

void Session::know_lengths(const Tensor& x) {
  for (int axis = 0; axis < x.rank(); ++axis) {
    const Node length = x.node()->length(axis);
    const auto is_it = [&](const NodeRef& n) { return n.get() == length; };
    if (length == nullptr || std::ranges::any_of(lengths_, is_it)) continue;
    const int64_t bound = x.capacity()[axis];
    values_.know(Tensor(length), one_integer(bound));
    for (size_t which = 0; which < others_.size(); ++which)
      others_[which].know(Tensor(length), one_integer(other_length(bound, lengths_.size(), which)));
    lengths_.emplace_back(length);
  }
}

Size Session::size_of(size_t i, const HostArray& values, const HostArray& near,
                      const HostArray& far) {
  const int64_t value = values.integers[i];
  if (near.integers[i] == value && far.integers[i] == value) return {value, nullptr};
  for (size_t n = 0; n < lengths_.size(); ++n) {
    const int64_t bound = values_.find(Tensor(lengths_[n].get()))->integers[0];
    if (value == bound && near.integers[i] == other_length(bound, n, 0) &&
        far.integers[i] == other_length(bound, n, 1))
      return {value, lengths_[n].get()};
  }
  throw Error(
      cat("a size depends on a length that is a Variable, and is not that length (of at "
          "most ",
          value, ")"));
}

std::vector<Size> Session::sizes_of(const Tensor& x) {
  std::vector<Size> out;
  const auto known = values_.find(x);
  if (lengths_.empty() || !known) {
    for (const int64_t value : values_of(x).integers) out.push_back({value, nullptr});
    return out;
  }
  const auto near = others_[0].find(x), far = others_[1].find(x);
  check(near && far, "a size depends on a length that is a Variable in a way that is not followed");
  for (size_t i = 0; i < known->size(); ++i) out.push_back(size_of(i, *known, *near, *far));
  return out;
}

Tensor Session::constant(DType dtype, const Shape& shape, std::vector<std::byte> bytes) {
  return constants_.get(dtype, shape, std::move(bytes));
}

Tensor Session::tensor_of(const TensorData& data) {
  std::vector<std::byte> bytes = element_bytes(data, folder_);
  return constants_.get(*dtype_of_type(data.type), data.dims, std::move(bytes));
}

Tensor Session::tensor_of(const SparseData& data) {
  const Tensor values = tensor_of(data.values), at = tensor_of(data.indices);
  check(at.dtype() == kI64 &&
            (at.rank() == 1 || (at.rank() == 2 && at.size(1) == std::ssize(data.dims))),
        "positions ", at.dtype(), ' ', to_text(at.shape()), " in a sparse tensor ",
        to_text(data.dims));
  Tensor flat = at;
  for (size_t i = 0; at.rank() == 2 && i < data.dims.size(); ++i) {
    const Tensor next = at.select(1, static_cast<int64_t>(i));
    flat = i == 0 ? next : flat * data.dims[i] + next;
  }
  return Tensor::zeros({numel(data.dims)}, values.dtype())
      .scatter(0, flat, values)
      .reshape(data.dims);
}

Tensor Session::find(const std::string& name) const {
  const auto& scopes = frames_.back().scopes;
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope)
    if (const auto at = scope->find(name); at != scope->end()) return at->second;
  throw Error(cat("no value is called \"", name, "\""));
}

// --- Graphs --------------------------------------------------------------------------------------

Tensors Session::run_model(Names names) {
  frames_.clear();
  for (const auto& [name, x] : names)
    if (x.defined()) know_lengths(x);
  frames_.push_back({&model_.opsets, {}, {}});
  frames_.back().scopes.push_back(std::move(names));
  run_nodes(model_.graph.nodes);
  Tensors out;
  for (const ValueInfo& output : model_.graph.outputs) out.push_back(find(output.name));
  return out;
}

Tensors Session::run(const Graph& graph, const Tensors& inputs) {
  check(inputs.size() == graph.inputs.size(), "the graph \"", graph.name, "\" has ",
        graph.inputs.size(), " inputs, not ", inputs.size());
  Names names;
  for (size_t i = 0; i < inputs.size(); ++i) names[graph.inputs[i].name] = inputs[i];
  for (const TensorData& data : graph.initializers) names[data.name] = tensor_of(data);
  const size_t depth = frames_.size();
  frames_.back().scopes.push_back(std::move(names));
  run_nodes(graph.nodes);
  Tensors out;
  for (const ValueInfo& output : graph.outputs) out.push_back(find(output.name));
  expect(frames_.size() == depth, "onnx: frames of functions");
  frames_.back().scopes.pop_back();
  return out;
}

void Session::run_nodes(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes) {
    const Tensors results = run_node(node);
    Names& scope = frames_.back().scopes.back();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].empty()) continue;
      check(i < results.size() && results[i].defined(), "onnx: ", model_.path, ": ", shown(node),
            ": there is no output ", i);
      scope[node.outputs[i]] = results[i];
    }
  }
}

Tensors Session::run_node(const GraphNode& node) {
  try {
    Tensors inputs;
    for (const std::string& name : node.inputs)
      inputs.push_back(name.empty() ? Tensor() : find(name));
    if (const Function* function = find_function(model_, node))
      return call_function(*function, node, inputs);
    return call_operator(node, inputs);
  } catch (const Error& e) {
    const std::string text = e.what();
    if (text.starts_with("onnx: ")) throw;
    throw Error(cat("onnx: ", model_.path, ": ", shown(node), ": ", text));
  }
}

Tensors Session::call_operator(const GraphNode& node, const Tensors& inputs) {
  const Opsets& opsets = *frames_.back().opsets;
  require_operator(model_, opsets, node);
  const int64_t version = version_of(opsets);
  const Operator& row = *find_operator(node.op, version);
  if (!inputs.empty() && inputs[0].defined()) {
    const DType dtype = inputs[0].dtype();
    check(row.types >> static_cast<int>(dtype.scalar) & 1, "the first input is ", dtype,
          ", which this operator does not take");
  }
  Call call(node, attributes_of(node), inputs, version, *this);
  return row.function(call);
}

// --- Functions of the file -----------------------------------------------------------------------

std::vector<const Attribute*> Session::attributes_of(const GraphNode& node) {
  std::vector<const Attribute*> out;
  for (const Attribute& a : node.attributes) {
    if (a.reference.empty()) {
      out.push_back(&a);
      continue;
    }
    // One that the call leaves out is left out here.
    for (const Attribute* given : frames_.back().attributes) {
      if (given->name != a.reference) continue;
      renamed_.push_back(std::make_unique<Attribute>(*given));
      renamed_.back()->name = a.name;
      out.push_back(renamed_.back().get());
    }
  }
  return out;
}

Tensors Session::call_function(const Function& function, const GraphNode& node,
                               const Tensors& inputs) {
  check(frames_.size() < kMaxFrames, "functions call each other ", kMaxFrames, " deep");
  check(inputs.size() <= function.inputs.size(), "the function has ", function.inputs.size(),
        " inputs, not ", inputs.size());
  Frame frame{&function.opsets, {}, attributes_of(node)};
  for (const Attribute& a : function.defaults) {
    const bool is_given = std::ranges::any_of(
        frame.attributes, [&](const Attribute* g) { return g->name == a.name; });
    if (!is_given) frame.attributes.push_back(&a);
  }
  Names names;
  for (size_t i = 0; i < function.inputs.size(); ++i)
    names[function.inputs[i]] = i < inputs.size() ? inputs[i] : Tensor();
  frame.scopes.push_back(std::move(names));
  frames_.push_back(std::move(frame));
  run_nodes(function.nodes);
  Tensors out;
  for (const std::string& name : function.outputs) out.push_back(find(name));
  frames_.pop_back();
  return out;
}

const Function* find_function(const Model& model, const GraphNode& node) {
  for (const Function& f : model.functions)
    if (f.name == node.op && f.domain == node.domain && f.overload == node.overload) return &f;
  return nullptr;
}

void require_operator(const Model& model, const Opsets& opsets, const GraphNode& node) {
  if (find_function(model, node) != nullptr) return;
  check(node.domain.empty(), "the operator is of the domain \"", node.domain,
        "\": only those of the default domain and functions of the file are had");
  const std::string reason = refusal_of(node.op);
  check(reason.empty(), "the operator is refused: ", reason);
  const int64_t version = version_of(opsets);
  check(find_operator(node.op, version) != nullptr, "no such operator in version ", version,
        " of the default domain");
}

}  // namespace tiny::onnx
