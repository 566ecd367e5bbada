// Reductions, and what is made of them.
#include <algorithm>
#include <bit>
#include <cmath>

#include "tiny/ir/sizes.h"
#include "tiny/tensor/detail.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

// The reduction over the axes of the mask, in x's dtype.
Tensor reduce(Op op, const Tensor& x, uint32_t mask, bool keepdim) {
  const Node n = build::reduce(op, x.node(), mask);
  return Tensor(build::reshape(n, detail::without(x.capacity(), mask, keepdim)));
}

// The least number of elements that the axes of the mask may hold.
int64_t least_count(const Tensor& x, uint32_t mask) {
  int64_t count = 1;
  for (int i = 0; i < x.rank(); ++i) {
    const Node length = x.node()->length(i);
    if (mask >> i & 1) count *= length ? length->vmin : x.capacity()[i];
  }
  return count;
}

// How many elements they hold: a number, times Variables where there are any.
struct Count {
  double number = 1;
  Tensor lengths = {};
};
Count reduced_count(const Tensor& x, uint32_t mask) {
  Count count;
  for (int i = 0; i < x.rank(); ++i) {
    if (!(mask >> i & 1)) continue;
    if (const Node length = x.node()->length(i)) {
      const Tensor n(length);
      count.lengths = count.lengths.defined() ? count.lengths * n : n;
    } else {
      count.number *= static_cast<double>(x.capacity()[i]);
    }
  }
  return count;
}

// x / max(count - correction, 0)
Tensor divided(const Tensor& x, const Count& count, double correction) {
  if (!count.lengths.defined()) return x / std::max(count.number - correction, 0.0);
  const Tensor n = count.lengths.to(x.dtype()) * count.number;
  return x / (correction == 0 ? n : (n - correction).relu());
}

uint32_t mask_of(const char* what, const Dims& dims, const Tensor& x) {
  return detail::axes_mask(detail::axes_of(what, dims, x.rank()));
}

// Sums and products: integers as i64, f16 and bf16 accumulated in f32 and rounded once.
Tensor accumulate(const char* what, Op op, const Tensor& x, const Dims& dims, bool keepdim) {
  LabelScope label(what);
  const DType t = x.dtype().is_float() ? x.dtype() : kI64;
  const Tensor wide = x.to(detail::compute_dtype(t));
  return reduce(op, wide, mask_of(what, dims, x), keepdim).to(t);
}

Tensor extremum(const char* what, Op op, const Tensor& x, const Dims& dims, bool keepdim) {
  LabelScope label(what);
  const uint32_t mask = mask_of(what, dims, x);
  check(least_count(x, mask) > 0, what, ": no elements to choose from in shape ",
        to_text(x.capacity()), x.node()->lengths ? ", where a Variable may be 0" : "");
  return reduce(op, x, mask, keepdim);
}

// A reduction of floats computed in f32 or f64 by f(x, mask), keepdim applied and rounded once.
template <class F>
Tensor float_reduction(const char* what, const Tensor& x, const Dims& dims, bool keepdim, F f) {
  LabelScope label(what);
  detail::require_float(what, x.dtype());
  const uint32_t mask = mask_of(what, dims, x);
  const Tensor y = f(x.to(detail::compute_dtype(x.dtype())), mask);  // reduced axes have size 1
  const Shape shape = detail::without(x.capacity(), mask, keepdim);
  return Tensor(build::reshape(y.node(), shape)).to(x.dtype());
}

Tensor sum_keep(const Tensor& x, uint32_t mask) { return reduce(Op::Add, x, mask, true); }

Tensor mean_keep(const Tensor& x, uint32_t mask) {
  return divided(sum_keep(x, mask), reduced_count(x, mask), 0);
}

Tensor variance(const Tensor& x, uint32_t mask, double correction) {
  const Tensor centered = x - mean_keep(x, mask);
  return divided(sum_keep(centered.square(), mask), reduced_count(x, mask), correction);
}

// The largest element without a gradient, 0 where it is infinite so that x - shift is no NaN.
Tensor shift_of(const Tensor& x, uint32_t mask) {
  const Tensor m = reduce(Op::Max, x.detach(), mask, true);
  return where(m.isinf(), 0, m);
}

// s^(1/p) whose gradient at s = 0 is 0.
Tensor root(const Tensor& s, double p) {
  const Tensor zero = s == 0, safe = where(zero, 1, s);
  return where(zero, 0, p == 2 ? safe.sqrt() : pow(safe, 1 / p));
}

}  // namespace

