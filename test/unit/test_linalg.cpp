#include "tiny/tensor/ops/linalg.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tiny/nn/functional.h"
#include "tiny/tensor/random.h"

using namespace tiny;

TEST_CASE("eigenvectors of a symmetric matrix are orthogonal and give it back") {
  for (int64_t n : {1, 2, 3, 12, 40}) {
    CAPTURE(n);
    manual_seed(static_cast<uint64_t>(n));
    const Tensor x = Tensor::randn({n, n}).contiguous();
    const std::vector<float> half = (x + x.t()).to_vector<float>();
    const std::vector<double> a(half.begin(), half.end());
    const SymmetricEigen e = symmetric_eigen(a, n);
    REQUIRE(static_cast<int64_t>(e.values.size()) == n);
    double worst = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double product = 0, dot = 0;
        for (int64_t k = 0; k < n; ++k) {
          product += e.values[k] * e.vectors[k * n + i] * e.vectors[k * n + j];
          dot += e.vectors[i * n + k] * e.vectors[j * n + k];
        }
        worst = std::max({worst, std::abs(product - a[i * n + j]), std::abs(dot - (i == j))});
      }
    CHECK(worst < 1e-12 * static_cast<double>(n));
    CHECK(std::is_sorted(e.values.begin(), e.values.end()));
  }
}

TEST_CASE("eigenvalues of a known matrix, also where some are equal or zero") {
  const SymmetricEigen e = symmetric_eigen({2, 1, 1, 2}, 2);
  CHECK(e.values[0] == doctest::Approx(1));
  CHECK(e.values[1] == doctest::Approx(3));
  CHECK(e.vectors[2] == doctest::Approx(std::sqrt(0.5)));
  CHECK(e.vectors[3] == doctest::Approx(std::sqrt(0.5)));
  CHECK(symmetric_eigen({5, 0, 0, 5}, 2).values == std::vector<double>{5, 5});
  CHECK(symmetric_eigen({0, 0, 0, 0}, 2).values == std::vector<double>{0, 0});
  CHECK(symmetric_eigen({}, 0).values.empty());
}

TEST_CASE("symmetric_eigen refuses what is no symmetric matrix") {
  CHECK_THROWS_WITH_AS(symmetric_eigen({1, 2, 3}, 2),
                       "symmetric_eigen: 3 numbers are no 2 x 2 matrix", Error);
  CHECK_THROWS_WITH_AS(symmetric_eigen({1, 2, 3, 1}, 2),
                       "symmetric_eigen: elements (1, 0) and (0, 1) differ: 3 and 2", Error);
  CHECK_THROWS_WITH_AS(symmetric_eigen({std::numeric_limits<double>::infinity()}, 1),
                       "symmetric_eigen: the matrix holds inf", Error);
}

TEST_CASE("whitened patches are uncorrelated and of one variance") {
  manual_seed(2);
  // Neighbours that are alike, and channels of different strength.
  const Tensor noise = Tensor::randn({50, 3, 9, 9}).contiguous();
  const Tensor strength = Tensor::from({1.0f, 0.5f, 3.0f}, {3, 1, 1});
  const Tensor x = (avg_pool2d(noise, 2, {.stride = 1}) * strength).contiguous();
  const Tensor filters = whitening_filters(x, 2, 1e-6);
  CHECK(to_shape(filters.shape()) == Shape{24, 3, 2, 2});
  const Tensor y = conv2d(x, filters).permute({1, 0, 2, 3}).reshape({24, -1}).contiguous();
  const std::vector<float> moments =
      (y.matmul(y.t()) * (1 / static_cast<double>(y.size(1)))).to_vector<float>();
  for (int i = 0; i < 24; ++i)
    for (int j = 0; j < 24; ++j) {
      const double expected = i == j             ? 1
                              : i % 12 == j % 12 ? -1
                                                 : 0;  // the second half is negative
      CHECK(std::abs(moments[i * 24 + j] - expected) < 0.01);
    }
  // A large eps keeps what hardly varies small.
  const std::vector<float> weak = whitening_filters(x, 2, 1e6).to_vector<float>();
  for (float v : weak) CHECK(std::abs(v) < 1e-3);
}

TEST_CASE("whitening says which pictures do not fit") {
  CHECK_THROWS_WITH_AS(whitening_filters(Tensor::ones({2, 3, 4}), 2, 0),
                       "whitening_filters: takes floats (n, c, h, w) and not f32 (2,3,4)", Error);
  CHECK_THROWS_WITH_AS(whitening_filters(Tensor::ones({2, 3, 4, 4}), 5, 0),
                       "whitening_filters: patches of 5 x 5 of (2,3,4,4) with eps 0", Error);
}
