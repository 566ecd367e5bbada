#include "tiny/windows.h"

#include "tiny/build.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// Movement of a few axes, the others left as they are.
Node reshape_axes(Node x, int axis, int count, std::initializer_list<int64_t> sizes) {
  Shape shape = to_shape(x->shape());
  shape.erase(shape.begin() + axis, shape.begin() + axis + count);
  shape.insert(shape.begin() + axis, sizes);
  return build::reshape(x, shape);
}

Node expand_axis(Node x, int axis, int64_t size) {
  Shape shape = to_shape(x->shape());
  shape[axis] = size;
  return build::expand(x, shape);
}

Node pad_axis(Node x, int axis, int64_t before, int64_t after) {
  Shape amounts(2 * x->rank, 0);
  amounts[2 * axis] = before;
  amounts[2 * axis + 1] = after;
  return build::pad(x, amounts);
}

Node shrink_axis(Node x, int axis, int64_t end) {
  Shape bounds(2 * x->rank, 0);
  for (int i = 0; i < x->rank; ++i) bounds[2 * i + 1] = i == axis ? end : x->shape()[i];
  return build::shrink(x, bounds);
}

Node stride_axis(Node x, int axis, int64_t step) {
  Shape steps(x->rank, 1);
  steps[axis] = step;
  return build::stride(x, steps);
}

Node to_last(Node x, int axis) {
  Shape order;
  for (int i = 0; i < x->rank; ++i)
    if (i != axis) order.push_back(i);
  order.push_back(axis);
  return build::permute(x, order);
}

// Rows (`axis`) of `width` elements (axis + 1), row j moved j * shift to the left: flattened, and
// cut into rows that are longer by the shift. What comes in from the next row is the caller's.
Node shear(Node x, int axis, int64_t shift) {
  const int64_t rows = x->shape()[axis], width = x->shape()[axis + 1];
  x = reshape_axes(x, axis, 2, {rows * width});
  x = pad_axis(x, axis, 0, rows * shift);
  return reshape_axes(x, axis, 1, {rows, width + shift});
}

// Windows that do not overlap are blocks of `step` elements, each cut to the window.
Node blocks(Node x, int axis, WindowArg w, int64_t count) {
  const int64_t length = x->shape()[axis], whole = count * w.step;
  x = whole > length ? pad_axis(x, axis, 0, whole - length) : shrink_axis(x, axis, whole);
  x = reshape_axes(x, axis, 1, {count, w.step});
  x = shrink_axis(x, axis + 1, w.dilation * (w.size - 1) + 1);
  return to_last(stride_axis(x, axis + 1, w.dilation), axis + 1);
}

}  // namespace

Node build::windows(Node x, int axis, WindowArg w) {
  const int64_t length = x->shape()[axis], span = w.dilation * (w.size - 1) + 1;
  expect(span <= length, "windows: ", span, " of ", length);
  const int64_t count = (length - span) / w.step + 1;
  if (span <= w.step) return blocks(x, axis, w, count);
  x = expand_axis(reshape_axes(x, axis, 1, {1, length}), axis, w.size);
  x = shrink_axis(shear(x, axis, w.dilation), axis + 1, (count - 1) * w.step + 1);
  return to_last(stride_axis(x, axis + 1, w.step), axis);
}

