#include "tiny/autograd/windows.h"

#include <algorithm>
#include <numeric>

#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"

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
// cut into rows that are longer by the shift. Elements that come in from the next row are the
// caller's to mask.
Node shear(Node x, int axis, int64_t shift) {
  const int64_t rows = x->shape()[axis], width = x->shape()[axis + 1];
  x = reshape_axes(x, axis, 2, {rows * width});
  x = pad_axis(x, axis, 0, rows * shift);
  return reshape_axes(x, axis, 1, {rows, width + shift});
}

// How an axis is cut: into blocks of which some elements are kept, and windows over the blocks that
// hold those asked for. The steps from window to window become steps of whole blocks, so that the
// gradient is dense: one reduction for each element of a block, with no zeros put between them.
struct Cut {
  int64_t count = 1, size = 1;      // windows, elements of each
  int64_t block = 1;                // elements of a block
  int64_t kept = 1, kept_step = 1;  // elements 0, kept_step, ... of each
  int64_t front = 0;                // elements put before the axis
  int64_t taps = 1;                 // blocks of a window,
  int64_t shift = 1, skip = 1;      // `shift` apart, the first one `skip` after the last window's

  int64_t blocks() const { return (count - 1) * skip + (taps - 1) * shift + 1; }
};

Cut cut_of(int64_t length, WindowArg w) {
  const int64_t span = span_of("windows", w);
  expect(span <= length, "windows: ", span, " of ", length);
  w.step = std::min(w.step, length);  // longer ones leave one window as well
  if (w.size == 1) w.dilation = 1;
  Cut c{.count = (length - span) / w.step + 1, .size = w.size, .taps = w.size};
  if (span <= w.step) {  // each window is a block of its own
    c.block = w.step;
    c.kept = w.size;
    c.kept_step = w.dilation;
    c.taps = 1;
  } else if (w.step % w.dilation == 0) {
    c.block = w.step;
    c.kept = w.step / w.dilation;
    c.kept_step = w.dilation;
    c.taps = ceil_div(w.size, c.kept);
    // Elements that are no padding begin with a block where that takes no more taps.
    const int64_t missing = (w.step - w.padding % w.step) % w.step;
    if (missing % w.dilation == 0 && missing / w.dilation + w.size <= c.taps * c.kept)
      c.front = missing;
  } else {
    c.block = std::gcd(w.step, w.dilation);
    c.shift = w.dilation / c.block;
    c.skip = w.step / c.block;
  }
  return c;
}

// x with each axis that is cut into blocks as two: the blocks, and what is kept of each.
Node to_blocks(Node x, int axis, std::span<const Cut> cuts) {
  const int end = axis + static_cast<int>(cuts.size());
  Shape amounts, whole, split, kept, steps;
  const auto add = [&](int64_t size, int64_t keep, int64_t step) {
    split.push_back(size);
    kept.insert(kept.end(), {0, keep});
    steps.push_back(step);
  };
  for (int i = 0; i < x->rank; ++i) {
    const bool cut = i >= axis && i < end;
    const Cut& c = cut ? cuts[i - axis] : Cut{};
    const int64_t length = x->shape()[i] + c.front, blocks = cut ? c.blocks() : length;
    amounts.insert(amounts.end(), {c.front, std::max<int64_t>(0, blocks * c.block - length)});
    whole.insert(whole.end(), {0, blocks * c.block});
    add(blocks, blocks, 1);
    if (c.block > 1) add(c.block, c.kept_step * (c.kept - 1) + 1, c.kept_step);
  }
  x = build::reshape(build::shrink(build::pad(x, amounts), whole), split);
  return build::stride(build::shrink(x, kept), steps);
}

// An axis of blocks as windows over them, the taps as a new last axis.
Node to_taps(Node x, int axis, const Cut& c) {
  x = expand_axis(reshape_axes(x, axis, 1, {1, c.blocks()}), axis, c.taps);
  x = shrink_axis(shear(x, axis, c.shift), axis + 1, (c.count - 1) * c.skip + 1);
  return to_last(stride_axis(x, axis + 1, c.skip), axis);
}

}  // namespace

int64_t span_of(const char* what, const WindowArg& w) {
  return checked_add(what, checked_mul(what, w.dilation, w.size - 1), 1);
}

