#include "tiny/autograd/grad.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "tiny/autograd/recompute.h"
#include "tiny/autograd/windows.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/ir/print.h"

namespace tiny {

namespace {

using namespace build;

// Gradients on their way down: for each node the sum of what its users sent.
class Adjoints {
 public:
  void add(Node to, Node grad) {
    if (!to->needs_grad) return;
    expect(same(to->shape(), grad->shape()) && to->dtype == grad->dtype, "gradient of ", to->op,
           ": ", grad->dtype, to_text(grad->shape()), " for ", to->dtype, to_text(to->shape()));
    // Elements beyond a length have no gradient, and none is asked of them.
    uint32_t ended = 0;
    for (int i = 0; i < to->rank; ++i)
      if (grad->length(i) && !to->length(i)) ended |= uint32_t{1} << i;
    grad = with_lengths(filled(grad, Op::Add, ended), to);
    Node& sum = sums_[to];
    sum = sum ? binary(Op::Add, sum, grad) : grad;
  }
  Node get(Node n) const {
    const Node* sum = sums_.find(n);
    return sum ? *sum : nullptr;
  }
  Node take(Node n) {
    Node* sum = sums_.find(n);
    return sum ? std::exchange(*sum, nullptr) : nullptr;
  }

 private:
  NodeMap<Node> sums_;
};

// The name of what computes the gradient of an operation, "relu_grad". Kept for ever: there are
// few.
const char* gradient_label(Node n) {
  static std::mutex mutex;
  static auto* labels = new std::set<std::string>;
  std::string label = operation_of(n);
  if (!label.ends_with("_grad")) label += "_grad";
  std::lock_guard lock(mutex);
  return labels->insert(std::move(label)).first->c_str();
}

// Sends the gradient `g` of `n` to the sources of `n`.
using Rule = void (*)(Node n, Node g, Adjoints& to);

Node number(Node like, double value) { return full(like->shape(), like->dtype, value); }

Node zeros_like(Node x) { return number(x, 0); }

Node mul(Node a, Node b) { return binary(Op::Mul, a, b); }

// --- Element-wise -------------------------------------------------------------------------------

void grad_cast(Node n, Node g, Adjoints& to) {
  if (n->src(0)->dtype.is_float()) to.add(n->src(0), cast(g, n->src(0)->dtype));
}

void grad_rounded(Node n, Node g, Adjoints& to) {
  const DType narrow{static_cast<Scalar>(n->int_value())};
  to.add(n->src(0), cast(cast(g, narrow), g->dtype));
}

void grad_neg(Node n, Node g, Adjoints& to) { to.add(n->src(0), unary(Op::Neg, g)); }

void grad_recip(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), unary(Op::Neg, mul(g, mul(n, n))));
}

void grad_sqrt(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), binary(Op::Div, mul(g, number(n, 0.5)), n));
}

void grad_exp2(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), mul(g, mul(n, number(n, M_LN2))));
}

void grad_log2(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), binary(Op::Div, mul(g, number(n, M_LOG2E)), n->src(0)));
}

// cos x = 1 - 2 sin(x/2)^2: exact argument, no rounding of x + pi/2.
void grad_sin(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0), half = unary(Op::Sin, mul(x, number(x, 0.5)));
  const Node cosine = binary(Op::Sub, number(x, 1), mul(mul(half, half), number(x, 2)));
  to.add(x, mul(g, cosine));
}

void grad_add(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), g);
  to.add(n->src(1), g);
}

void grad_sub(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), g);
  if (n->src(1)->needs_grad) to.add(n->src(1), unary(Op::Neg, g));
}

void grad_mul(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0), y = n->src(1);
  if (x->needs_grad) to.add(x, mul(g, y));
  if (y->needs_grad) to.add(y, mul(g, x));
}

void grad_div(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0), y = n->src(1), gx = binary(Op::Div, g, y);
  to.add(x, gx);
  if (y->needs_grad) to.add(y, unary(Op::Neg, mul(gx, n)));
}

// The gradient goes to the larger (smaller) operand, halves to both where they are equal, all of it
// to both where one is NaN. The operands are not compared with the result, which may have been
// stored by an earlier kernel that rounded them otherwise.
void grad_extremum(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0), y = n->src(1), zero = zeros_like(g), half = mul(g, number(g, 0.5));
  const Node equal = binary(Op::Eq, x, y);
  const auto loses = [&](Node a, Node b) {
    return n->op == Op::Max ? binary(Op::Lt, a, b) : binary(Op::Lt, b, a);
  };
  to.add(x, where(equal, half, where(loses(x, y), zero, g)));
  to.add(y, where(equal, half, where(loses(y, x), zero, g)));
}