Tensor Tensor::sum(const Dims& dims, bool keepdim) const {
  return accumulate("sum", Op::Add, *this, dims, keepdim);
}

Tensor Tensor::prod(const Dims& dims, bool keepdim) const {
  return accumulate("prod", Op::Mul, *this, dims, keepdim);
}

Tensor Tensor::mean(const Dims& dims, bool keepdim) const {
  return float_reduction("mean", *this, dims, keepdim, mean_keep);
}

Tensor Tensor::max(const Dims& dims, bool keepdim) const {
  return extremum("max", Op::Max, *this, dims, keepdim);
}

Tensor Tensor::min(const Dims& dims, bool keepdim) const {
  return extremum("min", Op::Min, *this, dims, keepdim);
}

Tensor Tensor::any(const Dims& dims, bool keepdim) const {
  LabelScope label("any");
  return reduce(Op::Max, to(kBool), mask_of("any", dims, *this), keepdim);
}

Tensor Tensor::all(const Dims& dims, bool keepdim) const {
  LabelScope label("all");
  return reduce(Op::Min, to(kBool), mask_of("all", dims, *this), keepdim);
}

Tensor Tensor::var(const Dims& dims, bool keepdim, double correction) const {
  return float_reduction("var", *this, dims, keepdim, [&](const Tensor& x, uint32_t mask) {
    return variance(x, mask, correction);
  });
}

Tensor Tensor::std(const Dims& dims, bool keepdim, double correction) const {
  return float_reduction("std", *this, dims, keepdim, [&](const Tensor& x, uint32_t mask) {
    return root(variance(x, mask, correction), 2);
  });
}

Tensor Tensor::norm(const Dims& dims, bool keepdim, double p) const {
  return float_reduction("norm", *this, dims, keepdim, [&](const Tensor& x, uint32_t mask) {
    if (p == 2) return root(sum_keep(x.square(), mask), 2);
    if (p == 0) return sum_keep((x != 0).to(x.dtype()), mask);
    if (std::isinf(p)) return reduce(p > 0 ? Op::Max : Op::Min, x.abs(), mask, true);
    return p == 1 ? sum_keep(x.abs(), mask) : root(sum_keep(pow(x.abs(), p), mask), p);
  });
}

Tensor Tensor::logsumexp(const Dims& dims, bool keepdim) const {
  return float_reduction("logsumexp", *this, dims, keepdim, [](const Tensor& x, uint32_t mask) {
    const Tensor shift = shift_of(x, mask);
    return sum_keep((x - shift).exp(), mask).log() + shift;
  });
}

namespace {

// Of the last axis, in pieces that a group of threads can hold, and then of these, so that x is
// read once. Infinite maxima are subtracted, as below, but a piece may be all -inf.
Tensor log_sum_exp_of_pieces(const Tensor& x, int64_t pieces) {
  const int64_t n = x.capacity().back(), length = (ceil_div(n, pieces) + 7) / 8 * 8;
  std::vector<Padding> pads(x.rank());
  pads.back().after = pieces * length - n;
  const auto of = [](const Tensor& y) {
    const uint32_t last = uint32_t{1} << (y.rank() - 1);
    const Tensor most = reduce(Op::Max, y, last, true);
    const Tensor shift = where(most == -INFINITY, 0, most);
    return sum_keep((y - shift).exp(), last).log() + shift;
  };
  const Tensor split = x.pad(pads, PadMode::Constant, -INFINITY).unflatten(-1, {pieces, length});
  return of(of(split).squeeze(-1).contiguous()).contiguous();
}

}  // namespace

bool detail::is_reduced_as_computed(const Tensor& x) {
  Node n = x.node();
  if (n->needs_grad || n->lengths) return false;
  while (!n->realized && (n->op == Op::Cast || n->op == Op::Add || is_movement(n->op)))
    n = n->src(0);
  if (n->realized || n->op != Op::ReduceAxis || n->arg<ReduceArg>().op != Op::Add ||
      n->dtype != kF32 || n->src(0)->op != Op::Mul || numel(n->shape()) != x.numel())
    return false;
  const int64_t terms = numel(n->src(0)->shape()) / std::max<int64_t>(x.numel(), 1);
  if (!are_reduced_as_computed(x.numel(), terms)) return false;
  const bool gpu = runtime_seam::is_gpu(x.device());
  if (gpu && terms % (terms > 256 ? 64 : 16) != 0) return false;  // whole fragments
  return std::ranges::all_of(n->src(0)->srcs(), [&](Node s) {
    while (is_movement(s->op) || (s->op == Op::Cast && s->src(0)->dtype.is_half())) s = s->src(0);
    return gpu ? s->dtype.is_half() : s->dtype == kF32;
  });
}