Node build::windows(Node x, int axis, std::span<const WindowArg> args) {
  const int rank = x->rank;
  std::vector<Cut> cuts;
  for (size_t i = 0; i < args.size(); ++i)
    cuts.push_back(cut_of(x->shape()[axis + static_cast<int>(i)], args[i]));
  x = to_blocks(x, axis, cuts);
  // [..., blocks, kept, ...] to [..., count, kept, ..., taps...].
  const int split = x->rank;
  int at = axis;
  Shape order, shape;
  for (int i = 0; i < axis; ++i) order.push_back(i);
  for (const Cut& c : cuts) {
    x = to_taps(x, at, c);
    order.push_back(at++);
    if (c.block > 1) ++at;
  }
  for (int i = at; i < split; ++i) order.push_back(i);
  for (int64_t i : order) shape.push_back(x->shape()[i]);
  // The elements of a window are its taps times what is kept of each; some may be too many.
  at = axis;
  for (size_t i = 0; i < cuts.size(); ++i) {
    order.push_back(split + static_cast<int64_t>(i));
    if (cuts[i].block > 1) order.push_back(++at);
    ++at;
    shape.push_back(cuts[i].taps * cuts[i].kept);
  }
  Shape bounds;
  for (int i = 0; i < rank; ++i) bounds.insert(bounds.end(), {0, shape[i]});
  for (const Cut& c : cuts) {
    const int64_t first = c.front / c.kept_step;
    bounds.insert(bounds.end(), {first, first + c.size});
  }
  return shrink(reshape(permute(x, order), shape), bounds);
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
  if (!is_movement(n->op) || n->op == Op::Expand || n->num_src > 1 || n->lengths) return {n, 0};
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

// --- Cropping ------------------------------------------------------------------------------------

namespace {

// Whether nothing but movement, casts and masks is above a sum.
bool is_sum_seen(Node n) {
  const OpSet seen = op_set(Op::Reshape, Op::Permute, Op::Pad, Op::Shrink, Op::Cast, Op::Where);
  while (seen.test(static_cast<size_t>(n->op))) n = n->src(n->op == Op::Where ? 1 : 0);
  return n->op == Op::ReduceAxis;
}

Node crop(Node n, const Shape& bounds);

// The inverse of pad.
Node crop_pad(Node n, const Shape& bounds) {
  Shape below, around;
  for (int i = 0; i < n->rank; ++i) {
    const int64_t size = n->src(0)->shape()[i], first = n->ints()[2 * i];
    const int64_t b = std::clamp<int64_t>(bounds[2 * i] - first, 0, size);
    const int64_t e = std::clamp<int64_t>(bounds[2 * i + 1] - first, b, size);
    below.insert(below.end(), {b, e});
    const int64_t before = std::max<int64_t>(0, first - bounds[2 * i]);
    around.insert(around.end(), {before, bounds[2 * i + 1] - bounds[2 * i] - before - (e - b)});
  }
  return build::pad(crop(n->src(0), below), around);
}

// Axes that the reshape leaves alone are cropped below it. So is one that is made of several,
// to whole elements of the outermost; the rest of it, and what is made of others, above.
Node crop_reshape(Node n, const Shape& bounds) {
  const Ints from = n->src(0)->shape(), to = n->shape();
  Shape below, shape, above;
  size_t i = 0;
  for (size_t j = 0; j < to.size();) {
    const size_t first = i, begin = j;
    int64_t have = i < from.size() ? from[i++] : 1, want = to[j++];
    while (have != want) {
      if (have < want)
        have *= from[i++];
      else
        want *= to[j++];
    }
    while (j == to.size() && i < from.size()) ++i;  // ones
    for (size_t k = first; k < i; ++k) below.insert(below.end(), {0, from[k]});
    size_t outer = first;
    while (outer < i && from[outer] == 1) ++outer;
    if (j == begin + 1 && outer < i) {
      const int64_t inner = want / from[outer], b = bounds[2 * begin] / inner;
      const int64_t e = ceil_div(bounds[2 * begin + 1], inner);
      below[2 * outer] = b;
      below[2 * outer + 1] = e;
      shape.push_back((e - b) * inner);
      above.insert(above.end(), {bounds[2 * begin] - b * inner, bounds[2 * begin + 1] - b * inner});
    } else {
      shape.insert(shape.end(), to.begin() + begin, to.begin() + j);
      above.insert(above.end(), bounds.begin() + 2 * begin, bounds.begin() + 2 * j);
    }
  }
  return build::shrink(build::reshape(crop(n->src(0), below), shape), above);
}

Node crop(Node n, const Shape& bounds) {
  switch (n->op) {
    case Op::Cast: return build::cast(crop(n->src(0), bounds), n->dtype);
    case Op::Reshape: return crop_reshape(n, bounds);
    case Op::Pad: return crop_pad(n, bounds);
    case Op::Shrink: {
      Shape below = bounds;
      for (size_t i = 0; i < below.size(); ++i) below[i] += n->ints()[i & ~size_t{1}];
      return crop(n->src(0), below);
    }
    case Op::Where:
      return build::where(crop(n->src(0), bounds), crop(n->src(1), bounds),
                          crop(n->src(2), bounds));
    case Op::Permute: {
      Shape below(bounds.size());
      for (int i = 0; i < n->rank; ++i)
        for (int k : {0, 1}) below[2 * n->ints()[i] + k] = bounds[2 * i + k];
      return build::permute(crop(n->src(0), below), n->ints());
    }
    case Op::ReduceAxis: break;
    default: return build::shrink(n, bounds);
  }
  const auto [op, axes] = n->arg<ReduceArg>();
  Shape below = bounds;
  for (int i = 0; i < n->rank; ++i)
    if (axes >> i & 1) below[2 * i + 1] = n->src(0)->shape()[i];
  return build::reduce(op, build::shrink(n->src(0), below), axes);
}

}  // namespace

Node crop_sum(Node x, Ints bounds) {
  for (int i = 0; i < x->rank; ++i)
    if (bounds[2 * i] == bounds[2 * i + 1]) return build::shrink(x, bounds);
  return is_sum_seen(x) ? crop(x, to_shape(bounds)) : build::shrink(x, bounds);
}

}  // namespace tiny
