#include "tiny/ir/facts.h"

#include <algorithm>

#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"

namespace tiny {

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

namespace {

Shape moved_shape(const NodeData& n) {
  const Ints from = n.src(0)->shape();
  Shape out = to_shape(from);
  if (n.op == Op::Limit || n.op == Op::Whole) return out;
  const Ints arg = n.ints();
  for (size_t i = 0; i < out.size(); ++i) {
    switch (n.op) {
      case Op::Permute: out[i] = from[arg[i]]; break;
      case Op::Pad:
        out[i] = checked_add("pad", checked_add("pad", from[i], arg[2 * i]), arg[2 * i + 1]);
        break;
      case Op::Shrink: out[i] = arg[2 * i + 1] - arg[2 * i]; break;
      case Op::Stride: out[i] = ceil_div(from[i], arg[i]); break;
      default: break;
    }
  }
  return out;
}

// Saturating arithmetic on bounds: a bound at the end of int64 means "unbounded".
int64_t sat_add(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_add_overflow(a, b, &r) ? (a < 0 ? kIntMin : kIntMax) : r;
}
int64_t sat_mul(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) ? ((a < 0) != (b < 0) ? kIntMin : kIntMax) : r;
}
int64_t sat_neg(int64_t a) { return a == kIntMin ? kIntMax : -a; }

Bounds of(Node n) { return {n->vmin, n->vmax}; }

Bounds corners(Bounds a, Bounds b, int64_t (*f)(int64_t, int64_t)) {
  const auto [lo, hi] =
      std::minmax({f(a.min, b.min), f(a.min, b.max), f(a.max, b.min), f(a.max, b.max)});
  return {lo, hi};
}

int64_t trunc_quotient(int64_t a, int64_t b) { return a == kIntMin && b == -1 ? kIntMax : a / b; }
int64_t floor_quotient(int64_t a, int64_t b) {
  return a == kIntMin && b == -1 ? kIntMax : floor_div(a, b);
}

// Smallest 2^k - 1 that is not below v (v >= 0): a bound of `or` and `xor`.
int64_t all_ones(int64_t v) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(v) + 1) - 1);
}

Bounds mod_bounds(const NodeData& n, Bounds a, Bounds b, Bounds full) {
  if (b.min <= 0) return full;
  if (a.min >= 0) return {a.max < b.min ? a.min : 0, std::min(a.max, b.max - 1)};
  if (n.op == Op::TruncMod)
    return {std::max(a.min, 1 - b.max), std::min(std::max<int64_t>(a.max, 0), b.max - 1)};
  if (b.min == b.max && floor_div(a.min, b.min) == floor_div(a.max, b.min))
    return {floor_mod(a.min, b.min), floor_mod(a.max, b.min)};
  return {0, b.max - 1};
}

Bounds bit_bounds(Op op, Bounds a, Bounds b, Bounds full) {
  if (op == Op::And && (a.min >= 0 || b.min >= 0)) {
    if (a.min < 0) return {0, b.max};
    if (b.min < 0) return {0, a.max};
    return {0, std::min(a.max, b.max)};
  }
  if (op != Op::And && a.min >= 0 && b.min >= 0) {
    const int64_t top = std::max(a.max, b.max);
    if (top < (int64_t{1} << 61)) return {0, all_ones(top)};
  }
  return full;
}

Bounds compare_bounds(Op op, Bounds a, Bounds b) {
  const bool below = a.max<b.min, above = a.min> b.max;
  const bool equal = a.min == a.max && b.min == b.max && a.min == b.min;
  switch (op) {
    case Op::Lt: return {below, !(a.min >= b.max)};
    case Op::Le: return {a.max <= b.min, !above};
    case Op::Eq: return {equal, !(below || above)};
    default: return {below || above, !equal};
  }
}

// A shift by more than the width is the machine's.
bool is_within(Bounds amount, DType t, int64_t most) {
  return amount.min >= 0 && amount.max <= most &&
         (t.scalar == Scalar::Index || amount.max < t.bits());
}

