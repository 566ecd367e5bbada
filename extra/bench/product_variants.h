// Products of matrices whose operands are made, whose results are taken or whose sizes are in ways
// that programs write them: one table for the test of what they compute and on which instruction
// (test/ops/test_product_variants.cpp), and for their times (extra/bench/products.cpp,
// extra/bench/product_peers.py, where they have the same names).
#pragma once
#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::bench {

// [m, k] by [k, n], `batch` times. 0 in the table: a side that is asked for; kEmpty: none at all.
struct ProductSizes {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  auto operator<=>(const ProductSizes&) const = default;
};
constexpr int64_t kEmpty = -1;

// The tensors that a variant reads. Asked again from begin() on it gives the same ones.
class ProductInputs {
 public:
  // A realized tensor of the shape; `below` > 0: of integers that are less.
  using Source = std::function<Tensor(const Shape&, DType, int64_t below)>;

  ProductInputs(Source source, DType dtype) : source_(std::move(source)), dtype_(dtype) {}

  void begin() { next_ = 0; }
  Tensor& operator()(const Shape& shape, DType dtype, int64_t below = 0) {
    if (next_ == made_.size()) made_.push_back(source_(shape, dtype, below));
    return made_[next_++];
  }
  Tensor operator()(const Shape& shape) { return (*this)(shape, dtype_); }
  // What is no operand: 16 bits beside operands of 8.
  Tensor other(const Shape& shape) { return (*this)(shape, result()); }
  Tensor mask(const Shape& shape) { return (*this)(shape, kBool, 2); }
  // `count` different places in a list of so many.
  Tensor places(int64_t count, int64_t length) { return (*this)({count}, kI64, length); }
  // [k, n], in memory as a linear layer has it.
  Tensor weights(const ProductSizes& s) { return (*this)({s.n, s.k}).t(); }

  DType dtype() const { return dtype_; }
  DType result() const { return dtype_.is_f8() ? kBF16 : dtype_; }
  // Of operands that were computed in any dtype.
  Tensor product(const Tensor& a, const Tensor& b) const {
    return a.to(dtype_).matmul(b.to(dtype_), result());
  }
  double bytes() const {
    double sum = 0;
    for (const Tensor& t : made_)
      sum += static_cast<double>(t.numel()) * static_cast<double>(t.dtype().size());
    return sum;
  }

 private:
  Source source_;
  DType dtype_;
  std::deque<Tensor> made_;  // references to them stay
  size_t next_ = 0;
};

struct ProductVariant {
  std::string name;
  ProductSizes sizes = {};
  std::function<std::vector<Tensor>(ProductInputs&, const ProductSizes&)> make = {};
  int products = 1;       // of these sizes, that it multiplies
  bool on_units = true;   // has to be on matrix units where a GPU has them for the dtype
  bool takes_f8 = true;   // makes sense of 8-bit floats
  bool is_sized = false;  // a plain product of sizes of its own

  ProductSizes at(int64_t side) const {
    const auto size = [side](int64_t n) { return n == 0 ? side : n == kEmpty ? 0 : n; };
    return {size(sizes.m), size(sizes.n), size(sizes.k), sizes.batch};
  }
};

namespace variants {

using In = ProductInputs;
using S = ProductSizes;
using Tensors = std::vector<Tensor>;
using Rows = std::vector<ProductVariant>;

inline Tensor plain(In& in, const S& s) { return in.product(in({s.m, s.k}), in.weights(s)); }
// A result that needs no more digits than 16-bit floats have where it is exponentiated or squared.
inline Tensor scaled(In& in, const S& s) {
  return plain(in, s) * (1 / std::sqrt(static_cast<double>(s.k) + 1));
}

inline void add_computed(Rows& rows) {
  rows.push_back({"gelu_first", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k});
                    return {in.product(x.gelu(), in.weights(s))};
                  }});
  rows.push_back({"gelu_second", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in.other({s.n, s.k});
                    return {in.product(x, w.gelu().t())};
                  }});
  rows.push_back({"relu_both", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k}), w = in.other({s.n, s.k});
                    return {in.product(x.relu(), w.relu().t())};
                  }});
  rows.push_back({"dropout", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k}), kept = in.mask({s.m, s.k});
                    return {in.product(where(kept, x * 2, 0), in.weights(s))};
                  }});
  rows.push_back({"where", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k}), y = in.other({s.m, s.k});
                    return {in.product(where(x > 0, x, y), in.weights(s))};
                  }});
  rows.push_back({"triangle", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k});
                    return {in.product(x.tril(), in.weights(s))};
                  }});
  rows.push_back({"swiglu_first", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k}), y = in.other({s.m, s.k});
                    return {in.product(x.silu() * y, in.weights(s))};
                  }});
  rows.push_back({"normalised_rows", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in.other({s.m, s.k}), scale = in.other({s.k});
                    return {in.product(rms_norm(x, {s.k}, scale), in.weights(s))};
                  }});
  rows.push_back({.name = "softmax_of_product",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor p = scaled(in, s).softmax(1);
                    return {in.product(p, in({s.k, s.n}).t())};
                  },
                  .products = 2});
}

