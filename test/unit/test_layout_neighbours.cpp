// Convolutions of few channels whose pixels are folded into channels for TMA.
#include "runtime/layout/convolution/fold_pixels.h"

#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/wgmma/tile.h"
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
  Shape stride{1}, padding{0};
};

const std::vector<Form> kForms{
    {{16, 3, 64, 64}, {32, 3, 7, 7}, {2}, {3}},       // a residual network's first
    {{9, 3, 65, 70}, {40, 3, 7, 7}, {2}, {2, 3}},     // ragged, padded on some sides
    {{40, 3, 57, 49}, {64, 3, 4, 8}, {4}, {0}},       // patches that overlap along one side
    {{6, 3, 64, 72}, {32, 3, 3, 7}, {1, 2}, {0, 1}},  // steps that differ
    {{9, 8, 33, 40}, {48, 8, 5, 4}, {1}, {1}},        // whole units
    {{70, 7, 40, 40}, {32, 7, 5, 5}, {3}, {1}},       // an odd step: channels are filled to eight
};

// The result and the gradient of the weight; with channels `last` in memory.
std::vector<Tensor> convolution(const Form& f, const std::string& device, bool last) {
  Shape memory = f.x, order{0, static_cast<int64_t>(f.x.size()) - 1};
  memory.erase(memory.begin() + 1);
  memory.push_back(f.x[1]);
  for (size_t i = 1; i + 1 < f.x.size(); ++i) order.push_back(static_cast<int64_t>(i));
  const Tensor x = last ? integers(memory, kBF16, device).permute(order).detach()
                        : integers(f.x, kBF16, device).detach();
  Tensor w = integers(f.w, kBF16, device).detach();
  w.requires_grad_();
  const ConvOptions o{.stride = f.stride, .padding = f.padding};
  const Tensor y = f.x.size() == 3 ? conv1d(x, w, {}, o) : conv2d(x, w, {}, o);
  y.backward(mod(integers(to_shape(y.shape()), kF32, device), 2).to(kBF16).realize());
  return {y, w.grad()};
}

struct Counted {
  int products = 0;     // on matrix units, of windows
  int images = 0;       // packed
  int64_t largest = 0;  // value that a kernel without a product writes
};

Counted count(const std::vector<Tensor>& made, int64_t image) {
  std::vector<Node> roots;
  for (const Tensor& t : made) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  Counted out;
  for (const Step& s : schedule(graph, ids, device_id(kHopper))->steps) {
    const Lowered low = lower(s.kernel.get(), "k", find_device(kHopper).target());
    int windows = 0;
    for (const TensorMap& map : low.launch.maps) windows += map.windows;
    out.products += windows == 1;
    if (!low.launch.maps.empty()) continue;
    for (Node store : s.kernel.get()->srcs()) {
      const int64_t size = numel(store->src(0)->shape());
      out.largest = std::max(out.largest, size);
      out.images += size >= image;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("neighbours: windows are read out of the image, which is stored once for all products") {
  for (const Form& f : kForms) {
    const bool one = f.x.size() == 3;
    for (bool last : {true, false}) {
      CAPTURE(to_text(f.x));
      CAPTURE(to_text(f.w));
      CAPTURE(last);
      const std::vector<Tensor> made = convolution(f, kHopper, last);
      const int64_t image = numel(f.x), outputs = numel(to_shape(made[0].shape()));
      const Counted counted = count({made[0]}, image), both = count(made, image);
      CHECK(counted.products == 1);
      CHECK(both.products == 2);
      if (one || outputs >= image) continue;  // gradients are turned by a kernel as large
      CHECK(counted.images == 1);
      CHECK(both.images == 1);
      CHECK(both.largest < outputs / f.w[0] * numel(f.w) / f.w[0]);  // than windows written out
    }
  }
}

TEST_CASE("neighbours: convolutions and gradients of their weights are right") {
  std::vector<std::string> devices{kHopper};
  if (cuda_available()) devices.push_back("CUDA");
  for (const Form& f : kForms)
    for (bool last : {true, false}) {
      const std::vector<Tensor> want = convolution(f, "CPU", last);
      for (const std::string& device : devices) {
        const std::vector<Tensor> have = convolution(f, device, last);
        for (size_t i : {0, 1}) {
          CAPTURE(to_text(f.x));
          CAPTURE(to_text(f.w));
          CAPTURE(device);
          CAPTURE(last);
          CAPTURE(i);
          const Tensor h = have[i].to(kF32).to("CPU"), w = want[i].to(kF32);
          const float most = w.abs().max().item<float>();
          CHECK(most > 0);  // sums of many are not exact in f16
          CHECK((h - w).abs().max().item<float>() <= most / 128);
        }
      }
    }
}

TEST_CASE("neighbours: where channels are many, or filling them up costs more, there are none") {
  for (const Form& f : {Form{{8, 3, 32, 32}, {64, 3, 3, 3}, {1}, {1}},    // more zeros than pixels
                        {{8, 3, 32, 32}, {16, 3, 7, 7}, {2}, {3}},        // few results
                        {{16, 32, 16, 16}, {32, 32, 7, 7}, {2}, {3}}}) {  // whole boxes
    CAPTURE(to_text(f.x));
    CAPTURE(to_text(f.w));
    const Tensor y = convolution(f, kHopper, true)[0];
    const Normalized graph = normalize(std::vector<Node>{y.node()});
    std::vector<int> ids;
    for (Node b : graph.buffers) ids.push_back(b->device);
    for (const Step& s : schedule(graph, ids, device_id(kHopper))->steps)
      for (const TensorMap& map :
           lower(s.kernel.get(), "k", find_device(kHopper).target()).launch.maps)
        if (map.windows) CHECK(map.strides[1] >= map.sizes[0] * map.element_bytes);
  }
}
