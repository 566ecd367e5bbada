// Rows of the table: reading and writing at indices, assigns in place, random numbers.
#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

int filled(Draw& d) {
  return d.pick([](const Known& v) { return is_real(v) && v.rank() > 0 && is_filled(v); });
}

// i: the axis. The index has x's shape but along it.
bool gathered(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0) return false;
  s.i = d.axis(x);
  Shape shape = to_shape(d[x].shape());
  const int64_t n = shape[static_cast<size_t>(s.i)];
  shape[static_cast<size_t>(s.i)] = d.between(1, n + 1);
  s.in = {x, d.indices(shape, n)};
  return s.in[1] >= 0 && n > 1;
}

bool selected(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0) return false;
  s.i = d.axis(x);
  const int64_t n = d[x].shape()[static_cast<size_t>(s.i)];
  s.in = {x, d.indices({d.between(1, 6)}, n)};
  return s.in[1] >= 0 && n > 1;
}

bool embedded(Draw& d, Step& s) {
  const int x = d.pick([](const Known& v) { return is_real(v) && v.rank() == 2 && is_filled(v); });
  if (x < 0) return false;
  const int64_t n = d[x].shape()[0];
  s.in = {x, d.indices(d.shape(2), n)};
  return s.in[1] >= 0 && n > 1;
}

// A base, an index, a source of the index's shape.
bool scattered(Draw& d, Step& s) {
  if (!gathered(d, s)) return false;
  const int source = d.of_shape(to_shape(d[s.in[1]].shape()), d[s.in[0]].dtype());
  s.in.push_back(source);
  const Ints base = d[s.in[0]].shape(), index = d[s.in[1]].shape();
  for (size_t n = 0; n < base.size(); ++n)
    if (static_cast<int64_t>(n) != s.i && index[n] > base[n]) return false;
  return source >= 0;
}

bool added(Draw& d, Step& s) {
  if (!selected(d, s)) return false;
  Shape shape = to_shape(d[s.in[0]].shape());
  shape[static_cast<size_t>(s.i)] = d[s.in[1]].value.numel();
  s.in.push_back(d.of_shape(shape, d[s.in[0]].dtype()));
  return s.in[2] >= 0;
}

bool hot(Draw& d, Step& s) {
  s.i = d.between(2, 6);
  s.in = {d.indices(d.shape(2), s.i)};
  return s.in[0] >= 0;
}

bool chosen(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0) return false;
  s.in = {x};
  s.i = d.between(0, d[x].value.numel());
  return true;
}

// x[i:j] along the first axis, and a value that broadcasts to it.
bool sliced(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0) return false;
  Shape shape = to_shape(d[x].shape());
  s.i = d.below(shape[0]);
  s.j = d.between(s.i + 1, shape[0]);
  s.k = d.between(1, 2);
  shape[0] = (s.j - s.i + s.k - 1) / s.k;
  if (d.chance(0.3)) shape.erase(shape.begin());
  s.in = {x, d.of_shape(shape, d[x].dtype())};
  return s.in[1] >= 0;
}

// x[i : i + j] = x[k : k + j], which overlap.
bool overlapping(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0 || d[x].shape()[0] < 2) return false;
  const int64_t n = d[x].shape()[0];
  s.j = d.between(1, n - 1);
  s.i = d.between(0, n - s.j);
  s.k = d.between(0, n - s.j);
  s.in = {x};
  return true;
}

bool whole(Draw& d, Step& s) {
  const int x = filled(d);
  if (x < 0) return false;
  s.in = {x, d.of_shape(to_shape(d[x].shape()), d[x].dtype())};
  return s.in[1] >= 0;
}

bool fresh(Draw& d, Step& s) {
  s.a = d.shape();
  s.t = d.real_type();
  s.i = d.between(3, 9);
  return true;
}

// A value and an earlier one, from which its gradient computes it again where that led to it.
bool between(Draw& d, Step& s) {
  const auto real = [](const Known& v) { return is_real(v); };
  const int a = d.pick(real), b = d.pick(real);
  s.in = {std::max(a, b), std::min(a, b)};
  return a >= 0 && b >= 0;
}

}  // namespace