// Weights [n, k] as they are in memory, and how they are widened.
inline Tensor by_groups(const Tensor& w, const Tensor& scale, const S& s) {
  constexpr int64_t kGroup = 128;
  return (w.reshape({s.n, s.k / kGroup, kGroup}) * scale).reshape({s.n, s.k});
}

inline void add_dequantised(Rows& rows, const std::string& suffix, S sizes) {
  using Widen = std::function<Tensor(In&, const S&)>;
  const auto add = [&](const char* name, const Widen& weights) {
    rows.push_back({.name = name + suffix,
                    .sizes = sizes,
                    .make = [weights](In& in, const S& s) -> Tensors {
                      const Tensor x = in({s.m, s.k});
                      return {in.product(x, weights(in, s).t())};
                    },
                    .on_units = sizes.m == 0,
                    .takes_f8 = false});
  };
  add("int8_scaled_rows", [](In& in, const S& s) {
    const Tensor w = in({s.n, s.k}, kI8), scale = in({s.n, 1});
    return w.to(in.dtype()) * scale;
  });
  add("int8_groups", [](In& in, const S& s) {
    const Tensor w = in({s.n, s.k}, kI8), scale = in({s.n, s.k / 128, 1});
    return by_groups(w.to(in.dtype()), scale, s);
  });
  // Which of a byte's halves is the first of two neighbours.
  for (const bool low_first : {true, false})
    add(low_first ? "int4_groups_low_first" : "int4_groups_high_first", [low_first](In& in,
                                                                                    const S& s) {
      const Tensor w = in({s.n, s.k / 2}, kU8), scale = in({s.n, s.k / 128, 1});
      const Tensor low = w & 15, high = w >> 4;
      const Tensor both = low_first ? Tensor::stack({low, high}, 2) : Tensor::stack({high, low}, 2);
      return by_groups(both.reshape({s.n, s.k}).to(in.dtype()) - 8.0f, scale, s);
    });
  // All low halves of a group of 128 come first.
  add("int4_groups_halves", [](In& in, const S& s) {
    const Tensor w = in({s.n, s.k / 128, 64}, kU8), scale = in({s.n, s.k / 128, 1});
    const Tensor both = Tensor::cat({w & 15, w >> 4}, 2).reshape({s.n, s.k});
    return by_groups(both.to(in.dtype()) - 8.0f, scale, s);
  });
  add("int4_scaled_rows", [](In& in, const S& s) {
    const Tensor w = in({s.n, s.k / 2}, kU8), scale = in({s.n, 1});
    const Tensor both = Tensor::stack({w & 15, w >> 4}, 2).reshape({s.n, s.k});
    return (both.to(in.dtype()) - 8.0f) * scale;
  });
  add("f8_scaled_columns", [](In& in, const S& s) {
    const Tensor w = in({s.k, s.n}, kF8E4M3), scale = in({s.n});
    return (w.to(in.dtype()) * scale).t();
  });
  add("f32_weights", [](In& in, const S& s) { return in({s.n, s.k}, kF32).to(in.dtype()); });
}

// What is no number of the dtype in memory.
inline void add_converted(Rows& rows) {
  rows.push_back({.name = "both_of_f32", .make = [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}, kF32), w = in({s.n, s.k}, kF32);
                    return {in.product(x, w.t())};
                  }});
  // f32 and a narrower one: a product of f32, which may be rounded to TF32.
  rows.push_back({.name = "beside_f32",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in({s.n, s.k}, kF32);
                    return {x.to(kF32).matmul(w.t())};
                  },
                  .takes_f8 = false});
  rows.push_back({"mask_first", {}, [](In& in, const S& s) -> Tensors {
                    return {in.product(in.mask({s.m, s.k}), in.weights(s))};
                  }});
  rows.push_back({"mask_second", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    return {in.product(x, in.mask({s.n, s.k}).t())};
                  }});
}

