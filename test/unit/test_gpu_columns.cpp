// Reductions along the columns of odd sizes, on the emulator and on the CPU.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

using Values = std::vector<double>;

Values values(const std::string& device, const std::function<std::vector<Tensor>()>& compute) {
  const EnvOverride use("DEVICE", device);
  Values out;
  for (const Tensor& t : compute()) {
    const Values own = t.to(kF64).to_vector<double>();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

// The largest error beside 1 + the value; infinite where one is NaN and the other is not.
double error(const std::function<std::vector<Tensor>()>& compute) {
  const Values wanted = values("CPU", compute), got = values("EMU:CUDA:sm_90a", compute);
  REQUIRE(wanted.size() == got.size());
  double worst = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i]) && std::isnan(got[i])) continue;
    const double e = std::abs(wanted[i] - got[i]) / (1 + std::abs(wanted[i]));
    worst = std::max(worst, std::isfinite(e) ? e : INFINITY);
  }
  return worst;
}

Tensor waves(const Shape& shape) {
  return (Tensor::arange(numel(shape)).to(kF32) * 0.7373f).sin().reshape(shape).contiguous();
}

}  // namespace

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
    CHECK(error(normalized) < 1e-5);
  }
}

TEST_CASE("GPU columns: a sum of differences from another sum along the same rows") {
  for (int64_t rows : {19, 512}) {
    const auto both = [&] {
      const Tensor x = waves({3, rows, 97});
      return std::vector<Tensor>{(x - x.mean(1, true)).square().sum(1) + x.sum(1)};
    };
    CHECK(error(both) < 1e-4);
  }
}
