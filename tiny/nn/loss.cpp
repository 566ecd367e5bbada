// Losses. Those of one row (cross entropy) pick the target's element by a comparison with the
// position, so that the whole loss of a row is reductions over that row and no gather.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "tiny/ir/sizes.h"
#include "tiny/nn/functional.h"
#include "tiny/run/memory.h"
#include "tiny/tensor/detail.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The losses in f32 or f64, reduced and rounded once.
Tensor reduced(const Tensor& losses, Reduction reduction, DType t) {
  switch (reduction) {
    case Reduction::None: return losses.to(t);
    case Reduction::Mean: return losses.mean().to(t);
    case Reduction::Sum: return losses.sum().to(t);
    default: {
      check(losses.rank() > 0, "kl_div: Reduction::BatchMean of a 0-d tensor");
      const Node length = losses.node()->length(0);
      return (losses.sum() / (length ? Tensor(length) : Tensor(losses.size(0)))).to(t);
    }
  }
}

// A loss of x and a target of the same shape, computed by f(x, target) in f32 or f64.
template <class F>
Tensor elementwise(const char* what, const Tensor& x, const Tensor& target, Reduction reduction,
                   F f) {
  LabelScope label(what);
  detail::require_float(what, x.dtype());
  detail::require_float(what, target.dtype());
  check(same(x.capacity(), target.capacity()), what, ": an input of ", to_text(x.capacity()),
        " and a target of ", to_text(target.capacity()), ": they must have one shape");
  check(reduction != Reduction::BatchMean || std::string(what) == "kl_div", what,
        ": Reduction::BatchMean is for kl_div");
  const DType t = detail::autocast_loss(promote(x.dtype(), target.dtype()));
  const DType wide = detail::compute_dtype(t);
  return reduced(f(x.to(wide), target.to(wide)), reduction, t);
}

// --- Classes -------------------------------------------------------------------------------------

struct Classes {
  const char* what;
  int axis;  // of the classes
  int64_t count;
};

Classes classes_of(const char* what, const Tensor& x, int axis, const CrossEntropyOptions& o) {
  detail::require_float(what, x.dtype());
  check(x.rank() >= 1, what, ": takes (N, C, ...) or (C) and not a 0-d tensor");
  check(o.reduction != Reduction::BatchMean, what, ": Reduction::BatchMean is for kl_div");
  const int64_t count = x.size(axis);
  check(!o.weight.defined() || same(o.weight.shape(), Shape{count}), what, ": a weight of ",
        o.weight.defined() ? std::string(to_text(o.weight.shape())) : "", " for ", count,
        " classes");
  return {what, axis, count};
}

// weight (C), ones where it is not defined, in the rank of x.
Tensor class_weight(const Classes& c, const Tensor& lp, const Tensor& weight) {
  Shape lifted(lp.rank(), 1);
  lifted[c.axis] = c.count;
  const Tensor w = weight.defined() ? weight.to(lp.dtype()) : Tensor::ones({c.count}, lp.dtype());
  return w.reshape(lifted);
}

void require_numbers(const Classes& c, const Tensor& lp, const Tensor& target) {
  detail::require_index(c.what, target.dtype());
  Shape positions = to_shape(lp.capacity());
  positions.erase(positions.begin() + c.axis);
  check(same(target.capacity(), positions), c.what, ": class numbers of shape ",
        to_text(target.capacity()), " for an input of ", to_text(lp.capacity()), ": they are ",
        to_text(positions));
}

// The class of each element.
Tensor class_position(const Classes& c, const Tensor& lp) {
  return detail::with_lengths(detail::position(lp.capacity(), c.axis, kI32), lp);
}

// What is added to the losses: NaN where a number is that of no class, and not ignored either,
// since no kernel can raise an error, and any other number would pass for a loss. A sum and no
// selection, so that gradients need no mask.
Tensor poison(const Classes& c, const Tensor& number, const CrossEntropyOptions& o, DType t) {
  const Tensor outside =
      logical_and(logical_or(number < 0, number >= c.count), number != o.ignore_index);
  return where(outside, kNan, 0).to(t);
}

// Before they are reduced, in f32 or f64.
struct Losses {
  Tensor each;
  Tensor share;  // of each in what the mean is divided by; not defined: 1

