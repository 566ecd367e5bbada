#include "runtime/schedule/passes.h"

#include <doctest/doctest.h>

#include <cmath>

#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/tensor.h"
#include "tiny/tensor/variable.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Tensor input(const Shape& shape) {
  return Tensor::from(std::vector<float>(static_cast<size_t>(numel(shape))), shape, "CPU");
}

// Kernels that leave elements of a value of at least so many elements out, and all that store one.
std::pair<int, int> gated(const Schedule& s, int64_t elements) {
  int with = 0, all = 0;
  for (const Step& step : s.steps) {
    if (!step.kernel.get()) continue;
    for (Node store : step.kernel.get()->srcs()) {
      if (numel(store->src(1)->shape()) < elements) continue;
      ++all;
      with += store->num_src > 2;
    }
  }
  return {with, all};
}

}  // namespace

TEST_CASE("scores of a cache are computed to its length, also where the step writes the cache") {
  constexpr int64_t kHeads = 2, kMax = 1024, kWidth = 64;
  const Tensor q = input({kHeads, 1, kWidth}), token = input({kHeads, kWidth});
  for (bool written : {false, true}) {
    Tensor keys = input({kHeads, kMax, kWidth}), values = input({kHeads, kMax, kWidth});
    Variable at("at", 0, kMax - 1), n("n", 1, kMax);
    if (written) {
      keys.assign({Slice{}, at.bind(7)}, token);
      values.assign({Slice{}, at.bind(7)}, token);
    }
    const Tensor k = keys.narrow(1, 0, n.bind(8)), v = values.narrow(1, 0, n.bind(8));
    const Tensor scores = q.matmul(k.transpose(-1, -2)) / 8;
    const Tensor y = scores.softmax(-1).matmul(v);
    for (const char* device : {"CPU", "NULL"}) {
      CAPTURE(written);
      CAPTURE(device);
      std::vector<Tensor> roots{y};
      if (written) roots.insert(roots.end(), {keys, values});
      const auto [with, all] = gated(*schedule_on(device, roots), kHeads * kMax);
      CHECK(with >= 1);
      CHECK(all - with == (written ? 2 : 0));  // what is written into the caches
    }
  }
}

TEST_CASE("a product that a layout rewrites is computed to its length") {
  // So many terms that the sum is split: parts are added up by a kernel of their own.
  const Tensor x = input({64, 65536}), w = input({65536, 64});
  Variable n("n", 1, 64);
  const Tensor y = x.narrow(0, 0, n.bind(3)).matmul(w);
  const auto [with, all] = gated(*schedule_on("EMU:CUDA:sm_80", {y}), 64 * 64);
  CHECK(with == 2);
  CHECK(all == 2);  // x is transposed on its way to shared memory
}

TEST_CASE("what is also read without its length is needed as a whole") {
  const Tensor x = input({64, 8});
  Variable n("n", 1, 64);
  const Tensor y = x.sin().contiguous();
  const Tensor part = y.narrow(0, 0, n.bind(3)).exp(), whole = y.cumsum(0);
  const auto [with, all] = gated(*schedule_on("CPU", {part, whole}), 64 * 8);
  CHECK(with == 1);
  CHECK(all > with);
}