Bounds binary_bounds(const NodeData& n, Bounds full) {
  const Bounds a = of(n.src(0)), b = of(n.src(1));
  switch (n.op) {
    case Op::Add: return {sat_add(a.min, b.min), sat_add(a.max, b.max)};
    case Op::Sub: return {sat_add(a.min, sat_neg(b.max)), sat_add(a.max, sat_neg(b.min))};
    case Op::Mul: return corners(a, b, sat_mul);
    case Op::FloorDiv: return b.min > 0 || b.max < 0 ? corners(a, b, floor_quotient) : full;
    case Op::TruncDiv: return b.min > 0 || b.max < 0 ? corners(a, b, trunc_quotient) : full;
    case Op::FloorMod:
    case Op::TruncMod: return mod_bounds(n, a, b, full);
    case Op::Max: return {std::max(a.min, b.min), std::max(a.max, b.max)};
    case Op::Min: return {std::min(a.min, b.min), std::min(a.max, b.max)};
    case Op::And:
    case Op::Or:
    case Op::Xor: return bit_bounds(n.op, a, b, full);
    case Op::Shr:
      if (!is_within(b, n.dtype, 62)) return full;
      return corners(a, b, [](int64_t x, int64_t s) { return x >> s; });
    case Op::Shl:
      if (!is_within(b, n.dtype, 61)) return full;
      return corners(a, b, [](int64_t x, int64_t s) { return sat_mul(x, int64_t{1} << s); });
    default: return full;
  }
}

Bounds full_span(DType t) {
  if (t.scalar == Scalar::Index) return {kIntMin, kIntMax};
  return {int_min(t), int_max(t)};
}

Bounds raw_bounds(const NodeData& n, Bounds full) {
  if (is_comparison(n.op)) {
    const DType t = n.src(0)->dtype;
    const bool exact = (t.is_int() || t.is_bool()) && t.scalar != Scalar::U64;
    return exact ? compare_bounds(n.op, of(n.src(0)), of(n.src(1))) : full;
  }
  switch (n.op) {
    case Op::Const: return {n.int_value(), n.int_value()};
    case Op::Bound: return {n.ints()[0], n.ints()[1]};
    case Op::Range: return {0, std::max<int64_t>(n.src(0)->vmax - 1, 0)};
    case Op::Ramp: return {0, n.dtype.lanes - 1};
    case Op::Iota: return {0, std::max<int64_t>(n.ints()[0] - 1, 0)};
    case Op::Neg: return {sat_neg(n.src(0)->vmax), sat_neg(n.src(0)->vmin)};
    case Op::Cast: {
      const DType t = n.src(0)->dtype;
      return t.is_int() || t.is_bool() ? of(n.src(0)) : full;
    }
    case Op::Where:
      return {std::min(n.src(1)->vmin, n.src(2)->vmin), std::max(n.src(1)->vmax, n.src(2)->vmax)};
    case Op::Pad:
      return {std::min<int64_t>(0, n.src(0)->vmin), std::max<int64_t>(0, n.src(0)->vmax)};
    case Op::Broadcast:
    case Op::Reverse:
    case Op::Reshape:
    case Op::Permute:
    case Op::Expand:
    case Op::Shrink:
    case Op::Flip:
    case Op::Stride:
    case Op::Affine:
    case Op::Limit:
    case Op::Whole:
    case Op::Contiguous:
    case Op::After:
    case Op::Checkpoint:
    case Op::WithDerivative:
    case Op::CustomGradient:
    case Op::Shard:
    case Op::RoundGradient:
    case Op::Detach: return of(n.src(0));
    default: return info(n.op).cls == OpClass::Binary ? binary_bounds(n, full) : full;
  }
}

}  // namespace

Shape infer_shape(const NodeData& n) {
  switch (n.op) {
    case Op::Buffer: return {n.arg<BufferArg>().size};
    case Op::Iota: return {n.ints()[0]};
    case Op::Param: return to_shape(n.ints().subspan(1));
    case Op::Copy: {
      const bool gathers = n.num_src > 1 && n.ints()[2] != 0;
      Shape out = to_shape(n.src(0)->shape());
      if (gathers)
        for (Node s : n.srcs().subspan(1)) out[0] += s->shape()[0];
      return out;
    }
    case Op::Reshape:
    case Op::Expand: return to_shape(n.ints());
    case Op::Affine: return to_shape(n.ints().subspan(1, static_cast<size_t>(n.ints()[0])));
    case Op::ReduceAxis: {
      Shape out = to_shape(n.src(0)->shape());
      for (size_t i = 0; i < out.size(); ++i)
        if (n.arg<ReduceArg>().axes >> i & 1) out[i] = 1;
      return out;
    }
    case Op::Gather: return to_shape(n.src(n.num_src > 1 ? 1 : 0)->shape());
    case Op::Multi: {
      Shape out = to_shape(n.src(0)->shape());
      const int64_t axis = n.ints()[1];
      for (Node s : n.srcs().subspan(1))
        if (axis >= 0) out[axis] += s->shape()[axis];
      return out;
    }
    default: break;
  }
  if (is_movement(n.op)) return moved_shape(n);
  const OpClass cls = info(n.op).cls;
  if (n.op == Op::Sink || cls == OpClass::Leaf || cls == OpClass::Kernel ||
      cls == OpClass::Statement)
    return {};
  return to_shape(n.src(0)->shape());
}

