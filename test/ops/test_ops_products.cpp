// What products do with their operands as they read them and with their results before they store
// them: how many kernels that takes on which GPU, which of them are on matrix units, and the
// values.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "codegen/lower.h"
#include "runtime/schedule/normalize.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "tiny/tiny.h"

namespace tiny {
namespace {

// Inputs of one device: zeros where nothing is computed, else small numbers, each sum of which is
// exact.
class Inputs {
 public:
  Inputs(std::string device, bool filled) : device_(std::move(device)), filled_(filled) {}

  Tensor operator()(const Shape& shape, DType dtype = kBF16) {
    ++count_;
    if (!filled_) {
      const std::vector<char> zeros(static_cast<size_t>(numel(shape) * dtype.size()));
      return Tensor::from_bytes(zeros.data(), dtype, shape, device_);
    }
    std::vector<float> values(static_cast<size_t>(numel(shape)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 7 + count_ * 5 + i / 13) % 11) - 5;
    Tensor x = Tensor::from(values, shape, device_).to(dtype);
    x.realize();
    return x;
  }

  // Places in a list of that length.
  Tensor places(int64_t count, int64_t length) {
    if (!filled_) return (*this)({count}, kI32);
    std::vector<int32_t> at(static_cast<size_t>(count));
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(i * 5 % length);
    return Tensor::from(at, {count}, device_);
  }

