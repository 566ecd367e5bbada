// Attention as programs spell it out, with tensor operations alone: masks, biases, caps, packed
// sequences, caches. One table for the test of what they compute in which kernels
// (test/ops/test_attention_variants.cpp), and for their times (extra/bench/attention.cpp).
#pragma once
#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::bench {

struct AttentionSizes {
  int64_t batch = 4, heads = 16, length = 4096, width = 64;
  Shape shape() const { return {batch, heads, length, width}; }
};

// The tensors that a variant reads. Asked again from begin() on it gives the same ones.
class AttentionInputs {
 public:
  using Source = std::function<Tensor(const Shape&, DType)>;  // of realized random numbers

  AttentionInputs(Source source, DType dtype) : source_(std::move(source)), dtype_(dtype) {}

  void begin() { next_ = 0; }
  // What has a gradient: made by the source.
  Tensor& operator()(const Shape& shape, DType dtype) {
    return next([&] { return source_(shape, dtype); }, true);
  }
  Tensor& operator()(const Shape& shape) { return (*this)(shape, dtype_); }
  // i32: f of each element's number.
  Tensor& integers(const Shape& shape, const std::function<int64_t(int64_t)>& f) {
    return next(
        [&] {
          std::vector<int32_t> values(static_cast<size_t>(numel(shape)));
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<int32_t>(f(static_cast<int64_t>(i)));
          Tensor x = Tensor::from(values, shape);
          return x.realize();
        },
        false);
  }
  // bool: true for seven of eight elements.
  Tensor& mask(const Shape& shape) {
    return next(
        [&] {
          std::vector<uint8_t> values(static_cast<size_t>(numel(shape)));
          for (size_t i = 0; i < values.size(); ++i) values[i] = i * 7919 % 1021 % 8 != 3;
          Tensor x = Tensor::from(values, shape).to(kBool);
          return x.realize();
        },
        false);
  }
  DType dtype() const { return dtype_; }
  std::vector<Tensor*> learned() const { return learned_; }

 private:
  Tensor& next(const std::function<Tensor()>& make, bool is_learned) {
    if (next_ == made_.size()) {
      made_.push_back(make());
      if (is_learned) learned_.push_back(&made_.back());
    }
    return made_[next_++];
  }

  Source source_;
  DType dtype_;
  std::deque<Tensor> made_;  // references to them stay
  std::vector<Tensor*> learned_;
  size_t next_ = 0;
};

struct AttentionVariant {
  using In = AttentionInputs;
  using S = AttentionSizes;
  std::string name;
  // Which keys each query sees: bool, broadcasts to (B, H, L, L). None: all.
  std::function<Tensor(In&, const S&)> mask = {};
  // The scores as they are before they are masked.
  std::function<Tensor(In&, const S&, const Tensor&)> score = {};
  // The whole of it, with `mask`'s mask or without, where it is no softmax of (B, H, L, L) scores.
  std::function<Tensor(In&, const S&)> make = {};
  bool skips_tiles = false;  // the mask is affine in positions: loops begin and end by it
  double work = 1;           // for each score, as a part of the plain one's

  Tensor operator()(In& in, const S& s) const;
};