namespace {

// The windows' chain below its Shrink: one axis of e, of size 1, became rows of a shear.
struct Sheared {
  Node source = nullptr;  // [..., 1, length, ...]
  int axis = 0;           // of the 1
  int64_t size = 0, length = 0, shift = 0;
};

std::optional<Sheared> match_shear(Node shrink) {
  const Op chain[] = {Op::Reshape, Op::Pad, Op::Reshape, Op::Expand};
  Node n = shrink, parts[4];
  for (int i = 0; i < 4; ++i) {
    n = parts[i] = n->src(0);
    if (n->op != chain[i]) return {};
  }
  const Node rows = parts[0], padded = parts[1], expanded = parts[3];
  Sheared s{expanded->src(0)};
  if (rows->rank != expanded->rank || padded->rank + 1 != rows->rank) return {};
  while (s.axis < rows->rank && s.source->shape()[s.axis] == expanded->shape()[s.axis]) ++s.axis;
  if (s.axis + 1 >= rows->rank) return {};
  s.size = expanded->shape()[s.axis];
  s.length = expanded->shape()[s.axis + 1];
  s.shift = rows->shape()[s.axis + 1] - s.length;
  if (s.shift < 1) return {};
  // Built once more from its source, the chain must be the very same node.
  return shear(expanded, s.axis, s.shift) == rows ? std::optional(s) : std::nullopt;
}

// n = the sum of `terms` over its last `extra` axes.
struct Lifted {
  Node terms;
  int extra;
};

Lifted lift(Node n);

Lifted lift_reduce(Node n) {
  const uint32_t mask = n->arg<ReduceArg>().axes;
  Shape order, shape = to_shape(n->shape());
  for (int i = 0; i < n->rank; ++i)
    if (!(mask >> i & 1)) order.push_back(i);
  for (int i = 0; i < n->rank; ++i) {
    if (!(mask >> i & 1)) continue;
    order.push_back(i);
    shape.push_back(n->src(0)->shape()[i]);
  }
  const int extra = static_cast<int>(shape.size()) - n->rank;
  return {build::reshape(build::permute(n->src(0), order), shape), extra};
}

// The same movement on the terms; the axes of the sum are left alone.
Node move_terms(Node n, const Lifted& below) {
  const Ints tail = below.terms->shape().last(below.extra);
  Shape arg = to_shape(n->ints());
  for (int i = 0; i < below.extra; ++i) {
    switch (n->op) {
      case Op::Pad: arg.insert(arg.end(), {0, 0}); break;
      case Op::Shrink: arg.insert(arg.end(), {0, tail[i]}); break;
      case Op::Permute: arg.push_back(n->rank + i); break;
      case Op::Flip: arg.push_back(0); break;
      case Op::Stride: arg.push_back(1); break;
      default: arg.push_back(tail[i]);  // Reshape, Expand
    }
  }
  switch (n->op) {
    case Op::Pad: return build::pad(below.terms, arg);
    case Op::Shrink: return build::shrink(below.terms, arg);
    case Op::Permute: return build::permute(below.terms, arg);
    case Op::Flip: return build::flip(below.terms, arg);
    case Op::Stride: return build::stride(below.terms, arg);
    case Op::Reshape: return build::reshape(below.terms, arg);
    default: return build::expand(below.terms, arg);
  }
}

Lifted lift(Node n) {
  if (n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Add) return lift_reduce(n);
  if (!is_movement(n->op) || n->op == Op::Expand) return {n, 0};
  const Lifted below = lift(n->src(0));
  if (below.extra == 0 || n->rank + below.extra > kMaxRank) return {n, 0};
  return {move_terms(n, below), below.extra};
}

// `grad` in the shape of the shrink's source, with rows reversed and `front` zeros before each.
Node unshrink_reversed(Node shrink, Node grad, const Sheared& s, int64_t front) {
  Shape flags(grad->rank, 0), amounts(2 * grad->rank, 0);
  flags[s.axis] = 1;
  const Ints kept = shrink->ints(), whole = shrink->src(0)->shape();
  for (int i = 0; i < shrink->rank; ++i) {
    amounts[2 * i] = kept[2 * i];
    amounts[2 * i + 1] = whole[i] - kept[2 * i + 1];
  }
  std::swap(amounts[2 * s.axis], amounts[2 * s.axis + 1]);
  amounts[2 * s.axis + 2] += front;
  amounts[2 * s.axis + 3] -= s.shift;
  return build::pad(build::flip(grad, flags), amounts);
}

}  // namespace

std::optional<WindowGrad> windows_grad(Node shrink, Node grad) {
  const std::optional<Sheared> s = match_shear(shrink);
  if (!s || shrink->ints()[2 * s->axis + 3] > s->length) return {};
  // A sum in a wider dtype is lifted below the cast that ends it.
  const bool narrowed = grad->op == Op::Cast && grad->src(0)->dtype.is_float();
  Lifted sum = lift(narrowed ? grad->src(0) : grad);
  if (sum.extra == 0) sum.terms = grad;
  // out[l] = sum over j of grad[j][l - j shift]; with the rows reversed, row j' is read at
  // l + j' shift - front, which a shear to the other side and `front` zeros make a view.
  const int64_t front = (s->size - 1) * s->shift;
  Node x = unshrink_reversed(shrink, sum.terms, *s, front);
  x = shrink_axis(shear(x, s->axis, s->shift), s->axis + 1, s->length);
  uint32_t axes = uint32_t{1} << s->axis;
  for (int i = 0; i < sum.extra; ++i) axes |= uint32_t{1} << (shrink->rank + i);
  x = build::reshape(build::reduce(Op::Add, x, axes), s->source->shape());
  return WindowGrad{s->source, build::cast(x, grad->dtype)};
}

}  // namespace tiny
