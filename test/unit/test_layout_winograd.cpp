// Winograd's convolutions (runtime/layout/convolution/winograd.h): the matrices, values and
// gradients of random convolutions on an emulated GPU, and where the scheduler takes them.
#include <doctest/doctest.h>

#include <random>

#include "codegen/target/target.h"
#include "runtime/layout/convolution/toom_cook.h"
#include "test/unit/emulated.h"
#include "test/unit/schedules.h"
#include "tiny/nn/functional.h"

using namespace tiny;
using namespace tiny::test;

namespace {

using Convolution = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&);
using Transposed = Tensor (*)(const Tensor&, const Tensor&, const Tensor&,
                              const ConvTransposeOptions&);

// What a convolution of f64 gives, and its gradients.
struct Case {
  Shape image, weight;
  int64_t padding, groups;
  bool transposed;

  std::vector<Tensor> run(const Tensor& image_values, const Tensor& weight_values) const {
    Tensor x = image_values.detach(), w = weight_values.detach();
    x.requires_grad_();
    w.requires_grad_();
    const size_t rank = image.size() - 2;
    const Convolution plain[] = {conv1d, conv2d, conv3d};
    const Transposed turned[] = {conv_transpose1d, conv_transpose2d, conv_transpose3d};
    const Tensor y = transposed
                         ? turned[rank - 1](x, w, Tensor(), {.padding = padding, .groups = groups})
                         : plain[rank - 1](x, w, Tensor(), {.padding = padding, .groups = groups});
    (y * y.detach().sin()).sum().backward();
    return {y, x.grad(), w.grad()};
  }
};

std::vector<double> values(const std::vector<Tensor>& tensors) {
  std::vector<double> out;
  for (const Tensor& t : tensors) {
    const auto own = t.to(kF64).to_vector<double>();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

Case random_case(std::mt19937& draw) {
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(draw() % static_cast<uint64_t>(high - low + 1));
  };
  const int64_t rank = between(1, 3), groups = between(1, 2);
  Case c{{between(1, 3), groups * between(1, 3)}, {groups * between(1, 3), 0}, 0, groups, false};
  c.transposed = between(0, 2) == 0;
  c.weight[1] = c.image[1] / groups;
  if (c.transposed) c.weight = {c.image[1], c.weight[0] / groups};
  int64_t least = 7;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t taps = between(1, rank == 3 ? 3 : 6);
    least = std::min(least, taps);
    c.weight.push_back(taps);
    c.image.push_back(taps + between(0, rank == 1 ? 20 : 7));
  }
  c.padding = between(0, least - 1);
  return c;
}

bool has_step(const Tensor& y, const std::string& name) {
  const auto plan = schedule_on("EMU:CUDA:sm_90a", {y});
  return std::ranges::any_of(
      plan->steps, [&](const Step& step) { return step.name.find(name) != std::string::npos; });
}

// Whether the schedule has transforms of so many points along two axes.
bool has_points(const std::string& points, const Case& c) {
  Tensor x = waves(c.image), w = waves(c.weight);
  x.realize();
  w.realize();
  return has_step(conv2d(x, w, Tensor(), {.padding = c.padding}),
                  cat("conv2d_", points, "x", points, "x"));
}

}  // namespace

TEST_CASE("winograd: small convolutions by their matrices") {
  for (int64_t window = 1; window <= 7; ++window)
    for (int64_t results = 2; results + window <= 9; ++results) {
      CAPTURE(window);
      CAPTURE(results);
      const ToomCook m(results, window);
      const auto points = static_cast<size_t>(results + window - 1);
      REQUIRE(m.a.size() == points);
      for (size_t i = 0; i < points; ++i) {
        for (double x : m.b[i]) CHECK(static_cast<double>(static_cast<float>(x)) == x);
        for (double x : m.a[i]) CHECK(static_cast<double>(static_cast<float>(x)) == x);
      }
      // A unit vector for each element and each tap.
      for (size_t element = 0; element < points; ++element)
        for (size_t tap = 0; tap < static_cast<size_t>(window); ++tap)
          for (size_t y = 0; y < static_cast<size_t>(results); ++y) {
            double sum = 0;
            for (size_t p = 0; p < points; ++p) sum += m.a[p][y] * m.g[p][tap] * m.b[p][element];
            CHECK(sum == doctest::Approx(y + tap == element ? 1 : 0).epsilon(1e-12));
          }
    }
}

TEST_CASE("winograd: values and gradients of random convolutions") {
  const EnvOverride always("WINOGRAD", "2");
  std::mt19937 draw(20261128);
  for (int i = 0; i < 24; ++i) {
    const Case c = random_case(draw);
    CAPTURE(i);
    CAPTURE(c.image);
    CAPTURE(c.weight);
    const Tensor x = waves(c.image), w = waves(c.weight);
    const auto wanted = values(c.run(x.to(kF64), w.to(kF64)));
    const EnvOverride device("DEVICE", i % 2 ? "EMU:CUDA:sm_90a" : "EMU:HIP:gfx1201");
    const auto got = values(c.run(waves(c.image), waves(c.weight)));
    REQUIRE(got.size() == wanted.size());
    double most = 0, worst = 0;
    for (size_t k = 0; k < got.size(); ++k) {
      most = std::max(most, std::abs(wanted[k]));
      worst = std::max(worst, std::abs(got[k] - wanted[k]));
    }
    CHECK(worst <= 2e-5 * most);
  }
}

TEST_CASE("winograd: beside what the convolution's input and results are computed with") {
  const EnvOverride always("WINOGRAD", "2");
  const double error = emulated_error([] {
    const Tensor x = waves({2, 4, 9, 14}), w = waves({6, 4, 3, 3}), v = waves({4, 6, 5, 2});
    const Tensor y = conv2d(x.relu() + 1, w, waves({6}), {.padding = 1}).gelu();
    return std::vector<Tensor>{max_pool2d(conv2d(y, v), 2), y.sum({2, 3})};
  });
  CHECK(error < 1e-5);
}

TEST_CASE("winograd: where it takes less time") {
  const Case large{{64, 64, 56, 56}, {64, 64, 3, 3}, 1, 1, false};
  CHECK(has_points("6", large));
  CHECK(has_points("8", {{64, 64, 56, 56}, {64, 64, 5, 5}, 2, 1, false}));
  CHECK(!has_points("6", {{1, 16, 14, 14}, {16, 16, 3, 3}, 1, 1, false}));  // too little to do
  CHECK(!has_points("6", {{64, 64, 56, 56}, {1, 64, 3, 3}, 1, 1, false}));  // too much to move
  for (const auto& [name, value] : {std::pair("WINOGRAD", "0"), std::pair("ALLOW_TF32", "1")}) {
    const EnvOverride setting(name, value);
    CHECK(!has_points("6", large));
  }
}

TEST_CASE("winograd: an image lies with its channels first, its tiles last") {
  Tensor x = waves({32, 64, 56, 56}), w = waves({48, 64, 3, 3});
  x.realize();
  w.realize();
  CHECK(has_step(conv2d(x, w, Tensor(), {.padding = 1}), "_6x6x64x32x14x14"));
  // Pools leave axes of one element behind the pixels.
  CHECK(has_step(conv2d(max_pool2d(x, 2), w, Tensor(), {.padding = 1}), "_6x6x64x1x1x32x7x7"));
}