namespace variants {

using AIn = AttentionInputs;
using AS = AttentionSizes;

// Sums of products stay as they are summed.
inline Tensor attention_scores(const Tensor& q, const Tensor& k) {
  const DType wide = q.dtype() == kF64 ? kF64 : kF32;
  return q.matmul(k.transpose(-2, -1), wide) * (1 / std::sqrt(static_cast<double>(q.size(-1))));
}
inline Tensor hidden(const Tensor& seen, const Tensor& scores) {
  return where(seen, scores, -INFINITY);
}
inline Tensor attention_of(const Tensor& scores, const Tensor& v) {
  return scores.softmax(-1).to(v.dtype()).matmul(v);
}

// Positions of queries and of keys, which broadcast to (L, L).
inline Tensor query_of(const AS& s) { return Tensor::arange(s.length).reshape({s.length, 1}); }
inline Tensor key_of(const AS& s) { return Tensor::arange(s.length).reshape({1, s.length}); }
inline Tensor is_before(const AS& s) { return query_of(s) >= key_of(s); }
inline int64_t near(const AS& s) { return s.length / 16; }  // of windows
inline Tensor is_near(const AS& s) { return (query_of(s) - key_of(s)).abs() <= near(s); }

// Sequences of different lengths, packed: the number of each token's, for queries and for keys.
inline Tensor is_same(const Tensor& ids, const AS& s) {
  return ids.reshape({s.batch, 1, s.length, 1}) == ids.reshape({s.batch, 1, 1, s.length});
}
inline Tensor documents(AIn& in, const AS& s) {
  return in.integers({s.batch, s.length}, [length = s.length](int64_t i) {
    const int64_t b = i / length, at = i % length * 16 / length;  // 16 parts, cut at some of them
    return (at > 0) + (at > 2 + b) + (at > 6) + (at > 7 + b);
  });
}
inline Tensor is_same_document(AIn& in, const AS& s) { return is_same(documents(in, s), s); }
inline Tensor lengths(AIn& in, const AS& s) {
  return in.integers({s.batch, 1, 1, 1},
                     [&s](int64_t b) { return s.length - (b + 1) * s.length / 8 - b; });
}

using Variants = std::vector<AttentionVariant>;

inline void add_masks(Variants& rows) {
  const auto add = [&](const char* name, bool skips, Tensor (*mask)(AIn&, const AS&)) {
    rows.push_back({.name = name, .mask = mask, .skips_tiles = skips});
  };
  add("causal", true, [](AIn&, const AS& s) { return is_before(s); });
  add("causal_window", true,
      [](AIn&, const AS& s) { return is_before(s) & (query_of(s) - key_of(s) <= near(s)); });
  add("window", true, [](AIn&, const AS& s) { return is_near(s); });
  add("prefix", true, [](AIn&, const AS& s) { return (key_of(s) < s.length / 4) | is_before(s); });
  add("documents", false, is_same_document);
  add("causal_documents", true,
      [](AIn& in, const AS& s) { return is_same_document(in, s) & is_before(s); });
  add("dilated_window", true, [](AIn&, const AS& s) {
    const Tensor far = query_of(s) - key_of(s);
    return (far >= 0) & (far <= 2 * near(s)) & (mod(far, 2) == 0);
  });
  // Positions are those of pixels in rows; windows stay inside the image.
  add("neighbourhood", true, [](AIn&, const AS& s) {
    int64_t row = 1;
    while (row * row < s.length) row *= 2;
    const int64_t rows = s.length / row, reach = std::max<int64_t>(1, rows / 16);
    const auto fits = [&](const Tensor& q, const Tensor& k, int64_t size) {
      return (q.clamp(reach, size - 1 - reach) - k).abs() <= reach;
    };
    const Tensor q = query_of(s), k = key_of(s);
    return fits(floor_div(q, row), floor_div(k, row), rows) & fits(mod(q, row), mod(k, row), row);
  });
  add("global_local", false, [](AIn&, const AS& s) {
    const int64_t first = s.length / 32;
    return (query_of(s) < first) | (key_of(s) < first) | is_near(s);
  });
  add("modalities", false, [](AIn& in, const AS& s) {
    const Tensor ids = in.integers({s.batch, s.length}, [length = s.length](int64_t i) {
      const int64_t at = i % length * 16 / length;
      return at % 4 == 2 ? at : -1;  // -1: text
    });
    const Tensor picture = ids.reshape({s.batch, 1, s.length, 1}) >= 0;
    return is_before(s) | (picture & is_same(ids, s));
  });
  add("lengths", false, [](AIn& in, const AS& s) { return key_of(s) < lengths(in, s); });
  add("causal_lengths", true,
      [](AIn& in, const AS& s) { return (key_of(s) < lengths(in, s)) & is_before(s); });
  add("mask", false, [](AIn& in, const AS& s) { return in.mask({s.length, s.length}); });
  add("mask_of_batch", false, [](AIn& in, const AS& s) {
    return in.mask({s.batch, 1, s.length, s.length});
  });
  add("mask_of_keys", false, [](AIn& in, const AS& s) {
    return in.mask({s.batch, 1, 1, s.length});
  });
}

inline void add_scores(Variants& rows) {
  const auto cap = [](AIn&, const AS&, const Tensor& x) { return (x / 20).tanh() * 20; };
  const auto before = [](AIn&, const AS& s) { return is_before(s); };
  const auto alibi = [](AIn&, const AS& s, const Tensor& x) {
    const Tensor head = Tensor::arange(1, s.heads + 1).reshape({s.heads, 1, 1});
    return x + (head * (-8.0 / static_cast<double>(s.heads))).exp2() * (key_of(s) - query_of(s));
  };
  rows.push_back({.name = "alibi", .score = alibi});
  rows.push_back({.name = "causal_alibi", .mask = before, .score = alibi, .skips_tiles = true});
  rows.push_back({.name = "soft_cap", .score = cap});
  rows.push_back({.name = "causal_soft_cap", .mask = before, .score = cap, .skips_tiles = true});
  rows.push_back({.name = "relative_position", .score = [](AIn&, const AS& s, const Tensor& x) {
                    return x + (query_of(s) - key_of(s)).to(kF32) * 0.01;
                  }});
  rows.push_back({.name = "bias_table", .score = [](AIn& in, const AS& s, const Tensor& x) {
                    const Tensor table = in({2 * s.length - 1, s.heads}, kF32);
                    const Tensor at = query_of(s) - key_of(s) + (s.length - 1);
                    const Tensor bias = table.index_select(0, at.flatten());
                    return x + bias.t().reshape({s.heads, s.length, s.length});
                  }});
  // Distances in 32 classes, as wide as they are far.
  rows.push_back({.name = "bias_buckets", .score = [](AIn& in, const AS& s, const Tensor& x) {
                    const Tensor table = in({32, s.heads}, kF32);
                    const Tensor far = (query_of(s) - key_of(s)).abs().to(kF32);
                    const Tensor at = ((far + 1).log2() * 2).to(kI32).clamp(0, 31);
                    const Tensor bias = table.index_select(0, at.flatten());
                    return x + bias.t().reshape({s.heads, s.length, s.length});
                  }});
  rows.push_back({.name = "added_mask", .score = [](AIn& in, const AS& s, const Tensor& x) {
                    return x + in({s.length, s.length}, kF32);
                  }});
  rows.push_back(
      {.name = "added_mask_of_batch", .score = [](AIn& in, const AS& s, const Tensor& x) {
         return x + in({s.batch, 1, s.length, s.length});
       }});
  // The same as "causal".
  const auto add_triangle = [&](const char* name, Tensor (*masked)(const Tensor&, const AS&)) {
    rows.push_back({.name = name,
                    .mask = before,
                    .make =
                        [masked](AIn& in, const AS& s) {
                          const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                          return attention_of(masked(attention_scores(q, k), s), v);
                        },
                    .skips_tiles = true});
  };
  add_triangle("added_triangle", [](const Tensor& x, const AS& s) {
    return x + Tensor::full({s.length, s.length}, -INFINITY).triu(1);
  });
  add_triangle("filled_triangle", [](const Tensor& x, const AS& s) {
    return x.masked_fill(Tensor::ones({s.length, s.length}).tril() == 0, -INFINITY);
  });
}

inline void add_forms(Variants& rows) {
  const auto before = [](AIn&, const AS& s) { return is_before(s); };
  rows.push_back({.name = "plain"});
  rows.push_back({.name = "rounded_scores", .make = [](AIn& in, const AS& s) {
                    const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                    const double scale = 1 / std::sqrt(static_cast<double>(s.width));
                    return (q.matmul(k.transpose(-2, -1)) * scale).softmax(-1).matmul(v);
                  }});
  rows.push_back({.name = "grouped_queries",
                  .mask = before,
                  .make =
                      [](AIn& in, const AS& s) {
                        const int64_t groups = s.heads / 2;
                        const Tensor q = in(s.shape());
                        const Shape few{s.batch, groups, s.length, s.width};
                        const Tensor k = in(few).repeat_interleave(2, 1);
                        const Tensor v = in(few).repeat_interleave(2, 1);
                        return attention_of(hidden(is_before(s), attention_scores(q, k)), v);
                      },
                  .skips_tiles = true});
  // A weight of its own for each head that no value has.
  rows.push_back({.name = "sinks", .make = [](AIn& in, const AS& s) {
                    const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                    const Tensor sink = in({s.heads, 1, 1}, kF32), x = attention_scores(q, k);
                    const Tensor top = maximum(x.max({-1}, true), sink).detach();
                    const Tensor e = (x - top).exp();
                    const Tensor all = e.sum({-1}, true) + (sink - top).exp();
                    return (e / all).to(v.dtype()).matmul(v);
                  }});
  rows.push_back(
      {.name = "sinks_beside",
       .mask = before,
       .make =
           [](AIn& in, const AS& s) {
             const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
             const Tensor sink = in({1, s.heads, 1, 1}, kF32);
             const Tensor x = hidden(is_before(s), attention_scores(q, k));
             const Tensor both = Tensor::cat({x, sink.expand({s.batch, s.heads, s.length, 1})}, -1);
             return both.softmax(-1).narrow(-1, 0, s.length).to(v.dtype()).matmul(v);
           },
       .skips_tiles = true});
  rows.push_back({.name = "dropout", .make = [](AIn& in, const AS& s) {
                    const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                    const Tensor weights = attention_scores(q, k).softmax(-1);
                    return dropout(weights, 0.2).to(v.dtype()).matmul(v);
                  }});
  // The last queries beside a cache of all keys, and of as many as each sequence has.
  const auto last = [](const Tensor& first, const AS& s) {
    return query_of(s).narrow(0, 0, s.length / 4) + first >= key_of(s);
  };
  const auto add_offset = [&](const char* name, bool skips, auto seen) {
    rows.push_back({.name = name,
                    .mask = seen,
                    .make =
                        [seen](AIn& in, const AS& s) {
                          const Tensor q = in({s.batch, s.heads, s.length / 4, s.width});
                          const Tensor k = in(s.shape()), v = in(s.shape());
                          return attention_of(hidden(seen(in, s), attention_scores(q, k)), v);
                        },
                    .skips_tiles = skips});
  };
  add_offset("offset", true, [last](AIn&, const AS& s) {
    return last(Tensor::full({1}, s.length - s.length / 4), s);
  });
  add_offset("offsets", false,
             [last](AIn& in, const AS& s) { return last(lengths(in, s) - s.length / 4, s); });
  rows.push_back({.name = "sigmoid", .make = [](AIn& in, const AS& s) {
                    const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                    const double less = std::log(static_cast<double>(s.length));
                    const Tensor weights = (attention_scores(q, k) - less).sigmoid();
                    return weights.to(v.dtype()).matmul(v);
                  }});
  rows.push_back({.name = "causal_sigmoid",
                  .mask = before,
                  .make =
                      [](AIn& in, const AS& s) {
                        const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
                        const double less = std::log(static_cast<double>(s.length));
                        const Tensor weights = (attention_scores(q, k) - less).sigmoid();
                        return where(is_before(s), weights, 0).to(v.dtype()).matmul(v);
                      },
                  .skips_tiles = true});
  rows.push_back({.name = "wide_keys",
                  .mask = before,
                  .make =
                      [](AIn& in, const AS& s) {
                        const Shape wide{s.batch, s.heads, s.length, s.width * 3 / 2};
                        const Tensor q = in(wide), k = in(wide), v = in(s.shape());
                        return attention_of(hidden(is_before(s), attention_scores(q, k)), v);
                      },
                  .skips_tiles = true,
                  .work = 1.25});
  // Keys and values of each sequence in pages, wherever there was place for one.
  rows.push_back({.name = "pages",
                  .mask = [](AIn& in, const AS& s) { return key_of(s) < lengths(in, s); },
                  .make =
                      [](AIn& in, const AS& s) {
                        constexpr int64_t kPage = 16;
                        const int64_t count = s.batch * s.length / kPage;
                        const Tensor q = in(s.shape());
                        const Shape pool{count, kPage, s.heads, s.width};
                        const Tensor keys = in(pool), values = in(pool);
                        const Tensor table =
                            in.integers({count}, [count](int64_t i) { return i * 7919 % count; });
                        const auto all = [&](const Tensor& pages) {
                          const Shape own{s.batch, s.length, s.heads, s.width};
                          return pages.index_select(0, table).reshape(own).transpose(1, 2);
                        };
                        const Tensor x = attention_scores(q, all(keys));
                        return attention_of(hidden(key_of(s) < lengths(in, s), x), all(values));
                      }});
}

}  // namespace variants

inline Tensor AttentionVariant::operator()(In& in, const S& s) const {
  in.begin();
  if (make) return make(in, s);
  const Tensor q = in(s.shape()), k = in(s.shape()), v = in(s.shape());
  Tensor scores = variants::attention_scores(q, k);
  if (score) scores = score(in, s, scores);
  if (mask) scores = variants::hidden(mask(in, s), scores);
  return variants::attention_of(scores, v);
}

inline std::vector<AttentionVariant> attention_variants() {
  std::vector<AttentionVariant> rows;
  variants::add_forms(rows);
  variants::add_masks(rows);
  variants::add_scores(rows);
  return rows;
}

}  // namespace tiny::bench
