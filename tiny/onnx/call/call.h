// What an operator of ONNX is given: a node of a graph with its inputs and attributes, and the
// graph around it. Each file of tiny/onnx/ops has a group of operators as functions from a Call to
// Tensors; its table.h lists them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tiny/onnx/call/host_values.h"
#include "tiny/onnx/format/model.h"
#include "tiny/tensor/tensor.h"

namespace tiny::onnx {

using Tensors = std::vector<Tensor>;

// A size as the host knows it: a number, or the length that a Variable gives, of at most `value`.
struct Size {
  int64_t value = 0;
  Node length = nullptr;
};

// What surrounds the nodes of a graph while they become tensors.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // The values of a tensor: those that are known on the host, else read from its device, which is
  // an Error while a Jit captures.
  virtual HostArray values_of(const Tensor& x) = 0;
  virtual bool is_known(const Tensor& x) = 0;  // on the host
  // The same for integers, each of which may also be the length of an input's axis. Error for what
  // depends on a length in another way.
  virtual std::vector<Size> sizes_of(const Tensor& x) = 0;
  // A tensor of host values; the same one for the same values.
  virtual Tensor constant(DType dtype, const Shape& shape, std::vector<std::byte> bytes) = 0;
  // Results of a graph inside of an attribute, which sees the names around the node.
  virtual Tensors run(const Graph& graph, const Tensors& inputs) = 0;
  virtual Tensor tensor_of(const TensorData& data) = 0;
  virtual Tensor tensor_of(const SparseData& data) = 0;  // with its zeros
};

class Call {
 public:
  // The attributes: of the node, with those that refer to a function's call replaced.
  Call(const GraphNode& node, std::vector<const Attribute*> attributes, Tensors inputs,
       int64_t opset, Surroundings& around)
      : node_(node),
        attributes_(std::move(attributes)),
        inputs_(std::move(inputs)),
        opset_(opset),
        around_(around) {}

  int64_t opset() const { return opset_; }
  Surroundings& around() const { return around_; }
  size_t outputs() const { return node_.outputs.size(); }
  bool wants(size_t output) const;  // it has a name

  // Inputs; Error for one that is left out.
  const Tensor& operator[](size_t i) const;
  size_t size() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i].defined(); }
  Tensor optional(size_t i) const { return has(i) ? inputs_[i] : Tensor(); }
  const Tensors& inputs() const { return inputs_; }

  // Attributes; Error for one of another type.
  bool has_attribute(const char* name) const { return find(name, 0) != nullptr; }
  int64_t integer(const char* name, int64_t otherwise) const;
  double real(const char* name, double otherwise) const;
  std::string text(const char* name, const std::string& otherwise) const;
  Shape integers(const char* name, const Shape& otherwise = {}) const;
  std::vector<double> reals(const char* name) const;
  std::vector<std::string> texts(const char* name) const;
  const Graph& graph(const char* name) const;  // Error where it is left out
  const Attribute* find(const char* name) const { return find(name, 0); }

  // Values of an input on the host.
  Shape host_integers(size_t i) const;
  std::vector<double> host_reals(size_t i) const;
  std::vector<Size> host_sizes(size_t i) const;
  // Axes that older versions give as an attribute, newer ones as an input.
  std::optional<Shape> axes(size_t input, const char* attribute = "axes") const;

  // A small tensor of host values.
  Tensor constant(const Shape& values) const;  // i64, 1-d
  Tensor constant(const Shape& values, const Shape& shape) const;
  Tensor constant(const std::vector<double>& values, const Shape& shape, DType dtype) const;

  // Throws Error, beginning with the operator.
  template <class... Parts> void require(bool ok, const Parts&... parts) const {
    check(ok, node_.op, ": ", parts...);
  }

 private:
  const Attribute* find(const char* name, int64_t type) const;

  const GraphNode& node_;
  const std::vector<const Attribute*> attributes_;
  const Tensors inputs_;
  const int64_t opset_;
  Surroundings& around_;
};

// --- What several groups use ---------------------------------------------------------------------

inline Shape sizes(const Tensor& x) { return to_shape(x.shape()); }
// The same with its bound for an axis whose length is a Variable.
inline Shape bounds(const Tensor& x) { return to_shape(x.capacity()); }
// x, of whose axes only so many elements count as the sizes say; those that are numbers are whole.
Tensor limited(const Tensor& x, const std::vector<Size>& sizes);
Shape bounds(const std::vector<Size>& sizes);
// The axis counted from the front. Error, as of Tensor's functions.
int64_t axis_of(const Tensor& x, int64_t axis);
// `index` with `size` added where it is negative.
Tensor from_front(const Tensor& index, int64_t size);
// x (C) as (1, ..., C, ..., 1) of so many axes; a scalar as it is.
Tensor along_axis(const Tensor& x, int64_t axis, int rank);
// The shape (1, ..., size, ..., 1), `size` at that axis.
Shape ones_but(int rank, int64_t axis, int64_t size);

}  // namespace tiny::onnx
