// Convolutions on matrix units, whose operands TMA reads as windows of images: the
// plan, values on the emulator and on a GPU where there is one, and faults.
#include <doctest/doctest.h>

#include <cstring>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/wgmma/pipeline.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/integers.h"
#include "test/unit/kernel_truth.h"
#include "tiny/rewrite/rewrite.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kHopper = "EMU:CUDA:sm_90a";

std::vector<std::string> devices() {
  std::vector<std::string> out{kHopper};
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

struct Form {
  Shape x, w;  // (N, C, ...), (out, C, ...)
  Shape stride{1}, padding{0}, dilation{1};
  DType dtype = kBF16;
  bool channels_last = true;  // in memory
};

Shape spatial(const Form& f) {
  Shape out;
  for (size_t i = 2; i < f.x.size(); ++i) {
    const auto at = [&](const Shape& s) { return s[s.size() == 1 ? 0 : i - 2]; };
    out.push_back((f.x[i] + 2 * at(f.padding) - at(f.dilation) * (f.w[i] - 1) - 1) / at(f.stride) +
                  1);
  }
  return out;
}

// Of the shape, with channels innermost in memory or as it is.
Tensor image(const Form& f, const Shape& shape, const std::string& device) {
  if (!f.channels_last) return integers(shape, f.dtype, device);
  Shape memory = shape, order{0, static_cast<int64_t>(shape.size()) - 1};
  memory.erase(memory.begin() + 1);
  memory.push_back(shape[1]);
  for (size_t i = 1; i + 1 < shape.size(); ++i) order.push_back(static_cast<int64_t>(i));
  return integers(memory, f.dtype, device).permute(order);
}

enum Part { kResult, kInput, kWeight };  // the result, or the gradient of one of them

Tensor convolution(const Form& f, Part part, const std::string& device) {
  Tensor x = image(f, f.x, device).detach(), w = image(f, f.w, device).detach();
  Shape result{f.x[0], f.w[0]};
  for (int64_t size : spatial(f)) result.push_back(size);
  const Tensor g = image(f, result, device);
  if (part != kResult) (part == kInput ? x : w).requires_grad_();
  const ConvOptions o{.stride = f.stride, .padding = f.padding, .dilation = f.dilation};
  Tensor y = f.x.size() == 3   ? conv1d(x, w, {}, o)
             : f.x.size() == 4 ? conv2d(x, w, {}, o)
                               : conv3d(x, w, {}, o);
  if (part == kResult) return y;
  y.backward(g);
  return (part == kInput ? x : w).grad();
}

Lowered lowered(Node kernel, const std::string& device = kHopper) {
  return lower(kernel, "k", find_device(device).target());
}

// The kernels that compute tensors.
std::vector<Node> kernels_of(const std::vector<Tensor>& all, const std::string& device = kHopper) {
  std::vector<Node> roots;
  for (const Tensor& t : all) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> ids;
  for (Node b : graph.buffers) ids.push_back(b->device);
  std::vector<Node> out;
  for (const Step& s : schedule(graph, ids, device_id(device))->steps)
    out.push_back(s.kernel.get());
  return out;
}

// Those of them on matrix units.
std::vector<Lowered> products_of(const std::vector<Tensor>& all,
                                 const std::string& device = kHopper) {
  std::vector<Lowered> out;
  for (Node k : kernels_of(all, device)) {
    Lowered low = lowered(k, device);
    if (!low.launch.maps.empty()) out.push_back(std::move(low));
  }
  return out;
}

size_t differences(const Tensor& a, const Tensor& b) {
  const auto x = a.to(kF32).to_vector<float>(), y = b.to(kF32).to_vector<float>();
  size_t n = x.size() != y.size();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) n += x[i] != y[i];
  return n;
}