void grad_where(Node n, Node g, Adjoints& to) {
  const Node condition = n->src(0), zero = zeros_like(g);
  if (n->src(1)->needs_grad) to.add(n->src(1), where(condition, g, zero));
  if (n->src(2)->needs_grad) to.add(n->src(2), where(condition, zero, g));
}

// --- Movement -----------------------------------------------------------------------------------

void grad_reshape(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), reshape(g, n->src(0)->shape()));
}

void grad_permute(Node n, Node g, Adjoints& to) {
  Shape inverse(n->rank);
  for (int i = 0; i < n->rank; ++i) inverse[n->ints()[i]] = i;
  to.add(n->src(0), permute(g, inverse));
}

// The dtype in which f16, bf16 and f8 are summed.
DType wide_dtype(DType t) { return t.is_narrow() ? kF32 : t; }

// The sum, rounded once.
Node sum_over(Node g, uint32_t axes) {
  return cast(reduce(Op::Add, cast(g, wide_dtype(g->dtype)), axes), g->dtype);
}

void grad_expand(Node n, Node g, Adjoints& to) {
  uint32_t axes = 0;
  for (int i = 0; i < n->rank; ++i)
    if (n->shape()[i] != n->src(0)->shape()[i]) axes |= uint32_t{1} << i;
  to.add(n->src(0), sum_over(g, axes));
}

void grad_pad(Node n, Node g, Adjoints& to) {
  Shape bounds = to_shape(n->ints());
  for (int i = 0; i < n->rank; ++i) bounds[2 * i + 1] = bounds[2 * i] + n->src(0)->shape()[i];
  to.add(n->src(0), crop_sum(g, bounds));
}

void grad_shrink(Node n, Node g, Adjoints& to) {
  if (const auto w = windows_grad(n, g)) return to.add(w->source, w->gradient);
  Shape amounts = to_shape(n->ints());
  for (int i = 0; i < n->rank; ++i) amounts[2 * i + 1] = n->src(0)->shape()[i] - amounts[2 * i + 1];
  to.add(n->src(0), pad(g, amounts));
}

void grad_flip(Node n, Node g, Adjoints& to) { to.add(n->src(0), flip(g, n->ints())); }

// Each element followed by step - 1 zeros, cut to the source's shape.
void grad_stride(Node n, Node g, Adjoints& to) {
  const Ints steps = n->ints(), shape = n->src(0)->shape();
  Shape split, amounts, merged, cut;
  for (int i = 0; i < n->rank; ++i) {
    split.push_back(n->shape()[i]);
    amounts.insert(amounts.end(), {0, 0});
    if (steps[i] > 1) {
      split.push_back(1);
      amounts.insert(amounts.end(), {0, steps[i] - 1});
    }
    merged.push_back(n->shape()[i] * steps[i]);
    cut.insert(cut.end(), {0, std::min(shape[i], merged[i])});
  }
  const Node spread = shrink(reshape(pad(reshape(g, split), amounts), merged), cut);
  to.add(n->src(0), spread);
}

// --- Reductions ---------------------------------------------------------------------------------

Node product_of_others(Node x, int axis);

// The same along a long axis, cut into blocks: the others in an element's block, times the product
// of the other blocks. The work grows with n log n and not with its square.
Node product_of_others_in_blocks(Node x, int axis, int64_t block) {
  const int64_t n = x->shape()[axis], blocks = (n + block - 1) / block;
  Shape padded = to_shape(x->shape()), cut = padded, pads(2 * cut.size(), 0), whole;
  padded[axis] = blocks * block;
  pads[2 * static_cast<size_t>(axis) + 1] = blocks * block - n;
  cut[axis] = blocks;
  cut.insert(cut.begin() + axis + 1, block);
  for (int64_t size : to_shape(x->shape())) whole.insert(whole.end(), {0, size});
  const Node inside = binary(Op::Lt, iota(padded, axis, kI64), full(padded, kI64, n));
  const Node all = reshape(where(inside, pad(x, pads), full(padded, x->dtype, 1.0)), cut);
  const Node of_blocks = product_of_others(reduce(Op::Mul, all, uint32_t{2} << axis), axis);
  const Node out = mul(product_of_others(all, axis + 1), expand(of_blocks, cut));
  return shrink(reshape(out, padded), whole);
}