  Tensor reduced_by(Reduction reduction, DType t) const {
    if (reduction != Reduction::Mean || !share.defined()) return reduced(each, reduction, t);
    return (each.sum() / share.sum()).to(t);
  }
};

// Of class numbers.
Tensor shares_of(const Tensor& number, const CrossEntropyOptions& o, DType t) {
  const Tensor used = number != o.ignore_index;
  if (!o.weight.defined()) return used.to(t);
  const Node at = number.to(kI64).node();
  return where(used, Tensor(build::gather(o.weight.to(t).node(), std::array{at})), 0);
}

// The loss of log-probabilities and class numbers, read along the whole row: a row that is computed
// for this loss alone need not be stored, and its gradient is no scatter.
Losses number_losses(const Classes& c, const Tensor& lp, const Tensor& target,
                     const CrossEntropyOptions& o) {
  require_numbers(c, lp, target);
  const Tensor number = target.to(kI64).unsqueeze(c.axis);
  const Tensor used = number != o.ignore_index;
  const Tensor position = class_position(c, lp);
  const Tensor hit = logical_and(position == number.to(kI32), used);
  const Tensor weight = class_weight(c, lp, o.weight);
  const double e = o.label_smoothing;
  Tensor loss = where(hit, -lp * weight, 0).sum(c.axis);
  if (e != 0) {
    const Tensor spread = where(used, -lp * weight, 0).sum(c.axis);
    loss = loss * (1 - e) + spread * (e / static_cast<double>(c.count));
  }
  loss = loss + poison(c, number.squeeze(c.axis), o, loss.dtype());
  return {loss, o.weight.defined() ? where(hit, weight, 0).sum(c.axis)
                                   : used.squeeze(c.axis).to(lp.dtype())};
}

// The same without smoothing, reading the target's element alone: of x less `shift`, one number for
// each row, where there is one.
Losses gathered_losses(const Classes& c, const Tensor& x, const Tensor& shift, const Tensor& target,
                       const CrossEntropyOptions& o) {
  require_numbers(c, x, target);
  const Tensor number = target.to(kI64), used = number != o.ignore_index;
  std::vector<Node> at;
  for (int i = 0; i < x.rank(); ++i)
    at.push_back(i == c.axis ? number.node() : build::iota(target.shape(), i - (i > c.axis), kI64));
  const Tensor picked(build::gather(x.node(), at));  // a number outside the classes reads 0
  const Tensor loss = shift.defined() ? shift.squeeze(c.axis) - picked : -picked;
  const Tensor share = shares_of(number, o, x.dtype());
  const Tensor each =
      where(used, o.weight.defined() ? loss * share : loss, 0) + poison(c, number, o, loss.dtype());
  // Picked by the kernel that ends the rows' sums, on many multiprocessors, and not by that of the
  // few that add them up.
  return {shift.defined() ? each.contiguous() : each, share};
}

// Of logits whose rows nothing but reductions reads, one of them with the target's element alone:
// none waits for the others, so that a row need not be there as a whole.
Losses selected_losses(const Classes& c, const Tensor& x, const Tensor& target,
                       const CrossEntropyOptions& o) {
  require_numbers(c, x, target);
  const Tensor number = target.to(kI64), used = number != o.ignore_index;
  const Tensor position = class_position(c, x);
  const Tensor hit = position == number.to(kI32).unsqueeze(c.axis);
  const Tensor all = x.logsumexp(c.axis);
  const Tensor share = shares_of(number, o, x.dtype());
  Tensor loss = all - where(hit, x, 0).sum(c.axis);
  if (o.weight.defined()) loss = loss * share;
  if (const double e = o.label_smoothing; e != 0) {
    const Tensor weight = class_weight(c, x, o.weight);
    const Tensor spread = all * weight.sum() - (x * weight).sum(c.axis);
    loss = loss * (1 - e) + spread * (e / static_cast<double>(c.count));
  }
  return {where(used, loss, 0) + poison(c, number, o, loss.dtype()), share};
}

// The loss of log-probabilities and class probabilities.
Losses probability_losses(const Classes& c, const Tensor& lp, const Tensor& target,
                          const CrossEntropyOptions& o) {
  check(same(target.capacity(), lp.capacity()), c.what, ": class probabilities of shape ",
        to_text(target.capacity()), " for an input of ", to_text(lp.capacity()),
        ": they must have one shape");
  const double e = o.label_smoothing;
  Tensor q = target.to(lp.dtype());
  if (e != 0) q = q * (1 - e) + e / static_cast<double>(c.count);
  if (o.weight.defined()) q = q * class_weight(c, lp, o.weight);
  return {-(q * lp).sum(c.axis), Tensor()};
}

