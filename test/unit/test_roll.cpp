#include "codegen/options/roll.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "test/unit/kernels.h"
#include "test/unit/run_kernel.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;
using namespace tiny::test;
namespace B = tiny::build;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Sizes of a chain of products: queries, keys, the summed axis of the first, columns of the second.
struct Sizes {
  int64_t m = 12, n = 96, e = 8, d = 8;
};

Node lifted(Node n, Shape to, Shape wide) { return B::expand(B::reshape(n, to), wide); }
Node scores(const Sizes& s, Node q, Node k) {
  Node product = B::binary(Op::Mul, lifted(q, {s.m, 1, s.e}, {s.m, s.n, s.e}),
                           lifted(k, {1, s.n, s.e}, {s.m, s.n, s.e}));
  return B::reshape(sum(product, 4), Shape{s.m, s.n});
}
Node weighted(const Sizes& s, Node p, Node v) {
  Node product = B::binary(Op::Mul, lifted(p, {s.m, s.n, 1}, {s.m, s.n, s.d}),
                           lifted(v, {1, s.n, s.d}, {s.m, s.n, s.d}));
  return B::reshape(sum(product, 2), Shape{s.m, s.d});
}
// Keys before a query's position, and not further back than 40.
Node masked(const Sizes& s, Node x) {
  const Shape all{s.m, s.n};
  Node query = B::binary(Op::Mul, B::iota(all, 0, kI32), B::full(all, kI32, int64_t{8}));
  Node key = B::iota(all, 1, kI32);
  Node seen =
      B::binary(Op::And, B::binary(Op::Le, key, query),
                B::binary(Op::Lt, query, B::binary(Op::Add, key, B::full(all, kI32, int64_t{40}))));
  return B::where(seen, x, B::full(all, kF32, -kInf));
}
Node square(Node x) { return B::binary(Op::Mul, x, x); }
Node max_of_rows(Node x) { return spread(B::reduce(Op::Max, x, 2), x); }
Node exponentials(Node s) { return B::unary(Op::Exp2, B::binary(Op::Sub, s, max_of_rows(s))); }
Node one_over(Node x) { return B::unary(Op::Recip, x); }

// The only range of `extent` that reductions close.
int reduced(Node sink, int64_t extent_of) {
  int id = -1;
  for (Node r : ranges_of(sink))
    if (kind(r) == RangeKind::Reduce && extent(r) == extent_of) id = range_id(r);
  return id;
}

// Runs the kernel Sink(Store(param 0, value)) by these options.
std::vector<float> run(Node value, const std::vector<Opt>& options, Compiler compiler,
                       std::vector<std::vector<float>>& in, bool check = false) {
  const Target target = host_target(compiler);
  Choice choice;
  choice.options = options;
  const Lowered lowered = lower(kernel_of({value}), "chain", target, nullptr, &choice);
  if (check) {
    ProofSettings settings;
    read_kernel(kernel_of({value}), target, settings);
    CHECK(prove(lowered.machine, settings).verdict == Verdict::Proved);
  }
  const bool llvm = compiler == Compiler::Llvm;
  const std::string binary = llvm ? compile_llvm(lowered.source) : compile_cc(lowered.source);
  const auto program =
      llvm ? load_llvm(binary, lowered.source.entry) : load_cc(binary, lowered.source.entry);
  std::vector<float> out(static_cast<size_t>(numel(value->shape())));
  std::vector<void*> args{out.data()};
  for (auto& v : in) args.push_back(v.data());
  static_cast<CpuProgram&>(*program).kernel()(args.data(), 0, value->shape()[0]);
  return out;
}

std::vector<Opt> rolled(Node value, const Sizes& s, int64_t tile, int64_t columns) {
  Arena arena;
  ArenaScope scope(arena);
  const Target target = host_target(Compiler::Cc);
  Node sink = loops_of(kernel_of({value}), target);
  std::vector<Opt> out;
  const auto add = [&](Opt o) {
    sink = tiny::apply(sink, o, target);
    out.push_back(o);
  };
  const int keys = reduced(sink, s.n);
  add({OptKind::Split, keys, tile, {}});
  add({OptKind::Roll, keys, 0, {}});
  for (Node r : ranges_of(sink))
    if (columns && kind(r) == RangeKind::Loop && extent(r) == columns)
      add({OptKind::Bind, range_id(r), static_cast<int64_t>(RangeKind::Unroll), {}});
  return out;
}

void check_alike(const std::vector<float>& a, const std::vector<float>& b) {
  double size = 0, worst = 0;
  int apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::isnan(a[i]) != std::isnan(b[i]);
    if (std::isnan(a[i]) || a[i] == b[i]) continue;
    size = std::max<double>(size, std::fabs(a[i]));
    worst = std::max<double>(worst, std::fabs(a[i] - b[i]));
  }
  CHECK(apart == 0);
  CHECK(worst <= 4e-6 * size);
}

