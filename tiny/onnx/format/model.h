// What an ONNX file holds (onnx/onnx.proto3 of github.com/onnx/onnx, IR versions 3 to 10): plain
// data, as it stands there. tiny/onnx/module.h makes tensors of it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiny/base/file.h"
#include "tiny/ir/dtype.h"
#include "tiny/ir/shape.h"

namespace tiny::onnx {

// The numbers of TensorProto.DataType that are more than a DType.
inline constexpr int64_t kStringType = 8, kUint4Type = 21, kInt4Type = 22;

// The dtype that holds elements of a TensorProto.DataType; four-bit integers are kept in i8 and u8.
// Empty for those that no tensor has here: strings, complex numbers, the FNUZ floats.
std::optional<DType> dtype_of_type(int64_t type);
int64_t type_of_dtype(DType dtype);      // Error for one that ONNX lacks
std::string name_of_type(int64_t type);  // "FLOAT"

// Elements of one kind: those of `raw`, little-endian, or of the list that its type goes with.
struct TensorData {
  std::string name;
  int64_t type = 0;
  Shape dims = {};
  bool has_raw = false;
  std::span<const std::byte> raw = {};  // in the file, which stays open
  std::vector<float> floats = {};
  std::vector<double> doubles = {};
  std::vector<int64_t> integers = {};  // int32_data, int64_data and uint64_data
  std::vector<std::string> strings = {};
  bool is_external = false;
  std::map<std::string, std::string> external = {};  // location, offset, length
};

// A tensor that is zero but for some elements: their values, and their positions (n) or (n, rank).
struct SparseData {
  TensorData values, indices;
  Shape dims = {};
};

struct Graph;

// An attribute of a node; `type` as AttributeProto.AttributeType says which of the values counts.
struct Attribute {
  std::string name;
  std::string reference = "";  // inside of a function: the attribute of its call
  int64_t type = 0;
  float real = 0;
  int64_t integer = 0;
  std::string text = "";
  std::vector<float> reals = {};
  std::vector<int64_t> integers = {};
  std::vector<std::string> texts = {};
  std::shared_ptr<const TensorData> tensor = {};
  std::shared_ptr<const SparseData> sparse = {};
  std::shared_ptr<const Graph> graph = {};
};

struct GraphNode {
  std::string name, op, domain, overload;
  std::vector<std::string> inputs, outputs;  // "": left out
  std::vector<Attribute> attributes;
};

struct Dimension {
  int64_t value = -1;     // -1: not said
  std::string name = "";  // of one that varies
};

// A name with what is known of its value.
struct ValueInfo {
  enum class Kind { Unknown, Tensor, Sequence, Optional, Map, Sparse };
  std::string name;
  Kind kind = Kind::Unknown;
  int64_t type = 0;  // of a tensor's elements
  std::optional<std::vector<Dimension>> shape = {};
};

struct Graph {
  std::string name;
  std::vector<GraphNode> nodes;  // each after those whose results it takes
  std::vector<TensorData> initializers;
  std::vector<SparseData> sparse_initializers;
  std::vector<ValueInfo> inputs, outputs;
};

using Opsets = std::map<std::string, int64_t>;  // versions by domain; "": the default one

// A node's body that the file defines itself.
struct Function {
  std::string name, domain, overload;
  std::vector<std::string> inputs, outputs, attributes;
  std::vector<Attribute> defaults;  // attributes with a value that a call may leave out
  std::vector<GraphNode> nodes;
  Opsets opsets;
};

struct Model {
  std::string path;                        // for errors, and for external data beside it
  std::shared_ptr<const MappedFile> file;  // of the bytes of tensors
  int64_t ir_version = 0;
  std::string producer;
  Opsets opsets;
  Graph graph;
  std::vector<Function> functions;
};

// Throws Error for a file that is no model: truncated, of other messages, nested more than 64 deep,
// without a graph. What it allocates is a small multiple of what the file holds besides the bytes
// of tensors, which stay where they are.
Model read_model(const std::string& path);

// The file's bytes; raw bytes of tensors are copied.
std::string model_bytes(const Model& model);
// Writes the file aside and renames it. Throws Error where it cannot be written.
void write_model(const std::string& path, const Model& model);

// A TensorProto in a file of its own, as test data are stored. Its bytes stay in `file`.
TensorData read_tensor_data(const MappedFile& file);

// The bytes of a tensor's elements as the dtype says, row-major. `folder`: of the model, for
// external data. Throws Error for a type that no tensor has, sizes that do not agree with the
// shape, and external data that are not there or lie outside of the folder.
std::vector<std::byte> element_bytes(const TensorData& data, const std::string& folder);

}  // namespace tiny::onnx
