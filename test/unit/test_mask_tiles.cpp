// Masks of attention with their tiles (runtime/rewrites/mask_tiles.h).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "runtime/rewrites/mask_tiles.h"
#include "test/reference.h"
#include "test/unit/schedules.h"
#include "tiny/tiny.h"

namespace tiny {
namespace {

Tensor random_mask(const Shape& shape, double share) {
  return (Tensor::rand(shape) < share).realize();
}

// Masks that leave whole tiles open or closed, and such that leave a bit of most.
std::vector<Tensor> masks(const Shape& shape) {
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const Tensor q = Tensor::arange(rows).unsqueeze(1), k = Tensor::arange(columns).unsqueeze(0);
  std::vector<Tensor> out;
  for (const double share : {0.0, 1e-4, 0.5, 0.9999, 1.0}) out.push_back(random_mask(shape, share));
  for (const Tensor& shown : {q >= k, (q - k).abs() < 40, floor_div(q, 130) == floor_div(k, 130)})
    out.push_back(logical_and(random_mask(shape, 0.9999), shown).realize());
  return out;
}

TEST_CASE("a mask with its tiles is the mask") {
  manual_seed(5);
  const EnvOverride device("DEVICE", "CPU");
  for (const Shape& shape : {Shape{256, 256}, {2, 300, 333}, {2, 1, 1, 500}, {3, 400, 1}, {1, 129}})
    for (const Tensor& mask : masks(shape)) {
      const auto both =
          evaluate(std::vector<Node>{mask.node(), with_tiles(mask.node(), kMaskTile)});
      CHECK(both[0].numbers() == both[1].numbers());
    }
}

Tensor attention(const Tensor& mask, int64_t heads, int64_t length, const std::string& device) {
  const Shape shape{1, heads, length, 64};
  const std::vector<char> zeros(static_cast<size_t>(numel(shape) * 2));
  const auto make = [&] { return Tensor::from_bytes(zeros.data(), kBF16, shape, device); };
  const Tensor q = make(), k = make(), v = make();
  return where(mask, q.matmul(k.transpose(-2, -1), kF32), -INFINITY)
      .softmax(-1)
      .to(kBF16)
      .matmul(v);
}

// Of the one chain: kernels beside it, and whether its loop ends by what it reads.
struct Seen {
  size_t others = 0;
  int ended = 0;
};
Seen kernels_of(const Tensor& result, const std::string& device) {
  Seen out;
  for (const Step& step : test::schedule_on(device, {result})->steps) {
    const Lowered low = lower(step.kernel.get(), step.name, find_device(device).target());
    const std::vector<Node> ranges = all_of(low.machine, Op::Range);
    if (all_of(low.machine, Op::Mma).empty()) ++out.others;
    out.ended += std::ranges::any_of(ranges, [](Node r) {
      return !r->src(0)->is_const() && !all_of(r->src(0), Op::Load).empty();
    });
  }
  return out;
}

TEST_CASE("loops end by the tiles of a mask that several heads share") {
  constexpr int64_t kLength = 2048;
  const auto ids = [](const std::string& device) {
    return Tensor::from(std::vector<int32_t>(kLength), {1, kLength}).to(device).realize();
  };
  for (const std::string device : {"EMU:CUDA:sm_90a", "EMU:CUDA:sm_80"}) {
    const EnvOverride use("DEVICE", device);
    const Tensor own = ids(device);
    const Tensor same = own.reshape({1, 1, kLength, 1}) == own.reshape({1, 1, 1, kLength});
    const Seen documents = kernels_of(attention(same, 8, kLength, device), device);
    CHECK(documents.others == 4);
    CHECK(documents.ended == 1);
    CHECK(kernels_of(attention(same, 2, kLength, device), device).others == 0);  // of few heads
    CHECK(kernels_of(attention(same.narrow(2, 0, 256).narrow(3, 0, 256), 8, 256, device), device)
              .others == 0);
    // Sums of floats may differ from kernel to kernel, and so may what is compared with them.
    const Tensor x = own.to(kF32);
    const Tensor far = (x.reshape({1, 1, kLength, 1}) - x.reshape({1, 1, 1, kLength})).exp() < 2;
    CHECK(kernels_of(attention(far, 8, kLength, device), device).others == 0);
  }
}

TEST_CASE("attention of packed sequences by tiles has the values that it has without") {
  constexpr int64_t kLength = 384;
  std::vector<int32_t> ids(kLength);
  for (int64_t i = 0; i < kLength; ++i) ids[static_cast<size_t>(i)] = (i >= 70) + (i >= 290);
  const auto values = [&](const std::string& device, bool by_tiles) {
    const EnvOverride use("DEVICE", device);
    manual_seed(3);
    std::vector<Tensor> leaves;
    for (int i = 0; i < 3; ++i)
      leaves.push_back(Tensor::randn({1, 1, kLength, 64}).to(kBF16).realize().requires_grad_());
    const Tensor own = Tensor::from(ids, {kLength}).realize();
    Tensor mask = own.unsqueeze(1) == own.unsqueeze(0);
    if (by_tiles) mask = Tensor(with_tiles(mask.node(), kMaskTile));
    const Tensor x = leaves[0].matmul(leaves[1].transpose(-2, -1), kF32) / 8;
    const Tensor y = where(mask, x, -INFINITY).softmax(-1).to(kBF16).matmul(leaves[2]);
    std::vector<Tensor> all = Tensor::gradient(y.to(kF32).square().sum(), leaves);
    all.push_back(y);
    std::vector<Tensor*> results;
    for (Tensor& t : all) results.push_back(&t);
    Tensor::realize(results);
    std::vector<std::vector<float>> out;
    for (const Tensor& t : all) out.push_back(t.to(kF32).to_vector<float>());
    return out;
  };
  const auto got = values("EMU:CUDA:sm_90a", true), expected = values("CPU", false);
  for (size_t i = 0; i < got.size(); ++i) {
    double error = 0, norm = 0;
    for (size_t j = 0; j < got[i].size(); ++j) {
      error += std::pow(got[i][j] - expected[i][j], 2);
      norm += std::pow(expected[i][j], 2);
    }
    CHECK_MESSAGE(error < 4e-4 * norm, "result ", i);
  }
}

}  // namespace
}  // namespace tiny