// Of logits.
Losses cross_entropies(const Classes& c, const Tensor& x, const Tensor& target,
                       const CrossEntropyOptions& o) {
  check(o.label_smoothing >= 0 && o.label_smoothing <= 1, c.what, ": label_smoothing ",
        o.label_smoothing, " is not in [0, 1]");
  const Tensor wide = x.to(detail::compute_dtype(x.dtype()));
  const bool grad = x.requires_grad() || (o.weight.defined() && o.weight.requires_grad());
  const bool has_numbers = !target.dtype().is_float();
  if (has_numbers && !grad) {
    if (detail::pieces_of_row(wide, c.axis) == 1) return selected_losses(c, wide, target, o);
    if (o.label_smoothing == 0 && !x.node()->lengths)  // the row is not at hand
      return gathered_losses(c, wide, detail::log_sum_exp(wide, c.axis), target, o);
  }
  const Tensor lp = wide.log_softmax(c.axis);
  return has_numbers ? number_losses(c, lp, target, o) : probability_losses(c, lp, target, o);
}

}  // namespace

Tensor cross_entropy(const Tensor& x, const Tensor& target, const CrossEntropyOptions& options) {
  LabelScope label("cross_entropy");
  const Classes c = classes_of("cross_entropy", x, x.rank() > 1, options);
  return cross_entropies(c, x, target, options)
      .reduced_by(options.reduction, detail::autocast_loss(x.dtype()));
}

Tensor nll_loss(const Tensor& x, const Tensor& target, const CrossEntropyOptions& options) {
  LabelScope label("nll_loss");
  const Classes c = classes_of("nll_loss", x, x.rank() > 1, options);
  check(options.label_smoothing == 0, "nll_loss: takes no label_smoothing: use cross_entropy");
  const Tensor lp = x.to(detail::compute_dtype(x.dtype()));
  const DType t = detail::autocast_loss(x.dtype());
  const bool grad =
      x.requires_grad() || (options.weight.defined() && options.weight.requires_grad());
  const Losses losses = grad || x.node()->lengths ? number_losses(c, lp, target, options)
                                                  : gathered_losses(c, lp, {}, target, options);
  return losses.reduced_by(options.reduction, t);
}

// --- Classes of a product ------------------------------------------------------------------------

namespace {

// How the rows of x (..., E) go in chunks.
struct ChunkAxis {
  int axis = -1;        // the longest one that is not cut over devices; -1: there is none
  int64_t devices = 1;  // that have a part of each chunk
};

ChunkAxis chunk_axis(const Tensor& x) {
  ChunkAxis out;
  if (x.node()->lengths) return out;
  const auto devices = static_cast<int64_t>(device_members(x.node()->device).size());
  const int cut = devices > 0 ? x.shard_axis() : -1;
  if (cut >= 0) out.devices = devices;
  for (int i = 0; i + 1 < x.rank(); ++i)
    if (i != cut && (out.axis < 0 || x.shape()[i] > x.shape()[out.axis])) out.axis = i;
  return out;
}

// Positions of a chunk of logits of which all take so many bytes. Chunks of one size share their
// kernels: a few more are better than a smaller last one.
int64_t default_chunk(int64_t positions, int64_t bytes) {
  // Each chunk adds to the weight's gradient once more (measurements.md: default_chunk).
  constexpr int64_t kBytes = int64_t{2} << 30, kShare = 8;  // of a limit: gradients are as large
  const int64_t limit = memory_limit();
  const int64_t most = limit ? std::clamp<int64_t>(limit / kShare, 1, kBytes) : kBytes;
  const int64_t least = std::clamp<int64_t>(ceil_div(bytes, most), 1, positions);
  for (int64_t n = least; n <= std::min(2 * least, positions); ++n)
    if (positions % n == 0) return positions / n;
  return ceil_div(positions, least);
}

constexpr const char* kLinear = "linear_cross_entropy";

// Of rows of one axis, where there is no Variable: what sums their gradients is a product of
// matrices then.
Tensor logits_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool is_flat = x.rank() < 3 || x.node()->lengths;
  return (is_flat ? x : x.flatten(0, -2)).linear(weight, bias);
}