inline void add_shared(Rows& rows) {
  rows.push_back({"grouped_queries", {0, 0, 128, 4}, [](In& in, const S& s) -> Tensors {
                    const int64_t heads = s.batch / 2;
                    const Tensor q = in({heads, 2, s.m, s.k}), keys = in({heads, 1, s.n, s.k});
                    return {in.product(q, keys.transpose(2, 3))};
                  }});
  rows.push_back({"one_second_for_all", {0, 0, 0, 4}, [](In& in, const S& s) -> Tensors {
                    return {in.product(in({s.batch, s.m, s.k}), in.weights(s))};
                  }});
  rows.push_back({"one_first_for_all", {0, 0, 0, 4}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in({s.batch, s.n, s.k});
                    return {in.product(x, w.transpose(1, 2))};
                  }});
  rows.push_back({"heads_of_rows", {0, 0, 128, 4}, [](In& in, const S& s) -> Tensors {
                    const Tensor q = in({s.m, s.batch, s.k}), keys = in({s.n, s.batch, s.k});
                    return {in.product(q.transpose(0, 1), keys.permute({1, 2, 0}))};
                  }});
  rows.push_back({.name = "constant_first",
                  .make = [](In& in, const S& s) -> Tensors {
                    return {in.product(Tensor::full({s.m, s.k}, 0.5, in.result()), in.weights(s))};
                  },
                  .on_units = false});
  rows.push_back({.name = "constant_second",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    return {in.product(x, Tensor::full({s.k, s.n}, 0.5, in.result()))};
                  },
                  .on_units = false});
  rows.push_back({"constant_triangle", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    return {in.product(x, Tensor::ones({s.k, s.n}, in.result()).tril())};
                  }});
  rows.push_back({"squared", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    return {in.product(x, x)};
                  }});
  rows.push_back({"by_its_transpose", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    return {in.product(x, x.t())};
                  }});
}

inline void add_gathered(Rows& rows) {
  rows.push_back({"gathered_rows", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({2 * s.m, s.k}), at = in.places(s.m, 2 * s.m);
                    return {in.product(x.index_select(0, at), in.weights(s))};
                  }});
  rows.push_back({"gathered_columns", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in({2 * s.n, s.k});
                    return {in.product(x, w.index_select(0, in.places(s.n, 2 * s.n)).t())};
                  }});
  rows.push_back({"gathered_terms", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in({2 * s.k, s.n});
                    return {in.product(x, w.index_select(0, in.places(s.k, 2 * s.k)))};
                  }});
  rows.push_back({"gathered_blocks", {}, [](In& in, const S& s) -> Tensors {
                    constexpr int64_t kRows = 64;
                    const Tensor x = in({s.m, s.k}), w = in({2 * s.n / kRows, kRows, s.k});
                    const Tensor at = in.places(s.n / kRows, 2 * s.n / kRows);
                    return {in.product(x, w.index_select(0, at).reshape({s.n, s.k}).t())};
                  }});
  rows.push_back({"gathered_for_experts", {0, 0, 0, 4}, [](In& in, const S& s) -> Tensors {
                    const int64_t all = s.batch * s.m;
                    const Tensor x = in({all, s.k}), w = in({s.batch, s.n, s.k});
                    const Tensor own = x.index_select(0, in.places(all, all));
                    return {in.product(own.reshape({s.batch, s.m, s.k}), w.transpose(1, 2))};
                  }});
}

