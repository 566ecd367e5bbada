#include "tiny/tensor/detail.h"

#include <algorithm>

#include "tiny/ir/facts.h"

namespace tiny::detail {

Node broadcast_to(Node x, Ints shape) {
  if (same(x->shape(), shape)) return x;
  Shape lifted(shape.size() - x->rank, 1);
  lifted.insert(lifted.end(), x->shape().begin(), x->shape().end());
  return build::expand(build::reshape(x, lifted), shape);
}

Node number_node(Number value, DType dtype) {
  return value.is_float() ? constant(dtype, value.real()) : constant(dtype, value.integer());
}

Node operand_node(const Operand& x, DType dtype) {
  return x.is_number() ? number_node(x.number(), dtype) : x.tensor().to(dtype).node();
}

void check_lengths(const char* what, Node a, Node b) {
  if (!a->lengths && !b->lengths) return;
  for (int i = 1; i <= std::min(a->rank, b->rank); ++i) {
    const int at = a->rank - i, to = b->rank - i;
    if (a->shape()[at] == 1 || b->shape()[to] == 1 || a->length(at) == b->length(to)) continue;
    if ((!a->length(at) && !varies(a, at)) || (!b->length(to) && !varies(b, to))) continue;
    const bool one = !a->length(at) || !b->length(to);
    throw Error(cat(what, ": axis ", at, " of ", to_text(a->shape()), " and axis ", to, " of ",
                    to_text(b->shape()),
                    one ? ": the length of one of them is a Variable: narrow the other to it too"
                        : ": their lengths are different Variables: narrow both to the same one"));
  }
}

int64_t host_integer(Node n) {
  int64_t value = 0;
  switch (n->op) {
    case Op::Const: return n->int_value();
    case Op::Bound:
    case Op::Reshape:
    case Op::Expand: return host_integer(n->src(0));
    case Op::Add: return host_integer(n->src(0)) + host_integer(n->src(1));
    case Op::Sub: return host_integer(n->src(0)) - host_integer(n->src(1));
    case Op::Mul: return host_integer(n->src(0)) * host_integer(n->src(1));
    default: break;
  }
  expect(n->op == Op::Buffer, "a length made of ", n->op);
  runtime_seam::download(n, &value);
  return value;
}

Tensor with_lengths(const Tensor& x, const Tensor& like) {
  return Tensor(build::with_lengths(x.node(), like.node()));
}

namespace {

std::pair<Node, Node> seen_alike(const char* what, const Operand& x, const Operand& y,
                                 DType dtype) {
  const Node a = operand_node(x, dtype), b = operand_node(y, dtype);
  const Shape shape = broadcast(what, a->shape(), b->shape());
  check_lengths(what, a, b);
  return {broadcast_to(a, shape), broadcast_to(b, shape)};
}

}  // namespace

std::pair<Node, Node> match(const char* what, const Operand& x, const Operand& y, DType dtype) {
  const auto [a, b] = seen_alike(what, x, y, dtype);
  return {build::with_lengths(a, b), build::with_lengths(b, a)};
}

Tensor binary(const char* what, Op op, const Operand& x, const Operand& y, DType dtype) {
  LabelScope label(what);
  const auto [a, b] = seen_alike(what, x, y, dtype);  // constants stay in one form
  return Tensor(build::binary(op, a, b));
}

Shape axes_of(const char* what, const Dims& dims, int rank) {
  Shape axes;
  if (dims.all())
    for (int i = 0; i < rank; ++i) axes.push_back(i);
  else if (rank == 0)  // 0 and -1 name the only element; there is no axis to work on
    for (int64_t d : dims.list()) normalize_axis(what, d, rank);
  else
    for (int64_t d : dims.list()) axes.push_back(normalize_axis(what, d, rank));
  std::ranges::sort(axes);
  const auto repeat = std::adjacent_find(axes.begin(), axes.end());
  check(repeat == axes.end(), what, ": axis ", repeat == axes.end() ? 0 : *repeat,
        " is named twice in ", dims.all() ? "" : std::string(to_text(dims.list())));
  return axes;
}

uint32_t axes_mask(const Shape& axes) {
  uint32_t mask = 0;
  for (int64_t a : axes) mask |= uint32_t{1} << a;
  return mask;
}

Shape without(Ints shape, uint32_t mask, bool keepdim) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!(mask >> i & 1))
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