namespace {

// Bounds end where int64 does, 64-bit values need not: sums wrap around there, and u64 goes on.
bool may_exceed(const NodeData& n, Bounds b) {
  const bool u64_source = std::ranges::any_of(
      n.srcs(), [](Node s) { return s->dtype.scalar == Scalar::U64 && s->vmax == kIntMax; });
  switch (n.op) {
    case Op::Neg:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Shl:
      return n.dtype.size() == 8 && (u64_source || b.min == kIntMin || b.max == kIntMax);
    case Op::Cast:
    case Op::FloorDiv:
    case Op::TruncDiv:
    case Op::Shr: return u64_source;
    default: return false;
  }
}

}  // namespace

namespace {

using Lengths = std::vector<Node>;

const char* name_of(const NodeData& n) { return *n.label ? n.label : info(n.op).name; }

[[noreturn]] void refuse(const NodeData& n, Node source, int axis, const char* why) {
  throw Error(cat(name_of(n), ": axis ", axis, " of ", to_text(source->shape()),
                  " holds as many elements as a Variable says, at most ", source->shape()[axis],
                  ": ", why));
}

// An axis that is reshaped keeps its size and what is before it.
Lengths reshaped_lengths(const NodeData& n, Ints shape) {
  Node x = n.src(0);
  Lengths out(shape.size());
  for (int i = 0; i < x->rank; ++i) {
    if (!x->length(i)) continue;
    const int64_t before = numel(x->shape().first(i));
    size_t j = 0;
    while (j < shape.size() && !(shape[j] == x->shape()[i] && numel(shape.first(j)) == before)) ++j;
    if (j == shape.size())
      refuse(n, x, i, "it cannot be split or merged with others: reshape the axes beside it alone");
    out[j] = x->length(i);
  }
  return out;
}

Lengths moved_lengths(const NodeData& n, Ints shape) {
  Node x = n.src(0);
  if (n.op == Op::Whole) return {};
  if (n.op == Op::Reshape) return reshaped_lengths(n, shape);
  Lengths out(shape.size());
  for (int i = 0; i < x->rank; ++i) {
    if (!x->length(i)) continue;
    const auto axis = static_cast<size_t>(i);
    bool kept = true;
    switch (n.op) {
      case Op::Pad: kept = n.ints()[2 * axis] == 0 && n.ints()[2 * axis + 1] == 0; break;
      case Op::Shrink: kept = n.ints()[2 * axis] == 0 && shape[axis] == x->shape()[i]; break;
      case Op::Flip: kept = n.ints()[axis] == 0; break;
      case Op::Stride: kept = n.ints()[axis] == 1; break;
      case Op::Affine: kept = false; break;
      default: break;
    }
    if (!kept)
      refuse(n, x, i,
             "no part of it can be cut, padded, reversed or stepped over: narrow the "
             "whole tensor to another Variable instead");
    size_t to = axis;
    if (n.op == Op::Permute)
      to = static_cast<size_t>(std::ranges::find(n.ints(), i) - n.ints().begin());
    out[to] = x->length(i);
  }
  if (n.op == Op::Limit) {
    Node& length = out[n.ints()[0]];
    if (length)
      refuse(n, x, static_cast<int>(n.ints()[0]),
             "it cannot get another length: narrow the whole "
             "tensor");
    length = n.src(1);
  }
  return out;
}

// Of sources of one shape. Where one of them counts all elements it is a constant or a mask.
Lengths common_lengths(const NodeData& n, std::span<const Node> srcs, Ints shape) {
  Lengths out(shape.size());
  for (Node s : srcs)
    for (int i = 0; i < s->rank; ++i) {
      Node& length = out[i];
      if (length && s->length(i) && length != s->length(i))
        refuse(n, s, i, "another operand has another length there: give both the same Variable");
      if (s->length(i)) length = s->length(i);
    }
  return out;
}

}  // namespace

