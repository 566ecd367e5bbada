// Internals shared by the sources of Tensor: broadcasting and promotion of nodes, lists of axes,
// checks of dtypes.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/tensor.h"

namespace tiny::detail {

// `x` seen in a shape that it broadcasts to.
Node broadcast_to(Node x, Ints shape);

// The operand as a node of this dtype; a number as a constant of shape ().
Node operand_node(const Operand& x, DType dtype);

// A number as a constant. Throws Error for an integer dtype that cannot hold a number of this kind.
Node number_node(Number value, DType dtype);

// Throws Error where an axis of one operand has a length (variable.h) that the other's has not,
// unless the other is repeated along it.
void check_lengths(const char* what, Node a, Node b);

// The value of an i64 scalar made of Variables, on the host.
int64_t host_integer(Node n);

// x with the lengths that `like`, of the same shape, has.
Tensor with_lengths(const Tensor& x, const Tensor& like);

// Both operands in one dtype, in the shape that they broadcast to and with its lengths.
std::pair<Node, Node> match(const char* what, const Operand& x, const Operand& y, DType dtype);

// op(x, y) in the given dtype.
Tensor binary(const char* what, Op op, const Operand& x, const Operand& y, DType dtype);

// The axes meant, ascending and without repeats; all of them for Dims(). Throws Error.
Shape axes_of(const char* what, const Dims& dims, int rank);
uint32_t axes_mask(const Shape& axes);

// `shape` without the axes of the mask, or with size 1 there.
Shape without(Ints shape, uint32_t mask, bool keepdim);

// The permutation that moves axis `from` to the place `to` and keeps the order of the others.
Shape moved_axis(int rank, int from, int to);

// f32 for bool and integers, else the dtype itself.
DType real_dtype(DType t);
// The dtype in which functions and sums are computed: f32 for f16 and bf16.
DType compute_dtype(DType t);

// Throws Error with the name of the operation, the dtype and what would work.
void require_float(const char* what, DType t);
void require_integral(const char* what, DType t);          // bool or integer
void require_index(const char* what, DType t);             // integer
void require_shape(const char* what, const Shape& shape);  // no negative size

// The position along `axis` in every element of a tensor of this shape.
Tensor position(Ints shape, int axis, DType dtype = kI64);

// x, all of whose elements count: those beyond a length are unspecified.
Tensor whole(const Tensor& x);

// x[indices...], of the indices' shape. axes: for each axis of x the result's whose positions its
// index is, so that a length of it becomes that axis's, or -1: there zero is read beyond a length.
Tensor gather(const Tensor& x, std::vector<Node> indices, const std::vector<int>& axes);

// Gather of rows along one axis: out[.., index[..], ..] with index of the result's shape, i64 or
// i32, its other axes no longer than those of x.
Tensor gather_axis(const Tensor& x, int axis, const Tensor& index);

// Whether rows of x along its last axis, read by reductions alone, are reduced where a matrix
// product computes them (sizes.h), and have no memory: results of f32 on a CPU, of 16-bit floats on
// a GPU's matrix units, of which no gradient is wanted.
bool is_reduced_as_computed(const Tensor& x);

// Into how many pieces a row along the axis is cut whose elements are read several times, so that a
// group of threads can hold one: more than 1 for long rows in a GPU's memory of which no gradient
// is wanted, since that would pass through the pieces.
int64_t pieces_of_row(const Tensor& x, int axis);

// log(sum(exp(x))) over the axis, which stays with size 1; in such pieces where there are several.
Tensor log_sum_exp(const Tensor& x, int axis);

// The Buffer, Multi or other node behind a parameter or what has been assigned to it.
Node memory_behind(Node n);

// Random tensors of this thread are made on this device while one lives; "": on the default device.
class RandomOn {
 public:
  explicit RandomOn(const std::string& device);
  ~RandomOn();
  RandomOn(const RandomOn&) = delete;
  RandomOn& operator=(const RandomOn&) = delete;

 private:
  std::string before_;
};

// x without a gradient, from memory: elements that are compared with what was made from them
// (build.h: in_memory).
Tensor in_memory(const Tensor& x);

// `value`, whose gradient by x is slope(x) more than its own: than none where it is detached, as
// where the derivative of what computes it would cost more, or be none at the ends of its range.
template <class F> Tensor with_derivative(const Tensor& value, const Tensor& x, F slope) {
  if (!x.requires_grad()) return value;
  return Tensor(make(Op::WithDerivative, value.dtype(), {value.node(), x.node(), slope(x).node()}));
}

// `value`, whose gradient g by inputs[i] is gradients(g)[i], of the input's dtype and shape. That
// may read the inputs, what is computed from them (the value, too) and tensors without a gradient;
// it is differentiated itself where a gradient of the gradient is asked for.
Tensor custom_gradient(const Tensor& value, const std::vector<Tensor>& inputs,
                       const std::function<std::vector<Tensor>(const Tensor&)>& gradients);

// y where x is, as far as y is made of constants alone: positions in an axis of one element have no
// device of their own, and would lie on the default one once they are computed.
Tensor beside(const Tensor& y, const Tensor& x);

// `index` with `size` added where it is negative.
Tensor wrap_negative(const Tensor& index, const Operand& size);

}  // namespace tiny::detail