int64_t detail::pieces_of_row(const Tensor& x, int axis) {
  constexpr int64_t kHeld = 16384;           // elements, by a block of threads
  constexpr int64_t kByWarp = 2048 - 2 * 8;  // and what it reads at the ends of those elsewhere
  const int64_t n = x.capacity()[axis];
  if (n <= kHeld || axis != x.rank() - 1 || x.requires_grad() || x.node()->lengths ||
      !runtime_seam::is_gpu(x.device()) || is_reduced_as_computed(x))
    return 1;
  return ceil_div(n, kByWarp);
}

Tensor detail::log_sum_exp(const Tensor& x, int axis) {
  if (const int64_t pieces = pieces_of_row(x, axis); pieces > 1)
    return log_sum_exp_of_pieces(x, pieces);
  return x.logsumexp(axis, true);
}

// softmax and log_softmax subtract the true maximum, also an infinite one: the result then is NaN,
// as in PyTorch.
Tensor Tensor::softmax(int64_t dim) const {
  LabelScope label("softmax");
  detail::require_float("softmax", dtype());
  const uint32_t mask = mask_of("softmax", dim, *this);
  const Tensor x = to(detail::compute_dtype(dtype()));
  const Tensor e = (x - reduce(Op::Max, x.detach(), mask, true)).exp();
  // A division for each row.
  return (e * sum_keep(e, mask).reciprocal()).to(detail::autocast_loss(dtype()));
}

Tensor Tensor::log_softmax(int64_t dim) const {
  LabelScope label("log_softmax");
  detail::require_float("log_softmax", dtype());
  const uint32_t mask = mask_of("log_softmax", dim, *this);
  const Tensor x = to(detail::compute_dtype(dtype()));
  if (const int axis = std::countr_zero(mask); detail::pieces_of_row(x, axis) > 1)
    return (x - detail::log_sum_exp(x, axis)).to(detail::autocast_loss(dtype()));
  const Tensor shifted = x - reduce(Op::Max, x.detach(), mask, true);
  return (shifted - sum_keep(shifted.exp(), mask).log()).to(detail::autocast_loss(dtype()));
}

namespace {

// Position of the largest or smallest element along `axis`, which stays with size 1. Positions
// count backwards while they are reduced, so that the largest is the first of equals.
Tensor arg_extremum(Op op, const Tensor& x, int axis) {
  const uint32_t mask = uint32_t{1} << axis;
  const int64_t n = x.capacity()[axis];
  const DType t = n < INT32_MAX ? kI32 : kI64;
  Tensor hit = x == reduce(op, x, mask, true);
  if (x.dtype().is_float()) hit = logical_or(hit, x.isnan());
  const Tensor backwards = n - detail::with_lengths(detail::position(x.capacity(), axis, t), x);
  return (n - reduce(Op::Max, where(hit, backwards, 0), mask, true)).to(kI64);
}

Tensor arg_reduction(const char* what, Op op, const Tensor& x, std::optional<int64_t> dim,
                     bool keepdim) {
  LabelScope label(what);
  const int axis = dim ? normalize_axis(what, *dim, x.rank()) : 0;
  check(least_count(x, dim && x.rank() ? uint32_t{1} << axis : ~0u) > 0, what,
        ": no elements to choose from in shape ", to_text(x.capacity()),
        x.node()->lengths ? ", where a Variable may be 0" : "");
  const Shape shape = to_shape(x.capacity());
  const Tensor data = detail::in_memory(x);
  if (!dim || x.rank() == 0) {
    const Tensor y = arg_extremum(op, data.reshape({-1}), 0);
    return detail::beside(y.reshape(keepdim ? Shape(shape.size(), 1) : Shape{}), x);
  }
  const Tensor y = arg_extremum(op, data, axis);
  return detail::beside(y.reshape(detail::without(shape, uint32_t{1} << axis, keepdim)), x);
}

}  // namespace

Tensor Tensor::argmax(std::optional<int64_t> dim, bool keepdim) const {
  return arg_reduction("argmax", Op::Max, *this, dim, keepdim);
}

Tensor Tensor::argmin(std::optional<int64_t> dim, bool keepdim) const {
  return arg_reduction("argmin", Op::Min, *this, dim, keepdim);
}

}  // namespace tiny
