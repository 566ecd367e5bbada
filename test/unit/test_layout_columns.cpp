// Convolutions of few channels as products of their windows, written out.
#include "runtime/layout/convolution/im2col.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "codegen/lower.h"
#include "devices/cuda/cuda.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/integers.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kHopper = "EMU:CUDA:sm_90a";

// Channels and sizes of the input, results and sizes of the window.
struct Form {
  Shape x, w;
  Shape stride{1}, padding{0};
  int products = 2;  // on matrix units: the result, and the gradient of the weight
};

const std::vector<Form> kForms{
    {{6, 3, 34, 34}, {64, 3, 7, 7}, {2}, {3}, 0},  // too few pixels
    {{4, 3, 64, 64}, {32, 3, 7, 7}, {1}, {3}, 2},  // more zeros than neighbours are worth
    {{8, 3, 32, 32}, {64, 3, 3, 3}, {1}, {1}, 2},  // all pixels
    {{4, 5, 40, 24}, {32, 5, 2, 3}, {1, 1}, {0, 1}, 1},
    {{2, 1, 64, 64}, {32, 1, 5, 5}, {1}, {0}, 1},
    {{8, 3, 32, 32}, {16, 3, 3, 3}, {1}, {1}, 0},  // too few results for each window
};

// The result and the gradient of the weight.
std::vector<Tensor> convolution(const Form& f, const std::string& device, bool last = false) {
  const Shape memory{f.x[0], f.x[2], f.x[3], f.x[1]};
  const Tensor x = last ? integers(memory, kBF16, device).permute({0, 3, 1, 2}).detach()
                        : integers(f.x, kBF16, device).detach();
  Tensor w = integers(f.w, kBF16, device).detach();
  w.requires_grad_();
  const Tensor y = conv2d(x, w, {}, {.stride = f.stride, .padding = f.padding});
  y.backward(mod(integers(to_shape(y.shape()), kF32, device), 2).to(kBF16).realize());
  return {y, w.grad()};
}

struct Counted {
  int products = 0;      // on matrix units
  int64_t written = 0;   // windows, in elements
  int wide_results = 0;  // large values in f32
};

Counted count(const std::vector<Tensor>& made, int64_t windows, int64_t results = 1) {
  std::vector<Node> roots;
  for (const Tensor& t : made) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  Counted out;
  for (const Step& s : schedule(graph, ids, device_id(kHopper))->steps) {
    const Lowered low = lower(s.kernel.get(), "k", find_device(kHopper).target());
    out.products += !low.launch.maps.empty();
    for (Node store : s.kernel.get()->srcs()) {
      const int64_t size = numel(store->src(0)->shape());
      if (size == windows) out.written += size;
      out.wide_results += store->src(1)->dtype == kF32 && size > 100000 && size % results == 0;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("columns: windows of few channels are written out and multiplied on matrix units") {
  for (const Form& f : kForms)
    for (bool last : {false, true}) {
      CAPTURE(to_text(f.x));
      CAPTURE(to_text(f.w));
      CAPTURE(last);
      const std::vector<Tensor> made = convolution(f, kHopper, last);
      const Shape y = to_shape(made[0].shape());
      const int64_t windows = y[0] * y[2] * y[3] * f.w[1] * f.w[2] * f.w[3];
      const Counted counted = count(made, windows);
      CHECK(counted.products == f.products);
      // Once for both of them: the gradient finds what was written before.
      CHECK(counted.written == (f.products ? windows : 0));
    }
}

TEST_CASE("columns: convolutions of few channels and their gradients are right") {
  std::vector<std::string> devices{kHopper};
  if (cuda_available()) devices.push_back("CUDA");
  for (const Form& f : kForms) {
    const std::vector<Tensor> want = convolution(f, "CPU", true);
    for (const std::string& device : devices) {
      const std::vector<Tensor> have = convolution(f, device, true);
      for (size_t i : {0, 1}) {
        CAPTURE(device);
        CAPTURE(to_text(f.x));
        CAPTURE(to_text(f.w));
        CAPTURE(i);
        const auto x = want[i].to(kF32).to_vector<float>(), y = have[i].to(kF32).to_vector<float>();
        double wrong = 0, most = 0;  // sums of many are not exact in f16, nor in one order
        for (size_t k = 0; k < x.size(); ++k) {
          wrong = std::max<double>(wrong, std::abs(x[k] - y[k]));
          most = std::max<double>(most, std::abs(x[k]));
        }
        CHECK(wrong <= most / 128);
        CHECK(most > 0);
      }
    }
  }
}

namespace {

// The first layers of a residual network in f16: the gradient of the weight, and what they give.
std::vector<Tensor> stem(const std::string& device) {
  const Autocast half(kBF16);
  const Tensor x = integers({20, 3, 64, 64}, kBF16, device);
  Tensor w = integers({32, 3, 7, 7}, kF32, device).detach();
  w.requires_grad_();
  const Tensor y = conv2d(x, w, {}, {.stride = 2, .padding = 3}), f = y.to(kF32);
  const Tensor d = f - f.mean({0, 2, 3}, true);
  const Tensor z = d * (d.square().mean({0, 2, 3}, true) + 1e-5).rsqrt();
  const Tensor pooled = max_pool2d(z.to(kBF16).relu(), 3, {.stride = 2, .padding = 1});
  const Tensor loss = (pooled.to(kF32) * mod(integers({20, 32, 16, 16}, kF32, device), 3)).sum();
  return {Tensor::gradient(loss, {w})[0], loss};
}

}  // namespace

TEST_CASE("columns: what follows a convolution of few channels reads halves, channels innermost") {
  const std::vector<Tensor> made = stem(kHopper);
  CHECK(count(made, -1, int64_t{20} * 32 * 16 * 16).wide_results == 0);
  std::vector<Node> roots;
  for (const Tensor& t : made) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  int large = 0, pools = 0;
  for (const Step& s : schedule(graph, ids, device_id(kHopper))->steps) {
    for (Node store : s.kernel.get()->srcs()) {
      const Ints shape = store->src(0)->ints().subspan(1);
      const int64_t pixels = 20 * 32 * 32, size = numel(shape);
      const bool image = shape.back() == 4, sums = shape.size() > 4;  // channels; parts
      if (size < 100000 || image || sums) continue;
      ++large;
      CAPTURE(to_text(shape));
      CHECK(shape.back() == 32);
      CHECK(size <= 32 * pixels);  // not what a pool puts around
    }
    // Windows of the pool are read by vectors of channels.
    const Lowered low = lower(s.kernel.get(), "k", find_device(kHopper).target());
    const auto nodes = topological(s.kernel.get());
    const auto is_max = [](Node n) {
      return n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Max;
    };
    if (std::none_of(nodes.begin(), nodes.end(), is_max)) continue;
    ++pools;
    CHECK(std::any_of(low.options.begin(), low.options.end(), [](const Opt& o) {
      return o.kind == OptKind::Bind && o.amount == static_cast<int64_t>(RangeKind::Vector);
    }));
  }
  CHECK(large >= 3);
  CHECK(pools >= 1);
  const std::vector<Tensor> want = stem("CPU");
  for (size_t i : {0, 1}) {
    const Tensor h = made[i].to(kF32).to("CPU"), w = want[i].to(kF32);
    CHECK(((h - w).square().sum() / w.square().sum()).sqrt().item<float>() < 0.02f);
  }
}