inline void add_moved(Rows& rows) {
  const auto add = [&rows](const char* name, Tensor (*first)(In&, const S&)) {
    rows.push_back({name, {}, [first](In& in, const S& s) -> Tensors {
                      const Tensor x = first(in, s);
                      return {in.product(x, in.weights(s))};
                    }});
  };
  const auto add_second = [&rows](const char* name, Tensor (*second)(In&, const S&)) {
    rows.push_back({name, {}, [second](In& in, const S& s) -> Tensors {
                      const Tensor x = in({s.m, s.k});
                      return {in.product(x, second(in, s))};
                    }});
  };
  add("concatenated_terms", [](In& in, const S& s) {
    const Tensor x = in({s.m, s.k / 2}), y = in({s.m, s.k - s.k / 2});
    return Tensor::cat({x, y}, 1);
  });
  add("concatenated_rows", [](In& in, const S& s) {
    const Tensor x = in({s.m / 2, s.k}), y = in({s.m - s.m / 2, s.k});
    return Tensor::cat({x, y}, 0);
  });
  add_second("concatenated_columns", [](In& in, const S& s) {
    const Tensor x = in({s.n / 2, s.k}), y = in({s.n - s.n / 2, s.k});
    return Tensor::cat({x, y}, 0).t();
  });
  add("padded_terms", [](In& in, const S& s) { return in({s.m, s.k - 5}).pad({{0, 0}, {2, 3}}); });
  add("padded_rows", [](In& in, const S& s) { return in({s.m - 5, s.k}).pad({{2, 3}, {0, 0}}); });
  add("flipped_terms", [](In& in, const S& s) { return in({s.m, s.k}).flip({1}); });
  add("flipped_rows", [](In& in, const S& s) { return in({s.m, s.k}).flip({0}); });
  add("strided_rows", [](In& in, const S& s) {
    return in({2 * s.m, s.k}).slice({0}, {2 * s.m}, {2});
  });
  add("strided_terms", [](In& in, const S& s) {
    return in({s.m, 2 * s.k}).slice({0, 0}, {s.m, 2 * s.k}, {1, 2});
  });
  add("transposed_first", [](In& in, const S& s) { return in({s.k, s.m}).t(); });
  add_second("plain_second", [](In& in, const S& s) { return in({s.k, s.n}); });
  rows.push_back({"transposed_first_plain_second", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.k, s.m}), w = in({s.k, s.n});
                    return {in.product(x.t(), w)};
                  }});
  add("odd_offset_first", [](In& in, const S& s) {
    return in({s.m + 3, s.k + 5}).narrow(0, 1, s.m).narrow(1, 3, s.k);
  });
  add_second("odd_offset_second", [](In& in, const S& s) {
    return in({s.n + 3, s.k + 5}).narrow(0, 1, s.n).narrow(1, 3, s.k).t();
  });
  add("odd_offset_even_rows", [](In& in, const S& s) {
    return in({s.m, s.k + 8}).narrow(1, 3, s.k);
  });
}

inline void add_reduced(Rows& rows) {
  const auto add = [&rows](const char* name, Tensor (*result)(const Tensor&)) {
    rows.push_back(
        {name, {}, [result](In& in, const S& s) -> Tensors { return {result(scaled(in, s))}; }});
  };
  add("row_max", [](const Tensor& y) { return y.max({1}); });
  add("row_sum", [](const Tensor& y) { return y.sum({1}); });
  add("log_sum_exp", [](const Tensor& y) { return y.logsumexp({1}); });
  add("arg_max", [](const Tensor& y) { return y.argmax(1); });
  add("column_sum", [](const Tensor& y) { return y.sum({0}); });
  add("mean_of_squares", [](const Tensor& y) { return y.square().mean(); });
  add("softmax", [](const Tensor& y) { return y.softmax(1); });
  add("transposed_result", [](const Tensor& y) { return y.t().contiguous(); });
  add("quantised", [](const Tensor& y) { return (y * 8).round().clamp(-127, 127).to(kI8); });
  add("heads_of_result", [](const Tensor& y) {
    const int64_t heads = 8, m = y.size(0), n = y.size(1);
    return y.reshape({m, heads, n / heads}).transpose(0, 1).contiguous();
  });
}

