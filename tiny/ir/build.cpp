#include "tiny/ir/build.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"

namespace tiny::build {

namespace {

// The constant behind a tensor that has one value everywhere, nullptr for any other.
Node splat_value(Node x) {
  while (x->op == Op::Reshape || x->op == Op::Expand) x = x->src(0);
  return x->is_const() ? x : nullptr;
}

thread_local std::vector<NodeMark> kept_before;  // the outermost first

bool is_kept(Node view) {
  return !kept_before.empty() && view->handles.load() > 0 && !kept_before.back().precedes(view);
}

// Whether x is a view that one on top can take the place of. Below one that was computed there may
// be memory that an assignment has overwritten since.
bool merges(Node x, Op op) { return x->op == op && !x->realized && !is_kept(x); }

Node move(Op op, Node x, Ints arg) { return make(op, x->dtype, {x}, arg); }

bool all_equal(Ints values, int64_t value) {
  return std::ranges::all_of(values, [&](int64_t v) { return v == value; });
}

bool is_identity_permutation(Ints axes) {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != static_cast<int64_t>(i)) return false;
  return true;
}

bool is_whole(Ints begin_end, Ints shape) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (begin_end[2 * i] != 0 || begin_end[2 * i + 1] != shape[i]) return false;
  return true;
}

}  // namespace

KeptViews::KeptViews(NodeMark mark) { kept_before.push_back(mark); }
KeptViews::~KeptViews() { kept_before.pop_back(); }

Node unary(Op op, Node x) {
  expect(info(op).cls == OpClass::Unary, "unary: ", op);
  return make(op, x->dtype, {x});
}

Node binary(Op op, Node x, Node y) {
  expect(info(op).cls == OpClass::Binary, "binary: ", op);
  expect(same(x->shape(), y->shape()) && x->dtype == y->dtype, op, ": ", x->dtype,
         to_text(x->shape()), " with ", y->dtype, to_text(y->shape()));
  return make(op, is_comparison(op) ? kBool : x->dtype, {x, y});
}

Node where(Node condition, Node x, Node y) {
  expect(condition->dtype == kBool && x->dtype == y->dtype, "where: ", condition->dtype, ", ",
         x->dtype, ", ", y->dtype);
  expect(same(condition->shape(), x->shape()) && same(x->shape(), y->shape()),
         "where: ", to_text(condition->shape()), ", ", to_text(x->shape()), ", ",
         to_text(y->shape()));
  if (x == y) return x;
  if (Node c = splat_value(condition)) return c->int_value() ? x : y;
  return make(Op::Where, x->dtype, {condition, x, y});
}

Node byte_dot(Node x, Node y, Node sum) {
  for (Node n : {x, y, sum})
    expect(n->dtype == kI32 && same(n->shape(), sum->shape()), "byte_dot: ", n->dtype,
           to_text(n->shape()), " with ", to_text(sum->shape()));
  return make(Op::ByteDot, kI32, {x, y, sum});
}

Node cast(Node x, DType to) { return x->dtype == to ? x : make(Op::Cast, to, {x}); }

Node bitcast(Node x, DType to) {
  if (x->dtype == to) return x;
  expect(x->dtype.size() == to.size(), "bitcast: ", x->dtype, " to ", to);
  if (merges(x, Op::Bitcast)) return bitcast(x->src(0), to);
  return make(Op::Bitcast, to, {x});
}

Node reshape(Node x, Ints shape) {
  if (same(x->shape(), shape)) return x;
  expect(numel(x->shape()) == numel(shape), "reshape: ", to_text(x->shape()), " to ",
         to_text(shape));
  if (merges(x, Op::Reshape)) return reshape(x->src(0), shape);
  // A constant keeps one form, reshape to ones and expand; that reshape ends here.
  if (Node c = splat_value(x); c && !all_equal(shape, 1)) return full(shape, c);
  return move(Op::Reshape, x, shape);
}

