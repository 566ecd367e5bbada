// Attention as programs spell it out (extra/bench/attention_variants.h): which kernels it takes,
// the values and the gradients.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "extra/bench/attention_variants.h"
#include "test/devices.h"
#include "test/reference.h"
#include "test/unit/schedules.h"
#include "tiny/tiny.h"

namespace tiny {
namespace {

using bench::AttentionInputs;
using bench::AttentionSizes;
using bench::AttentionVariant;

// --- Kernels -------------------------------------------------------------------------------------

// Zeros, none of which is ever read.
AttentionInputs zeros(const std::string& device, DType dtype) {
  return {[device](const Shape& shape, DType t) {
            const std::vector<char> bytes(static_cast<size_t>(numel(shape) * t.size()));
            return Tensor::from_bytes(bytes.data(), t, shape, device);
          },
          dtype};
}

// Values that have memory of their own beside that of the chain's result.
struct Stored {
  const char* variant;
  int kernels;
};
// Pages are put in order; of masks that are read from memory the tiles are known before.
constexpr Stored kStored[] = {{"pages", 2},       {"documents", 4}, {"causal_documents", 4},
                              {"modalities", 4},  {"mask", 4},      {"mask_of_batch", 4},
                              {"mask_of_keys", 5}};

int stored_beside(const AttentionVariant& v) {
  const auto* found = std::ranges::find(kStored, v.name, &Stored::variant);
  return found == std::end(kStored) ? 0 : found->kernels;
}

// One kernel, no matrix of scores, and loops that end where a mask does.
void check_kernels(const AttentionVariant& v, const std::string& device, DType dtype) {
  const EnvOverride use("DEVICE", device);
  AttentionInputs in = zeros(device, dtype);
  const AttentionSizes s{2, 8, 2048, 64};
  const auto plan = test::schedule_on(device, {v(in, s)});
  std::string what = cat(v.name, " on ", device, ": ", to_text(plan->memory));
  int chains = 0;
  for (const Step& step : plan->steps) {
    if (!step.kernel) continue;
    const Lowered low = lower(step.kernel.get(), step.name, find_device(device).target());
    what += cat("\n  ", step.name, "  ", to_text(low.unit));
    chains += std::ranges::any_of(low.options, [](const Opt& o) {
      return o.kind == OptKind::Fragments || o.kind == OptKind::Warpgroups;
    });
  }
  const int stored = stored_beside(v);
  const int64_t most = s.batch * s.heads * s.length * s.width * 2 * stored;
  CHECK_MESSAGE(plan->steps.size() == static_cast<size_t>(1 + stored), what);
  CHECK_MESSAGE(chains == 1, what);
  for (const auto& [id, bytes] : plan->memory.arenas) CHECK_MESSAGE(bytes <= most, what);
}

TEST_CASE("variants of attention are one kernel that stores no scores") {
  for (const AttentionVariant& v : bench::attention_variants())
    for (const std::string device : {"EMU:CUDA:sm_90a", "EMU:CUDA:sm_80", "EMU:HIP:gfx942"})
      if (v.work == 1 || device != "EMU:HIP:gfx942")  // stages of wide rows have no room there
        check_kernels(v, device, kBF16);
}

// --- Values --------------------------------------------------------------------------------------

// The same numbers in any dtype.
Tensor numbers(const Shape& shape, DType dtype, int which) {
  manual_seed(which);
  return Tensor::randn(shape).to(kBF16).to(dtype).realize();
}

// The result, and the gradients of what it is made of.
std::vector<Tensor> attend(const AttentionVariant& v, DType dtype) {
  int count = 0;
  const DType other = dtype == kF64 ? kF64 : kF32;
  AttentionInputs in(
      [&](const Shape& shape, DType t) { return numbers(shape, t == kF32 ? other : t, ++count); },
      dtype);
  const AttentionSizes s{2, 2, 160, 64};
  v(in, s);
  std::vector<Tensor> leaves;
  for (Tensor* t : in.learned()) leaves.push_back(t->requires_grad_());
  manual_seed(7);
  const Tensor result = v(in, s);
  const Tensor weights = numbers(to_shape(result.shape()), dtype, 100);
  std::vector<Tensor> all = Tensor::gradient((result * weights).sum(), leaves);
  all.insert(all.begin(), result);
  return all;
}

using Values = std::vector<std::vector<double>>;

Values computed(const AttentionVariant& v, const std::string& device, DType dtype) {
  const EnvOverride use("DEVICE", device);
  std::vector<Tensor> results = attend(v, dtype);
  std::vector<Tensor*> all;
  for (Tensor& t : results) all.push_back(&t);
  Tensor::realize(all);
  Values out;
  for (const Tensor& t : results) out.push_back(t.to("CPU").to(kF64).to_vector<double>());
  return out;
}

Values interpreted(const AttentionVariant& v) {
  const EnvOverride use("DEVICE", "CPU");
  std::vector<Node> roots;
  const std::vector<Tensor> results = attend(v, kF64);
  for (const Tensor& t : results) roots.push_back(t.node());
  Values out;
  for (const HostTensor& t : evaluate(roots)) out.push_back(t.numbers());
  return out;
}

// What differs over what is expected, by their sums of squares.
double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double error = 0, norm = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(error / norm);
}

TEST_CASE("variants of attention and their gradients are those of f64") {
  for (const AttentionVariant& v : bench::attention_variants()) {
    Values expected;
    for (const std::string& device : test_devices())
      for (const DType dtype : {kF32, kBF16}) {
        if (dtype == kF32 && device != "CPU") continue;  // GPUs have no chains of it
        if (!is_in_turn(cat(v.name, dtype), parts_on(device))) continue;
        if (expected.empty()) expected = interpreted(v);
        const Values got = computed(v, device, dtype);
        REQUIRE(got.size() == expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          CHECK_MESSAGE(difference(got[i], expected[i]) < (dtype == kBF16 ? 2e-2 : 1e-5), v.name,
                        " of ", dtype, " on ", device, ", result ", i);
        Arena::global().collect();
      }
  }
}

}  // namespace
}  // namespace tiny
