// Activations that PyTorch has as functions of neural networks alone.
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// f of x in f32 or f64, rounded once.
template <class F> Tensor wide(const char* what, const Tensor& x, F f) {
  LabelScope label(what);
  detail::require_float(what, x.dtype());
  return f(x.to(detail::compute_dtype(x.dtype()))).to(x.dtype());
}

}  // namespace

Tensor softsign(const Tensor& x) {
  return wide("softsign", x, [](const Tensor& v) { return v / (v.abs() + 1); });
}

Tensor tanhshrink(const Tensor& x) {
  return wide("tanhshrink", x, [](const Tensor& v) { return v - v.tanh(); });
}

Tensor softshrink(const Tensor& x, double lambda) {
  check(lambda >= 0, "softshrink: lambda ", lambda, " is negative");
  return wide("softshrink", x, [&](const Tensor& v) { return v - v.clamp(-lambda, lambda); });
}

Tensor hardshrink(const Tensor& x, double lambda) {
  return wide("hardshrink", x, [&](const Tensor& v) { return where(v.abs() <= lambda, 0, v); });
}

Tensor threshold(const Tensor& x, double threshold, double value) {
  return wide("threshold", x, [&](const Tensor& v) { return where(v <= threshold, value, v); });
}

Tensor prelu(const Tensor& x, const Tensor& weight) {
  const bool each = weight.numel() != 1;
  check(!each || (x.rank() >= 2 && same(weight.shape(), Shape{x.size(1)})), "prelu: a weight of ",
        to_text(weight.shape()), " for an input of ", to_text(x.capacity()),
        ": it has one element, or one for each channel");
  Shape shape(each ? static_cast<size_t>(x.rank()) : 0, 1);
  if (each) shape[1] = x.size(1);
  return wide("prelu", x, [&](const Tensor& v) {
    return where(v > 0, v, v * weight.to(v.dtype()).reshape(shape));
  });
}

Tensor glu(const Tensor& x, int64_t dim) {
  check(x.rank() >= 1 && x.size(dim) % 2 == 0, "glu: axis ", dim, " of ", to_text(x.capacity()),
        " has no two halves");
  const int64_t half = x.size(dim) / 2;
  return wide("glu", x, [&](const Tensor& v) {
    return v.narrow(dim, 0, half) * v.narrow(dim, half, half).sigmoid();
  });
}

}  // namespace tiny