Node permute(Node x, Ints axes) {
  if (is_identity_permutation(axes)) return x;
  Shape arg = to_shape(axes), shape(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) shape[i] = x->shape()[axes[i]];
  if (Node c = splat_value(x)) return full(shape, c);
  if (merges(x, Op::Permute)) {
    for (int64_t& a : arg) a = x->ints()[a];
    return permute(x->src(0), arg);
  }
  return move(Op::Permute, x, arg);
}

Node expand(Node x, Ints shape) {
  if (same(x->shape(), shape)) return x;
  if (merges(x, Op::Expand)) return expand(x->src(0), shape);
  return move(Op::Expand, x, shape);
}

Node pad(Node x, Ints before_after) {
  if (all_equal(before_after, 0)) return x;
  if (!merges(x, Op::Pad)) return move(Op::Pad, x, before_after);
  Shape sum = to_shape(before_after);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = checked_add("pad", sum[i], x->ints()[i]);
  return pad(x->src(0), sum);
}

Node shrink(Node x, Ints begin_end) {
  if (is_whole(begin_end, x->shape())) return x;
  Shape arg = to_shape(begin_end), shape(x->rank);
  for (size_t i = 0; i < shape.size(); ++i) shape[i] = arg[2 * i + 1] - arg[2 * i];
  if (Node c = splat_value(x)) return full(shape, c);
  if (merges(x, Op::Shrink)) {
    for (size_t i = 0; i < arg.size(); ++i) arg[i] += x->ints()[i & ~size_t{1}];
    return shrink(x->src(0), arg);
  }
  return move(Op::Shrink, x, arg);
}

Node flip(Node x, Ints flags) {
  Shape arg = to_shape(flags);
  for (size_t i = 0; i < arg.size(); ++i)
    if (x->shape()[i] <= 1) arg[i] = 0;  // nothing to reverse
  if (all_equal(arg, 0) || splat_value(x)) return x;
  if (!merges(x, Op::Flip)) return move(Op::Flip, x, arg);
  for (size_t i = 0; i < arg.size(); ++i) arg[i] ^= x->ints()[i];
  return flip(x->src(0), arg);
}

Node stride(Node x, Ints steps) {
  Shape arg = to_shape(steps), shape(x->rank);
  for (size_t i = 0; i < shape.size(); ++i) {
    arg[i] = std::min(arg[i], std::max<int64_t>(x->shape()[i], 1));  // the rest lies outside
    shape[i] = ceil_div(x->shape()[i], arg[i]);
  }
  if (all_equal(arg, 1)) return x;
  if (Node c = splat_value(x)) return full(shape, c);
  if (merges(x, Op::Stride)) {
    for (size_t i = 0; i < arg.size(); ++i) arg[i] *= x->ints()[i];
    return stride(x->src(0), arg);
  }
  return move(Op::Stride, x, arg);
}

Node movement(Op op, Node x, Ints arg) {
  switch (op) {
    case Op::Reshape: return reshape(x, arg);
    case Op::Permute: return permute(x, arg);
    case Op::Expand: return expand(x, arg);
    case Op::Pad: return pad(x, arg);
    case Op::Shrink: return shrink(x, arg);
    case Op::Flip: return flip(x, arg);
    case Op::Stride: return stride(x, arg);
    default: return move(op, x, arg);
  }
}

Node bound(Node x, int64_t min, int64_t max) {
  const int64_t arg[] = {min, max};
  return make(Op::Bound, x->dtype, {x}, Ints(arg));
}

Node limit(Node x, int axis, Node n) {
  if (x->length(axis) == n) return x;
  expect(n->rank == 0 && n->dtype == kI64 && n->vmin >= 0 && n->vmax <= x->shape()[axis],
         "limit: [", n->vmin, ", ", n->vmax, "] of axis ", axis, " of ", to_text(x->shape()));
  const int64_t arg[] = {axis};
  return make(Op::Limit, x->dtype, {x, n}, Ints(arg));
}