const std::vector<Form> kForms{
    {{2, 64, 9, 9}, {64, 64, 3, 3}, {1}, {1}},
    {{3, 64, 9, 7}, {32, 64, 3, 5}, {1}, {1, 2}},      // each side its own
    {{2, 64, 12, 9}, {72, 64, 3, 3}, {1}, {0, 2}},     // more padding than needed, none
    {{2, 36, 9, 9}, {64, 36, 3, 3}, {1}, {1}},         // channels end within a step
    {{4, 64, 13, 13}, {64, 64, 3, 3}, {2}, {1}},       // windows two apart
    {{2, 64, 12, 12}, {64, 64, 3, 3}, {1}, {2}, {2}},  // and their elements
    {{1, 128, 11, 11}, {64, 128, 3, 3}, {1}, {1}},     // one image
    {{2, 64, 90}, {64, 64, 5}, {1}, {2}},              // of one axis
    {{2, 32, 5, 6, 4}, {64, 32, 3, 3, 3}, {1}, {1}},   // of three
    {{6, 64, 12, 12}, {128, 64, 3, 3}, {1}, {1}, {1}, kF16},
    {{4, 24, 13, 13}, {64, 24, 3, 3}, {1}, {1}, {1}, kF16},  // fewer channels than a box has
    {{2, 96, 9, 9}, {64, 96, 3, 3}, {1}, {1}},               // a box and a half
    {{2, 32, 14, 14}, {64, 32, 5, 5}, {1}, {2}},             // many taps in two tiles
};

}  // namespace

TEST_CASE("windows: convolutions and their gradients are right on matrix units") {
  for (const std::string& device : devices())
    for (Form f : kForms)
      for (bool last : {true, false})
        for (Part part : {kResult, kInput, kWeight}) {
          f.channels_last = last;
          CAPTURE(device);
          CAPTURE(to_text(f.x));
          CAPTURE(to_text(f.w));
          CAPTURE(last);
          CAPTURE(static_cast<int>(part));
          const Tensor y = convolution(f, part, device);
          CHECK(differences(y, convolution(f, part, "CPU")) == 0);
        }
}

TEST_CASE("windows: one kernel computes a convolution of what lies with channels innermost") {
  for (const Form& f : kForms)
    for (Part part : {kResult, kWeight}) {
      const Tensor y = convolution(f, part, kHopper);
      CAPTURE(to_text(f.x));
      CAPTURE(to_text(f.w));
      CAPTURE(static_cast<int>(part));
      const auto made = products_of({y});
      REQUIRE(made.size() == 1);
      const size_t copies = f.x[1] % 32 != 0;  // pixels are to begin at multiples of 64 bytes
      CHECK(kernels_of({y}).size() <= copies * 2 + (part == kWeight ? 2 : 1));  // in parts
      int windows = 0;
      for (const TensorMap& map : made[0].launch.maps) windows += map.windows;
      CHECK(windows == 1);
    }
  // Where channels are not innermost, the image and the weight are copied so first.
  Form f = kForms[0];
  f.channels_last = false;
  CHECK(kernels_of({convolution(f, kResult, kHopper)}).size() == 3);
  CHECK(products_of({convolution(f, kResult, kHopper)}).size() == 1);
  // The gradient of an input is a convolution itself.
  for (size_t i : {0, 1, 2, 3, 4, 5, 6, 7}) {
    CAPTURE(i);
    CHECK(products_of({convolution(kForms[i], kInput, kHopper)}).size() == 1);
  }
  // Few channels are multiplied otherwise.
  CHECK(products_of({convolution({{2, 3, 9, 9}, {64, 3, 3, 3}}, kResult, kHopper)}).empty());
}

