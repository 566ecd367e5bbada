// Variable: an integer that is known when kernels run, between bounds that are known when they are
// compiled. One capture of a Jit, and one set of kernels, serves all of its values.
//
//   Variable n("n", 1, 4096);
//   Jit step([](const Tensor& x, const Variable& n) { return x.narrow(0, 0, n).softmax(0); });
//   for (int64_t i = 1; i <= 4096; ++i) Tensor y = step(x, n.bind(i));
//
// As a length, x.narrow(axis, 0, n) gives an axis of which the first n elements count. Its memory
// is that of the bound, Tensor::capacity(); what lies beyond n is never part of a result.
// Element-wise functions keep such an axis (all operands must have it), reductions, softmax and
// matrix products over it take the first n elements, and their loops end there. Running sums and
// their kin, sort, median and topk see those n alone, in the time of the bound; cat puts one behind
// the other, and the result's length is the sum, n + m or n + 1. Index tensors read zeros from what
// lies beyond it, and what lies there is not written anywhere. Axes beside it are free, those that
// convolutions and pools slide over too; it cannot be split, merged, cut or padded, nor asked for
// its size(): n.tensor() is that, as a value. Reading the tensor on the host gives n elements. As a
// value, n.tensor() is an i64 scalar for masks, means and the like; x.narrow(axis, n, 1) begins at
// n, and x.index({n}) and x.assign({n}, value) read and write there.
//
// How: the value is a scalar in memory, an argument of kernels like any tensor, wrapped in a node
// (Op::Bound) that tells its bounds to every proof. A length is a fact of nodes (facts.h:
// infer_lengths) that no pass needs: reductions over such an axis select with an ordinary mask,
// position < n, when the graph is made. That stores skip what does not count, and loops end at n,
// is found again from the masks (codegen/kernel/lengths.h), so that a pass which knows nothing of
// it can cost time and nothing else.
#pragma once
#include <optional>
#include <string>

#include "tiny/tensor/tensor.h"

namespace tiny {

class Variable {
 public:
  // 0 <= min <= max; no value yet. Throws Error.
  Variable(std::string name, int64_t min, int64_t max);

  // The same variable with a value, on a device (the default one). Throws Error, with the values,
  // for one outside the bounds.
  Variable bind(int64_t value, const std::string& device = "") const;
  Variable& operator=(int64_t value) { return *this = bind(value); }

  const std::string& name() const { return name_; }
  int64_t min() const { return min_; }
  int64_t max() const { return max_; }
  bool is_bound() const { return tensor_.defined(); }
  // The value on the host. Error without one, and while a Jit captures.
  int64_t value() const;
  // The value as an i64 scalar. Error without one.
  const Tensor& tensor() const;

  // Of variables that have values: what they give, with bounds of its own.
  friend Variable operator+(const Variable& x, int64_t y);
  friend Variable operator-(const Variable& x, int64_t y);
  friend Variable operator*(const Variable& x, int64_t y);
  friend Variable operator+(const Variable& x, const Variable& y);
  friend Variable operator-(const Variable& x, const Variable& y);

  // For Jit: applies f to the scalar, which may exchange it.
  template <class F> void exchange(F&& f) {
    make_argument();
    const Node before = tensor().node();
    f(tensor_);
    if (tensor_.defined() && tensor_.node() != before) value_.reset();
  }

 private:
  Variable(std::string name, const Tensor& tensor, std::optional<int64_t> value);
  void make_argument();

  std::string name_;
  int64_t min_, max_;
  Tensor tensor_;                 // bounds of its node: min, max
  std::optional<int64_t> value_;  // nullopt: inside a capture
};

namespace runtime_seam {
// A Buffer node of one i64 with this value, the same one for the same name and value while somebody
// has it: two lengths are the same if their nodes are.
Node variable_value(const std::string& name, int64_t value, const std::string& device);
}  // namespace runtime_seam

}  // namespace tiny
