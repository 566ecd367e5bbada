// Matrix products on every kind of device: of sizes that no tile divides, and how far those of
// normal numbers are from f64: no further than a product whose every element is summed in f32 and
// rounded once, which is what vendors' libraries promise.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>

#include "devices/cuda/cuda.h"
#include "extra/bench/gpu_products.h"
#include "test/unit/integers.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr int64_t kRows = 64, kTerms = 512, kColumns = 64;
using Values = std::vector<double>;

Values values_of(const Tensor& t) { return t.to(kF64).to_vector<double>(); }

// To 11 bits, as the matrix units read f32 where they may.
float to_tf32(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000) & 0xffffe000);
}

// The product with each element summed by `add`, from the first term on.
template <class Add> Values product(const Values& a, const Values& b, Add add) {
  Values out(kRows * kColumns);
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kTerms; ++k) sum = add(sum, a[i * kTerms + k], b[k * kColumns + j]);
      out[i * kColumns + j] = sum;
    }
  return out;
}

double add_exactly(double sum, double x, double y) { return sum + x * y; }
double add_in_f32(double sum, double x, double y) {
  return static_cast<float>(sum) + static_cast<float>(x) * static_cast<float>(y);
}
double add_in_tf32(double sum, double x, double y) {
  return static_cast<float>(sum) + to_tf32(static_cast<float>(x)) * to_tf32(static_cast<float>(y));
}
double add_in_f16(double sum, double x, double y) {
  return f16_to_f32(f32_to_f16(static_cast<float>(sum + x * y)));
}

Values rounded(const Values& x, DType t) { return values_of(Tensor::from(x).to("CPU").to(t)); }

// The Frobenius norm of the difference, relative to that of `exact`.
double error_of(const Values& x, const Values& exact) {
  double of = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    of += (x[i] - exact[i]) * (x[i] - exact[i]);
    all += exact[i] * exact[i];
  }
  return std::sqrt(of / all);
}

std::vector<std::string> devices() {
  std::vector<std::string> out{"CPU",
                               "EMU:CUDA:sm_80",
                               "EMU:CUDA:sm_90a",
                               "EMU:CUDA:sm_120",
                               "EMU:HIP:gfx942",
                               "EMU:HIP:gfx1100",
                               "EMU:HIP:gfx1201"};
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

}  // namespace

TEST_CASE("products are as near to those in f64 as sums in f32 are, for each dtype") {
  manual_seed(7);
  const Tensor a = Tensor::randn({kRows, kTerms}).to("CPU").realize();
  const Tensor b = Tensor::randn({kTerms, kColumns}).to("CPU").realize();
  for (DType t : {kF32, kF16, kBF16, kF8E4M3, kF8E5M2}) {
    const DType to = t.is_f8() ? kF32 : t;
    const Values x = values_of(a.to(t)), y = values_of(b.to(t));
    const Values exact = product(x, y, add_exactly);
    const double plain = error_of(rounded(product(x, y, add_in_f32), to), exact);
    const double tf32 = error_of(product(x, y, add_in_tf32), exact);
    CHECK(error_of(rounded(product(x, y, add_in_f16), to), exact) > 1.1 * plain);
    for (const std::string& device : devices())
      for (const char* allow_tf32 : {"0", "1"}) {
        if (t != kF32 && *allow_tf32 == '1') continue;
        const EnvOverride allow("ALLOW_TF32", allow_tf32);
        const Tensor y_there = b.to(t).to(device).realize();
        const Tensor have = a.to(t).to(device).realize().matmul(y_there, to);
        CAPTURE(device);
        CAPTURE(t);
        CAPTURE(allow_tf32);
        CHECK(error_of(values_of(have), exact) <= 1.1 * (*allow_tf32 == '1' ? tf32 : plain));
      }
  }
}

TEST_CASE("products of sizes from 1 to 33 are right, and of others that no tile divides") {
  std::vector<Shape> sizes;  // rows, columns, terms; each size is there once in each place
  for (int64_t i = 1; i <= 33; ++i) sizes.push_back({i, i * 5 % 34, i * 13 % 34});
  for (const Shape& s : {Shape{2, 50257, 33}, Shape{17, 4095, 65}, Shape{1, 128, 11008}})
    sizes.push_back(s);
  for (const std::string& device : devices()) {
    const bool all = device == "CPU" || device == "CUDA";  // emulators get one in six
    for (size_t i = 0; i < sizes.size(); i += all || i >= 33 ? 1 : 6)
      for (DType t : {kF32, kBF16}) {
        const auto [m, n, k] = std::array{sizes[i][0], sizes[i][1], sizes[i][2]};
        CAPTURE(device);
        CAPTURE(t);
        CAPTURE(to_text(sizes[i]));
        const Tensor a = integers({m, k}, t, device), b = integers({n, k}, t, device);
        const auto have = a.matmul(b.t(), kF32).to_vector<float>();
        const auto x = a.to(kF32).to_vector<float>(), y = b.to(kF32).to_vector<float>();
        int64_t wrong = 0;
        for (int64_t r = 0; r < m; ++r)
          for (int64_t c = 0; c < n; ++c) {
            float sum = 0;
            for (int64_t j = 0; j < k; ++j) sum += x[r * k + j] * y[c * k + j];
            wrong += sum != have[r * n + c];
          }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("products: a benchmark's product is what its text says") {
  const bench::Product p = bench::product_from_text("tf32_nt_192x256x1024");
  CHECK(p.name == "matmul_tf32_nt_192x256x1024");
  CHECK(p.dtype == kF32);
  CHECK(p.tf32);
  CHECK(!p.turn_a);
  CHECK(p.turn_b);
  CHECK(std::array{p.m, p.n, p.k} == std::array<int64_t, 3>{192, 256, 1024});
  CHECK(bench::product_from_text("f16_tn_1x2x3").dtype == kF16);
  for (const char* text : {"bf16_nz_1x2x3", "bf16_nn_1x2", "i32_nn_1x2x3", "f32_nn_0x2x3"})
    CHECK_THROWS_WITH(bench::product_from_text(text), doctest::Contains("is no product like"));
}