TEST_CASE("windows: gradients of inputs of strided convolutions are products for each phase") {
  const std::vector<Form> forms{
      {{2, 64, 12, 12}, {64, 64, 3, 3}, {2}, {1}},           // taps of two, some of them zeros
      {{2, 32, 14, 10}, {64, 32, 3, 5}, {2, 1}, {1, 2}},     // along one axis
      {{4, 64, 13, 13}, {32, 64, 5, 5}, {3}, {2}},           // three apart
      {{2, 24, 12, 12}, {64, 24, 3, 3}, {2}, {1}},           // channels are padded
      {{8, 64, 31}, {64, 64, 4}, {2}, {1}},                  // no zeros
      {{2, 32, 7, 6, 6}, {32, 32, 3, 3, 3}, {1, 2, 1}, {1}}  // one of three axes
  };
  for (Form f : forms)
    for (bool last : {true, false}) {
      f.channels_last = last;
      CAPTURE(to_text(f.x));
      CAPTURE(to_text(f.w));
      CAPTURE(last);
      const Tensor dx = convolution(f, kInput, kHopper);
      CHECK(products_of({dx}).size() == 1);
      CHECK(differences(dx, convolution(f, kInput, "CPU")) == 0);
      if (cuda_available()) CHECK(differences(convolution(f, kInput, "CUDA"), dx) == 0);
    }
  // The epilogue casts to 16 bits: the GEMM writes that, not its sums.
  const Form f{{2, 64, 12, 12}, {64, 64, 3, 3}, {2}, {1}};
  for (Node k : kernels_of({convolution(f, kInput, kHopper)}))
    for (Node store : k->srcs()) CHECK(store->src(1)->dtype == kBF16);
  // A part of what it writes is not: one kernel takes it and puts it where it is wanted.
  const Form few{{256, 3, 28, 28}, {64, 3, 7, 7}, {2}, {3}};
  const Tensor part = convolution(few, kInput, kHopper);
  CHECK(kernels_of({part.permute({0, 2, 3, 1}).contiguous()}).size() == 3);  // the weights first
}

namespace {

// The tile of the only product, and its maps: that of the windows first.
struct Made {
  MatrixTile tile;
  std::vector<TensorMap> maps;
};

Made made_of(const std::vector<Tensor>& all) {
  const auto made = products_of(all);
  REQUIRE(made.size() == 1);
  Made out{MatrixTile(all_of(made[0].machine, Op::Matrix).at(0)), made[0].launch.maps};
  if (!out.maps[0].windows) std::swap(out.maps[0], out.maps[1]);
  return out;
}

}  // namespace

TEST_CASE("windows: no box reaches out of an image along its channels") {
  for (int64_t channels : {24, 32, 36, 64, 96, 128})
    for (Part part : {kResult, kInput, kWeight}) {
      CAPTURE(channels);
      CAPTURE(static_cast<int>(part));
      const Form f{{16, channels, 31, 31}, {64, channels, 3, 3}, {1}, {1}};
      for (const TensorMap& map : made_of({convolution(f, part, kHopper)}).maps)
        CHECK(map.sizes[0] % map.box[0] == 0);
    }
  // Zeros are memory's, where what is computed is stored with them: no copy but the weight's.
  const auto layer = [](const std::string& device) {
    Form f{{2, 24, 13, 13}, {64, 24, 3, 3}, {1}, {1}};
    const Tensor x = image(f, {2, 24, 13, 13}, device), w = image(f, f.w, device);
    return conv2d(x.relu(), w, {}, {.padding = 1}).permute({0, 2, 3, 1}).contiguous();
  };
  CHECK(kernels_of({layer(kHopper)}).size() == 3);
  CHECK(made_of({layer(kHopper)}).maps[0].sizes[0] == 32);
  CHECK(differences(layer(kHopper), layer("CPU")) == 0);
}

TEST_CASE("windows: channels beside those of a convolution are not read as zeros") {
  for (int64_t first : {0, 8}) {
    const auto layer = [&](const std::string& device) {
      const Tensor all = image({{2, 32, 9, 9}, {}}, {2, 32, 9, 9}, device);
      const Tensor w = image({{}, {64, 24, 3, 3}}, {64, 24, 3, 3}, device);
      return conv2d(all.narrow(1, first, 24), w, {}, {.padding = 1});
    };
    CAPTURE(first);
    CHECK(products_of({layer(kHopper)}).size() == 1);
    CHECK(differences(layer(kHopper), layer("CPU")) == 0);
  }
}