Losses losses_of(const Tensor& x, const Tensor& weight, const Tensor& target,
                 const LinearCrossEntropyOptions& options) {
  const Tensor logits = logits_of(x, weight, options.bias);
  const int last = logits.rank() - 1;
  const bool is_flat = logits.rank() == x.rank();
  const Tensor classes = is_flat ? target : target.flatten(0, x.rank() - 2);
  const Classes c = classes_of(kLinear, logits, last, options.loss);
  Losses out = cross_entropies(c, logits, classes, options.loss);
  if (!is_flat && options.loss.reduction == Reduction::None) {
    Shape rows = to_shape(x.shape());
    rows.pop_back();
    out.each = out.each.reshape(rows);
  }
  return out;
}

// As many positions as are given, else one chunk where no logits are stored, else those of a
// budget.
int64_t chunk_of(const Tensor& x, const Tensor& weight, const Tensor& target,
                 const LinearCrossEntropyOptions& options, int64_t positions, int64_t devices) {
  if (options.batch_chunk_size > 0) return options.batch_chunk_size;
  const Tensor logits = logits_of(x, weight, options.bias);
  const bool weight_grad = options.loss.weight.defined() && options.loss.weight.requires_grad();
  if (!target.dtype().is_float() && !weight_grad && detail::is_reduced_as_computed(logits))
    return positions;
  return default_chunk(positions,
                       logits.numel() / devices * static_cast<int64_t>(logits.dtype().size()));
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options) {
  LabelScope label(kLinear);
  const Autocast never_f8(detail::autocast_dtype());
  const CrossEntropyOptions& o = options.loss;
  detail::require_float(kLinear, x.dtype());
  check(x.rank() > 0 && weight.rank() == 2, kLinear,
        ": takes rows (..., E) and a weight (C, E), not ", to_text(x.capacity()), " and ",
        to_text(weight.capacity()));
  check(options.batch_chunk_size >= 0, kLinear, ": batch_chunk_size is ", options.batch_chunk_size);
  Shape wanted = to_shape(x.capacity());
  wanted.pop_back();
  const int64_t rows = numel(wanted);
  if (target.dtype().is_float()) wanted.push_back(weight.capacity()[0]);
  check(same(target.capacity(), wanted), kLinear, ": a target of shape ",
        to_text(target.capacity()), " for rows of shape ", to_text(x.capacity()), ": it is ",
        to_text(wanted));
  const auto [axis, devices] = chunk_axis(x);
  const int64_t positions = axis < 0 ? 0 : x.shape()[axis];
  const int64_t chunk =
      positions == 0 ? 0 : chunk_of(x, weight, target, options, positions, devices);
  if (chunk >= positions) {
    const Losses losses = losses_of(x, weight, target, options);
    return losses.reduced_by(o.reduction, losses.each.dtype());
  }
  std::vector<Tensor> each;
  Tensor sum;
  for (int64_t from = 0; from < positions; from += chunk) {
    const auto part = [&, axis = axis](const Tensor& t) {
      return t.narrow(axis, from, std::min(chunk, positions - from));
    };
    // In memory of their own rows are those of one product, whatever the chunk.
    each.push_back(losses_of(part(x).contiguous(), weight, part(target), options).each);
    sum = from == 0 ? each[0].sum() : sum + each.back().sum();
  }
  if (o.reduction == Reduction::None) return Tensor::cat(each, axis);
  if (o.reduction == Reduction::Sum) return sum;
  // Of targets alone: what gradients are divided by is there before the first chunk.
  if (!target.dtype().is_float()) return sum / shares_of(target, o, sum.dtype()).sum();
  return sum / static_cast<double>(rows);
}

