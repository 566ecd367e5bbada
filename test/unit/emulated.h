// What a graph gives on an emulated GPU beside what it gives on the CPU.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tiny/base/env.h"
#include "tiny/tiny.h"

namespace tiny::test {

using Compute = std::function<std::vector<Tensor>()>;

inline std::vector<double> values_on(const std::string& device, const Compute& compute) {
  const EnvOverride use("DEVICE", device);
  std::vector<double> out;
  for (const Tensor& t : compute()) {
    const auto own = t.to(kF64).to_vector<double>();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

// The largest error of an emulated GPU beside 1 + the CPU's value; infinite where one is NaN or
// infinite and the other is not.
inline double emulated_error(const Compute& compute) {
  const auto wanted = values_on("CPU", compute), got = values_on("EMU:CUDA:sm_90a", compute);
  if (wanted.size() != got.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == got[i] || (std::isnan(wanted[i]) && std::isnan(got[i]))) continue;
    const double e = std::abs(wanted[i] - got[i]) / (1 + std::abs(wanted[i]));
    worst = std::max(worst, std::isfinite(e) ? e : INFINITY);
  }
  return worst;
}

// Numbers in [-1, 1] that repeat nowhere.
inline Tensor waves(const Shape& shape) {
  return (Tensor::arange(numel(shape)).to(kF32) * 0.7373f).sin().reshape(shape).contiguous();
}

}  // namespace tiny::test
