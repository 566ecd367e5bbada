#include <doctest/doctest.h>

#include <cmath>

#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/error_of.h"
#include "tiny/nn/functional.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

TEST_CASE("CHECK_NAN names the kernel, the operation and its operands") {
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const EnvOverride on("DEVICE", device), check("CHECK_NAN", "1");
    const Tensor x = Tensor::from({1.0f, 2.0f, -3.0f, 4.0f});
    const std::string text = error_of([&] { ((x * 2).log().relu() + 1).to_vector<float>(); });
    CHECK(has(text, "CHECK_NAN: k_mul_log"));
    CHECK(has(text, " made nan from finite values, element 2 of f32 x 4"));
    CHECK(has(text, "the first operation that is not finite is log: Log2 of -6"));
    CHECK((x + 1).to_vector<float>() == std::vector<float>{2, 3, -2, 5});
  }
}

TEST_CASE("CHECK_NAN looks at the part of a tensor that a kernel reads") {
  const EnvOverride check("CHECK_NAN", "1");
  std::vector<float> values(128, 1);
  values[3] = INFINITY;
  values[70] = -2;
  const Tensor x = Tensor::from(values, {2, 64});
  CHECK(has(error_of([&] { x.select(0, 1).log().realize(); }),
            "the first operation that is not finite is log: Log2 of -2"));
  CHECK(std::isinf(x.select(0, 0).log().to_vector<float>()[3]));
}

TEST_CASE("CHECK_NAN names the first kernel of several, and infinities") {
  const EnvOverride check("CHECK_NAN", "1");
  const Tensor x = Tensor::from({4.0f, 0.0f, 1.0f, 2.0f}, {2, 2});
  const std::string text = error_of([&] {
    const Tensor a = x.reciprocal().contiguous();
    (a.matmul(x).contiguous() - a).to_vector<float>();
  });
  CHECK(has(text, " made inf from finite values, element 1 of f32 x 4"));
  CHECK(has(text, "is reciprocal: Recip of 0"));
  // Who has an infinity from elsewhere is not blamed.
  const Tensor given = Tensor::from({1.0f, INFINITY});
  CHECK(std::isinf((given * 2).to_vector<float>()[1]));
}

TEST_CASE("CHECK_NAN looks at gradients and at replays, and leaves the tensors as they would be") {
  Tensor w = Tensor::from({1.0f, 4.0f}).requires_grad_();
  Jit step([&](const Tensor& x) {
    Tensor loss = (w * x).sqrt().sum();
    loss.backward();
    const NoGrad no_grad;
    w.assign(w.detach() - w.grad() * 0.5f);
    w.zero_grad();
    Tensor* all[] = {&w, &loss};
    Tensor::realize(all);
    return loss;
  });
  const Tensor good = Tensor::from({1.0f, 1.0f}), bad = Tensor::from({0.0f, 1.0f});
  for (int i = 0; i < 3; ++i) step(good);
  CHECK(step.statistics().replays == 1);
  const EnvOverride check("CHECK_NAN", "1");
  step(good);
  const std::string text = error_of([&] { step(bad); });
  CHECK(has(text, "from finite values"));
  CHECK(has(text, "is sqrt_grad: Div of "));
  CHECK(step.statistics().replays == 3);
  const std::vector<float> after = w.to_vector<float>();
  CHECK_FALSE(std::isfinite(after[0]));
  CHECK(std::isfinite(after[1]));
}

TEST_CASE("CHECK_NAN finds nothing in memory that a kernel does not read") {
  const EnvOverride check("CHECK_NAN", "1");
  const EnvOverride cpu("DEVICE", "CPU");
  // What is freed holds NaN; buffers of the same size are written where it was.
  for (int i = 0; i < 4; ++i) Tensor::from(std::vector<float>(1000, NAN));
  const Tensor x = Tensor::from(std::vector<float>(1000, 2.0f));
  Tensor y = (x * 2).contiguous().flip().contiguous() + 1;
  CHECK(y.to_vector<float>() == std::vector<float>(1000, 5.0f));
  x.scatter_add(0, Tensor::zeros({1000}, kI64), x).to_vector<float>();
}
