// Reductions, softmax, running sums, sorting.

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

struct WantedAxes {
  Dims dims;
  bool keepdim;
  bool is_nothing;  // no axes, and these mean none
};

WantedAxes reduction_of(Call& c) {
  const auto axes = c.axes(1);
  const bool keepdim = c.integer("keepdims", 1) != 0;
  if (axes && !axes->empty()) return {Dims(*axes), keepdim, false};
  return {Dims(), keepdim, c.integer("noop_with_empty_axes", 0) != 0};
}

// f(x, dims, keepdim), in the dtype of x.
template <class F> Tensors reduced(Call& c, F&& f) {
  const WantedAxes r = reduction_of(c);
  const Tensor& x = c[0];
  if (r.is_nothing) return {x};
  const Tensor y = f(x, r.dims, r.keepdim);
  return {y.dtype() == x.dtype() ? y : y.to(x.dtype())};
}

Tensors reduce_sum(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) { return x.sum(d, k); });
}

Tensors reduce_prod(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) { return x.prod(d, k); });
}

Tensors reduce_mean(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    if (x.dtype().is_float()) return x.mean(d, k);
    const Tensor sum = x.sum(d, k);
    return trunc_div(sum, x.numel() / std::max<int64_t>(sum.numel(), 1));
  });
}

Tensors reduce_max(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    return x.dtype().is_bool() ? x.any(d, k) : x.max(d, k);
  });
}

Tensors reduce_min(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    return x.dtype().is_bool() ? x.all(d, k) : x.min(d, k);
  });
}

Tensors reduce_l1(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) { return x.abs().sum(d, k); });
}

// Integers as f64.
Tensor as_real(const Tensor& x) { return x.dtype().is_float() ? x : x.to(kF64); }

Tensors reduce_l2(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    const Tensor wide = x.dtype().is_narrow() ? x.to(kF32) : as_real(x);
    return wide.square().sum(d, k).sqrt();
  });
}

Tensors reduce_sum_square(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    return (x.dtype().is_narrow() ? x.to(kF32) : x).square().sum(d, k);
  });
}

Tensors reduce_log_sum(Call& c) {
  return reduced(c, [](const Tensor& x, const Dims& d, bool k) {
    return (x.dtype().is_narrow() ? x.to(kF32) : as_real(x)).sum(d, k).log();
  });
}

Tensors reduce_log_sum_exp(Call& c) {
  return reduced(c,
                 [](const Tensor& x, const Dims& d, bool k) { return as_real(x).logsumexp(d, k); });
}

// --- Softmax and its kin -------------------------------------------------------------------------

// f(x, axis): along one axis since version 13, before of all axes from that one on as one.
template <class F> Tensor along_or_from(Call& c, F&& f) {
  const Tensor& x = c[0];
  if (c.opset() >= 13) return f(x, axis_of(x, c.integer("axis", -1)));
  const Shape shape = sizes(x);
  const auto axis = static_cast<size_t>(axis_of(x, c.integer("axis", 1)));
  const int64_t rows = numel(Ints(shape).first(axis));
  return f(x.reshape({rows, numel(Ints(shape).subspan(axis))}), 1).reshape(shape);
}

Tensors softmax(Call& c) {
  return {along_or_from(c, [](const Tensor& x, int64_t axis) { return x.softmax(axis); })};
}

Tensors log_softmax(Call& c) {
  return {along_or_from(c, [](const Tensor& x, int64_t axis) { return x.log_softmax(axis); })};
}

Tensors hardmax(Call& c) {
  return {along_or_from(c, [](const Tensor& x, int64_t axis) {
    const Tensor best = x.argmax(axis, true);
    const int64_t size = x.size(axis);
    const Tensor place = Tensor::arange(size).reshape(ones_but(x.rank(), axis, size));
    return (place == best).to(x.dtype());
  })};
}

// --- Positions, sorting, running sums ------------------------------------------------------------

template <Tensor (Tensor::*best)(std::optional<int64_t>, bool) const> Tensors position(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", 0));
  const bool keepdim = c.integer("keepdims", 1) != 0;
  if (c.integer("select_last_index", 0) == 0) return {(x.*best)(axis, keepdim)};
  return {x.size(axis) - 1 - (x.flip(axis).*best)(axis, keepdim)};
}

Tensors cumsum(Call& c) {
  const Tensor& x = c[0];
  const Shape wanted = c.host_integers(1);
  c.require(wanted.size() == 1, "the axis has ", wanted.size(), " values, expected one");
  const int64_t axis = axis_of(x, wanted[0]);
  const bool reverse = c.integer("reverse", 0) != 0;
  const Tensor from = reverse ? x.flip(axis) : x;
  Tensor sums = from.cumsum(axis).to(x.dtype());
  if (c.integer("exclusive", 0) != 0) {
    std::vector<Padding> pads(static_cast<size_t>(x.rank()));
    pads[axis] = {1, -1};
    sums = sums.pad(pads);
  }
  return {reverse ? sums.flip(axis) : sums};
}

// Before version 10 k is an attribute.
Tensors topk(Call& c) {
  const Tensor& x = c[0];
  int64_t k = c.integer("k", 0);
  if (c.opset() >= 10) {
    const Shape count = c.host_integers(1);
    c.require(count.size() == 1, "k has ", count.size(), " values, expected one");
    k = count[0];
  }
  const auto best = x.topk(k, c.integer("axis", -1), c.integer("largest", 1) != 0);
  return {best.values, best.indices};
}

constexpr TypeSet kComparable = kNumbers | type_set(kBool);

constexpr Operator kReduce[] = {
    {"ArgMax", 1, kNumbers, position<&Tensor::argmax>},
    {"ArgMin", 1, kNumbers, position<&Tensor::argmin>},
    {"CumSum", 11, kNumbers, cumsum},
    {"Hardmax", 1, kFloats, hardmax},
    {"LogSoftmax", 1, kFloats, log_softmax},
    {"ReduceL1", 1, kNumbers, reduce_l1},
    {"ReduceL2", 1, kNumbers, reduce_l2},
    {"ReduceLogSum", 1, kNumbers, reduce_log_sum},
    {"ReduceLogSumExp", 1, kNumbers, reduce_log_sum_exp},
    {"ReduceMax", 1, kComparable, reduce_max},
    {"ReduceMean", 1, kNumbers, reduce_mean},
    {"ReduceMin", 1, kComparable, reduce_min},
    {"ReduceProd", 1, kNumbers, reduce_prod},
    {"ReduceSum", 1, kNumbers, reduce_sum},
    {"ReduceSumSquare", 1, kNumbers, reduce_sum_square},
    {"Softmax", 1, kFloats, softmax},
    {"TopK", 1, kNumbers, topk},
};

}  // namespace

std::span<const Operator> reduce_operators() { return kReduce; }

}  // namespace tiny::onnx
