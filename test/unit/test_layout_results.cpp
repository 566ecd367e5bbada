// Convolutions of few results for each window, which become columns of one tile.
#include "runtime/layout/convolution/join_results.h"

#include <doctest/doctest.h>

#include "codegen/lower.h"
#include "devices/cuda/cuda.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/integers.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kHopper = "EMU:CUDA:sm_90a";

struct Form {
  Shape x, w;
  int64_t stride, padding;
  bool gradient;  // of the input; else the result
  int products;   // on matrix units
};

const std::vector<Form> kForms{
    {{16, 3, 64, 64}, {32, 3, 4, 4}, 2, 1, true, 1},  // three channels in four phases
    {{16, 3, 64, 64}, {32, 3, 3, 3}, 2, 1, true, 1},  // of which some taps are zeros
    {{16, 2, 64, 64}, {32, 2, 2, 2}, 2, 0, true, 1},  // no windows: rows of eight columns
    {{16, 32, 32, 32}, {12, 32, 3, 3}, 1, 1, false, 1},
    {{16, 32, 32, 32}, {3, 32, 3, 3}, 1, 1, false, 0},  // too few
    {{4, 32, 32, 32}, {12, 32, 3, 3}, 1, 1, false, 0},  // too few pixels
};

Tensor convolution(const Form& f, const std::string& device) {
  Tensor x = integers(f.x, kBF16, device).detach();
  if (f.gradient) x.requires_grad_();
  const Tensor w = integers(f.w, kBF16, device);
  const Tensor y = conv2d(x, w, {}, {.stride = f.stride, .padding = f.padding});
  if (!f.gradient) return y;
  y.backward(integers(to_shape(y.shape()), kBF16, device));
  return x.grad();
}

int products_of(const Tensor& t) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  int products = 0;
  for (const Step& s : schedule(graph, ids, device_id(kHopper))->steps)
    products += !lower(s.kernel.get(), "k", find_device(kHopper).target()).launch.maps.empty();
  return products;
}

size_t differences(const Tensor& a, const Tensor& b) {
  const auto x = a.to(kF32).to_vector<float>(), y = b.to(kF32).to_vector<float>();
  size_t n = x.size() != y.size();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) n += x[i] != y[i];
  return n;
}

}  // namespace

TEST_CASE("results: few of each window are columns of one tile") {
  for (const Form& f : kForms) {
    CAPTURE(to_text(f.x));
    CAPTURE(to_text(f.w));
    const Tensor made = convolution(f, kHopper), want = convolution(f, "CPU");
    CHECK(products_of(made) == f.products);
    CHECK(differences(made, want) == 0);
    if (cuda_available()) CHECK(differences(convolution(f, "CUDA"), want) == 0);
  }
}