Node with_lengths(Node x, Node like) {
  for (int i = 0; like->lengths && i < like->rank; ++i)
    if (like->length(i)) x = limit(x, i, like->length(i));
  return x;
}

Node filled(Node x, Op op, uint32_t axes) {
  Node inside = nullptr;
  for (int i = 0; x->lengths && i < x->rank; ++i) {
    if (!x->length(i) || !(axes >> i & 1)) continue;
    const DType t = x->shape()[i] < INT32_MAX ? kI32 : kI64;  // narrow: more lanes a vector
    Node part = binary(Op::Lt, iota(x->shape(), i, t), full(x->shape(), cast(x->length(i), t)));
    inside = inside ? binary(Op::And, inside, part) : part;
  }
  if (!inside) return x;
  Node value = make(Op::Whole, x->dtype, {x});
  for (int i = 0; i < x->rank; ++i)
    if (x->length(i) && !(axes >> i & 1)) value = limit(value, i, x->length(i));
  return where(inside, value, identity(op, x->dtype, x->shape()));
}

Node full(Ints shape, DType dtype, double value) { return full(shape, constant(dtype, value)); }

Node full(Ints shape, DType dtype, int64_t value) { return full(shape, constant(dtype, value)); }

Node full(Ints shape, Node scalar) {
  const Shape ones(shape.size(), 1);
  return expand(reshape(scalar, ones), shape);
}

Node iota(int64_t n, DType dtype) { return make(Op::Iota, dtype, {}, Ints(&n, 1)); }

Node iota(Ints shape, int axis, DType dtype) {
  const int64_t n = shape[axis];
  if (n <= 1) return full(shape, dtype, int64_t{0});
  Shape line(shape.size(), 1);
  line[axis] = n;
  return expand(reshape(iota(n, dtype), line), shape);
}

Node identity(Op op, DType t, Ints shape) {
  if (op == Op::Add) return full(shape, t, int64_t{0});
  if (op == Op::Mul) return full(shape, t, int64_t{1});
  const double infinity = std::numeric_limits<double>::infinity();
  if (t.is_float()) return full(shape, t, op == Op::Max ? -infinity : infinity);
  // int_max clamps the largest u64 to the range of i64; its bits are those of -1.
  const int64_t largest = t.scalar == Scalar::U64 ? -1 : int_max(t);
  return full(shape, t, op == Op::Max ? int_min(t) : largest);
}

Node reduce(Op op, Node x, uint32_t axes) {
  Shape shape = to_shape(x->shape());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!(axes >> i & 1)) continue;
    if (shape[i] == 1) axes &= ~(uint32_t{1} << i);
    shape[i] = 1;
  }
  if (!axes) return x;
  return make(Op::ReduceAxis, x->dtype, {filled(x, op, axes)}, ReduceArg{op, axes});
}

Node gather(Node data, std::span<const Node> indices) {
  expect(indices.size() == data->rank, "gather: ", indices.size(), " indices for ",
         to_text(data->shape()));
  if (indices.empty()) return data;
  std::vector<Node> srcs{data};
  srcs.insert(srcs.end(), indices.begin(), indices.end());
  return make(Op::Gather, data->dtype, srcs);
}

Node scatter(Node base, Node values, std::span<const Node> indices, ScatterArg how) {
  expect(indices.size() == base->rank && base->dtype == values->dtype, "scatter: ", indices.size(),
         " indices for ", to_text(base->shape()));
  if (numel(values->shape()) == 0)  // a constant comes to where they are all the same
    return base->device || !values->device ? base : copy_to(base, values->device);
  std::vector<Node> srcs{base, values};
  srcs.insert(srcs.end(), indices.begin(), indices.end());
  return make(Op::Scatter, base->dtype, srcs, how);
}

Node contiguous(Node x) {
  if (x->op == Op::Contiguous || x->op == Op::Buffer) return x;
  return make(Op::Contiguous, x->dtype, {x});
}

