// Values that are stored with channels innermost, because a convolution reads them: whatever else
// reads or replaces them in the same graph finds them as their shape says.
#include <doctest/doctest.h>

#include <functional>

#include "test/unit/integers.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kHopper = "EMU:CUDA:sm_90a";

using Work = std::function<Tensor(const Tensor& y)>;

// What `work` makes of a convolution's result that another one reads in the same graph, as f32.
std::vector<float> made_of(const Work& work, const std::string& device) {
  const EnvOverride proofs("CHECK_OOB", "1");  // z3 has no time for the places of a scatter
  const Tensor x = integers({32, 32, 13, 13}, kF16, device);
  const Tensor a = integers({64, 32, 3, 3}, kF16, device),
               b = integers({64, 64, 3, 3}, kF16, device);
  const Tensor y = mod(conv2d(x, a, {}, {.padding = 1}), 7).relu() - 2;
  Tensor z = conv2d(y, b, {}, {.padding = 1}), out = work(y).to(kF32);
  Tensor* const both[] = {&z, &out};
  Tensor::realize(both);
  return out.to_vector<float>();
}

Tensor places(const Shape& shape, int64_t below, const Tensor& y) {
  return mod(Tensor::arange(0, numel(shape)) * 37, below).reshape(shape).to(y.device()).realize();
}

}  // namespace

TEST_CASE("channels innermost: whatever reads a convolution's result finds it as its shape says") {
  const std::pair<std::string, Work> works[] = {
      {"to", [](const Tensor& y) { return y.to("CPU"); }},
      {"to and back", [](const Tensor& y) { return y.to("CPU").to(y.device()) + y; }},
      {"half of it to", [](const Tensor& y) { return y.narrow(1, 3, 40).to("CPU"); }},
      {"reshape",
       [](const Tensor& y) {
         return y.reshape({169, 32, 64}).to("CPU");
       }},
      {"scatter",
       [](const Tensor& y) {
         return y.scatter(1, places({32, 9, 13, 13}, 64, y), y * 3);
       }},
      {"scatter_add",
       [](const Tensor& y) {
         return y.scatter_add(2, places({32, 64, 5, 13}, 13, y), y);
       }},
      {"slice_assign",
       [](const Tensor& y) {
         return y.slice_assign({1, 2, 3, 4}, {30, 60, 10, 11}, {1, 1, 1, 1},
                               (y * 2).slice({1, 2, 3, 4}, {30, 60, 10, 11}));
       }},
      {"index_put",
       [](const Tensor& y) { return y.index_put({places({7}, 32, y)}, y.narrow(0, 0, 7) * 5); }},
      {"gather",
       [](const Tensor& y) {
         return y.gather(1, places({32, 50, 13, 13}, 64, y));
       }},
      {"index_select", [](const Tensor& y) { return y.index_select(3, places({20}, 13, y)); }},
      {"cumsum", [](const Tensor& y) { return y.to(kF32).cumsum(1); }},
      {"cumsum of rows", [](const Tensor& y) { return y.to(kF32).cumsum(3); }},
      {"argmax", [](const Tensor& y) { return y.argmax(1); }},
      {"sort", [](const Tensor& y) { return y.narrow(0, 0, 2).argsort(1); }},
      {"flip",
       [](const Tensor& y) {
         return y.flip({1, 2}) * y;
       }},
      {"roll",
       [](const Tensor& y) {
         return y.roll({5, 3}, {1, 3}).contiguous();
       }},
      {"unfold", [](const Tensor& y) { return y.unfold(1, 3, 2); }},
      {"cat",
       [](const Tensor& y) {
         return Tensor::cat({y, y.transpose(2, 3)}, 1);
       }},
      {"bitcast", [](const Tensor& y) { return y.bitcast(kI16); }},
      {"repeat", [](const Tensor& y) { return y.repeat_interleave(2, 1); }},
      {"pool", [](const Tensor& y) { return max_pool2d(y, 3); }},
      {"matmul",
       [](const Tensor& y) {
         return y.narrow(0, 0, 4).flatten(2).matmul(y.narrow(0, 4, 4).flatten(2).transpose(1, 2));
       }},
      {"sum",
       [](const Tensor& y) {
         return y.to(kF32).sum({1, 3});
       }},
  };
  for (const auto& [name, work] : works) {
    CAPTURE(name);
    CHECK(made_of(work, kHopper) == made_of(work, "CPU"));
  }
}

TEST_CASE("channels innermost: what is assigned of a convolution's result is in order") {
  const auto assigned = [](const std::string& device) {
    Tensor kept = Tensor::zeros({32, 64, 13, 13}, kF16).to(device).realize();
    const auto work = [&](const Tensor& y) {
      kept.assign(y * 2);
      return kept + y;
    };
    std::vector<float> out = made_of(work, device);
    const std::vector<float> now = kept.to(kF32).to_vector<float>();
    out.insert(out.end(), now.begin(), now.end());
    return out;
  };
  CHECK(assigned(kHopper) == assigned("CPU"));
}
