#include "codegen/mma.h"

#include "codegen/access.h"
#include "codegen/linear.h"
#include "codegen/stage.h"
#include "tiny/algebra.h"
#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// The lane layouts of the PTX ISA ("Warp-level matrix multiply-accumulate", fragments of m16n8k8,
// m16n8k16 and m16n8k32) and of AMD's instruction set manuals (CDNA 2 and 3, "Matrix Arithmetic
// Instructions"; RDNA 3 and RDNA 4, "Wave Matrix Multiply Accumulate"). Units with A and B alike
// compute the transpose, B^T A^T, where that gives a thread neighbours along the columns. On gfx11
// both halves of a wave hold all of A and B.
constexpr LanePlace kX{0, 1};
constexpr LanePlace kNvRows{1, 0, 8, 2}, kNvColumn{1}, kNvColumns{0, 2, 1, 2};

constexpr MmaUnit nvidia(DType t, const char* function, const char* convert, int depth,
                         DType sum = kF32) {
  const LanePlace k{0, depth / 4, 1, depth / 4};
  return {"", t,       function,  convert, nullptr, 16,         8,  depth,
          4,  kNvRows, kNvColumn, k,       kNvRows, kNvColumns, sum};
}
constexpr MmaUnit mfma(const char* arch, DType t, const char* function, const char* intrinsic,
                       int depth) {
  const LanePlace k{depth / 4, 0, 1, depth / 4}, columns{4, 0, 1, 4};
  return {arch, t, function, nullptr, intrinsic, 16, 16, depth, 16, kX, kX, k, kX, columns};
}
constexpr MmaUnit wmma(const char* arch, DType t, const char* function, const char* intrinsic) {
  const bool twice = arch[4] == '1';
  const LanePlace k = twice ? LanePlace{0, 0, 1, 16} : LanePlace{8, 0, 1, 8};
  const LanePlace row = twice ? LanePlace{1, 0, 2, 8} : kX;
  const LanePlace column = twice ? kX : LanePlace{8, 0, 1, 8};
  return {arch, t, function, nullptr, intrinsic, 16, 16, 16, 16, kX, kX, k, row, column};
}

constexpr const char* kMfmaF32 = "llvm.amdgcn.mfma.f32.16x16x4f32";
constexpr const char* kMfmaF16 = "llvm.amdgcn.mfma.f32.16x16x16f16";
constexpr const char* kMfmaBf16 = "llvm.amdgcn.mfma.f32.16x16x16bf16.1k";

constexpr MmaUnit kUnits[] = {
    nvidia(kF32, "mma_tf32", "f32_to_tf32", 8),
    nvidia(kF16, "mma_f16", nullptr, 16),
    nvidia(kBF16, "mma_bf16", nullptr, 16),
    nvidia(kI8, "mma_i8", nullptr, 32, kI32),
    nvidia(kF8E4M3, "mma_e4m3", nullptr, 32),
    nvidia(kF8E5M2, "mma_e5m2", nullptr, 32),
    mfma("gfx90a", kF32, "mfma_f32", kMfmaF32, 4),
    mfma("gfx90a", kF16, "mfma_f16", kMfmaF16, 16),
    mfma("gfx90a", kBF16, "mfma_bf16", kMfmaBf16, 16),
    mfma("gfx94", kF32, "mfma_f32", kMfmaF32, 4),
    mfma("gfx94", kF16, "mfma_f16", kMfmaF16, 16),
    mfma("gfx94", kBF16, "mfma_bf16", kMfmaBf16, 16),
    wmma("gfx11", kF16, "wmma_f16", "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16"),
    wmma("gfx11", kBF16, "wmma_bf16", "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16"),
    wmma("gfx12", kF16, "wmma12_f16", "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16"),
    wmma("gfx12", kBF16, "wmma12_bf16", "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v8i16"),
};

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

const MmaUnit* mma_unit(const Target& target, DType dtype) {
  if (target.kind != Target::Kind::Gpu || !target.has_bf16) return nullptr;
  const bool nvidia = target.language == Target::Language::Cuda;
  if (nvidia && dtype == kF32 && !env_int("ALLOW_TF32")) return nullptr;
  if (nvidia && dtype.is_f8() && !target.has_f8_mma) return nullptr;
  for (const MmaUnit& unit : kUnits)
    if (unit.dtype == dtype && (*unit.arch ? target.arch.starts_with(unit.arch) : nvidia))
      return &unit;
  return nullptr;
}