using Chain = std::function<Node(const Sizes&, Node q, Node k, Node v)>;

void check_chain(const Chain& chain, Sizes s, int64_t tile, bool strange = false) {
  Arena arena;
  ArenaScope scope(arena);
  Node q = tensor_param(1, {s.m, s.e}), k = tensor_param(2, {s.n, s.e}),
       v = tensor_param(3, {s.n, s.d});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> in(3);
  for (Node p : {q, k, v})
    for (int64_t i = 0; i < numel(p->shape()); ++i)
      in[static_cast<size_t>(slot_of(p) - 1)].push_back(2 * normal(random));
  if (strange) {
    const size_t e = static_cast<size_t>(s.e);
    in[0][0] = kInf;
    in[0][e] = -kInf;
    in[0][2 * e] = NAN;
    for (size_t i = 0; i < e; ++i) in[0][3 * e + i] *= 1e20f;
    for (size_t i = 0; i < e; ++i) in[0][4 * e + i] *= 1e-20f;
  }
  Node value = chain(s, q, k, v);
  for (Compiler c : compilers()) {
    const std::vector<float> plain = run(value, {}, c, in);
    check_alike(plain, run(value, rolled(value, s, tile, value->shape()[1]), c, in, true));
  }
}

Node attention(const Sizes& s, Node q, Node k, Node v) {
  Node e = exponentials(scores(s, q, k));
  Node total = B::reshape(sum(e, 2), Shape{s.m, 1});
  return B::binary(Op::Div, weighted(s, e, v), B::expand(total, Shape{s.m, s.d}));
}

// n - the first position of each row's extremum, or of NaN; `step`: by how much places change.
Node place(Node x, Op op, int64_t step, bool or_nan) {
  const Shape all(x->shape().begin(), x->shape().end());
  Node hit = B::binary(Op::Eq, x, spread(B::reduce(op, x, 2), x));
  if (or_nan) hit = B::binary(Op::Or, hit, B::binary(Op::Ne, x, x));
  Node at = B::binary(Op::Mul, B::iota(all, 1, kI32), B::full(all, kI32, step));
  at = B::binary(Op::Add, at, B::full(all, kI32, step < 0 ? -step * all[1] : int64_t{1}));
  return B::cast(B::reduce(Op::Max, B::where(hit, at, B::full(all, kI32, int64_t{0})), 2), kF32);
}

}  // namespace

TEST_CASE("roll: attention in one loop over its keys") {
  check_chain(attention, {}, 32);
  check_chain(attention, {}, 48);
  check_chain(attention, {12, 90, 8, 8}, 32);  // a last tile that is not whole
  check_chain(attention, {}, 16, true);
}

TEST_CASE("roll: weights that are normalised before they meet the values") {
  const Chain chain = [](const Sizes& s, Node q, Node k, Node v) {
    return weighted(s, softmax(scores(s, q, k), 2), v);
  };
  check_chain(chain, {}, 32);
}

TEST_CASE("roll: masks that leave tiles and whole rows empty") {
  const Chain chain = [](const Sizes& s, Node q, Node k, Node v) {
    Node e = exponentials(masked(s, scores(s, q, k)));
    Node total = B::reshape(sum(e, 2), Shape{s.m, 1});
    return B::binary(Op::Div, weighted(s, e, v), B::expand(total, Shape{s.m, s.d}));
  };
  check_chain(chain, {}, 16);
  check_chain(chain, {14, 90, 8, 8}, 16, true);
}

TEST_CASE("roll: the row norm of a product times a second product is pulled out") {
  const Chain chain = [](const Sizes& s, Node q, Node k, Node v) {
    Node x = scores(s, q, k);
    Node norm = one_over(B::unary(Op::Sqrt, sum(square(x), 2)));
    return weighted(s, B::binary(Op::Mul, x, spread(norm, x)), v);
  };
  check_chain(chain, {}, 32);
}

TEST_CASE("roll: the smallest instead of the largest") {
  const Chain chain = [](const Sizes& s, Node q, Node k, Node v) {
    Node x = scores(s, q, k);
    Node e = B::unary(Op::Exp2, B::binary(Op::Sub, spread(B::reduce(Op::Min, x, 2), x), x));
    return weighted(s, e, v);
  };
  check_chain(chain, {}, 24);
}