// The product of all other elements along an axis as a masked reduction, so that zeros in the data
// do no harm.
Node product_of_others(Node x, int axis) {
  constexpr int64_t kBlock = 64;
  if (x->shape()[axis] > 4 * kBlock && !x->lengths)
    return product_of_others_in_blocks(x, axis, kBlock);
  Shape lifted = to_shape(x->shape()), square = lifted;
  lifted.insert(lifted.begin() + axis, 1);
  square.insert(square.begin() + axis, x->shape()[axis]);
  const Node all = expand(reshape(x, lifted), square);
  const Node self = binary(Op::Eq, iota(square, axis, kI32), iota(square, axis + 1, kI32));
  const Node others = where(self, number(all, 1), all);
  return reshape(reduce(Op::Mul, others, uint32_t{1} << (axis + 1)), x->shape());
}

// d prod / d x. Along several axes: what multiplies x on one axis is the product of the others
// there, where earlier axes are reduced to products already.
Node product_gradient(Node x, uint32_t axes) {
  Node gradient = number(x, 1), value = x;
  for (int i = 0; i < x->rank; ++i) {
    if (!(axes >> i & 1)) continue;
    gradient = mul(gradient, expand(product_of_others(value, i), x->shape()));
    value = reduce(Op::Mul, value, uint32_t{1} << i);
  }
  return gradient;
}

// The place of each element among those along `axes`, i32.
Node positions(Ints shape, uint32_t axes) {
  Node out = full(shape, kI32, int64_t{0});
  int64_t behind = 1;
  for (int i = static_cast<int>(shape.size()); i-- > 0;) {
    if (!(axes >> i & 1)) continue;
    const Node step = full(shape, kI32, behind);
    out = binary(Op::Add, out, binary(Op::Mul, iota(shape, i, kI32), step));
    behind *= shape[i];
  }
  return out;
}

// Up to so many elements of so many bytes, the bits of one number say which of them are a maximum
// or minimum: that, and not the elements, is kept for the gradient. (With bits in place of f32 the
// sums of a batch norm before a pool no longer read the same values, and take two passes.)
constexpr int64_t kMaxBits = 16, kMaxBytes = 2;

// The gradient of an extremum of few elements, as in extremum_gradient.
Node few_extremum_gradient(Node stored, Node extremum, Node g, ReduceArg how) {
  const Shape shape = to_shape(stored->shape());
  const int64_t bits = numel(shape) / numel(g->shape());
  const DType narrow = bits <= 8 ? kU8 : kU16;
  const auto number_of = [](Ints of, int64_t value) { return full(of, kI32, value); };
  const Node wide = expand(extremum, shape), at = positions(shape, how.axes);
  const Node equal = binary(Op::Eq, stored, wide);
  const Node own = cast(binary(Op::Shl, number_of(shape, 1), at), narrow);
  const Node all = cast(reduce(Op::Add, where(equal, own, zeros_like(own)), how.axes), kI32);
  const auto bit = [&](Node word, Node place) {
    return binary(Op::And, binary(Op::Shr, word, place), number_of(word->shape(), 1));
  };
  Node count = number_of(g->shape(), 0);
  for (int64_t i = 0; i < bits; ++i)
    count = binary(Op::Add, count, bit(all, number_of(g->shape(), i)));
  const DType sum_type = wide_dtype(g->dtype);
  const Node share = cast(binary(Op::Div, cast(g, sum_type), cast(count, sum_type)), g->dtype);
  const Node is_hit = binary(Op::Ne, bit(expand(all, shape), at), number_of(shape, 0));
  const Node rest = mul(share, number(share, 0));  // NaN where there is no hit
  return where(is_hit, expand(share, shape), expand(rest, shape));
}