const MmaUnit& mma_unit(Node mma) { return kUnits[static_cast<size_t>(mma->ints()[0])]; }

std::string mma_product(Node reduce, const Target& target, MmaProduct& out) {
  Node product = reduce->src(0);
  if (reduce->arg<OpArg>().op != Op::Add || product->op != Op::Mul ||
      (product->dtype != kF32 && product->dtype != kI32))
    return "the reduction is no sum of products in f32 or i32";
  out.a = narrow(product->src(0), target);
  out.b = narrow(product->src(1), target);
  if (out.a->dtype != out.b->dtype) return "the operands differ in dtype";
  out.unit = mma_unit(target, out.a->dtype);
  if (out.unit && out.unit->sum == product->dtype) return "";
  return mma_unit(target, kBF16) ? cat("no matrix unit takes ", out.a->dtype.name(),
                                       out.a->dtype == kF32 ? " (ALLOW_TF32=0)" : "")
                                 : cat("the matrix units of ", target.arch, " are not known");
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
  const MmaUnit& u = *p.unit;
  if (!divides(m, u.rows) || !divides(n, u.columns) || !divides(k, u.depth))
    return cat("not whole fragments of ", u.rows, " x ", u.columns, " x ", u.depth);
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
  const MmaUnit& u = *p.unit;
  const int id = next_range_id(sink);
  const auto outer = [](Node r, int64_t amount) {
    const int64_t count = r->src(0)->int_value() / amount;
    return range_of(count, range_id(r), r->arg<RangeArg>().kind);
  };
  Node rows = outer(m, u.rows), columns = outer(n, u.columns), steps = outer(k, u.depth);
  const auto element = [&](int count, int number, RangeKind kind) {
    return count == 1 ? index(0) : range_of(count, number, kind);
  };
  Node i = element(u.row.count, id, RangeKind::Unroll);
  Node j = element(u.column.count, id + 1, RangeKind::Vector);
  Node thread = range_of(target.warp, id + 2, RangeKind::Thread);
  // Coordinate of an element of the thread in the fragment that begins at first * size.
  const auto at = [&](Node first, int64_t size, const LanePlace& place, Node number) {
    Node y = index_mul(index_div(thread, u.width), place.of_y);
    Node x = index_mul(index_mod(thread, u.width), place.of_x);
    return index_add(index_add(index_mul(first, size), index_add(y, x)),
                     index_mul(number, place.step));
  };
  std::vector<Node> srcs;
  const auto operand = [&](Node x, Node across, Node first, int64_t size, const LanePlace& place) {
    for (int e = 0; e < place.count; ++e)
      for (int q = 0; q < u.k.count; ++q)
        srcs.push_back(replaced(x, {{across, at(first, size, place, index(e))},
                                    {k, at(steps, u.depth, u.k, index(q))}}));
  };
  operand(a, m, rows, u.rows, u.a_row);
  operand(b, n, columns, u.columns, u.b_column);
  srcs.push_back(index_add(index_mul(i, u.column.count), j));
  const int64_t row_of_unit[] = {&u - kUnits};
  std::vector<Node> sum{make(Op::Mma, u.sum, srcs, Ints(row_of_unit))};
  for (Node r : reduce->srcs().subspan(1)) sum.push_back(r == k ? steps : r);
  NodeMap<Node> map;
  map[reduce] = make(Op::Reduce, u.sum, sum, reduce->payload);
  map[m] = at(rows, u.rows, u.row, i);
  map[n] = at(columns, u.columns, u.column, j);
  return simplify(substitute(sink, map));
}

Node mma_elements(Node mma) {
  const MmaUnit& unit = mma_unit(mma);
  const int last = unit.a_count() + unit.b_count();
  if (static_cast<int>(mma->num_src) == last) return nullptr;  // it is all elements already
  expect(mma->src(last)->is_const(), "an Mma whose elements are not known");
  const int64_t from = mma->src(last)->int_value();
  Node all = make(Op::Mma, unit.sum.vec(unit.results()),
                  mma->srcs().first(static_cast<size_t>(last)), mma->payload);
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
