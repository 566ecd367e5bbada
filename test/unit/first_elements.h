// Functions of the first n elements of a tensor, where n is a Variable, beside the same of as many
// elements.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernels/kernel.h"
#include "test/devices.h"
#include "tiny/tensor/tensor.h"
#include "tiny/tensor/variable.h"

namespace tiny::test {

using Floats = std::vector<float>;
template <class... Args>
using NamedFunctions = std::vector<std::pair<const char*, std::function<Tensor(Args...)>>>;

inline void check_close(const Floats& got, const Floats& wanted, double tolerance = 2e-5) {
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i] || (std::isnan(wanted[i]) && std::isnan(got[i]))) continue;
    CHECK(std::abs(got[i] - wanted[i]) <= tolerance * std::max(1.0f, std::abs(wanted[i])));
  }
}

// f(the first n of x) on every device, for each of `lengths`, the first of which compiles.
inline void check_values(const NamedFunctions<const Tensor&>& functions, const Tensor& x,
                         const std::vector<int64_t>& lengths) {
  for (const std::string& device : test_devices()) {
    const Tensor here = x.to(device).realize();
    for (const auto& [name, f] : functions) {
      CAPTURE(name);
      CAPTURE(device);
      Variable n("n", 1, x.size(0));
      for (int64_t i : lengths) {
        CAPTURE(i);
        n = n.bind(i, device);
        const size_t kernels = kernel_count();
        const Floats got = f(here.narrow(0, 0, n)).to_vector<float>();
        if (i != lengths[0]) CHECK(kernel_count() == kernels);
        check_close(got, f(x.narrow(0, 0, i)).to_vector<float>());
      }
    }
  }
}

// Gradients of f(the first n of x, w) by x, of (13, 4), and by w, of 4.
inline void check_gradients(const NamedFunctions<const Tensor&, const Tensor&>& functions) {
  constexpr int64_t kMax = 13;
  const Tensor x = Tensor::randn({kMax, 4}).realize();
  const Tensor w = Tensor::randn({4}).realize();
  Variable n("n", 2, kMax);
  for (const auto& [name, f] : functions)
    for (int64_t i : {int64_t{2}, int64_t{7}, kMax}) {
      CAPTURE(name);
      CAPTURE(i);
      n = i;
      const auto gradients = [&](auto length) {
        Tensor a = x * 1, b = w * 1;
        a.requires_grad_();
        b.requires_grad_();
        const std::vector<Tensor> g = Tensor::gradient(f(a.narrow(0, 0, length), b), {a, b});
        return std::pair(g[0].to_vector<float>(), g[1].to_vector<float>());
      };
      const auto got = gradients(n), wanted = gradients(i);
      check_close(got.first, wanted.first, 1e-4);
      check_close(got.second, wanted.second, 1e-4);
    }
}

}  // namespace tiny::test