// The gradient of a maximum or minimum: shared evenly among the elements that are it. Of NaN, which
// none of them is, all get NaN. Had x been computed once more than the extremum, by another kernel,
// then none of them might be it.
Node extremum_gradient(Node n, Node g) {
  const auto how = n->arg<ReduceArg>();
  const Node x = n->src(0), stored = in_memory(x);
  const Node extremum = stored == x ? n : reduce(how.op, stored, how.axes);
  const int64_t elements = numel(x->shape()) / std::max<int64_t>(numel(n->shape()), 1);
  if (elements > 1 && elements <= kMaxBits && x->dtype.size() <= kMaxBytes && !x->lengths)
    return few_extremum_gradient(stored, extremum, g, how);
  const Node equal = binary(Op::Eq, stored, expand(extremum, x->shape()));
  const Node hit = cast(equal, x->dtype);
  const DType wide = wide_dtype(x->dtype);
  constexpr int64_t kCounted = 256;  // f16 and bf16 count exactly to here
  const Node count = reduce(Op::Add, elements <= kCounted ? hit : cast(equal, wide), how.axes);
  const Node share = binary(Op::Div, cast(g, wide), cast(count, wide));
  return mul(hit, expand(cast(share, x->dtype), x->shape()));
}

void grad_reduce(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0);
  const auto [op, axes] = n->arg<ReduceArg>();
  const Node wide = expand(g, x->shape());
  if (op == Op::Add) return to.add(x, wide);
  if (op == Op::Mul) return to.add(x, mul(wide, product_gradient(x, axes)));
  to.add(x, extremum_gradient(n, g));
}

// --- Indexing -----------------------------------------------------------------------------------

void grad_gather(Node n, Node g, Adjoints& to) {
  const Node x = n->src(0);
  const Node base = zeros_like(x);
  const DType wide = wide_dtype(g->dtype);
  std::vector<Node> indices;
  for (Node i : n->srcs().subspan(1)) indices.push_back(filled(i, Op::Add));  // 0 beyond a length
  const Node all = filled(cast(g, wide), Op::Add);
  to.add(x, cast(scatter(cast(base, wide), all, indices, {Op::Add, false}), x->dtype));
}

// 1 in the shape of the base where anything was written, else 0.
Node written(Node n) {
  const Node ones = number(n->src(1), 1);
  return scatter(zeros_like(n), ones, n->srcs().subspan(2), {Op::Assign, false});
}

// Where several values hit one element and the last one stays, only that one has a gradient: it is
// found by scattering and gathering the values' positions.
Node last_writer(Node n) {
  const Node values = n->src(1);
  const auto indices = n->srcs().subspan(2);
  const int64_t count = numel(values->shape());
  const Node position = reshape(iota(count, kI64), values->shape());
  const Node base = full(n->shape(), kI64, int64_t{-1});
  const Node winner = scatter(base, position, indices, {Op::Assign, false});
  return binary(Op::Eq, gather(winner, indices), position);
}

// The data's own share and the values' share of an extremum, even among ties.
void grad_scatter_extremum(Node n, Node g, Adjoints& to) {
  const auto indices = n->srcs().subspan(2);
  const Node base = in_memory(n->src(0)), values = in_memory(n->src(1));
  const bool is_stored = base == n->src(0) && values == n->src(1);  // see grad_reduce
  const Node extremum = is_stored ? n : scatter(base, values, indices, n->arg<ScatterArg>());
  const Node base_hit = binary(Op::Eq, base, extremum);
  const Node value_hit = cast(binary(Op::Eq, values, gather(extremum, indices)), g->dtype);
  const Node count = scatter(cast(base_hit, g->dtype), value_hit, indices, {Op::Add, false});
  const Node share = binary(Op::Div, g, count);
  to.add(n->src(0), where(base_hit, share, zeros_like(g)));
  to.add(n->src(1), mul(value_hit, gather(share, indices)));
}

// n = base * product of the values that hit the element. The product of the other factors is a
// quotient unless there are zeros: with one zero among the factors only its gradient is not 0, and
// only by it the others' gradients have slopes. (Of three derivatives the last knows no product of
// two zeros.)
void grad_scatter_product(Node n, Node g, Adjoints& to) {
  const auto indices = n->srcs().subspan(2);
  const Node base = n->src(0), values = n->src(1);
  const auto is_zero = [](Node x) { return binary(Op::Eq, x, zeros_like(x)); };
  const auto safe = [&](Node x) { return where(is_zero(x), number(x, 1), x); };
  const auto zero_of = [&](Node x) { return where(is_zero(x), x, zeros_like(x)); };
  const auto sum = [&](Node x, Node y) { return scatter(x, y, indices, {Op::Add, false}); };
  const Node count = sum(cast(is_zero(base), g->dtype), cast(is_zero(values), g->dtype));
  const Node zeros = sum(zero_of(base), zero_of(values));
  const Node product = scatter(safe(base), safe(values), indices, {Op::Mul, false});
  const auto others = [&](Node x, auto at) {
    const Node left = binary(Op::Sub, at(count), cast(is_zero(x), g->dtype));
    const Node quotient = binary(Op::Div, at(product), safe(x));
    const Node value = where(is_zero(left), quotient, zeros_like(x));
    const Node other_zero = binary(Op::Sub, at(zeros), zero_of(x));
    const Node is_one = binary(Op::Eq, left, number(left, 1));
    return make(Op::WithDerivative, value->dtype,
                {value, other_zero, where(is_one, quotient, zeros_like(x))});
  };
  to.add(base, mul(g, others(base, [](Node x) { return x; })));
  if (!values->needs_grad) return;
  const Node at = others(values, [&](Node x) { return gather(x, indices); });
  to.add(values, mul(gather(g, indices), at));
}

