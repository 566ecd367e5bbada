#include "codegen/passes/passes.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tiny/base/env.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

// n times 0.1f, the columns of [n / columns, columns] apart.
double worst_error(int64_t n, int64_t columns) {
  const Tensor x = Tensor::full({n / columns, columns}, 0.1).contiguous();
  double worst = 0;
  for (float sum : x.sum(0).to_vector<float>())
    worst = std::max(worst, std::abs(sum / (0.1f * static_cast<double>(n / columns)) - 1));
  return worst;
}

}  // namespace

TEST_CASE("long sums are made of sums of parts") {
  for (const char* optimised : {"1", "0"}) {
    CAPTURE(optimised);
    const EnvOverride setting("OPT", optimised);
    CHECK(worst_error(1 << 23, 1) < 2e-5);
    CHECK(worst_error(16'000'000, 16) < 2e-5);
    CHECK(worst_error(3'000'009, 3) < 2e-5);
    const Tensor x = Tensor::full({300, 200, 100}, 0.1).contiguous();
    CHECK(x.mean().item<float>() == doctest::Approx(0.1f).epsilon(2e-5));
    CHECK(x.matmul(x.select(0, 0).t()).sum().item<float>() ==
          doctest::Approx(0.01 * 300 * 200 * 100 * 200).epsilon(3e-5));
  }
}

TEST_CASE("sums of a prime number of terms and of products are right") {
  const int64_t n = 100'003;
  const Tensor x = Tensor::full({n}, 0.1).contiguous();
  CHECK(x.sum().item<float>() == doctest::Approx(0.1 * n).epsilon(1e-5));
  CHECK(x.dot(x).item<float>() == doctest::Approx(0.01 * n).epsilon(1e-5));
  const Tensor rows = Tensor::full({2, n}, 0.1).contiguous();
  const Tensor both = rows.sum(1) + rows.max(1);
  CHECK(both.to_vector<float>()[1] == doctest::Approx(0.1 * n + 0.1).epsilon(1e-5));
}

TEST_CASE("only long sums of f32 on CPUs are split") {
  Arena arena;
  ArenaScope scope(arena);
  const auto options = [](DType t, int64_t n, Target::Kind kind) {
    const Node size = constant(kIndex, n), zero = constant(kIndex, 0);
    const Node r = make(Op::Range, kIndex, {size}, RangeArg{0, RangeKind::Reduce});
    const auto param = [&](int64_t slot, int64_t count) {
      const int64_t arg[] = {slot, count};
      return make(Op::Param, t, {}, Ints(arg));
    };
    const Node value = make(Op::Load, t, {param(1, n), r});
    const Node sum = make(Op::Reduce, t, {value, r}, OpArg{Op::Add});
    const Node sink = make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param(0, 1), zero, sum})});
    Target target;
    target.kind = kind;
    return to_text(split_sums(sink, target));
  };
  CHECK(options(kF32, 1 << 20, Target::Kind::Cpu) ==
        "split r0 512, order r0 r1, split r0 512, order r0 r2 r1");
  CHECK(options(kF32, 1000, Target::Kind::Cpu) == "split r0 500, order r0 r1");
  CHECK(options(kF32, 512, Target::Kind::Cpu) == "");
  CHECK(options(kF64, 1 << 20, Target::Kind::Cpu) == "");
  CHECK(options(kI64, 1 << 20, Target::Kind::Cpu) == "");
}
