#include "tiny/onnx/format/model.h"
#include "tiny/onnx/format/wire.h"

namespace tiny::onnx {

namespace {

// Calls f(field) for the fields of a message.
template <class F> void each_field(WireReader in, F&& f) {
  WireField field{};
  while (in.next(field)) f(field);
}

std::pair<std::string, std::string> read_entry(WireReader in) {
  std::pair<std::string, std::string> out;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) out.first = f.text();
    if (f.number == 2) out.second = f.text();
  });
  return out;
}

TensorData read_tensor(WireReader in) {
  TensorData out;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: f.append_to(out.dims); break;
      case 2: out.type = f.integer(); break;
      case 3: f.message->fail("a tensor is a segment of another one, which nothing writes");
      case 4: f.append_to(out.floats); break;
      case 5:
      case 7:
      case 11: f.append_to(out.integers); break;
      case 6: out.strings.push_back(f.text()); break;
      case 8: out.name = f.text(); break;
      case 9:
        out.raw = f.data();
        out.has_raw = true;
        break;
      case 10: f.append_to(out.doubles); break;
      case 13: out.external.insert(read_entry(f.inner("an entry of external data"))); break;
      case 14: out.is_external = f.integer() == 1; break;
      default: break;
    }
  });
  for (const int64_t size : out.dims)
    if (size < 0) in.fail("tensor ", out.name, " has the shape ", to_text(out.dims));
  if (out.dims.size() > static_cast<size_t>(kMaxRank))
    in.fail("tensor ", out.name, " has ", out.dims.size(), " axes, at most ", kMaxRank, " are had");
  return out;
}

SparseData read_sparse(WireReader in) {
  SparseData out;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) out.values = read_tensor(f.inner("a sparse tensor's values"));
    if (f.number == 2) out.indices = read_tensor(f.inner("a sparse tensor's indices"));
    if (f.number == 3) f.append_to(out.dims);
  });
  return out;
}

Graph read_graph(WireReader in);

Attribute read_attribute(WireReader in) {
  Attribute out;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: out.name = f.text(); break;
      case 2: out.real = f.real(); break;
      case 3: out.integer = f.integer(); break;
      case 4: out.text = f.text(); break;
      case 5: out.tensor = std::make_shared<TensorData>(read_tensor(f.inner("a tensor"))); break;
      case 6: out.graph = std::make_shared<Graph>(read_graph(f.inner("a graph"))); break;
      case 7: f.append_to(out.reals); break;
      case 8: f.append_to(out.integers); break;
      case 9: out.texts.push_back(f.text()); break;
      case 20: out.type = f.integer(); break;
      case 21: out.reference = f.text(); break;
      case 22:
        out.sparse = std::make_shared<SparseData>(read_sparse(f.inner("a sparse tensor")));
        break;
      default: break;
    }
  });
  return out;
}

GraphNode read_node(WireReader in) {
  GraphNode out;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: out.inputs.push_back(f.text()); break;
      case 2: out.outputs.push_back(f.text()); break;
      case 3: out.name = f.text(); break;
      case 4: out.op = f.text(); break;
      case 5: out.attributes.push_back(read_attribute(f.inner("an attribute"))); break;
      case 7: out.domain = f.text(); break;
      case 8: out.overload = f.text(); break;
      default: break;
    }
  });
  if (out.op.empty()) in.fail("a node has no operator");
  if (out.domain == "ai.onnx") out.domain.clear();
  return out;
}

Dimension read_dimension(WireReader in) {
  Dimension out;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) out.value = f.integer();
    if (f.number == 2) out.name = f.text();
  });
  return out;
}

std::vector<Dimension> read_shape(WireReader in) {
  std::vector<Dimension> out;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) out.push_back(read_dimension(f.inner("a dimension")));
  });
  return out;
}

void read_type(WireReader in, ValueInfo& out) {
  using Kind = ValueInfo::Kind;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1:
        out.kind = Kind::Tensor;
        each_field(f.inner("a tensor's type"), [&](const WireField& t) {
          if (t.number == 1) out.type = t.integer();
          if (t.number == 2) out.shape = read_shape(t.inner("a shape"));
        });
        break;
      case 4: out.kind = Kind::Sequence; break;
      case 5: out.kind = Kind::Map; break;
      case 8: out.kind = Kind::Sparse; break;
      case 9: out.kind = Kind::Optional; break;
      default: break;
    }
  });
}

ValueInfo read_value_info(WireReader in) {
  ValueInfo out;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) out.name = f.text();
    if (f.number == 2) read_type(f.inner("a type"), out);
  });
  return out;
}

Graph read_graph(WireReader in) {
  Graph out;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: out.nodes.push_back(read_node(f.inner("a node"))); break;
      case 2: out.name = f.text(); break;
      case 5: out.initializers.push_back(read_tensor(f.inner("an initializer"))); break;
      case 11: out.inputs.push_back(read_value_info(f.inner("an input"))); break;
      case 12: out.outputs.push_back(read_value_info(f.inner("an output"))); break;
      case 15:
        out.sparse_initializers.push_back(read_sparse(f.inner("a sparse initializer")));
        break;
      default: break;
    }
  });
  return out;
}

void read_opset(WireReader in, Opsets& out) {
  std::string domain;
  int64_t version = 0;
  each_field(in, [&](const WireField& f) {
    if (f.number == 1) domain = f.text();
    if (f.number == 2) version = f.integer();
  });
  out[domain == "ai.onnx" ? "" : domain] = version;
}

Function read_function(WireReader in) {
  Function out;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: out.name = f.text(); break;
      case 4: out.inputs.push_back(f.text()); break;
      case 5: out.outputs.push_back(f.text()); break;
      case 6: out.attributes.push_back(f.text()); break;
      case 7: out.nodes.push_back(read_node(f.inner("a node"))); break;
      case 9: read_opset(f.inner("an opset"), out.opsets); break;
      case 10: out.domain = f.text(); break;
      case 11: out.defaults.push_back(read_attribute(f.inner("an attribute"))); break;
      case 13: out.overload = f.text(); break;
      default: break;
    }
  });
  return out;
}

}  // namespace

Model read_model(const std::string& path) {
  Model out;
  out.path = path;
  out.file = std::make_shared<MappedFile>("onnx", path);
  WireFile file{path, out.file->bytes(0, out.file->size())};
  const WireReader in(file, file.bytes, "the model");
  bool has_graph = false;
  each_field(in, [&](const WireField& f) {
    switch (f.number) {
      case 1: out.ir_version = f.integer(); break;
      case 2: out.producer = f.text(); break;
      case 7:
        out.graph = read_graph(f.inner("a graph"));
        has_graph = true;
        break;
      case 8: read_opset(f.inner("an opset"), out.opsets); break;
      case 25: out.functions.push_back(read_function(f.inner("a function"))); break;
      default: break;
    }
  });
  if (!has_graph) in.fail("the file has no graph: it is no ONNX model");
  return out;
}

TensorData read_tensor_data(const MappedFile& file) {
  WireFile wire{file.path(), file.bytes(0, file.size())};
  return read_tensor(WireReader(wire, wire.bytes, "the tensor"));
}

}  // namespace tiny::onnx
