// Rows of extra/bench/gpu about products of matrices.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "extra/bench/row.h"

namespace tiny::bench {

// A product of [m, k] and [k, n], either of which may lie in memory as its transpose.
struct Product {
  std::string name;
  std::vector<std::string> peer;
  int64_t m, n, k;
  DType dtype = kBF16;
  bool turn_a = false, turn_b = false;
  bool tf32 = false;
};

// Seen as [rows, columns].
inline Tensor operand(int64_t rows, int64_t columns, DType dtype, bool turned) {
  const Shape shape = turned ? Shape{columns, rows} : Shape{rows, columns};
  const Tensor x = dtype.is_float() ? normal(shape, dtype)
                                    : Tensor::randint(-100, 100, shape).to(dtype).realize();
  return turned ? x.t() : x;
}

inline void add_product(std::vector<Row>& rows, const Product& p) {
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  rows.push_back(
      {p.name, p.peer, 0, flops, [p] {
         const Tensor a = operand(p.m, p.k, p.dtype, p.turn_a);
         const Tensor b = operand(p.k, p.n, p.dtype, p.turn_b);
         return [=] {
           const EnvOverride rounds("ALLOW_TF32", p.tf32 ? "1" : "0");
           const DType result = p.dtype == kI8 ? kI32 : p.dtype.is_f8() ? kBF16 : p.dtype;
           Tensor y = a.matmul(b, result);
           y.realize();
           return Outputs{y};
         };
       }});
}

// A product as `bf16_nn_1792x3584x4096` says it: of which numbers, whether each operand lies
// turned, and how many rows, columns and terms. PyTorch's time is what extra/bench/gpu_peers.py
// product prints for the same text.
inline Product product_from_text(const std::string& text) {
  const std::pair<const char*, DType> types[] = {
      {"bf16", kBF16}, {"f16", kF16}, {"tf32", kF32}, {"f32", kF32}};
  for (const auto& [name, dtype] : types) {
    char a = 0, b = 0;
    long long m = 0, n = 0, k = 0;
    const std::string form = cat(name, "_%c%c_%lldx%lldx%lld");
    if (std::sscanf(text.c_str(), form.c_str(), &a, &b, &m, &n, &k) != 5) continue;
    if ((a != 'n' && a != 't') || (b != 'n' && b != 't') || m < 1 || n < 1 || k < 1) break;
    return {"matmul_" + text, peer("product " + text),         m, n, k, dtype, a == 't',
            b == 't',         std::string_view(name) == "tf32"};
  }
  throw Error(cat(text, " is no product like bf16_nn_512x256x1024"));
}

// Squares as large as half of `n`, less, and odd ones.
inline void add_squares(std::vector<Row>& rows, int64_t n) {
  const int64_t m = n / 2;
  const auto gemm = [&](const char* dtype, int64_t size) {
    return std::vector<std::string>{"\"name\": \"gemm\"", cat("\"dtype\": \"", dtype, '"'),
                                    cat("\"N\": ", size * kPeerSize / n, ",")};
  };
  const auto add = [&](const std::string& name, int64_t size, const char* peer_dtype, DType dtype) {
    add_product(rows, {name, gemm(peer_dtype, size), size, size, size, dtype});
  };
  add("matmul_f32", m, "fp32", kF32);
  add("matmul_bf16", m, "torch.bfloat16", kBF16);
  add("matmul_f16", m, "torch.float16", kF16);
  for (int64_t part : {16, 8, 4, 1})
    add(cat("matmul_bf16_", n / part), n / part, "torch.bfloat16", kBF16);
  add_product(rows, {"matmul_bf16_odd", gemm("torch.bfloat16 odd", m), m - 1, m - 1, m - 1});
  for (const char* form : {"nt", "tn", "tt"})
    add_product(rows, {cat("matmul_bf16_", form), gemm(cat("torch.bfloat16 ", form).c_str(), m), m,
                       m, m, kBF16, form[0] == 't', form[1] == 't'});
  for (const char* form : {"nn", "nt", "tn", "tt"})
    add_product(rows, {cat("matmul_tf32_", form), gemm("tf32", m), m, m, m, kF32, form[0] == 't',
                       form[1] == 't', true});
  add_product(rows, {"matmul_i8_nt", gemm("int8", m), m, m, m, kI8, false, true});
  for (int64_t size : {m, n}) {
    add_product(rows, {cat("matmul_e4m3_nt_", size), gemm("torch.float8_e4m3fn", size), size, size,
                       size, kF8E4M3, false, true});
    add_product(rows, {cat("matmul_e5m2_nt_", size), gemm("torch.float8_e5m2", size), size, size,
                       size, kF8E5M2, false, true});
  }
}

// A layer of a transformer: a GEMM with its epilogue.
inline void add_epilogue(std::vector<Row>& rows, int64_t n) {
  const int64_t m = n / 2;
  const double flops = 2.0 * static_cast<double>(m * m) * static_cast<double>(m);
  rows.push_back({"matmul_bias_gelu_residual", peer("gemm bias+gelu+residual"), 0, flops, [m] {
                    const Tensor a = normal({m, m}, kBF16), b = normal({m, m}, kBF16);
                    const Tensor r = normal({m, m}, kBF16), bias = normal({m}, kBF16);
                    return [=] { return Outputs{(a.matmul(b) + bias).gelu() + r}; };
                  }});
}

// Layers of a language model that writes token by token: each weight is read for a few of them.
inline void add_thin(std::vector<Row>& rows, int64_t n) {
  const int64_t from = n / 2, to = n / 2 * 43 / 16;
  const double bytes = 2.0 * static_cast<double>(from * to);
  for (int64_t batch : {1, 8, 16, 64}) {
    const std::vector<std::string> parts{"\"name\": \"gemv\"", cat("\"m\": ", batch, ','),
                                         "\"n\": 11008,"};
    rows.push_back({cat("linear_", batch), parts, bytes, 0, [=] {
                      const Tensor x = normal({batch, from}, kBF16);
                      const Tensor w = normal({to, from}, kBF16);
                      return [=] { return Outputs{x.matmul(w.t())}; };
                    }});
  }
  rows.push_back({"vector_matrix", {}, bytes, 0, [=] {
                    const Tensor x = normal({1, to}, kBF16), w = normal({to, from}, kBF16);
                    return [=] { return Outputs{x.matmul(w)}; };
                  }});
}

inline void add_products(std::vector<Row>& rows, int64_t n) {
  add_squares(rows, n);
  add_epilogue(rows, n);
  add_thin(rows, n);
}

}  // namespace tiny::bench