std::vector<Node> infer_lengths(const NodeData& n, Ints shape) {
  const auto is_limited = [](Node s) { return s->lengths != nullptr; };
  if (n.op == Op::Sink || (n.op != Op::Limit && std::ranges::none_of(n.srcs(), is_limited)))
    return {};
  Lengths out;
  if (is_movement(n.op)) {
    out = moved_lengths(n, shape);
  } else if (n.op == Op::ReduceAxis) {
    Node x = n.src(0);
    for (int i = 0; i < x->rank; ++i) {
      const bool reduced = n.arg<ReduceArg>().axes >> i & 1;
      expect(!reduced || !x->length(i), "a reduction reads beyond a length: build::reduce");
      out.push_back(x->length(i));
    }
  } else if (n.op == Op::Gather) {
    for (int i = 0; i < n.src(0)->rank; ++i)
      if (n.src(0)->length(i))
        refuse(n, n.src(0), i,
               "indices cannot be checked against it: gather from the whole tensor");
    out = common_lengths(n, n.srcs().subspan(1), shape);
  } else if (n.op == Op::Scatter) {
    for (Node s : n.srcs())
      for (int i = 0; i < s->rank; ++i)
        if (s->length(i))
          refuse(n, s, i,
                 "scattering cannot leave elements out: give the whole tensor, with "
                 "indices outside for what is to be dropped");
  } else if (n.op == Op::After || n.op == Op::Checkpoint || n.op == Op::CustomGradient) {
    out = common_lengths(n, n.srcs().first(1), shape);
  } else {
    out = common_lengths(n, n.srcs(), shape);
  }
  return std::ranges::any_of(out, [](Node l) { return l != nullptr; }) ? out : Lengths();
}

Bounds infer_bounds(const NodeData& n) {
  if (!n.dtype.is_int() && !n.dtype.is_bool()) return {kIntMin, kIntMax};
  const Bounds full = full_span(n.dtype);
  const Bounds b = raw_bounds(n, full);
  return b.min < full.min || b.max > full.max || may_exceed(n, b) ? full : b;  // it might wrap
}

uint64_t infer_ranges(const NodeData& n) {
  // Its extent may depend on others, as a loop's that ends by the block.
  if (n.op == Op::Range) return uint64_t{1} << n.arg<RangeArg>().id;
  uint64_t ranges = 0;
  for (Node s : n.srcs()) ranges |= s->ranges;
  if (n.op == Op::Reduce)
    for (Node r : n.srcs().subspan(1)) ranges &= ~(uint64_t{1} << r->arg<RangeArg>().id);
  if (n.op == Op::Stage)
    for (Node r : n.srcs().subspan(3)) ranges &= ~(uint64_t{1} << r->arg<RangeArg>().id);
  return ranges;
}

int infer_device(const NodeData& n) {
  if (n.op == Op::Buffer) return n.arg<BufferArg>().device;
  if (n.op == Op::Copy) return static_cast<int>(n.num_src > 1 ? n.ints()[0] : n.int_value());
  if (n.op == Op::Iota && n.ints().size() > 1) return static_cast<int>(n.ints()[1]);
  if (n.op == Op::Shard || n.op == Op::Multi) return static_cast<int>(n.ints()[0]);
  int device = 0;
  if (n.op == Op::Sink) return device;
  for (Node s : n.srcs()) {
    if (!s->device || s->device == device) continue;
    check(!device, *n.label ? n.label : info(n.op).name, ": tensors are on different devices, ",
          device_name(device), " and ", device_name(s->device), ": move one with to()");
    device = s->device;
  }
  return device;
}

bool varies(Node root, int axis) {
  bool found = false;
  visit_below({root}, [&](Node n) {
    if (n->is_const() || (n->op == Op::Expand && n->src(0)->shape()[axis] == 1)) return false;
    found |= !is_elementwise(n->op);
    return !found;
  });
  return found;
}

}  // namespace tiny
