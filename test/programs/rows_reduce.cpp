// Rows of the table: reductions, statistics and scans.
#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

bool over_axes(Draw& d, Step& s) {
  // What has just been broadcast is a reduction's most telling operand.
  const auto fits = [](const Known& v) { return is_real(v) && v.rank() > 0; };
  int x = d.chance(0.4) ? d.pick([&](const Known& v) { return fits(v) && v.is_broadcast; }) : -1;
  if (x < 0) x = d.pick(fits);
  s.in = {x};
  if (x < 0) return false;
  s.a = d.axes(x);
  s.i = d.axis(x);
  s.j = d.chance(0.6);  // keepdim
  return true;
}

bool over_filled(Draw& d, Step& s) { return over_axes(d, s) && is_filled(d[s.in[0]]); }

bool integers_over_axes(Draw& d, Step& s) {
  const int x = d.pick([](const Known& v) { return !is_real(v) && v.rank() > 0 && is_filled(v); });
  s.in = {x};
  if (x < 0) return false;
  s.a = d.axes(x);
  s.i = d.axis(x);
  s.j = d.chance(0.5);
  return true;
}

bool best(Draw& d, Step& s) {
  if (!over_filled(d, s)) return false;
  s.k = d.between(1, d[s.in[0]].shape()[static_cast<size_t>(s.i)]);
  return true;
}

bool product(Draw& d, Step& s) { return over_axes(d, s) && d[s.in[0]].value.numel() < 200; }

}  // namespace

std::vector<Row> reduction_rows() {
  return {
      {"sum", 28, "e", over_axes, TINY_EXPRESSION(x.sum(a, j))},
      {"sum_all", 1, "e", over_axes, TINY_EXPRESSION(x.sum())},
      {"mean", 20, "", over_filled, TINY_EXPRESSION(x.mean(a, j))},
      {"max", 16, "m", over_filled, TINY_EXPRESSION(x.max(a, j))},
      {"min", 4, "m", over_filled, TINY_EXPRESSION(x.min(a, j))},
      {"max_all", 2, "m", over_filled, TINY_EXPRESSION(x.max({}, true))},
      {"prod", 1, "", product, TINY_EXPRESSION((x.tanh() * 0.5 + 1).prod(a, j))},
      {"var", 8, "", over_filled, TINY_EXPRESSION(x.var(a, j, 0))},
      {"std", 1, "", over_filled, TINY_EXPRESSION((x.var(a, j, 0) + 0.3).sqrt())},
      {"norm", 1, "", over_filled, TINY_EXPRESSION((x.square().sum(a, j) + 0.3).sqrt())},
      {"logsumexp", 16, "", over_filled, TINY_EXPRESSION(x.logsumexp(a, j))},
      {"softmax", 16, "", over_filled, TINY_EXPRESSION(x.softmax(i))},
      {"log_softmax", 6, "", over_filled, TINY_EXPRESSION(x.log_softmax(i))},
      {"mean_square", 12, "", over_filled, TINY_EXPRESSION(x.square().mean(a, j))},
      {"centered", 6, "", over_filled, TINY_EXPRESSION(x - x.mean(a, true))},
      {"standardized", 12, "", over_filled,
       TINY_EXPRESSION((x - x.mean(a, true)) * (x.var(a, true, 0) + 0.3).rsqrt())},
      {"rms", 12, "", over_filled, TINY_EXPRESSION(x * (x.square().mean(a, true) + 0.5).rsqrt())},
      {"argmax", 1, "ms", over_filled, TINY_EXPRESSION(x.argmax(i, j))},
      {"argmin", 1, "ms", over_filled, TINY_EXPRESSION(x.argmin(i, j))},
      {"median", 1, "m", over_filled, TINY_EXPRESSION(x.median(i, j))},
      {"any", 1, "ms", over_axes, TINY_EXPRESSION((x > 0.5).any(a, j))},
      {"all", 1, "ms", over_axes, TINY_EXPRESSION((x > -0.5).all(a, j))},
      {"int_sum", 1, "ms", integers_over_axes, TINY_EXPRESSION(x.sum(a, j))},
      {"int_max", 1, "ms", integers_over_axes, TINY_EXPRESSION(x.max(a, j))},
      {"int_argmax", 1, "ms", integers_over_axes, TINY_EXPRESSION(x.argmax(i, j))},
  };
}

std::vector<Row> scan_rows() {
  return {
      {"cumsum", 4, "e", over_filled, TINY_EXPRESSION(x.cumsum(i))},
      {"cumprod", 1, "", over_filled, TINY_EXPRESSION((x.tanh() * 0.5 + 1).cumprod(i))},
      {"cummax", 1, "m", over_filled, TINY_EXPRESSION(x.cummax(i).values)},
      {"cummin", 1, "m", over_filled, TINY_EXPRESSION(x.cummin(i).values)},
      {"cummax_index", 1, "ms", over_filled, TINY_EXPRESSION(x.cummax(i).indices)},
      {"logcumsumexp", 1, "", over_filled, TINY_EXPRESSION(x.logcumsumexp(i))},
      {"sort", 1, "m", over_filled, TINY_EXPRESSION(x.sort(i, j).values)},
      {"sort_index", 1, "ms", over_filled, TINY_EXPRESSION(x.sort(i, j).indices)},
      {"argsort", 1, "ms", over_filled, TINY_EXPRESSION(x.argsort(i, j))},
      {"topk", 1, "m", best, TINY_EXPRESSION(x.topk(k, i, j).values)},
      {"topk_index", 1, "ms", best, TINY_EXPRESSION(x.topk(k, i, j).indices)},
      {"int_cumsum", 1, "ms", integers_over_axes, TINY_EXPRESSION(x.cumsum(i))},
      {"int_sort", 1, "ms", integers_over_axes, TINY_EXPRESSION(x.sort(i, j).values)},
  };
}

}  // namespace tiny::programs
