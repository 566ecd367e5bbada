#include "tiny/tensor/ops/linalg.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tiny {

namespace {

// Rotates the rows and columns p and q of the symmetric `a` so that a[p][q] becomes 0, and the rows
// of `v` with them.
void rotate(std::vector<double>& a, std::vector<double>& v, int64_t n, int64_t p, int64_t q) {
  const double off = a[p * n + q];
  if (off == 0) return;
  const double tau = (a[q * n + q] - a[p * n + p]) / (2 * off);
  const double t = (tau < 0 ? -1 : 1) / (std::abs(tau) + std::sqrt(1 + tau * tau));
  const double c = 1 / std::sqrt(1 + t * t), s = t * c;
  const auto turn = [&](double& x, double& y) {
    const double old = x;
    x = c * old - s * y;
    y = s * old + c * y;
  };
  for (int64_t k = 0; k < n; ++k) turn(a[k * n + p], a[k * n + q]);
  for (int64_t k = 0; k < n; ++k) turn(a[p * n + k], a[q * n + k]);
  for (int64_t k = 0; k < n; ++k) turn(v[p * n + k], v[q * n + k]);
}

double off_diagonal(const std::vector<double>& a, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) sum += a[i * n + j] * a[i * n + j];
  return sum;
}

void check_symmetric(const std::vector<double>& a, int64_t n) {
  check(n >= 0 && static_cast<int64_t>(a.size()) == n * n, "symmetric_eigen: ", a.size(),
        " numbers are no ", n, " x ", n, " matrix");
  double largest = 0;
  for (double x : a) {
    check(std::isfinite(x), "symmetric_eigen: the matrix holds ", x);
    largest = std::max(largest, std::abs(x));
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j)
      check(std::abs(a[i * n + j] - a[j * n + i]) <= 1e-6 * largest, "symmetric_eigen: elements (",
            i, ", ", j, ") and (", j, ", ", i, ") differ: ", a[i * n + j], " and ", a[j * n + i]);
}

}  // namespace

SymmetricEigen symmetric_eigen(const std::vector<double>& matrix, int64_t n) {
  check_symmetric(matrix, n);
  std::vector<double> a = matrix, v(matrix.size(), 0);
  for (int64_t i = 0; i < n; ++i) v[i * n + i] = 1;
  const double all = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  // Each sweep squares what is left, once it is small: a dozen of them are plenty.
  for (int sweep = 0; sweep < 50 && off_diagonal(a, n) > 1e-30 * all; ++sweep)
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) rotate(a, v, n, p, q);

  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order,
                           [&](int64_t i, int64_t j) { return a[i * n + i] < a[j * n + j]; });
  SymmetricEigen result;
  for (int64_t i : order) {
    result.values.push_back(a[i * n + i]);
    const auto begin = v.begin() + i * n, end = begin + n;
    const double top =
        *std::max_element(begin, end, [](double x, double y) { return std::abs(x) < std::abs(y); });
    for (auto x = begin; x != end; ++x) result.vectors.push_back(top < 0 ? -*x : *x);
  }
  return result;
}

Tensor whitening_filters(const Tensor& images, int64_t kernel, double eps) {
  check(images.rank() == 4 && images.dtype().is_float(),
        "whitening_filters: takes floats (n, c, h, w) and not ", images.dtype().name(), " ",
        to_text(images.shape()));
  const int64_t c = images.size(1), h = images.size(2), w = images.size(3), n = c * kernel * kernel;
  check(kernel >= 1 && kernel <= h && kernel <= w && images.size(0) > 0 && eps >= 0,
        "whitening_filters: patches of ", kernel, " x ", kernel, " of ", to_text(images.shape()),
        " with eps ", eps);
  const NoGrad no_grad;
  // (images, c, kernel, kernel, h', w') to (images, n, h' w'): one product for each picture.
  const Tensor patches = images.to(kF32)
                             .unfold(2, kernel, 1)
                             .unfold(3, kernel, 1)
                             .permute({0, 1, 4, 5, 2, 3})
                             .reshape({images.size(0), n, -1})
                             .contiguous();
  const Tensor moments =
      patches.matmul(patches.transpose(1, 2)).mean(0) * (1 / static_cast<double>(patches.size(2)));
  const std::vector<float> host = moments.to("CPU").to_vector<float>();
  const SymmetricEigen eigen = symmetric_eigen(std::vector<double>(host.begin(), host.end()), n);
  std::vector<float> filters(static_cast<size_t>(2 * n * n));
  for (int64_t i = 0; i < n * n; ++i) {
    const double value = std::max(eigen.values[i / n], 0.0) + eps;
    filters[i] = static_cast<float>(eigen.vectors[i] / std::sqrt(value));
    filters[n * n + i] = -filters[i];
  }
  return Tensor::from(filters, {2 * n, c, kernel, kernel});
}

}  // namespace tiny
