// Rows of the table: views, and what joins, repeats and fills.
#include <algorithm>
#include <numeric>

#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

bool any(const Known&) { return true; }

bool with_axes(Draw& d, Step& s, int least = 1) {
  const int x = d.pick([&](const Known& v) { return v.rank() >= least; });
  s.in = {x};
  if (x >= 0) s.i = d.axis(x);
  return x >= 0;
}

bool axis(Draw& d, Step& s) { return with_axes(d, s); }
bool matrix(Draw& d, Step& s) {
  s.j = d.between(-2, 2);
  return with_axes(d, s, 2);
}

// Sizes merged and split at random.
bool reshape(Draw& d, Step& s) {
  s.in = {d.pick(any)};
  if (s.in[0] < 0) return false;
  Shape shape = to_shape(d[s.in[0]].shape());
  if (d[s.in[0]].value.numel() == 0 && d.chance(0.7)) {  // other sizes that hold nothing
    s.a = d.shape(3);
    s.a.insert(s.a.begin() + d.below(static_cast<int64_t>(s.a.size()) + 1), 0);
    return true;
  }
  for (int64_t turn = d.between(1, 3); turn > 0; --turn) {
    const auto rank = static_cast<int64_t>(shape.size());
    const int64_t at = rank ? d.below(rank) : 0;
    if (rank >= 2 && at + 1 < rank && d.chance(0.5)) {
      shape[static_cast<size_t>(at)] *= shape[static_cast<size_t>(at) + 1];
      shape.erase(shape.begin() + at + 1);
    } else if (rank && shape[static_cast<size_t>(at)] > 1) {
      const int64_t n = shape[static_cast<size_t>(at)];
      const int64_t by = d.between(2, n);
      if (n % by) continue;
      shape[static_cast<size_t>(at)] = n / by;
      shape.insert(shape.begin() + at + 1, by);
    } else {
      shape.insert(shape.begin() + at, 1);
    }
  }
  s.a = shape;
  return true;
}

bool permute(Draw& d, Step& s) {
  if (!with_axes(d, s, 2)) return false;
  s.a.resize(static_cast<size_t>(d[s.in[0]].rank()));
  std::iota(s.a.begin(), s.a.end(), 0);
  for (size_t n = s.a.size(); n > 1; --n)
    std::swap(s.a[n - 1], s.a[static_cast<size_t>(d.below(static_cast<int64_t>(n)))]);
  return true;
}

bool expand(Draw& d, Step& s) {
  s.in = {d.pick(any)};
  if (s.in[0] < 0) return false;
  s.a = to_shape(d[s.in[0]].shape());
  bool changed = false;
  for (int64_t& n : s.a)
    if (n == 1 && d.chance(0.7)) {
      n = d.between(2, 5);
      changed = true;
    }
  if (!changed || d.chance(0.3)) s.a.insert(s.a.begin(), d.between(1, 4));
  return true;
}

bool unsqueeze(Draw& d, Step& s) {
  s.in = {d.pick(any)};
  if (s.in[0] >= 0) s.i = d.below(d[s.in[0]].rank() + 1);
  return s.in[0] >= 0;
}

bool flip(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  s.a = d.axes(s.in[0]);
  return true;
}

// a, b: begins and ends; or starts and stops of a slice with steps of i.
bool part(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  for (int64_t n : d[s.in[0]].shape()) {
    const bool whole = n < 2 || d.chance(0.4);
    s.a.push_back(whole ? 0 : d.below(n));
    s.b.push_back(whole ? n : d.between(s.a.back() + 1, n));
  }
  s.i = d.between(1, 3);
  return true;
}

bool narrow(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  const int64_t n = d[s.in[0]].shape()[static_cast<size_t>(s.i)];
  if (n == 0) return false;
  s.j = d.below(n);
  s.k = d.chance(0.03) ? 0 : d.between(1, n - s.j);
  return true;
}

bool window(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  const int64_t n = d[s.in[0]].shape()[static_cast<size_t>(s.i)];
  s.j = d.between(1, 3);
  s.k = d.between(1, 2);
  s.a = {d.between(1, 2)};
  return (s.j - 1) * s.a[0] < n;
}

// a: an amount before, b: behind each axis.
bool pads(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  for (int64_t n : d[s.in[0]].shape()) {
    const bool none = d.chance(0.4);
    s.a.push_back(none ? 0 : d.between(n < 3 ? 0 : -1, 2));
    s.b.push_back(none ? 0 : d.between(n < 3 ? 0 : -1, 2));
  }
  s.i = d.below(d[s.in[0]].rank());
  s.r = static_cast<double>(d.between(-4, 4)) / 4;
  return true;
}

bool roll(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  s.j = d.between(-3, 3);
  return true;
}

