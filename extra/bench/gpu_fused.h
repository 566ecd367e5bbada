// Rows of extra/bench/gpu about what products do with their operands as they read them, and about
// products of many experts.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "extra/bench/row.h"

namespace tiny::bench {

inline Tensor bytes(const Shape& shape) {
  return Tensor::randint(-100, 100, shape).to(kI8).realize();
}

// Weights of a byte with a scale for each row, or for `group` elements of it.
inline Tensor dequantised(const Tensor& w, const Tensor& scale, int64_t group) {
  if (group == 0) return w.to(kBF16) * scale;
  const int64_t rows = w.shape()[0], columns = w.shape()[1];
  return (w.to(kBF16).reshape({rows, columns / group, group}) * scale).reshape({rows, columns});
}

// x (m, k) times weights (n, k).
inline void add_bytes(std::vector<Row>& rows, int64_t n) {
  const int64_t from = n / 2, to = n / 2 * 43 / 16;
  const auto add = [&](const std::string& name, int64_t m, int64_t columns, int64_t group) {
    const double read = static_cast<double>(from * columns);
    const double flops = 2 * static_cast<double>(m) * read;
    const bool limited = m <= 64;  // by memory
    rows.push_back(
        {name, peer(cat("linear int8 ", m, " group ", group)), limited ? read : 0,
         limited ? 0 : flops, [=] {
           const Tensor x = normal({m, from}, kBF16), w = bytes({columns, from});
           const Shape scales = group ? Shape{columns, from / group, 1} : Shape{columns, 1};
           const Tensor scale = normal(scales, kBF16);
           return [=] { return Outputs{x.matmul(dequantised(w, scale, group).t())}; };
         }});
  };
  for (int64_t m : {1, 8, 16, 64}) add(cat("linear_i8_", m), m, to, 0);
  add("linear_i8_groups_8", 8, to, 128);
  add("matmul_bf16_i8", from, from, 0);
}

// Tokens that are looked up for each of eight experts.
inline void add_experts(std::vector<Row>& rows, int64_t n) {
  const int64_t experts = 8, tokens = n / 8, width = n / 2;
  const double flops =
      2.0 * static_cast<double>(experts * tokens * width) * static_cast<double>(width);
  const auto weights = [=] { return normal({experts, width, width}, kBF16); };
  rows.push_back({"experts", peer("experts"), 0, flops, [=] {
                    const Tensor x = normal({experts, tokens, width}, kBF16), w = weights();
                    return [=] { return Outputs{x.matmul(w.transpose(1, 2))}; };
                  }});
  rows.push_back({"experts_looked_up", peer("experts looked up"), 0, flops, [=] {
                    const Tensor x = normal({experts * tokens, width}, kBF16), w = weights();
                    const Tensor at =
                        Tensor::randint(0, experts * tokens, {experts * tokens}).realize();
                    return [=] {
                      const Tensor own = x.index_select(0, at).reshape({experts, tokens, width});
                      return Outputs{own.matmul(w.transpose(1, 2))};
                    };
                  }});
}

inline void add_normalised(std::vector<Row>& rows, int64_t n) {
  const int64_t m = n / 2;
  const double flops = 2.0 * static_cast<double>(m * m) * static_cast<double>(m);
  rows.push_back({"matmul_rms_norm", peer("gemm of rms norm"), 0, flops, [m] {
                    const Tensor x = normal({m, m}, kBF16), w = normal({m, m}, kBF16);
                    const Tensor scale = normal({m}, kBF16);
                    return [=] { return Outputs{rms_norm(x, {m}, scale).matmul(w.t())}; };
                  }});
  rows.push_back({"matmul_swiglu", peer("gemm swiglu"), 0, 2 * flops, [m] {
                    const Tensor x = normal({m, m}, kBF16);
                    const Tensor a = normal({m, m}, kBF16), b = normal({m, m}, kBF16);
                    return [=] { return Outputs{x.matmul(a.t()).silu() * x.matmul(b.t())}; };
                  }});
}

inline void add_fused(std::vector<Row>& rows, int64_t n) {
  add_bytes(rows, n);
  add_experts(rows, n);
  add_normalised(rows, n);
}

}  // namespace tiny::bench
