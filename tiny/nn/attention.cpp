// Attention, dropout.
#include <cmath>
#include <limits>

#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"
#include "tiny/tensor/random.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Heads of keys and values repeated to those of the queries, as a view.
Tensor repeat_heads(const Tensor& x, const Tensor& q) {
  check(q.rank() >= 3 && x.rank() >= 3 && x.size(-3) > 0 && q.size(-3) % x.size(-3) == 0,
        "scaled_dot_product_attention: ", to_text(q.capacity()),
        " has no multiple of the heads of ", to_text(x.capacity()));
  return x.repeat_interleave(q.size(-3) / x.size(-3), -3);
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Tensor* t : {&q, &k, &v})
    detail::require_float("scaled_dot_product_attention", t->dtype());
  check(q.rank() >= 2 && k.rank() >= 2 && v.rank() >= 2 && q.size(-1) == k.size(-1) &&
            k.capacity()[k.rank() - 2] == v.capacity()[v.rank() - 2],
        "scaled_dot_product_attention: takes (..., L, E), (..., S, E) and (..., S, V) and not ",
        to_text(q.capacity()), ", ", to_text(k.capacity()), " and ", to_text(v.capacity()));
}

// Which keys each query sees by its position: not defined() where that is all of them.
Tensor seen_keys(const Tensor& scores, const AttentionOptions& o) {
  const int row = scores.rank() - 2;
  const Ints square = scores.capacity().subspan(row);
  const Tensor query = detail::position(square, 0, kI32), key = detail::position(square, 1, kI32);
  Tensor seen;
  const auto also = [&](const Tensor& part) { seen = seen.defined() ? seen & part : part; };
  if (o.is_causal) also(key <= query);
  if (o.window && o.window->first < square[0]) also(key >= query - o.window->first);
  if (o.window && o.window->second < square[1]) also(key <= query + o.window->second);
  if (!seen.defined()) return seen;
  Node n = seen.node();
  for (int i = 0; i < 2; ++i)
    if (Node length = scores.node()->length(row + i)) n = build::limit(n, i, length);
  return Tensor(n);
}

void check_mask(const Tensor& scores, const Tensor& mask) {
  const Ints whole = scores.capacity(), given = mask.capacity();
  bool fits = given.size() <= whole.size() && (mask.dtype().is_bool() || mask.dtype().is_float());
  for (size_t i = 0; fits && i < given.size(); ++i) {
    const int64_t size = given[given.size() - 1 - i];
    fits = size == 1 || size == whole[whole.size() - 1 - i];
  }
  check(fits, "scaled_dot_product_attention: a mask of ", mask.dtype(), ' ', to_text(given),
        " is no bool or float for each of the scores ", to_text(whole));
}

// What is added comes first: its gradient is none where a position hides a key, also in rows that
// see no key at all.
Tensor masked(const Tensor& scores, const AttentionOptions& o) {
  Tensor s = scores;
  if (o.softcap) s = (s * (1 / *o.softcap)).tanh() * *o.softcap;
  const bool given = o.mask.defined();
  if (given) check_mask(s, o.mask);
  if (given && !o.mask.dtype().is_bool()) s = s + o.mask.to(s.dtype());
  if (const Tensor seen = seen_keys(s, o); seen.defined()) s = where(seen, s, -kInfinity);
  return given && o.mask.dtype().is_bool() ? where(o.mask, s, -kInfinity) : s;
}

void check_options(const AttentionOptions& o) {
  check(o.dropout_p >= 0 && o.dropout_p <= 1, "scaled_dot_product_attention: dropout_p is ",
        o.dropout_p, " and no probability");
  check(!o.softcap || *o.softcap > 0, "scaled_dot_product_attention: softcap is ",
        o.softcap.value_or(0), " and not above 0");
  check(!o.window || (o.window->first >= 0 && o.window->second >= 0),
        "scaled_dot_product_attention: a window of ", o.window ? o.window->first : 0,
        " keys before and ", o.window ? o.window->second : 0, " behind: neither may be negative");
}

// A matrix in each of `heads`, to which its leading axes broadcast.
Tensor seen_in(const Tensor& x, const Shape& heads) {
  Shape shape = heads;
  for (int i = x.rank() - 2; i < x.rank(); ++i) shape.push_back(x.capacity()[i]);
  return Tensor(detail::broadcast_to(x.node(), shape));
}

// Which elements dropout keeps; not defined() where that is all of them.
Tensor kept_elements(const Tensor& x, double p) {
  if (p == 0) return Tensor();
  const detail::RandomOn here(x.device());
  return detail::with_lengths(random_bools(to_shape(x.capacity()), 1 - p), x);
}