TEST_CASE("windows: a tile of a gradient of a weight has several taps") {
  struct Case {
    int64_t channels, out, size;
    int rows, columns, boxes;
  };
  for (const Case& c : {Case{24, 64, 3, 128, 64, 4},
                        {64, 64, 3, 128, 64, 2},
                        {64, 128, 3, 256, 64, 4},
                        {32, 64, 5, 128, 64, 4}}) {
    CAPTURE(c.channels);
    CAPTURE(c.out);
    const Form f{{16, c.channels, 31, 31}, {c.out, c.channels, c.size, c.size}, {1}, {c.size / 2}};
    const MatrixTile tile = made_of({convolution(f, kWeight, kHopper)}).tile;
    CHECK(tile.rows == c.rows);
    CHECK(tile.columns == c.columns);
    CHECK(tile.a.boxes == c.boxes);
    CHECK(tile.stages() >= 3);
    CHECK(prove_ring(ring_of(tile)).verdict == Verdict::Proved);
  }
  CHECK(!window_tile({1, 64, 64}, 130, 132).by_element);
  CHECK(!window_tile({9, 40, 64}, 100, 132).by_element);  // no whole boxes
  CHECK(!window_tile({9, 256, 256}, 7, 132).by_element);  // no gain
  CHECK(window_tile({9, 256, 256}, 7, 132).shape.columns == 256);
  const WindowTile taps = window_tile({9, 64, 256}, 26, 132);  // two in each tile
  CHECK(taps.by_element);
  CHECK(taps.shape.rows * taps.shape.columns == 128 * 256);
}

TEST_CASE("windows: split-K fills the chip and slices end where steps do") {
  struct Case {
    Form form;
    int64_t least, most;  // tiles on 132 multiprocessors, two blocks on each where they are small
  };
  for (const Case& c : {Case{{{264, 256, 7, 7}, {256, 256, 3, 3}, {1}, {1}}, 120, 132},
                        {{{100, 64, 15, 15}, {256, 64, 3, 3}, {1}, {1}}, 120, 132},
                        {{{67, 128, 28, 28}, {128, 128, 3, 3}, {1}, {1}}, 120, 264}}) {
    CAPTURE(to_text(c.form.x));
    const auto made = products_of({convolution(c.form, kWeight, kHopper)});
    REQUIRE(made.size() == 1);
    CHECK(made[0].launch.grid[0] >= c.least);
    CHECK(made[0].launch.grid[0] <= c.most);
    const MatrixTile tile(all_of(made[0].machine, Op::Matrix).at(0));
    CHECK(tile.begin >= 0);
    const int64_t results = c.form.w[0] * c.form.w[1] * 9,
                  size = made[0].loops->src(0)->src(0)->ints()[1];
    const int64_t parts = size / results, pixels = c.form.x[0] * c.form.x[2] * c.form.x[3];
    CHECK(parts * results == size);
    CHECK(parts * tile.all_steps() * tile.depth >= pixels);
    CHECK((parts - 1) * tile.all_steps() * tile.depth < pixels);  // none without any
  }
}

TEST_CASE("windows: those that TMA cannot read are not computed once for each part") {
  for (const Form& f : {Form{{66, 64, 40, 40}, {64, 64, 3, 3}, {9}, {1}},  // too far apart
                        {{66, 64, 150, 9}, {64, 64, 3, 3}, {1}, {0, 1}, {70, 1}}}) {  // too wide
    CAPTURE(to_text(f.x));
    const Shape y = spatial(f);
    double flops = 0;
    for (Node k : kernels_of({convolution(f, kWeight, kHopper)})) flops += lowered(k).work.flops;
    CHECK(flops < 2.2 * static_cast<double>(f.x[0] * y[0] * y[1] * numel(f.w)));
  }
}