void grad_scatter(Node n, Node g, Adjoints& to) {
  const auto how = n->arg<ScatterArg>();
  const auto indices = n->srcs().subspan(2);
  if (how.op == Op::Max || how.op == Op::Min) return grad_scatter_extremum(n, g, to);
  if (how.op == Op::Mul) return grad_scatter_product(n, g, to);
  Node values = n->src(1)->needs_grad ? gather(g, indices) : nullptr;
  if (how.op == Op::Add) {
    to.add(n->src(0), g);
  } else {
    const Node kept = binary(Op::Eq, written(n), zeros_like(n));
    to.add(n->src(0), where(kept, g, zeros_like(g)));
    if (values && !how.unique) values = where(last_writer(n), values, zeros_like(values));
  }
  if (values) to.add(n->src(1), values);
}

// --- The rest of a tensor graph -----------------------------------------------------------------

void grad_same(Node n, Node g, Adjoints& to) { to.add(n->src(0), g); }

void grad_copy(Node n, Node g, Adjoints& to) {
  const int device = n->src(0)->device;
  to.add(n->src(0), device ? copy_to(g, device) : g);
}

void grad_whole(Node n, Node g, Adjoints& to) { to.add(n->src(0), with_lengths(g, n->src(0))); }

void grad_assign(Node n, Node g, Adjoints& to) { to.add(n->src(1), g); }

void grad_nothing(Node, Node, Adjoints&) {}

void apply_rule(Node n, Node g, Adjoints& to);

// The gradient goes through the value as it is computed again, down to the checkpoint's inputs and
// to what both times have in common, which are behind it in the order of the whole. Checkpoints
// that compute the same again pass by the same nodes: each takes along what it has brought.
void grad_checkpoint(Node n, Node g, Adjoints& to) {
  const Recomputed again = recomputed(n->src(0), n->srcs().subspan(1), g);
  to.add(again.value, g);
  for (size_t i = again.fresh.size(); i-- > 0;)
    if (Node part = to.take(again.fresh[i])) apply_rule(again.fresh[i], part, to);
}

void grad_with_derivative(Node n, Node g, Adjoints& to) {
  to.add(n->src(0), g);
  if (n->src(1)->needs_grad) to.add(n->src(1), mul(g, n->src(2)));
}

// `root` with a node replaced: those above it are made anew.
Node replaced(Node root, Node old, NodeMap<Node>& now) {
  const NodeMark from(old);  // a node that depends on it was made later
  std::vector<Node> stack{root}, srcs;
  while (!stack.empty()) {
    const Node n = stack.back();
    const size_t waiting = stack.size();
    if (!now.contains(n) && from.precedes(n))
      for (Node s : n->srcs())
        if (!now.contains(s)) stack.push_back(s);
    if (stack.size() != waiting) continue;
    stack.pop_back();
    if (now.contains(n)) continue;
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(now.contains(s) ? *now.find(s) : s);
    const bool is_same = std::ranges::equal(srcs, n->srcs());
    now[n] = is_same ? n : make(n->op, n->dtype, srcs, n->payload);
  }
  return *now.find(root);
}

void grad_custom(Node n, Node g, Adjoints& to) {
  const Node seed = n->src(1);
  NodeMap<Node> now;
  now[seed] = g;
  for (uint32_t i = 2; i < n->num_src; i += 2)
    to.add(n->src(i), replaced(n->src(i + 1), seed, now));
}

using Rules = std::array<Rule, kOps>;