 private:
  std::string device_;
  bool filled_;
  size_t count_ = 0;
};

using Make = std::function<Tensor(Inputs&, int64_t rows)>;
constexpr int64_t kWide = 2048, kDeep = 2048;    // of plans
constexpr int64_t kColumns = 512, kTerms = 512;  // of values
thread_local int64_t n = kWide, k = kDeep;       // columns and terms

Tensor weights(Inputs& in) { return in({n, k}).t(); }
Tensor product(Inputs& in, int64_t m) { return in({m, k}).matmul(weights(in)); }

struct Fused {
  const char* name;
  Make make;
  int kernels[3];      // on sm_90a, sm_80 and gfx942
  int64_t rows = 0;    // 0: as many as columns
  bool bytes = false;  // what is read is staged as it is, where copies are asynchronous
};

std::vector<Fused> cases() {
  std::vector<Fused> out;
  // Prologues.
  const auto scaled = [](Inputs& in, int64_t m) {
    const Tensor x = in({m, k}), w = in({n, k}, kI8), scale = in({n, 1});
    return x.matmul((w.to(kBF16) * scale).t());
  };
  const auto by_groups = [](Inputs& in, int64_t m) {
    const Tensor x = in({m, k}), w = in({n, k}, kI8), scale = in({n, k / 128, 1});
    return x.matmul((w.to(kBF16).reshape({n, k / 128, 128}) * scale).reshape({n, k}).t());
  };
  const auto of_f8 = [](Inputs& in, int64_t m) {
    const Tensor x = in({m, k}), w = in({k, n}, kF8E4M3), scale = in({n});
    return x.matmul(w.to(kBF16) * scale);
  };
  const auto of_f32 = [](Inputs& in, int64_t m) {
    return in({m, k}, kF32).to(kBF16).matmul(in({n, k}, kF32).to(kBF16).t());
  };
  const auto of_nibbles = [](Inputs& in, int64_t m) {
    const Tensor x = in({m, k}), w = in({n, k / 2}, kU8), scale = in({n, 1});
    const Tensor both = Tensor::stack({w & 15, w >> 4}, 2).reshape({n, k}).to(kBF16) - 8.0f;
    return x.matmul((both * scale).t());
  };
  for (const int64_t rows : {8, 40}) {
    out.push_back({"weights of a byte, scales of rows, skinny", scaled, {2, 2, 2}, rows, true});
    out.push_back(
        {"weights of a byte, scales of groups, skinny", by_groups, {2, 2, 2}, rows, true});
    out.push_back({"8-bit floats, scales of columns, skinny", of_f8, {2, 2, 2}, rows, true});
    out.push_back({"weights of half a byte, skinny", of_nibbles, {2, 2, 2}, rows});
    out.push_back({"weights of f32 as 16-bit floats, skinny", of_f32, {2, 2, 2}, rows});
  }
  out.push_back({"weights of a byte, scales of rows", scaled, {2, 2, 2}});
  out.push_back({"weights of a byte, scales of groups", by_groups, {2, 2, 2}});
  out.push_back({"8-bit floats, scales of columns", of_f8, {2, 2, 2}});
  out.push_back({"both operands of f32 as 16-bit floats", of_f32, {3, 1, 1}});
  out.push_back({"normalised rows",
                 [](Inputs& in, int64_t m) {
                   return rms_norm(in({m, k}), {k}, in({k})).matmul(weights(in));
                 },
                 {2, 2, 2}});
  out.push_back({"gelu of an operand",
                 [](Inputs& in, int64_t m) {
                   return (in({m, k}) * 0.25f).gelu().matmul(weights(in));
                 },
                 {2, 2, 2}});
  out.push_back({"rows that are looked up",
                 [](Inputs& in, int64_t m) {
                   return in({m, k}).index_select(0, in.places(m, m)).matmul(weights(in));
                 },
                 {2, 2, 2}});
  // Epilogues.
  out.push_back({"bias, gelu and a residual",
                 [](Inputs& in, int64_t m) {
                   return (product(in, m) * 0.01f + in({n})).gelu() + in({m, n});
                 },
                 {1, 1, 1}});
  out.push_back({"stored transposed",
                 [](Inputs& in, int64_t m) { return product(in, m).t().contiguous(); },
                 {1, 1, 1}});
  out.push_back({"quantised",
                 [](Inputs& in, int64_t m) {
                   const Tensor y = in({m, k}).matmul(weights(in), kF32) * in({n}, kF32);
                   return (y * 0.0078125f).round().clamp(-127, 127).to(kI8);
                 },
                 {1, 1, 1}});
  out.push_back({"two products, one gating the other",
                 [](Inputs& in, int64_t m) {
                   const Tensor x = in({m, k}) * 0.125f;
                   return x.matmul(weights(in)).silu() * x.matmul(weights(in));
                 },
                 {3, 3, 3}});
  // Forms.
  out.push_back({"a batch, the second turned",
                 [](Inputs& in, int64_t m) {
                   return in({4, m, k}).matmul(in({4, n, k}).transpose(1, 2));
                 },
                 {1, 1, 1}});
  out.push_back({"tokens that are looked up for each of four experts",
                 [](Inputs& in, int64_t m) {
                   const Tensor x = in({4 * m, k});
                   const Tensor own = x.index_select(0, in.places(4 * m, 4 * m));
                   return own.reshape({4, m, k}).matmul(in({4, n, k}).transpose(1, 2));
                 },
                 {2, 2, 2}});
  out.push_back({"results of experts, weighted and added up for each token",
                 [](Inputs& in, int64_t m) {
                   const Tensor y = in({4, m, k}).matmul(in({4, n, k}).transpose(1, 2));
                   const Tensor own = y.reshape({4 * m, n}) * in({4 * m, 1});
                   return Tensor::zeros({m, n}, kBF16).index_add(0, in.places(4 * m, m), own);
                 },
                 {4, 4, 4}});
  return out;
}

// Kernels of a graph for a device, and how many of them multiply on matrix units.
struct Kernels {
  int all = 0, on_units = 0;
  bool waits = true;  // for what is copied to tiles of products, 16 bytes at a time
  std::string names;
};

Kernels kernels_of(const Tensor& y, const std::string& device) {
  const std::vector<Node> roots{y.node()};
  const Normalized graph = normalize(roots);
  const int id = device_id(device);
  Kernels out;
  for (const Step& step : schedule(graph, std::vector<int>(graph.buffers.size(), id), id)->steps) {
    ++out.all;
    out.names += " " + step.name;
    if (!step.kernel) continue;
    const Lowered low = lower(step.kernel.get(), step.name, find_device(device).target());
    out.waits &= low.source.text.find("copies.start<16>") == std::string::npos;
    for (const Opt& opt : low.options)
      if (opt.kind == OptKind::Matrix || opt.kind == OptKind::Mma) {
        ++out.on_units;
        break;
      }
  }
  return out;
}

TEST_CASE("products take on what comes before and after them, on matrix units") {
  const char* devices[] = {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942", "EMU:CUDA:sm_80"};
  const int place[] = {0, 2, 1};
  for (int d = 0; d < 3; ++d) {
    const EnvOverride device("DEVICE", devices[d]);
    Inputs in(devices[d], false);
    n = kWide, k = kDeep;
    for (const Fused& f : cases()) {
      const Kernels found = kernels_of(f.make(in, f.rows ? f.rows : n), devices[d]);
      const std::string what = cat(f.name, " on ", devices[d], ":", found.names);
      CHECK_MESSAGE(found.all == f.kernels[place[d]], what);
      CHECK_MESSAGE(found.on_units >= 1, what);
      if (f.bytes && d != 1) CHECK_MESSAGE(!found.waits, what);
    }
  }
}

std::vector<float> values(const Fused& f, const std::string& device) {
  const EnvOverride use("DEVICE", device);
  Inputs in(device, true);
  n = kColumns, k = kTerms;
  return f.make(in, f.rows ? f.rows : 64).to(kF32).to("CPU").to_vector<float>();
}

TEST_CASE("products with what they take on are right") {
  for (const Fused& f : cases()) {
    const std::vector<float> expected = values(f, "CPU");
    for (const std::string& device : test_devices()) {
      if (device == "CPU" || !is_in_turn(cat(f.name, f.rows), parts_on(device))) continue;
      const std::vector<float> got = values(f, device);
      REQUIRE(got.size() == expected.size());
      double error = 0, norm = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(got[i] - expected[i], 2);
        norm += std::pow(expected[i], 2);
      }
      CHECK_MESSAGE(std::sqrt(error) <= 4e-3 * std::sqrt(norm), f.name, " on ", device);
    }
  }
}

}  // namespace
}  // namespace tiny