// Dropout with elements that were drawn before.
Tensor dropped(const Tensor& x, const Tensor& keep, double p) {
  const double scale = p < 1 ? 1 / (1 - p) : 0;  // gradients of gradients meet no infinity
  return keep.defined() ? where(keep, x * scale, 0) : x;
}

// softmax(scores) times values, normalised behind the product: one division for each row of the
// result. Its gradient is written down as FlashAttention-2 has it (Dao, arXiv:2307.08691, section
// 3.1): the sum over a row of weights times their gradients is one of the result times its own,
// which is as wide as a head. Largest scores and sums stay apart: where a mask is the least finite
// number, a logarithm is lost beside it. Without keys the result is a sum of nothing.
Tensor weighted_values(const Tensor& scores, const Tensor& values, double dropout_p) {
  const DType t = values.dtype(), wide = scores.dtype();
  if (scores.capacity().back() == 0) return scores.to(t).matmul(values);
  const Tensor keep = kept_elements(scores, dropout_p);
  // Rounded, as a matrix unit takes them: where they are stored, the sum and the gradient read
  // that.
  const Tensor weights = (scores - scores.detach().max({-1}, true)).exp().to(t).to(wide);
  const Tensor sums = dropped(weights, keep, dropout_p).to(t).matmul(values, wide);
  const Tensor sum = weights.sum({-1}, true);
  const Tensor out = (sums / sum).to(t);
  return detail::custom_gradient(out, {scores, values}, [&](const Tensor& g) {
    const Tensor share = 1 / sum;
    // Not rounded: where one weight is all, what remains beside the mean is nothing.
    const Tensor wanted = dropped(g.matmul(values.transpose(-1, -2), wide), keep, dropout_p);
    const Tensor mean = (g.to(wide) * out.to(wide)).sum({-1}, true) * share;
    // Summed over the queries as the gradient of the keys is: one kernel computes both.
    const Tensor kept = dropped(weights * share, keep, dropout_p).to(t).to(wide);
    const Tensor by_query = kept.unsqueeze(-1) * g.to(wide).unsqueeze(-2);
    return std::vector<Tensor>{weights * (wanted * share - mean),
                               by_query.sum({-3}, true).to(t).squeeze(-3)};
  });
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& given_q, const Tensor& given_k,
                                    const Tensor& given_v, const AttentionOptions& options) {
  LabelScope label("scaled_dot_product_attention");
  check_attention(given_q, given_k, given_v);
  check_options(options);
  const Tensor q = detail::autocast(given_q), k = detail::autocast(given_k),
               v = detail::autocast(given_v);
  const Autocast no_further(kF32);
  const Tensor keys = options.enable_gqa ? repeat_heads(k, q) : k;
  const Tensor values = options.enable_gqa ? repeat_heads(v, q) : v;
  const DType t = promote(promote(q.dtype(), k.dtype()), v.dtype());
  const DType wide = detail::compute_dtype(t);
  const double scale =
      options.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.size(-1), 1))));
  // Scores stay in f32; weights are rounded, as a matrix unit takes them.
  const Tensor scores = masked(q.to(t).matmul(keys.to(t).transpose(-1, -2), wide) * scale, options);
  const Tensor of = values.to(t);
  const Ints rows = scores.capacity(), columns = of.capacity();
  const Shape heads = broadcast("scaled_dot_product_attention", rows.first(rows.size() - 2),
                                columns.first(columns.size() - 2));
  return weighted_values(seen_in(scores, heads), seen_in(of, heads), options.dropout_p);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  LabelScope label("rope");
  detail::require_float("rope", x.dtype());
  check(x.rank() >= 1 && x.size(-1) % 2 == 0, "rope: the last axis of ", to_text(x.capacity()),
        " has no two halves");
  const DType wide = detail::compute_dtype(x.dtype());
  const int64_t half = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, half).to(wide), b = x.narrow(-1, half, half).to(wide);
  const Tensor c = cos.to(wide), s = sin.to(wide);
  return Tensor::cat({a * c - b * s, b * c + a * s}, -1).to(x.dtype());
}

// --- Dropout -------------------------------------------------------------------------------------

Tensor dropout(const Tensor& x, double p, bool training) {
  LabelScope label("dropout");
  detail::require_float("dropout", x.dtype());
  check(p >= 0 && p <= 1, "dropout: ", p, " is no probability");
  if (!training || p == 0) return x;
  if (p == 1) return x * 0;
  return dropped(x, kept_elements(x, p), p);
}

}  // namespace tiny