std::vector<Row> index_rows() {
  return {
      {"gather", 2, "m", gathered, TINY_EXPRESSION(x.gather(i, y))},
      {"take_along_dim", 1, "m", gathered, TINY_EXPRESSION(x.take_along_dim(y, i))},
      {"index_select", 2, "m", selected, TINY_EXPRESSION(x.index_select(i, y))},
      {"embedding", 2, "m", embedded, TINY_EXPRESSION(x.embedding(y))},
      {"one_hot", 1, "ms", hot, TINY_EXPRESSION(x.one_hot(i))},
      {"scatter_add", 2, "e", scattered, TINY_EXPRESSION(x.scatter_add(i, y, z))},
      {"scatter_sum", 1, "e", scattered, TINY_EXPRESSION(x.scatter_reduce(i, y, z, "sum"))},
      {"scatter_mean", 1, "", scattered, TINY_EXPRESSION(x.scatter_reduce(i, y, z, "mean", false))},
      {"scatter_max", 1, "m", scattered, TINY_EXPRESSION(x.scatter_reduce(i, y, z, "amax"))},
      {"scatter_min", 1, "m", scattered, TINY_EXPRESSION(x.scatter_reduce(i, y, z, "amin", false))},
      {"index_add", 1, "e", added, TINY_EXPRESSION(x.index_add(i, y, z))},
      {"index_put", 1, "e", embedded, TINY_EXPRESSION(x.index_put({y}, x.mean(0), true))},
      {"index", 1, "m", embedded, TINY_EXPRESSION(x.index({y, Slice{0, {}, 2}}))},
      {"index_new", 1, "m", embedded, TINY_EXPRESSION(x.index({kEllipsis, kNewAxis, -1}))},
      {"masked_select", 1, "m", chosen, TINY_EXPRESSION(x.masked_select(x > 0, i))},
      {"nonzero", 1, "ms", chosen, TINY_EXPRESSION((x > 0).nonzero(i))},
      {"slice_assign", 1, "m", sliced, TINY_EXPRESSION(x.slice_assign({i}, {j}, {k}, y))},
  };
}

std::vector<Row> state_rows() {
  return {
      {"checkpoint", 6, "m", between, TINY_EXPRESSION(checkpointed(x, {y}))},
      {"detach", 1, "ms", whole, TINY_EXPRESSION(x.detach())},
      {"assign", 2, "ms", whole, TINY_EXPRESSION([&] {
         Tensor w = x.detach();
         w.assign(y.detach());
         return w;
       }())},
      {"assign_part", 2, "ms", sliced, TINY_EXPRESSION([&] {
         Tensor w = x.detach();
         w.assign({Slice{i, j, k}}, y.detach());
         return w;
       }())},
      {"assign_own", 1, "ms", sliced, TINY_EXPRESSION([&] {
         Tensor w = x.detach() * 1;
         w.assign({Slice{i, j, k}}, y.detach());
         return w;
       }())},
      {"assign_overlap", 2, "es", overlapping, TINY_EXPRESSION([&] {
         Tensor w = x.detach().contiguous();
         w.assign({Slice{i, i + j}}, w.narrow(0, k, j) + 1);
         return w;
       }())},
      {"assign_twice", 1, "ms", sliced, TINY_EXPRESSION([&] {
         Tensor w = x.detach().contiguous();
         w.assign({Slice{i, j, k}}, y.detach());
         w.assign(w.flip(0));
         return w;
       }())},
      {"checkpoint", 2, "", whole,
       TINY_EXPRESSION(checkpoint(
           [](const Tensor& p, const Tensor& q) { return (p.tanh() * q + p).sin(); }, x, y))},
      {"rand", 1, "r", fresh, TINY_EXPRESSION((manual_seed(seed), Tensor::rand(a, t)))},
      {"randn", 1, "r", fresh, TINY_EXPRESSION((manual_seed(seed), Tensor::randn(a, t)))},
      {"randint", 1, "rm", fresh,
       TINY_EXPRESSION((manual_seed(seed), Tensor::randint(-3, i, a, kI32)))},
      {"dropout", 1, "r", whole, TINY_EXPRESSION((manual_seed(seed), dropout(x, 0.3)))},
      {"bernoulli", 1, "rs", whole,
       TINY_EXPRESSION((manual_seed(seed), x.detach().sigmoid().bernoulli()))},
  };
}

}  // namespace tiny::programs