Rules make_rules() {
  Rules rules{};
  const auto set = [&](Op op, Rule rule) { rules[static_cast<size_t>(op)] = rule; };
  set(Op::Cast, grad_cast);
  set(Op::Bitcast, grad_nothing);
  set(Op::Neg, grad_neg);
  set(Op::Recip, grad_recip);
  set(Op::Sqrt, grad_sqrt);
  set(Op::Exp2, grad_exp2);
  set(Op::Log2, grad_log2);
  set(Op::Sin, grad_sin);
  set(Op::Floor, grad_nothing);
  set(Op::Trunc, grad_nothing);
  set(Op::Add, grad_add);
  set(Op::Sub, grad_sub);
  set(Op::Mul, grad_mul);
  set(Op::Div, grad_div);
  set(Op::Max, grad_extremum);
  set(Op::Min, grad_extremum);
  set(Op::Where, grad_where);
  set(Op::Reshape, grad_reshape);
  set(Op::Permute, grad_permute);
  set(Op::Expand, grad_expand);
  set(Op::Pad, grad_pad);
  set(Op::Shrink, grad_shrink);
  set(Op::Flip, grad_flip);
  set(Op::Stride, grad_stride);
  set(Op::Limit, grad_same);
  set(Op::Whole, grad_whole);
  set(Op::Bound, grad_nothing);
  set(Op::ReduceAxis, grad_reduce);
  set(Op::Gather, grad_gather);
  set(Op::Scatter, grad_scatter);
  set(Op::Contiguous, grad_same);
  set(Op::Detach, grad_nothing);
  set(Op::RoundGradient, grad_rounded);
  set(Op::Leaf, grad_nothing);
  set(Op::Copy, grad_copy);
  set(Op::Shard, grad_copy);
  set(Op::Assign, grad_assign);
  set(Op::After, grad_same);
  set(Op::Checkpoint, grad_checkpoint);
  set(Op::WithDerivative, grad_with_derivative);
  set(Op::CustomGradient, grad_custom);
  return rules;
}

// Nodes that a gradient can reach, sources before users.
std::vector<Node> differentiable(Node loss) {
  std::vector<Node> order, stack{loss};
  NodeMap<char> state;  // 1: waits for its sources, 2: done
  while (!stack.empty()) {
    const Node n = stack.back();
    char& s = state[n];
    if (s == 0 && n->op != Op::Leaf) {
      s = 1;
      for (uint32_t i = 0; i < n->num_src; ++i) {
        const Node src = n->src(i);
        const bool is_asked = n->op != Op::CustomGradient || (i > 1 && i % 2 == 0);
        if (is_asked && src->needs_grad && !state.contains(src)) stack.push_back(src);
      }
      continue;
    }
    stack.pop_back();
    if (s != 2) order.push_back(n);
    s = 2;
  }
  return order;
}

void apply_rule(Node n, Node g, Adjoints& to) {
  static const Rules& rules = *new Rules(make_rules());
  LabelScope label(gradient_label(n));
  const Rule rule = rules[static_cast<size_t>(n->op)];
  expect(rule, "no gradient rule for ", n->op);
  rule(n, g, to);
}

}  // namespace

std::vector<Node> grad_leaves(Node loss) {
  std::vector<Node> leaves;
  std::unordered_map<int64_t, bool> seen;
  for (Node n : differentiable(loss))
    if (n->op == Op::Leaf && !std::exchange(seen[n->int_value()], true)) leaves.push_back(n);
  return leaves;
}

std::vector<Node> gradients(Node loss, std::span<const Node> targets, Node seed) {
  Adjoints adjoints;
  adjoints.add(loss, seed);
  const std::vector<Node> order = differentiable(loss);
  for (size_t i = order.size(); i-- > 0;)
    if (Node g = adjoints.get(order[i]); g && order[i]->op != Op::Leaf)
      apply_rule(order[i], g, adjoints);
  std::unordered_map<int64_t, Node> by_leaf;
  for (size_t i = order.size(); i-- > 0;) {
    const Node n = order[i], g = adjoints.get(n);
    if (!g || n->op != Op::Leaf) continue;
    LabelScope label(gradient_label(n));
    Node& sum = by_leaf[n->int_value()];
    sum = sum ? binary(Op::Add, sum, g) : g;
  }
  std::vector<Node> out;
  for (Node t : targets) {
    const auto leaf = t->op == Op::Leaf ? by_leaf.find(t->int_value()) : by_leaf.end();
    const Node g = leaf != by_leaf.end() ? leaf->second : adjoints.get(t);
    out.push_back(g ? g : with_lengths(zeros_like(t), t));
  }
  return out;
}

}  // namespace tiny