TEST_CASE("windows: a product with any other mask than that of a part is no window's") {
  // Split-K by hand: those of seven numbers end within steps; then a mask of another kind.
  const auto masked = [](int64_t length, int64_t shift, const std::string& device) {
    const int64_t parts = 3, k = 192;
    const Tensor a = integers({k, 64}, kBF16, device), b = integers({k, 64}, kBF16, device);
    const Tensor at = Tensor::arange(k), part = Tensor::arange(parts).unsqueeze(1) * length + shift;
    const Tensor begun = (at >= part).to(device).unsqueeze(2);  // (parts, k, 1)
    const Tensor goes_on = (at < part + length).to(device).unsqueeze(2);
    const Tensor kept = where(begun, where(goes_on, b.unsqueeze(0), 0), 0);
    return a.t().matmul(kept);
  };
  for (int64_t length : {64, 63, 7})
    for (int64_t shift : {0, 1}) {
      CAPTURE(length);
      CAPTURE(shift);
      CHECK(differences(masked(length, shift, kHopper), masked(length, shift, "CPU")) == 0);
    }
}

TEST_CASE("windows: kernels of large convolutions compile without spills") {
  if (!nvrtc_available()) return;
  for (const Form& f : {Form{{8, 64, 56, 56}, {64, 64, 3, 3}, {1}, {1}},
                        {{32, 128, 28, 28}, {128, 128, 3, 3}, {1}, {1}},
                        {{32, 24, 31, 31}, {64, 24, 3, 3}, {1}, {1}},
                        {{32, 64, 15, 15}, {128, 64, 3, 3}, {1}, {1}},
                        {{64, 256, 14, 14}, {256, 256, 3, 3}, {1}, {1}}})
    for (Part part : {kResult, kInput, kWeight}) {
      for (const Lowered& low : products_of({convolution(f, part, kHopper)})) {
        std::string log;
        CHECK(!compile_cuda(low.source.text, "sm_90a", &log).empty());
        CHECK(low.source.text.find("im2col") != std::string::npos);
        CHECK(cuda_resources(log).spill_bytes == 0);
        CHECK(prove_ring(ring_of(MatrixTile(all_of(low.machine, Op::Matrix).at(0)))).verdict ==
              Verdict::Proved);
      }
    }
}

namespace {

// Two convolutions with what lies between them in networks: a loss, and gradients of all.
std::vector<Tensor> network(const std::string& device) {
  const auto values = [&](const Shape& shape, int64_t seed) {
    const Tensor x = mod(Tensor::arange(0, numel(shape)) * seed, 101).to(kF32) / 50 - 1;
    return x.reshape(shape).to(device).realize();
  };
  Tensor x = values({32, 32, 13, 13}, 7).to(kF16).detach(), a = values({64, 32, 3, 3}, 11) / 8;
  Tensor b = values({64, 64, 3, 3}, 13) / 16;
  for (Tensor* t : {&x, &a, &b}) t->realize().requires_grad_();
  const auto norm = [](const Tensor& y) {
    const Tensor f = y.to(kF32), d = f - f.mean({0, 2, 3}, true);
    return (d * (d.square().mean({0, 2, 3}, true) + 1e-5).rsqrt()).to(kF16).gelu();
  };
  Tensor y = norm(max_pool2d(conv2d(x, a.to(kF16), {}, {.padding = 1}), 2));
  y = norm(conv2d(y, b.to(kF16), {}, {.padding = 1}));
  const Tensor loss = (y.to(kF32) * values({64, 6, 6}, 17)).sum();
  std::vector<Tensor> out = Tensor::gradient(loss, {x, a, b});
  out.push_back(loss);
  return out;
}

}  // namespace