TEST_CASE("roll: the largest of scaled scores is that of the scores, scaled where no order turns") {
  for (const double factor : {0.25, 3.0, -0.5}) {
    CAPTURE(factor);
    for (const bool hidden : {false, true}) {
      const Chain chain = [=](const Sizes& s, Node q, Node k, Node v) {
        Node x = scores(s, q, k);
        x = B::binary(Op::Mul, x, B::full(Shape{s.m, s.n}, kF32, factor));
        return weighted(s, exponentials(hidden ? masked(s, x) : x), v);
      };
      check_chain(chain, {}, 32, !hidden);
      Arena arena;
      ArenaScope scope(arena);
      const Sizes s;
      Node value = chain(s, tensor_param(1, {s.m, s.e}), tensor_param(2, {s.n, s.e}),
                         tensor_param(3, {s.n, s.d}));
      Node sink = loops_of(kernel_of({value}), host_target(Compiler::Cc));
      std::string why;
      sink = roll(sink, reduced(sink, s.n), why);
      REQUIRE_MESSAGE(sink, why);
      int scaled = 0;
      for (Node n : all_of(sink, Op::Prefix))  // what the maximum of a row is so far
        if (n->arg<OpArg>().op == Op::Max)
          for (Node c : all_of(n->src(0), Op::Mul))
            scaled += c->src(1)->is_const(factor) || c->src(0)->is_const(factor);
      CHECK((scaled > 0) == (factor < 0));
    }
  }
}

TEST_CASE("roll: where an extremum is, the first of equals, of NaN, of nothing but infinities") {
  Arena arena;
  ArenaScope scope(arena);
  const Sizes s{7, 90, 1, 1};
  Node x = tensor_param(1, {s.m, s.n});
  std::mt19937 random(7);
  std::vector<std::vector<float>> in(1);
  for (int64_t i = 0; i < s.m * s.n; ++i)  // many are equal
    in[0].push_back(i < s.n ? -kInf : i < 2 * s.n ? kInf : static_cast<float>(random() % 8));
  for (const size_t at : {200, 222, 269, 359}) in[0][at] = NAN;
  in[0][450] = 9;
  in[0][549] = -9;
  for (const Op op : {Op::Max, Op::Min})
    for (const bool or_nan : {false, true})
      for (const int64_t tile : {2, 9, 15}) {
        Node value = place(x, op, -1, or_nan);
        for (Compiler c : compilers()) {
          const auto plain = run(value, {}, c, in);
          CHECK(plain[0] == s.n);
          CHECK(run(value, rolled(value, s, tile, 0), c, in, true) == plain);
        }
      }
}

TEST_CASE("roll: the last of equals, or a place that f32 cannot hold, has no loop of its own") {
  Arena arena;
  ArenaScope scope(arena);
  const auto refused = [](int64_t step) {
    Node x = tensor_param(1, {4, 90});
    Node sink = loops_of(kernel_of({place(x, Op::Max, step, true)}), host_target(Compiler::Cc));
    std::string why;
    return !roll(sink, reduced(sink, 90), why) && !why.empty();
  };
  CHECK_FALSE(refused(-1));
  CHECK_FALSE(refused(-100));
  CHECK(refused(1));
  CHECK(refused(-(1 << 18)));
}

TEST_CASE("roll: what has no correction is refused") {
  Arena arena;
  ArenaScope scope(arena);
  const Sizes s;
  Node q = tensor_param(1, {s.m, s.e}), k = tensor_param(2, {s.n, s.e}),
       v = tensor_param(3, {s.n, s.d});
  Node x = scores(s, q, k);
  Node most = max_of_rows(x), moved = B::binary(Op::Sub, x, most);
  const auto refused = [&](Node p) {
    Node sink = loops_of(kernel_of({weighted(s, p, v)}), host_target(Compiler::Cc));
    std::string why;
    return !roll(sink, reduced(sink, s.n), why) && !why.empty();
  };
  CHECK_FALSE(refused(B::unary(Op::Exp2, moved)));
  CHECK(refused(B::unary(Op::Sin, moved)));
  CHECK(refused(B::unary(Op::Exp2, B::binary(Op::Mul, moved, most))));
  CHECK(refused(B::binary(Op::Mul, B::unary(Op::Exp2, moved), B::unary(Op::Sin, most))));
  CHECK(refused(B::where(B::binary(Op::Lt, x, most), x, B::full(Shape{s.m, s.n}, kF32, 0.0))));
  CHECK(refused(B::binary(Op::Add, B::unary(Op::Exp2, moved), x)));
  // What is selected of a row that is divided may be nothing, which a maximum beside it finds.
  Node seen =
      B::binary(Op::Le, B::iota(Shape{s.m, s.n}, 1, kI32), B::iota(Shape{s.m, s.n}, 0, kI32));
  CHECK_FALSE(refused(B::where(seen, softmax(x, 2), B::full(Shape{s.m, s.n}, kF32, 0.0))));
}