Shape moved_axis(int rank, int from, int to) {
  Shape order;
  for (int i = 0; i < rank; ++i)
    if (i != from) order.push_back(i);
  order.insert(order.begin() + to, from);
  return order;
}

DType real_dtype(DType t) { return t.is_float() ? t : kF32; }

DType compute_dtype(DType t) { return t.is_narrow() ? kF32 : t; }

void require_float(const char* what, DType t) {
  check(t.is_float(), what, ": takes floats and not ", t, ": convert it with to(kF32)");
}

void require_integral(const char* what, DType t) {
  check(!t.is_float(), what, ": takes integers and bool and not ", t);
}

void require_index(const char* what, DType t) {
  check(t.is_int(), what, ": indices are integers and not ", t);
}

void require_shape(const char* what, const Shape& shape) {
  for (int64_t s : shape) check(s >= 0, what, ": size ", s, " of ", to_text(shape), " is negative");
  check(shape.size() <= kMaxRank, what, ": ", shape.size(), " axes; there may be ", kMaxRank);
  tiny::numel(shape);
}

Tensor position(Ints shape, int axis, DType dtype) {
  return Tensor(build::iota(shape, axis, dtype));
}

Tensor whole(const Tensor& x) {
  return x.node()->lengths ? Tensor(make(Op::Whole, x.dtype(), {x.node()})) : x;
}

Tensor gather_axis(const Tensor& x, int axis, const Tensor& index) {
  std::vector<Node> indices;
  std::vector<int> axes(x.rank());
  for (int i = 0; i < x.rank(); ++i) {
    axes[i] = i == axis ? -1 : i;
    indices.push_back(i == axis ? index.node() : build::iota(index.capacity(), i, index.dtype()));
  }
  return gather(x, indices, axes);
}

Tensor gather(const Tensor& x, std::vector<Node> indices, const std::vector<int>& axes) {
  for (int i = 0; i < x.rank(); ++i) {
    const Node length = x.node()->length(i);
    if (!length || axes[i] >= 0) continue;
    const Tensor at(indices[i]);
    indices[i] = where(at < Tensor(length), at, -1).node();
  }
  Node y = build::gather(whole(x).node(), indices);
  for (int i = 0; i < x.rank(); ++i) {
    const Node length = x.node()->length(i);
    if (!length || axes[i] < 0) continue;
    check(y->shape()[axes[i]] == x.capacity()[i], "gather: axis ", i, " of ", to_text(x.capacity()),
          " holds as many elements as a Variable says, and an index of ", to_text(y->shape()),
          " does not go over all of them");
    y = build::limit(y, axes[i], length);
  }
  return Tensor(y);
}

Node memory_behind(Node n) {
  const auto is_above = [](Node x) {
    return x->realized || x->op == Op::Leaf || x->op == Op::Detach || x->op == Op::Assign;
  };
  while (is_above(n)) n = n->realized ? n->realized.load() : n->src(0);
  return n;
}

Tensor in_memory(const Tensor& x) { return Tensor(build::in_memory(x.detach().node())); }

Tensor custom_gradient(const Tensor& value, const std::vector<Tensor>& inputs,
                       const std::function<std::vector<Tensor>(const Tensor&)>& gradients) {
  if (std::ranges::none_of(inputs, [](const Tensor& t) { return t.requires_grad(); }))
    return value.detach();
  const Tensor seed(build::leaf(value.detach().node()));  // on its device, with its lengths
  const std::vector<Tensor> of = gradients(seed);
  expect(of.size() == inputs.size(), "custom_gradient: ", of.size(), " for ", inputs.size());
  std::vector<Node> srcs{value.detach().node(), seed.node()};
  for (size_t i = 0; i < of.size(); ++i) {
    srcs.push_back(inputs[i].node());
    srcs.push_back(of[i].node());
  }
  return Tensor(make(Op::CustomGradient, value.dtype(), srcs));
}

Tensor beside(const Tensor& y, const Tensor& x) {
  const std::string device = x.device();
  const bool is_there = device.empty() || !y.device().empty();
  return is_there || device == runtime_seam::default_device() ? y : y.to(device);
}

Tensor wrap_negative(const Tensor& index, const Operand& size) {
  const DType t = index.dtype() == kI32 ? kI32 : kI64;
  const Tensor i = index.to(t);
  return index.dtype().is_unsigned() ? i : where(i < 0, i + size, i);
}

}  // namespace tiny::detail