namespace {

// A residual network's block as it is trained in half precision: windows of one element around
// those of nine, parameters in f32.
std::vector<Tensor> bottleneck(const std::string& device) {
  const Autocast half(kF16);
  const auto values = [&](const Shape& shape, int64_t seed) {
    const Tensor x = mod(Tensor::arange(0, numel(shape)) * seed, 101).to(kF32) / 50 - 1;
    return x.reshape(shape).to(device).realize();
  };
  Tensor x = values({16, 64, 13, 13}, 7).to(kF16).detach(), a = values({128, 64, 1, 1}, 11) / 8;
  Tensor b = values({64, 128, 3, 3}, 13) / 16, c = values({128, 64, 1, 1}, 17) / 8;
  for (Tensor* t : {&x, &a, &b, &c}) t->realize().requires_grad_();
  const Tensor y = conv2d(conv2d(x, a).relu(), b, {}, {.padding = 1}).relu();
  const Tensor loss = (conv2d(y, c).to(kF32) * values({128, 13, 13}, 19)).sum();
  std::vector<Tensor> out = Tensor::gradient(loss, {x, a, b, c});
  out.push_back(loss);
  return out;
}

double relative_error(const Tensor& have, const Tensor& want) {
  const Tensor h = have.to(kF32).to("CPU"), w = want.to(kF32);
  return ((h - w).square().sum() / w.square().sum()).sqrt().item<float>();
}

}  // namespace

TEST_CASE("windows: of one element, with parameters in f32, are products of what lies in memory") {
  const std::vector<Tensor> all = bottleneck(kHopper);
  CHECK(products_of(all).size() == 9);  // of each convolution the result and two gradients
  for (Node k : kernels_of(all))
    for (Node store : k->srcs()) {
      const Ints shape = store->src(0)->ints().subspan(1);
      CAPTURE(to_text(shape));
      // No operand is stored as the f32 that it is multiplied in.
      CHECK((shape.size() != 4 || numel(shape) < 16 * 64 * 169 || store->src(1)->dtype == kF16));
    }
  const std::vector<Tensor> want = bottleneck("CPU");
  for (const std::string& device : devices()) {
    const std::vector<Tensor> have = bottleneck(device);
    for (size_t i = 0; i < have.size(); ++i) {
      CAPTURE(device);
      CAPTURE(i);
      CHECK(relative_error(have[i], want[i]) < 0.01);
    }
  }
}

TEST_CASE("windows: of too few channels for matrix units keep the layout that threads like") {
  const Autocast half(kF16);
  const Tensor x = integers({64, 3, 32, 32}, kF16, kHopper),
               w = integers({24, 3, 2, 2}, kF32, kHopper);
  const std::vector<Node> kernels = kernels_of({conv2d(x, w).gelu()});
  const auto is_packed_weight = [](Node k) {
    return to_shape(k->src(0)->src(0)->ints().subspan(1)) == Shape{3, 2, 2, 24};
  };
  CHECK(std::count_if(kernels.begin(), kernels.end(), is_packed_weight) == 1);
}

TEST_CASE("windows: networks keep channels innermost from one convolution to the next") {
  const std::vector<Tensor> all = network(kHopper);
  CHECK(products_of(all).size() == 6);  // of each convolution the result and two gradients
  int large = 0;
  for (Node k : kernels_of(all))
    for (Node store : k->srcs()) {
      const Ints shape = store->src(0)->ints().subspan(1);
      if (numel(shape) < 1 << 16 || shape.size() < 4) continue;
      ++large;
      CAPTURE(to_text(shape));
      const bool is_gradient = shape[1] == 32 && shape[3] == 13;  // of the input, as asked for
      CHECK((shape.back() == 64 || shape.back() == 32 || is_gradient));
    }
  CHECK(large > 10);
  for (const std::string& device : devices()) {
    std::vector<Tensor> have = network(device), want = network("CPU");
    for (size_t i = 0; i < have.size(); ++i) {
      CAPTURE(device);
      CAPTURE(i);
      CHECK(relative_error(have[i], want[i]) < 0.01);
    }
  }
}

