#include <cstring>

#include "tiny/onnx/format/model.h"

namespace tiny::onnx {

namespace {

// The fields of a message, one after the other; what is zero or empty is left out.
class Message {
 public:
  Message& integer(uint32_t field, int64_t value) {
    if (value != 0) put_integer(field, value);
    return *this;
  }
  void put_integer(uint32_t field, int64_t value) {
    varint(field << 3);
    varint(static_cast<uint64_t>(value));
  }
  Message& real(uint32_t field, float value) {
    varint(field << 3 | 5);
    append(&value, sizeof value);
    return *this;
  }
  Message& text(uint32_t field, std::string_view value) {
    if (!value.empty()) put_text(field, value);
    return *this;
  }
  void put_text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  Message& message(uint32_t field, const Message& inner) {
    put_text(field, inner.bytes_);
    return *this;
  }
  Message& integers(uint32_t field, const std::vector<int64_t>& values) {
    Message list;
    for (const int64_t v : values) list.varint(static_cast<uint64_t>(v));
    return text(field, list.bytes_);
  }
  template <class T> Message& numbers(uint32_t field, const std::vector<T>& values) {
    return text(field, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  std::string take() { return std::move(bytes_); }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void append(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  std::string bytes_;
};

Message tensor_message(const TensorData& t) {
  Message out;
  out.integers(1, t.dims).integer(2, t.type).numbers(4, t.floats);
  const bool is_wide = t.type == 7, is_unsigned = t.type == 12 || t.type == 13;
  out.integers(is_wide ? 7 : is_unsigned ? 11 : 5, t.integers).text(8, t.name);
  for (const std::string& s : t.strings) out.put_text(6, s);
  if (t.has_raw) out.put_text(9, {reinterpret_cast<const char*>(t.raw.data()), t.raw.size()});
  out.numbers(10, t.doubles);
  for (const auto& [key, value] : t.external)
    out.message(13, Message().text(1, key).text(2, value));
  return std::move(out.integer(14, t.is_external ? 1 : 0));
}

Message sparse_message(const SparseData& s) {
  Message out;
  out.message(1, tensor_message(s.values)).message(2, tensor_message(s.indices));
  return std::move(out.integers(3, s.dims));
}

Message graph_message(const Graph& graph);

Message attribute_message(const Attribute& a) {
  Message out;
  out.text(1, a.name).integer(20, a.type).text(21, a.reference);
  if (!a.reference.empty()) return out;
  if (a.type == 1) out.real(2, a.real);
  if (a.type == 2) out.put_integer(3, a.integer);
  if (a.type == 3) out.put_text(4, a.text);
  if (a.tensor) out.message(5, tensor_message(*a.tensor));
  if (a.graph) out.message(6, graph_message(*a.graph));
  out.numbers(7, a.reals);
  for (const int64_t value : a.integers) out.put_integer(8, value);  // as proto2 writes them
  for (const std::string& s : a.texts) out.put_text(9, s);
  if (a.sparse) out.message(22, sparse_message(*a.sparse));
  return out;
}

Message node_message(const GraphNode& node) {
  Message out;
  for (const std::string& name : node.inputs) out.put_text(1, name);
  for (const std::string& name : node.outputs) out.put_text(2, name);
  out.text(3, node.name).text(4, node.op);
  for (const Attribute& a : node.attributes) out.message(5, attribute_message(a));
  return std::move(out.text(7, node.domain).text(8, node.overload));
}

Message value_message(const ValueInfo& info) {
  Message tensor;
  tensor.integer(1, info.type);
  if (info.shape) {
    Message shape;
    for (const Dimension& d : *info.shape) {
      Message dimension;
      if (d.value >= 0) dimension.put_integer(1, d.value);
      shape.message(1, dimension.text(2, d.name));
    }
    tensor.message(2, shape);
  }
  Message type;
  if (info.kind == ValueInfo::Kind::Tensor) type.message(1, tensor);
  if (info.kind == ValueInfo::Kind::Sequence) type.message(4, Message());
  return std::move(Message().text(1, info.name).message(2, type));
}

Message graph_message(const Graph& graph) {
  Message out;
  for (const GraphNode& node : graph.nodes) out.message(1, node_message(node));
  out.text(2, graph.name);
  for (const TensorData& t : graph.initializers) out.message(5, tensor_message(t));
  for (const ValueInfo& info : graph.inputs) out.message(11, value_message(info));
  for (const ValueInfo& info : graph.outputs) out.message(12, value_message(info));
  for (const SparseData& s : graph.sparse_initializers) out.message(15, sparse_message(s));
  return out;
}

void add_opsets(Message& out, uint32_t field, const Opsets& opsets) {
  for (const auto& [domain, version] : opsets)
    out.message(field, Message().text(1, domain).integer(2, version));
}

Message function_message(const Function& f) {
  Message out;
  out.text(1, f.name);
  for (const std::string& name : f.inputs) out.put_text(4, name);
  for (const std::string& name : f.outputs) out.put_text(5, name);
  for (const std::string& name : f.attributes) out.put_text(6, name);
  for (const GraphNode& node : f.nodes) out.message(7, node_message(node));
  add_opsets(out, 9, f.opsets);
  out.text(10, f.domain);
  for (const Attribute& a : f.defaults) out.message(11, attribute_message(a));
  return std::move(out.text(13, f.overload));
}

}  // namespace

std::string model_bytes(const Model& model) {
  Message out;
  out.integer(1, model.ir_version).text(2, model.producer).message(7, graph_message(model.graph));
  add_opsets(out, 8, model.opsets);
  for (const Function& f : model.functions) out.message(25, function_message(f));
  return out.take();
}

void write_model(const std::string& path, const Model& model) {
  FileAside file("onnx", path);
  file.write(model_bytes(model));
  file.commit();
}

}  // namespace tiny::onnx
