// Elements that are left out: selected once for all reductions over a row, where they are loaded.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "codegen/lower.h"
#include "codegen/passes/passes.h"
#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "tiny/ir/build.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kGpus[] = {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942"};
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// In memory that nobody touches.
Tensor memory(const Shape& shape, DType dtype = kF32) {
  const auto buffer = std::make_shared<Buffer>(kGpus[0], dtype, numel(shape));
  return Tensor(build::reshape(buffer_node(buffer), shape));
}

// The text of the first kernel of what computes the tensor, or of the last one.
std::string first_kernel(const Tensor& t, const char* gpu = kGpus[0], bool is_last = false) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  const std::vector<int> devices(graph.buffers.size(), device_id(gpu));
  const auto s = schedule(graph, devices, device_id(gpu));
  const Step& step = is_last ? s->steps.back() : s->steps.front();
  const std::string text = lower(step.kernel.get(), "k", find_device(gpu).target()).source.text;
  return text.substr(text.find("extern \"C\""));
}

// Rows of numbers, some of them with one that is not finite, or with nothing else.
std::vector<float> rows_of(int64_t rows, int64_t length) {
  std::vector<float> out;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < length; ++i) {
      float v = static_cast<float>((r * 131 + i * 7919) % 1009) / 64 - 8;
      if (r == 1) v = -kInf;
      if (r == 2) v += 10000;
      if (r == 3 && i % 3) v = -kInf;
      if (r == 4 && i == length / 2) v = kInf;
      if (r == 5 && i == length - 1) v = NAN;
      if (r == 6) v *= -40;
      out.push_back(v);
    }
  return out;
}

void check_same(const std::vector<float>& have, const std::vector<float>& want, double relative,
                double absolute) {
  REQUIRE(have.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    INFO("element ", i, ": ", have[i], " is not ", want[i]);
    if (std::isnan(want[i]) || std::isinf(want[i]))
      REQUIRE((std::isnan(want[i]) ? std::isnan(have[i]) : have[i] == want[i]));
    else
      REQUIRE(std::abs(have[i] - want[i]) <= relative * std::abs(want[i]) + absolute);
  }
}

}  // namespace

TEST_CASE("a ragged row is selected where it is loaded, for its maximum and its sum alike") {
  const Tensor x = memory({4096, 5001}, kBF16);
  const std::string text = first_kernel((x.to(kF32) - x.to(kF32).max(1, true)).exp().sum(1));
  CAPTURE(text);
  CHECK(count(text, "bf16{65408}") > 0);  // -infinity
  CHECK(count(text, "where(") == 0);
  CHECK(count(text, "exp2_of(") == 0);
  CHECK(count(text, "exp2_flushed(") > 0);
}

TEST_CASE("what is loaded is not filled where somebody wants it as it is, or with something else") {
  const Tensor x = memory({4096, 5001});
  const std::string both = first_kernel(x.max(1) + (x * x).sum(1));
  CHECK(count(both, "where(") > 0);
  const std::string least = first_kernel(x.max(1) - x.min(1));
  CHECK(count(least, "where(") > 0);
}

TEST_CASE("exponentials keep numbers below the normal ones where anything depends on them") {
  const Tensor x = memory({4096, 4096});
  CHECK(count(first_kernel(x.exp()), "exp2_flushed(") == 0);
  CHECK(count(first_kernel(x.exp().sum(1)), "exp2_flushed(") == 0);
  CHECK(count(first_kernel(x.softmax(1)), "exp2_flushed(") == 0);  // they are results too
  CHECK(count(first_kernel((x - x.max(1, true) * 2).exp().sum(1)), "exp2_flushed(") == 0);
  for (const char* gpu : kGpus) {
    const Tensor small = Tensor::full({40}, -100.0f).to(gpu);
    const double sum = small.exp().sum().item<float>();
    CHECK(sum == doctest::Approx(40 * std::exp(-100.0)).epsilon(0.05));
  }
}

TEST_CASE("sums of exponentials of ragged rows are right, whatever is in the rows") {
  for (const std::string& device : test_devices())
    for (const int64_t length : {5, 100, 1000, 1023, 5001, 17001}) {
      CAPTURE(device);
      CAPTURE(length);
      const Tensor x = Tensor::from(rows_of(8, length), {8, length});
      const auto of = [&](const std::string& name, auto f) {
        return f(x.to(name)).template to_vector<float>();
      };
      const auto compare = [&](auto f, double relative, double absolute) {
        check_same(of(device, f), of("CPU", f), relative, absolute);
      };
      compare([](const Tensor& t) { return t.logsumexp({1}); }, 2e-6, 0);
      compare([](const Tensor& t) { return t.log_softmax(1); }, 2e-5, 2e-3);  // of numbers of 10000
      compare([](const Tensor& t) { return t.softmax(1); }, 2e-5, 1e-30);
      compare([](const Tensor& t) { return (t - t.max(1, true)).exp().sum(1); }, 1e-5, 0);
    }
}

TEST_CASE("what a branch is not meant for is left out once, by the selection") {
  const Tensor x = memory({4096, 4096});
  const auto selections = [&](const Tensor& t) { return count(first_kernel(t), "where("); };
  CHECK(selections(x.expm1()) == 1);
  CHECK(selections(x.log1p()) == 1);
}

namespace {

Tensor scores() {
  const Shape shape{1, 8, 2048, 64};
  const Tensor q = memory(shape, kBF16), k = memory(shape, kBF16);
  return q.matmul(k.transpose(-2, -1), kF32) * 0.125;
}
std::string chain_of(const Tensor& weights) {
  const Tensor values = memory({1, 8, 2048, 64}, kBF16);
  const std::string text = first_kernel(weights.to(kBF16).matmul(values), kGpus[0], true);
  REQUIRE(count(text, "products_wait") > 0);
  return text;
}
constexpr size_t kScores = 64;  // of a thread

}  // namespace

TEST_CASE("a mask beside products selects each score once") {
  const Tensor mask = memory({2048, 2048}, kF32) > 0;
  const std::string text = chain_of(where(mask, scores(), -INFINITY).softmax(-1));
  CAPTURE(text);
  CHECK(count(text, " ? ") >= kScores);
  CHECK(count(text, " ? ") < kScores * 3 / 2);
}

TEST_CASE("caps and sigmoids of scores divide by what is known to have an inverse") {
  for (const Tensor& weights : {scores().sigmoid(), (scores() / 20).tanh().softmax(-1)}) {
    const std::string text = chain_of(weights);
    CAPTURE(text);
    CHECK(count(text, " inverse(") >= kScores);
    CHECK(count(text, "size_of(") >= kScores);
  }
  CHECK(count(chain_of((scores().exp2() + 1).reciprocal()), " inverse(") == 0);  // may be infinite
}

TEST_CASE("what is added to scores is loaded in pairs") {
  const std::string text = chain_of((scores() + memory({2048, 2048})).softmax(-1));
  CAPTURE(text);
  CHECK(count(text, "const f32x2*)(b") == kScores / 2);
}