// --- Regression ----------------------------------------------------------------------------------

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return elementwise("mse_loss", x, target, reduction,
                     [](const Tensor& a, const Tensor& b) { return (a - b).square(); });
}

Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  return elementwise("l1_loss", x, target, reduction,
                     [](const Tensor& a, const Tensor& b) { return (a - b).abs(); });
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction, double beta) {
  check(beta >= 0, "smooth_l1_loss: beta ", beta, " is negative");
  if (beta == 0) return l1_loss(x, target, reduction);
  return elementwise("smooth_l1_loss", x, target, reduction, [&](const Tensor& a, const Tensor& b) {
    const Tensor rest = a - b, d = rest.abs();  // the square of d has no second derivative at 0
    return where(d < beta, rest.square() * (0.5 / beta), d - beta / 2);
  });
}

Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction, double delta) {
  check(delta > 0, "huber_loss: delta ", delta, " is not positive");
  return elementwise("huber_loss", x, target, reduction, [&](const Tensor& a, const Tensor& b) {
    const Tensor rest = a - b, d = rest.abs();
    return where(d < delta, rest.square() * 0.5, (d - delta / 2) * delta);
  });
}

// --- Probabilities -------------------------------------------------------------------------------

namespace {

// log x, limited to -100, with the gradient 0 at x = 0.
Tensor limited_log(const Tensor& x) {
  const Tensor zero = x == 0, y = where(zero, 1, x).log();
  return where(logical_or(zero, y < -100), -100, y);
}

Tensor weighted(const Tensor& losses, const Tensor& weight) {
  return weight.defined() ? losses * weight.to(losses.dtype()) : losses;
}

}  // namespace

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight,
                            Reduction reduction) {
  return elementwise("binary_cross_entropy", x, target, reduction,
                     [&](const Tensor& p, const Tensor& q) {
                       const Tensor loss = q * limited_log(p) + (1 - q) * limited_log(1 - p);
                       return weighted(-loss, weight);
                     });
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const Tensor& weight,
                                        const Tensor& pos_weight, Reduction reduction) {
  return elementwise("binary_cross_entropy_with_logits", x, target, reduction,
                     [&](const Tensor& a, const Tensor& q) {
                       // -log sigmoid(x) = log(1 + e^-x); -log(1 - sigmoid(x)) is that plus x.
                       const Tensor y = (-a).softplus(1, kInfinity);
                       const Tensor positive = weighted(q, pos_weight);
                       return weighted((1 - q) * (a + y) + positive * y, weight);
                     });
}

Tensor sigmoid_focal_loss(const Tensor& x, const Tensor& target, double alpha, double gamma,
                          Reduction reduction) {
  check(gamma >= 0 && alpha <= 1, "sigmoid_focal_loss: gamma ", gamma, " and alpha ", alpha,
        ": they are at least 0 and at most 1");
  return elementwise(
      "sigmoid_focal_loss", x, target, reduction, [&](const Tensor& a, const Tensor& q) {
        const Tensor entropy = (1 - q) * a + (-a).softplus(1, kInfinity);
        const Tensor p = a.sigmoid(), miss = p + q - p * q * 2;  // the probability of the other
        Tensor loss = entropy * (gamma == 2 ? miss.square() : pow(miss, gamma));
        if (alpha >= 0) loss = loss * (q * alpha + (1 - q) * (1 - alpha));
        return loss;
      });
}

Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction, bool log_target) {
  return elementwise("kl_div", x, target, reduction, [&](const Tensor& a, const Tensor& b) {
    if (log_target) return b.exp() * (b - a);
    const Tensor zero = b == 0;
    return where(zero, 0, b * (where(zero, 1, b).log() - a));
  });
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& o) {
  constexpr const char* kWhat = "triplet_margin_loss";
  LabelScope label(kWhat);
  for (const Tensor* x : {&anchor, &positive, &negative}) {
    detail::require_float(kWhat, x->dtype());
    check(x->rank() >= 1, kWhat, ": takes vectors (N, E) and not a 0-d tensor");
  }
  check(o.reduction != Reduction::BatchMean, kWhat, ": Reduction::BatchMean is for kl_div");
  const DType t =
      detail::autocast_loss(promote(anchor.dtype(), promote(positive.dtype(), negative.dtype())));
  const DType wide = detail::compute_dtype(t);
  const Tensor a = anchor.to(wide), p = positive.to(wide), n = negative.to(wide);
  const auto distance = [&](const Tensor& x, const Tensor& y) {
    return (x - y + o.eps).norm(-1, false, o.p);
  };
  Tensor far = distance(a, n);
  if (o.swap) far = minimum(far, distance(p, n));
  return reduced((distance(a, p) - far + o.margin).clamp(0, {}), o.reduction, t);
}

}  // namespace tiny