inline void add_continued(Rows& rows) {
  rows.push_back({"bias_gelu", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s);
                    return {(y + in.other({s.n})).gelu()};
                  }});
  rows.push_back({"bias_gelu_residual", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s), bias = in.other({s.n});
                    return {(y + bias).gelu() + in.other({s.m, s.n})};
                  }});
  rows.push_back({"bias_gelu_residual_norm", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s), bias = in.other({s.n});
                    const Tensor r = in.other({s.m, s.n}), scale = in.other({s.n});
                    return {layer_norm((y + bias).gelu() + r, {s.n}, scale, bias)};
                  }});
  rows.push_back({"several_outputs", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s);
                    return {y, y.gelu(), y * 2 + 1};
                  }});
  rows.push_back({"result_and_row_sum", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s);
                    return {y, y.sum({1})};
                  }});
  rows.push_back({"into_cache", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = plain(in, s), at = in.places(s.m, 2 * s.m);
                    Tensor& cache = in({2 * s.m, s.n}, in.result());
                    cache.assign({at}, y);
                    return {cache};
                  }});
  rows.push_back({"added_to", {}, [](In& in, const S& s) -> Tensors {
                    const Tensor y = plain(in, s);
                    return {y + in.other({s.m, s.n})};
                  }});
  rows.push_back({"added_for_tokens", {0, 0, 0, 4}, [](In& in, const S& s) -> Tensors {
                    const int64_t all = s.batch * s.m;
                    const Tensor x = in({s.batch, s.m, s.k}), w = in({s.batch, s.n, s.k});
                    const Tensor y = in.product(x, w.transpose(1, 2)).reshape({all, s.n});
                    const Tensor own = y * in.other({all, 1}), at = in({all}, kI64, s.m);
                    return {Tensor::zeros({s.m, s.n}, in.result()).index_add(0, at, own)};
                  }});
}

inline void add_several(Rows& rows) {
  rows.push_back({.name = "two_added",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor y = plain(in, s);
                    return {y + plain(in, s)};
                  },
                  .products = 2});
  rows.push_back({.name = "one_gates_another",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k}), w = in.weights(s), v = in.weights(s);
                    const double scale = 1 / std::sqrt(static_cast<double>(s.k));
                    return {(in.product(x, w) * scale).silu() * (in.product(x, v) * scale)};
                  },
                  .products = 2});
  rows.push_back({.name = "three_of_one",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor x = in({s.m, s.k});
                    const Tensor q = in.weights(s), k = in.weights(s), v = in.weights(s);
                    return {in.product(x, q), in.product(x, k), in.product(x, v)};
                  },
                  .products = 3});
  rows.push_back({.name = "product_of_three",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor y = scaled(in, s);
                    return {in.product(y, in({s.k, s.n}).t())};
                  },
                  .products = 2});
  rows.push_back({.name = "two_layers",
                  .make = [](In& in, const S& s) -> Tensors {
                    const Tensor y = (scaled(in, s) + in.other({s.n})).gelu();
                    return {in.product(y, in({s.k, s.n}).t()) + in.other({s.k})};
                  },
                  .products = 2});
}

inline void add_sizes(Rows& rows) {
  const auto add = [&rows](const std::string& name, S sizes, bool on_units) {
    rows.push_back({.name = name,
                    .sizes = sizes,
                    .make = [](In& in, const S& s) -> Tensors {
                      if (s.batch == 1) return {plain(in, s)};
                      const Tensor x = in({s.batch, s.m, s.k}), w = in({s.batch, s.n, s.k});
                      return {in.product(x, w.transpose(1, 2))};
                    },
                    .on_units = on_units,
                    .is_sized = true});
  };
  for (int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 77, 1000, 4095, 50257}) {
    const bool limits = size > 40;  // the product, and not memory
    add(cat("m_", size), {size, 0, 0}, limits);
    add(cat("n_", size), {0, size, 0}, limits);
    if (size < 50257) add(cat("k_", size), {0, 0, size}, limits);
  }
  add("k_0", {0, 0, kEmpty}, false);
  for (int64_t size : {1, 3, 8, 17, 77, 1000})
    add(cat("cube_", size), {size, size, size}, size == 1000);
  for (int64_t batch : {1, 4096}) add(cat("cubes_of_8_", batch), {8, 8, 8, batch}, false);
}

}  // namespace variants

inline std::vector<ProductVariant> product_variants() {
  std::vector<ProductVariant> rows;
  variants::add_computed(rows);
  variants::add_dequantised(rows, "", {});
  variants::add_dequantised(rows, "_8", {8, 0, 0});
  variants::add_dequantised(rows, "_40", {40, 0, 0});
  variants::add_converted(rows);
  variants::add_shared(rows);
  variants::add_gathered(rows);
  variants::add_moved(rows);
  variants::add_reduced(rows);
  variants::add_continued(rows);
  variants::add_several(rows);
  variants::add_sizes(rows);
  return rows;
}

}  // namespace tiny::bench