namespace {

// A convolution's kernel, changed, on the emulator: how many elements are wrong, or the error.
template <class Change> std::string run_changed(const Form& f, Change change) {
  Device& device = find_device(kHopper);
  const Tensor x = image(f, f.x, kHopper), w = image(f, f.w, kHopper);
  const Tensor y = convolution(f, kResult, kHopper).permute({0, 2, 3, 1}).contiguous();
  const Node root = y.node();
  const Normalized graph = normalize({&root, 1});
  std::vector<int> ids;
  std::vector<void*> args{nullptr};
  for (Node b : graph.buffers) ids.push_back(b->device);
  const auto made = schedule(graph, ids, device_id(kHopper));
  REQUIRE(made->steps.size() == 1);
  const Step& step = made->steps[0];
  for (size_t i = 1; i < step.values.size(); ++i)
    args.push_back(
        graph.buffers[static_cast<size_t>(step.values[i])]->arg<BufferArg>().buffer->data());
  Lowered low = lowered(step.kernel.get());
  REQUIRE(!low.launch.maps.empty());
  change(low, step.kernel.get());
  const std::vector<float> want =
      convolution(f, kResult, "CPU").permute({0, 2, 3, 1}).to(kF32).contiguous().to_vector<float>();
  std::vector<uint16_t> have(want.size());
  args[0] = device.alloc(have.size() * 2);
  std::string result;
  try {
    const auto program = device.load(device.compile(low.source), "k");
    device.launch(*program, low.launch, args);
    device.download(have.data(), args[0], have.size() * 2);
    size_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i) wrong += bf16_to_f32(have[i]) != want[i];
    result = wrong ? cat("wrong: ", wrong) : "right";
  } catch (const DeviceError& error) {
    result = error.what();
  }
  device.free(args[0], have.size() * 2);
  return result;
}

}  // namespace

TEST_CASE("windows: the emulator finds the faults that are planted into maps and kernels") {
  const Form f{{2, 64, 9, 7}, {64, 64, 3, 3}, {1}, {1}};
  const auto map_of = [](LaunchSize& size) -> TensorMap& {
    return size.maps[0].windows ? size.maps[0] : size.maps[1];
  };
  const auto text = [&](const std::string& from, const std::string& to) {
    return run_changed(f, [&](Lowered& low, Node) {
      std::string& t = low.source.text;
      const size_t at = t.find(from, t.rfind("copy_windows("));
      REQUIRE(at != std::string::npos);
      t.replace(at, from.size(), to);
    });
  };
  const auto map = [&](auto change) {
    return run_changed(f, [&](Lowered& low, Node) { change(map_of(low.launch)); });
  };
  const auto is_found = [](const std::string& result, const char* how) {
    CHECK_MESSAGE(result.find(how) != std::string::npos, std::string(how), " in ", result);
  };
  CHECK(map([](TensorMap&) {}) == "right");
  // Rows of 64 bytes have a swizzle of their own, in maps and in descriptors.
  const Form few{{2, 32, 9, 7}, {64, 32, 3, 3}, {1}, {1}};
  CHECK(run_changed(few, [](Lowered&, Node) {}) == "right");
  const auto swap_swizzle = [](Lowered& low, Node) {
    low.source.text.replace(low.source.text.find("2ull"), 1, "1");
  };
  is_found(run_changed(few, swap_swizzle), "wrong: ");
  // Threads write what they had before they exchanged columns.
  const auto drop_exchange = [](Lowered& low, Node) {
    low.source.text.erase(low.source.text.find("exchange(acc[0]);"), 17);
  };
  is_found(run_changed(f, drop_exchange), "wrong: ");
  // Corners: pixels are walked in other rows, or the first window begins outside.
  is_found(map([](TensorMap& m) { ++m.upper[0]; }), "wrong: ");
  is_found(map([](TensorMap& m) { --m.upper[1]; }), "wrong: ");
  is_found(map([](TensorMap& m) { --m.lower[0]; }), "wrong: ");
  is_found(map([](TensorMap& m) { ++m.lower[0]; }), "copies from a window at -1, outside of 0 to");
  is_found(map([](TensorMap& m) { m.lower[1] = -129; }), "windows with corners -129 and");
  is_found(map([](TensorMap& m) { m.steps[0] = 2; }), "wrong: ");
  is_found(map([](TensorMap& m) { m.steps[0] = 9; }), "windows 9 apart");
  is_found(map([](TensorMap& m) { ++m.sizes[1], --m.upper[0]; }), "wrong: ");  // padding is read
  is_found(map([](TensorMap& m) { std::swap(m.strides[1], m.strides[2]); }), "wrong: ");
  // Offsets in windows change places, or lie outside of what the instruction takes.
  is_found(text("step / 1 % 3, step / 1 / 3", "step / 1 / 3, step / 1 % 3"), "wrong: ");
  is_found(text("step / 1 % 3, step / 1 / 3", "step / 1 % 3 - 1, step / 1 / 3"),
           "copies from offset -1 in windows");
  is_found(text("copy_windows(", "copy_box("), "copies at 6 places of a tensor what is windows");
}

