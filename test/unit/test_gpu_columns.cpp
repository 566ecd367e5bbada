// Reductions along the columns of odd sizes, on the emulator and on the CPU.
#include <doctest/doctest.h>

#include "test/unit/emulated.h"

using namespace tiny;
using test::emulated_error;
using test::waves;

TEST_CASE("GPU columns: means and variances of few and of many columns") {
  for (const Shape& shape : {Shape{1000, 72}, {513, 1003}, {3001, 264}}) {
    const auto normalized = [&] {
      const Tensor x = waves(shape) * 3 + 5, w = waves({shape[1]});
      Tensor mean = (w + 1).contiguous(), var = (w + 2).contiguous();
      mean.realize();
      var.realize();
      const BatchNormResult r = batch_norm(x, w, w, mean, var, {.training = true});
      mean.assign(r.running_mean);
      var.assign(r.running_var);
      return std::vector<Tensor>{r.y, mean, var};
    };
    CHECK(emulated_error(normalized) < 1e-5);
  }
}

TEST_CASE("GPU columns: a sum of differences from another sum along the same rows") {
  for (int64_t rows : {19, 512}) {
    const auto both = [&] {
      const Tensor x = waves({3, rows, 97});
      return std::vector<Tensor>{(x - x.mean(1, true)).square().sum(1) + x.sum(1)};
    };
    CHECK(emulated_error(both) < 1e-4);
  }
}

TEST_CASE("GPU columns: many columns of odd length, and where their extrema are") {
  const auto reduced = [] {
    Tensor x = (waves({2, 72, 33793}) * 4).floor();  // many are equal
    x = where(x * waves({2, 1, 33793}) > 2.8f, NAN, x).contiguous();
    return std::vector<Tensor>{x.argmax(1), x.argmin(1), x.mean(1)};
  };
  CHECK(emulated_error(reduced) < 1e-6);
  const auto vectors = [] {
    return std::vector<Tensor>{(waves({2, 24, 135168}) * 3).floor().contiguous().argmax(1)};
  };
  CHECK(emulated_error(vectors) == 0);
  CHECK(emulated_error([] {
          const Tensor x = waves({3, 1027, 93});
          return std::vector<Tensor>{x.sum(1), x.max(1)};
        }) < 1e-4);
}
