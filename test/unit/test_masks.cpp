#include "runtime/rewrites/relu_masks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "test/unit/integers.h"
#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

const Shape kShape{64, 32};

Node zero() { return build::full(kShape, kF32, 0.0); }
Node mask_of(Node x) { return build::binary(Op::Le, x, zero()); }
Node rectified(Node x) { return build::where(mask_of(x), zero(), x); }

// The gradient of what is rectified, where that of the result is the parameter in slot 5.
Node gradient_of(Node x) { return build::where(mask_of(x), zero(), tensor_param(5, kShape)); }

std::vector<Node> reused(const std::vector<Node>& roots) {
  GraphPlan plan;
  plan.roots = roots;
  return reuse_masks(plan, Target{}).roots;
}

}  // namespace

TEST_CASE("masks: of a sum in memory are known from where it is rectified") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = build::binary(Op::Add, tensor_param(0, kShape), tensor_param(1, kShape));
  Node y = rectified(x);
  const std::vector<Node> now = reused({gradient_of(x), y});
  CHECK(now[1] == y);
  CHECK(now[0] == build::where(mask_of(y), zero(), tensor_param(5, kShape)));
  // With its axes in another order in memory.
  Node seen = build::permute(build::contiguous(build::permute(y, Shape{1, 0})), Shape{1, 0});
  const std::vector<Node> turned = reused({seen, gradient_of(x)});
  CHECK(turned[0] == seen);
  CHECK(turned[1]->src(0)->src(0) == seen);
}

TEST_CASE("masks: are computed again from one value, or of what does not lie in memory") {
  Arena arena;
  ArenaScope scope(arena);
  Node one = build::unary(Op::Neg, tensor_param(0, kShape));
  const std::vector<Node> cheap{gradient_of(one), rectified(one)};
  CHECK(reused(cheap) == cheap);
  Node x = build::binary(Op::Add, tensor_param(0, kShape), tensor_param(1, kShape));
  const std::vector<Node> unstored{gradient_of(x), build::unary(Op::Neg, rectified(x))};
  CHECK(reused(unstored) == unstored);
  // Where the other side is no zero, the value says nothing about the mask.
  Node ones = build::full(kShape, kF32, 1.0);
  const std::vector<Node> other{gradient_of(x), build::where(mask_of(x), ones, x)};
  CHECK(reused(other) == other);
}

TEST_CASE("masks: gradients of rectified sums are what they were, not a number where that is") {
  const auto gradients = [](const std::string& device, const char* opt) {
    EnvOverride use("OPT", opt);
    Tensor a = integers({64, 64}, kF32, device), b = integers({64, 64}, kF32, device).t();
    a = where(a == 5, std::numeric_limits<float>::quiet_NaN(), a).realize().detach();
    b = b.contiguous().realize().detach();
    Tensor w = integers({64, 64}, kF32, device).detach();
    for (Tensor* t : {&a, &b, &w}) t->requires_grad_();
    const Tensor y = (a + b).relu();
    const Tensor loss = (y.matmul(w) * integers({64, 64}, kF32, device)).sum();
    return Tensor::gradient(loss, {a, b, w});
  };
  const std::vector<Tensor> want = gradients("CPU", "0");
  for (const char* device : {"CPU", "EMU:CUDA:sm_90a"}) {
    const std::vector<Tensor> have = gradients(device, "1");
    for (size_t i = 0; i < want.size(); ++i) {
      const auto x = want[i].to_vector<float>(), y = have[i].to_vector<float>();
      size_t wrong = 0;
      for (size_t k = 0; k < x.size(); ++k)
        wrong += x[k] != y[k] && !(std::isnan(x[k]) && std::isnan(y[k]));
      CAPTURE(device);
      CAPTURE(i);
      CHECK(wrong == 0);
    }
  }
}