namespace {

bool selects(Op op) { return op == Op::Max || op == Op::Min || op == Op::Assign; }

// Whether every kernel computes the same bits from the same sources.
bool is_exact(Node n) {
  static const OpSet rounding = op_set(Op::Recip, Op::Sqrt, Op::Exp2, Op::Log2, Op::Sin, Op::Add,
                                       Op::Sub, Op::Mul, Op::Div, Op::FloorMod, Op::TruncMod);
  if (!n->dtype.is_float()) return true;
  if (n->op == Op::ReduceAxis) return selects(n->arg<ReduceArg>().op);
  if (n->op == Op::Scatter) return selects(n->arg<ScatterArg>().op);
  return !rounding.test(static_cast<size_t>(n->op));
}

// Whether all down to memory is exact. Gives up on large graphs.
bool is_reproducible(Node root) {
  constexpr size_t kMaxNodes = 64;
  size_t nodes = 0;
  bool exact = true;
  visit_below({root}, [&](Node n) {
    if (n->realized || n->num_src == 0) return false;
    return exact &= is_exact(n) && ++nodes <= kMaxNodes;
  });
  return exact;
}

}  // namespace

Node in_memory(Node x) {
  if (is_reproducible(x)) return x;
  if (is_movement(x->op)) {
    std::vector<Node> srcs(x->srcs().begin(), x->srcs().end());
    srcs[0] = in_memory(srcs[0]);
    return with_sources(x, srcs);
  }
  // Of what is padded with another number than zero: what it is put around.
  if (x->op == Op::Where && is_movement(x->src(1)->op) && is_reproducible(x->src(0)) &&
      is_reproducible(x->src(2)))
    return where(x->src(0), in_memory(x->src(1)), x->src(2));
  // An earlier copy may have been computed by a kernel of its own, and be gone.
  if (x->op == Op::Contiguous || is_for_gradients(x->op)) return in_memory(x->src(0));
  return make(Op::Contiguous, x->dtype, {detach(x)});
}

Node detach(Node x) { return x->needs_grad ? make(Op::Detach, x->dtype, {x}) : x; }

Node round_gradient(Node x, DType dtype) {
  if (!x->needs_grad) return x;
  return make(Op::RoundGradient, x->dtype, {x}, static_cast<int64_t>(dtype.scalar));
}

Node leaf(Node x) {
  static std::atomic<int64_t> next_id{1};
  return make(Op::Leaf, x->dtype, {x}, next_id.fetch_add(1));
}

Node copy_to(Node x, int device) {
  if (x->device == device) return x;
  if (!device_members(device).empty()) return shard(x, device, -1);
  return make(Op::Copy, x->dtype, {x}, int64_t{device});
}

Node shard(Node x, int group, int axis, bool gathered_for_use) {
  const int64_t arg[] = {group, axis, 1};
  return make(Op::Shard, x->dtype, {x}, Ints(arg).first(gathered_for_use ? 3 : 2));
}

Node multi(std::span<const Node> pieces, int group, int axis, bool gathered_for_use) {
  const int64_t arg[] = {group, axis, 1};
  return make(Op::Multi, pieces[0]->dtype, pieces, Ints(arg).first(gathered_for_use ? 3 : 2));
}

Node assign(Node old, Node value) {
  expect(same(old->shape(), value->shape()) && old->dtype == value->dtype, "assign: ", old->dtype,
         to_text(old->shape()), " and ", value->dtype, to_text(value->shape()));
  return make(Op::Assign, old->dtype, {old, value});
}

Node after(Node x, Node before) {
  return x->device == 0 ? x : make(Op::After, x->dtype, {x, before});
}

Node affine(Node x, Ints shape, Ints map) {
  Shape arg{static_cast<int64_t>(shape.size())};
  arg.insert(arg.end(), shape.begin(), shape.end());
  arg.insert(arg.end(), map.begin(), map.end());
  return make(Op::Affine, x->dtype, {x}, Ints(arg));
}

}  // namespace tiny::build
