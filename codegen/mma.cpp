#include "codegen/mma.h"

#include "codegen/access.h"
#include "codegen/linear.h"
#include "codegen/stage.h"
#include "tiny/algebra.h"
#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// The only reduction along the range with this id, as a product.
std::string find_product(Node sink, int k, const Target& target, Node& reduce, MmaProduct& out) {
  for (Node n : all_of(sink, Op::Reduce))
    for (Node r : n->srcs().subspan(1)) {
      if (r->op != Op::Range || range_id(r) != k) continue;
      if (reduce) return "more than one reduction closes the range of the sum";
      reduce = n;
    }
  return reduce ? mma_product(reduce, target, out) : "no range of the sum";
}

bool has(Node n, Node range) { return n->ranges & range->ranges; }

bool divides(Node range, int64_t n) {
  return range->src(0)->is_const() && range->src(0)->int_value() % n == 0;
}

Node replaced(Node n, std::initializer_list<std::pair<Node, Node>> values) {
  NodeMap<Node> map;
  for (const auto& [from, to] : values) map[from] = to;
  return simplify(substitute(n, map));
}

Node range_of(int64_t extent, int id, RangeKind kind) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, kind});
}

}  // namespace

bool has_mma(const Target& target, DType dtype) {
  const bool cuda = target.kind == Target::Kind::Gpu && target.language == Target::Language::Cuda;
  if (!cuda || !target.has_bf16) return false;
  return dtype.is_half() || (dtype == kF32 && env_int("ALLOW_TF32"));
}

std::string mma_product(Node reduce, const Target& target, MmaProduct& out) {
  Node product = reduce->src(0);
  if (reduce->arg<OpArg>().op != Op::Add || product->op != Op::Mul || product->dtype != kF32)
    return "the reduction is no sum of products in f32";
  out.a = narrow(product->src(0));
  out.b = narrow(product->src(1));
  if (out.a->dtype != out.b->dtype) return "the operands differ in dtype";
  if (has_mma(target, out.a->dtype)) return "";
  return has_mma(target, kBF16) ? "f32 and not ALLOW_TF32"
                                : "there is no mma.sync for TF32 and bf16";
}

std::string mma_problem(Node sink, const Opt& opt, const Target& target) {
  MmaProduct p;
  Node reduce = nullptr;
  if (opt.axes.size() != 2) return "no ranges of the columns and the sum";
  if (std::string why = find_product(sink, opt.axes[1], target, reduce, p); !why.empty())
    return why;
  Node m = nullptr, n = nullptr, k = nullptr;
  for (Node r : ranges_of(sink)) {
    if (range_id(r) == opt.axis) m = r;
    if (range_id(r) == opt.axes[0]) n = r;
    if (range_id(r) == opt.axes[1]) k = r;
  }
  if (!m || !n || !k) return "no such ranges";
  for (Node s : sink->srcs())
    if (!has(s, m) || !has(s, n)) return "a store does not run along rows and columns";
  if (!has(p.a, k) || !has(p.b, k)) return "an operand does not depend on the range of the sum";
  const bool turned = has(p.b, m);
  Node a = turned ? p.b : p.a, b = turned ? p.a : p.b;
  if (!has(a, m) || !has(b, n) || has(a, n) || has(b, m))
    return "an operand does not depend on one of rows and columns";
  if (!divides(m, kMmaRows) || !divides(n, kMmaColumns) || !divides(k, mma_step(a->dtype)))
    return cat("not whole fragments of ", kMmaRows, " x ", kMmaColumns, " x ", mma_step(a->dtype));
  return "";
}

Node use_mma(Node sink, const Opt& opt, const Target& target) {
  MmaProduct p;
  Node reduce = nullptr;
  const std::string why = find_product(sink, opt.axes.at(1), target, reduce, p);
  expect(why.empty(), "mma: ", why);
  Node a = p.a, b = p.b;
  Node m = range_with_id(sink, opt.axis), n = range_with_id(sink, opt.axes[0]);
  Node k = range_with_id(sink, opt.axes[1]);
  if (has(b, m)) std::swap(a, b);
  const int id = next_range_id(sink), step = mma_step(a->dtype), each = step / 4;
  const auto outer = [](Node r, int64_t amount) {
    const int64_t count = r->src(0)->int_value() / amount;
    return range_of(count, range_id(r), r->arg<RangeArg>().kind);
  };
  Node rows = outer(m, kMmaRows), columns = outer(n, kMmaColumns), steps = outer(k, step);
  Node i = range_of(2, id, RangeKind::Unroll), pair = range_of(2, id + 1, RangeKind::Vector);
  Node thread = range_of(32, id + 2, RangeKind::Thread);
  Node group = index_div(thread, 4), place = index_mod(thread, 4);
  const auto along = [&](int64_t q) {
    return index_add(index_add(index_mul(steps, step), index_mul(place, each)), index(q));
  };
  std::vector<Node> srcs;
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t q = 0; q < each; ++q) {
      Node row = index_add(index_add(index_mul(rows, kMmaRows), group), index(half * 8));
      srcs.push_back(replaced(a, {{m, row}, {k, along(q)}}));
    }
  for (int64_t q = 0; q < each; ++q)
    srcs.push_back(
        replaced(b, {{n, index_add(index_mul(columns, kMmaColumns), group)}, {k, along(q)}}));
  srcs.push_back(index_add(index_mul(i, 2), pair));
  std::vector<Node> sum{make(Op::Mma, kF32, srcs)};
  for (Node r : reduce->srcs().subspan(1)) sum.push_back(r == k ? steps : r);
  NodeMap<Node> map;
  map[reduce] = make(Op::Reduce, kF32, sum, reduce->payload);
  map[m] = index_add(index_add(index_mul(rows, kMmaRows), index_mul(i, 8)), group);
  map[n] = index_add(index_add(index_mul(columns, kMmaColumns), index_mul(place, 2)), pair);
  return simplify(substitute(sink, map));
}

Node mma_elements(Node mma) {
  const int last = static_cast<int>(mma->num_src) - 1;
  if (mma->src(last)->dtype.is_float()) return nullptr;  // it is all elements already
  expect(mma->src(last)->is_const(), "an Mma whose elements are not known");
  const int64_t from = mma->src(last)->int_value();
  Node all = make(Op::Mma, kF32.vec(4), mma->srcs().first(static_cast<size_t>(last)));
  std::vector<int64_t> picks;
  for (int lane = 0; lane < mma->dtype.lanes; ++lane) picks.push_back(from + lane);
  return make(Op::Shuffle, mma->dtype, {all, all}, Ints(picks));
}

Node mma_sum(Node reduce) {
  Node elements = reduce->src(0);
  if (reduce->arg<OpArg>().op != Op::Add || elements->op != Op::Shuffle) return nullptr;
  Node all = elements->src(0);
  if (all->op != Op::Mma || all != elements->src(1)) return nullptr;
  std::vector<Node> srcs(reduce->srcs().begin(), reduce->srcs().end());
  srcs[0] = all;
  Node sum = make(Op::Reduce, all->dtype, srcs, reduce->payload);
  return make(Op::Shuffle, elements->dtype, {sum, sum}, elements->payload);
}

}  // namespace tiny