TEST_CASE("windows: tall tiles are proved, and one pixel more than there is, is found") {
  const Form f{{110, 64, 31, 31}, {64, 64, 3, 3}, {1}, {1}};
  Node k = kernels_of({convolution(f, kResult, kHopper).permute({0, 2, 3, 1}).contiguous()}).at(0);
  const Lowered low = lowered(k);
  REQUIRE(!low.launch.maps.empty());
  Node matrix = all_of(low.machine, Op::Matrix).at(0);
  CHECK(MatrixTile(matrix).rows == 256);
  ProofSettings settings = test::patient();
  read_kernel(k, find_device(kHopper).target(), settings);
  const Proof p = prove(low.machine, settings);
  CHECK_MESSAGE(p.verdict == Verdict::Proved, p.text);
  // TMA's map of the number of images.
  Arena arena;
  ArenaScope scope(arena);
  std::vector<int64_t> numbers(matrix->ints().begin(), matrix->ints().end());
  const auto at = std::find(numbers.begin(), numbers.end(), 110);
  REQUIRE(at != numbers.end());
  ++*at;
  const Proof wrong =
      prove(substitute(low.machine, matrix, make(Op::Matrix, kVoid, matrix->srcs(), Ints(numbers))),
            settings);
  CHECK(wrong.verdict == Verdict::Wrong);
  CHECK_MESSAGE(wrong.text.find("TMA reads buffer") != std::string::npos, wrong.text);
}

TEST_CASE("windows: options of tiles are text") {
  for (const char* text : {"matrix r0 r1 x 256", "matrix r0 r3 r1 r2 x 64 rows 512",
                           "matrix r1 r3 r0 x 128 rows 320 halved wide", "matrix r0 r1 x 64 wide",
                           "matrix r0 r1 x 128 rows 64 wide deep", "matrix r0 r1 x 64 deep"})
    CHECK(to_text(options_from_text(text)) == text);
  CHECK_THROWS_WITH(options_from_text("matrix r0 r1 x 64 tall"),
                    doctest::Contains("option 'matrix r0 r1 x 64 tall'"));
}

TEST_CASE("windows: pairs of blocks share the tiles of a last wave") {
  Target target = find_device(kHopper).target();
  const Form f{{2, 64, 12, 12}, {64, 64, 3, 3}, {1}, {1}};  // three tiles of 128 pixels
  for (int cores : {1, 2, 132}) {
    CAPTURE(cores);
    target.cores = cores;
    const auto share = [&](Lowered& low, Node kernel) {
      Opt tile = low.options.at(0);
      REQUIRE(tile.kind == OptKind::Matrix);
      tile.tile.split_k = 2;
      Choice choice;
      {
        Arena arena;
        ArenaScope scope(arena);
        choice.options = matrix_options(loops_of(kernel, target), target, tile);
      }
      low = lower(kernel, "k", target, {}, &choice);
      CHECK(low.launch.cluster == 2);
      CHECK(low.launch.grid[0] == (cores == 132 ? 6 : 2));
    };
    CHECK(run_changed(f, share) == "right");
  }
}