bool repeat(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  for (int n = 0; n < d[s.in[0]].rank(); ++n) s.a.push_back(d.chance(0.5) ? 1 : d.between(1, 3));
  if (d.chance(0.2)) s.a.insert(s.a.begin(), d.between(1, 2));
  s.j = d.between(1, 3);
  return true;
}

bool alike(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  const int x = s.in[0];
  s.in.push_back(d.of_shape(to_shape(d[x].shape()), d[x].dtype()));
  return s.in[1] >= 0;
}

// Parts that agree beside the axis.
bool joined(Draw& d, Step& s) {
  if (!with_axes(d, s)) return false;
  const int x = s.in[0];
  Shape shape = to_shape(d[x].shape());
  const auto at = static_cast<size_t>(s.i);
  const int y = d.pick([&](const Known& v) {
    Shape other = to_shape(v.shape());
    if (other.size() != shape.size() || v.dtype() != d[x].dtype()) return false;
    other[at] = shape[at];
    return other == shape;
  });
  shape[at] = d.size();
  s.in.push_back(y >= 0 && (y != x || d.chance(0.3)) ? y : d.leaf(shape, d[x].dtype()));
  if (s.in[1] >= 0 && d.chance(0.3)) s.in.push_back(x);
  return s.in[1] >= 0;
}

}  // namespace

std::vector<Row> movement_rows() {
  return {
      {"reshape", 36, "m", reshape, TINY_EXPRESSION(x.reshape(a))},
      {"permute", 12, "m", permute, TINY_EXPRESSION(x.permute(a))},
      {"transpose", 2, "m", matrix, TINY_EXPRESSION(x.transpose(i, -1))},
      {"expand", 36, "m", expand, TINY_EXPRESSION(x.expand(a))},
      {"unsqueeze", 6, "m", unsqueeze, TINY_EXPRESSION(x.unsqueeze(i))},
      {"squeeze", 2, "m", axis, TINY_EXPRESSION(x.squeeze())},
      {"squeeze_axis", 1, "m", axis, TINY_EXPRESSION(x.squeeze(i))},
      {"flatten", 1, "m", axis, TINY_EXPRESSION(x.flatten(i))},
      {"flip", 3, "m", flip, TINY_EXPRESSION(x.flip(a))},
      {"slice", 6, "m", part, TINY_EXPRESSION(x.slice({a[0]}, {b[0]}, {i}))},
      {"shrink", 2, "m", part, TINY_EXPRESSION(shrunk(x, a, b))},
      {"narrow", 6, "m", narrow, TINY_EXPRESSION(x.narrow(i, j, k))},
      {"select", 2, "m", narrow, TINY_EXPRESSION(x.select(i, j))},
      {"diagonal", 1, "m", matrix, TINY_EXPRESSION(x.diagonal(j))},
      {"unfold", 2, "m", window, TINY_EXPRESSION(x.unfold(i, j, k, a[0]))},
      {"pad", 3, "m", pads, TINY_EXPRESSION(padded(x, a, b, PadMode::Constant, r))},
      {"pad_zero", 2, "m", pads, TINY_EXPRESSION(padded(x, a, b, PadMode::Constant, 0))},
      {"pad_reflect", 1, "m", pads, TINY_EXPRESSION(padded(x, a, b, PadMode::Reflect, 0))},
      {"pad_replicate", 1, "m", pads, TINY_EXPRESSION(padded(x, a, b, PadMode::Replicate, 0))},
      {"pad_circular", 1, "m", pads, TINY_EXPRESSION(padded(x, a, b, PadMode::Circular, 0))},
      {"roll", 2, "m", roll, TINY_EXPRESSION(x.roll({j}, i))},
      {"repeat", 1, "m", repeat, TINY_EXPRESSION(x.repeat(a))},
      {"repeat_interleave", 1, "m", repeat, TINY_EXPRESSION(x.repeat_interleave(j, i))},
      {"tril", 1, "m", matrix, TINY_EXPRESSION(x.tril(j))},
      {"triu", 1, "m", matrix, TINY_EXPRESSION(x.triu(j))},
  };
}

std::vector<Row> joining_rows() {
  return {
      {"cat", 2, "m", joined, TINY_EXPRESSION(Tensor::cat({x, y}, i))},
      {"cat_around", 1, "m", joined, TINY_EXPRESSION(Tensor::cat({x, y, x}, i))},
      {"stack", 2, "m", alike, TINY_EXPRESSION(Tensor::stack({x, y}, i))},
      {"stack_itself", 1, "m", alike, TINY_EXPRESSION(Tensor::stack({x, y * 0.5, x}, -1))},
      {"chunk", 1, "m", axis, TINY_EXPRESSION(x.chunk(2, i)[0])},
      {"split", 1, "m", axis, TINY_EXPRESSION(x.split(2, i).back())},
      {"contiguous", 2, "m", axis, TINY_EXPRESSION(x.contiguous())},
  };
}

}  // namespace tiny::programs
