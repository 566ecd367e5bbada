#include "codegen/options/mma.h"

#include <algorithm>
#include <numeric>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/load_matrix.h"
#include "codegen/options/stage.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// The lane layouts of the PTX ISA ("Warp-level matrix multiply-accumulate", fragments of m16n8k8,
// m16n8k16 and m16n8k32) and of AMD's instruction set manuals (CDNA 2 and 3, "Matrix Arithmetic
// Instructions"; RDNA 3 and RDNA 4, "Wave Matrix Multiply Accumulate"). Units with A and B alike
// compute the transpose, B^T A^T, where that gives a thread neighbours along the columns. On gfx11
// both halves of a wave hold all of A and B. The 8-bit floats of gfx94 are FNUZ's, whose exponents
// are one less and which have no infinities: an e4m3 as such a number is exactly half of it, and
// NaN the code of -0, but an e5m2 may be infinite.
constexpr LanePlace kX{0, 1};
constexpr LanePlace kNvRows{1, 0, 8, 2}, kNvColumn{1}, kNvColumns{0, 2, 1, 2};

constexpr MmaUnit nvidia(DType t, const char* function, const char* convert, int depth,
                         DType sum = kF32) {
  const LanePlace k{0, depth / 4, 1, depth / 4};
  return {"", t,       function,  convert, nullptr, 16,         8,   depth,
          4,  kNvRows, kNvColumn, k,       kNvRows, kNvColumns, sum, t};
}
constexpr MmaUnit mixed(DType rows, DType columns, const char* function) {
  MmaUnit unit = nvidia(rows, function, nullptr, 32);
  unit.second = columns;
  return unit;
}
constexpr MmaUnit warpgroup(DType t, const char* function) {
  MmaUnit unit = nvidia(t, function, nullptr, 16);
  unit.arch = "sm_90a";
  unit.warpgroup = true;
  return unit;
}
constexpr DType sum_of(DType t) { return t == kI8 ? kI32 : kF32; }
constexpr MmaUnit mfma(const char* arch, DType t, const char* function, const char* intrinsic,
                       int depth) {
  const LanePlace k{depth / 4, 0, 1, depth / 4}, columns{4, 0, 1, 4};
  return {arch, t,  function, nullptr, intrinsic, 16,        16, depth, 16,
          kX,   kX, k,        kX,      columns,   sum_of(t), t,  0,     t == kF8E4M3};
}
constexpr MmaUnit wmma(const char* arch, DType t, const char* function, const char* intrinsic) {
  const bool twice = arch[4] == '1';
  const LanePlace k = twice ? LanePlace{0, 0, 1, 16} : LanePlace{8, 0, 1, 8};
  const LanePlace row = twice ? LanePlace{1, 0, 2, 8} : kX;
  const LanePlace column = twice ? kX : LanePlace{8, 0, 1, 8};
  return {arch, t, function, nullptr, intrinsic, 16, 16, 16, 16, kX, kX, k, row, column, sum_of(t)};
}

// CPUs (Intel's manual, volume 2, TDPBF16PS, TDPBSSD and their kin, VDPBF16PS, VPDPBUSD): tiles of
// 16 rows of 64 bytes, or vectors of 64 bytes. Four bytes along k lie next to each other.
constexpr MmaUnit tile(const char* feature, DType a, DType b, const char* intrinsic, int rows) {
  const bool bytes = a == kI8 || a == kU8;
  const int group = bytes ? 4 : 2, depth = rows == 1 ? group : 16 * group;
  const LanePlace all{0, 0, 1, 16}, row = rows == 1 ? LanePlace{} : all;
  const DType sum = bytes ? kI32 : kF32;
  return {feature, a,     intrinsic, nullptr, intrinsic, rows,
          16,      depth, 1,         row,     all,       LanePlace{0, 0, 1, depth},
          row,     all,   sum,       b,       group};
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
    mixed(kF8E4M3, kF8E5M2, "mma_e4m3_e5m2"),
    mixed(kF8E5M2, kF8E4M3, "mma_e5m2_e4m3"),
    warpgroup(kF16, "multiply_f16"),
    warpgroup(kBF16, "multiply_bf16"),
    mfma("gfx90a", kF32, "mfma_f32", kMfmaF32, 4),
    mfma("gfx90a", kF16, "mfma_f16", kMfmaF16, 16),
    mfma("gfx90a", kBF16, "mfma_bf16", kMfmaBf16, 16),
    mfma("gfx90a", kI8, "mfma_i8_16", "llvm.amdgcn.mfma.i32.16x16x16i8", 16),
    mfma("gfx94", kF32, "mfma_f32", kMfmaF32, 4),
    mfma("gfx94", kF16, "mfma_f16", kMfmaF16, 16),
    mfma("gfx94", kBF16, "mfma_bf16", kMfmaBf16, 16),
    mfma("gfx94", kI8, "mfma_i8", "llvm.amdgcn.mfma.i32.16x16x32.i8", 32),
    mfma("gfx94", kF8E4M3, "mfma_e4m3", "llvm.amdgcn.mfma.f32.16x16x32.fp8.fp8", 32),
    wmma("gfx11", kF16, "wmma_f16", "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16"),
    wmma("gfx11", kBF16, "wmma_bf16", "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16"),
    wmma("gfx11", kI8, "wmma_i8", "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v4i32"),
    wmma("gfx12", kF16, "wmma12_f16", "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16"),
    wmma("gfx12", kBF16, "wmma12_bf16", "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v8i16"),
    wmma("gfx12", kI8, "wmma12_i8", "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v2i32"),
    wmma("gfx12", kF8E4M3, "wmma12_e4m3", "llvm.amdgcn.wmma.f32.16x16x16.fp8.fp8.v8f32.v2i32"),
    wmma("gfx12", kF8E5M2, "wmma12_e5m2", "llvm.amdgcn.wmma.f32.16x16x16.bf8.bf8.v8f32.v2i32"),
    tile("amx-bf16", kBF16, kBF16, "llvm.x86.tdpbf16ps", 16),
    tile("amx-fp16", kF16, kF16, "llvm.x86.tdpfp16ps", 16),
    tile("amx-int8", kI8, kI8, "llvm.x86.tdpbssd", 16),
    tile("amx-int8", kI8, kU8, "llvm.x86.tdpbsud", 16),
    tile("amx-int8", kU8, kI8, "llvm.x86.tdpbusd", 16),
    tile("amx-int8", kU8, kU8, "llvm.x86.tdpbuud", 16),
    tile("avx512bf16", kBF16, kBF16, "llvm.x86.avx512bf16.dpbf16ps.512", 1),
    tile("avx512vnni", kU8, kI8, "llvm.x86.avx512.vpdpbusd.512", 1),
};

bool has(Node n, Node range) { return n->ranges & range->ranges; }

// What an option says: the only reduction along its range of the sum as a product, a with the rows.
struct MmaOption : MmaProduct {
  Node m = nullptr, n = nullptr, k = nullptr;  // ranges
};

std::string read_option(Node sink, const Opt& opt, const Target& target, MmaOption& out) {
  if (opt.axes.size() != 2) return "no ranges of the columns and the sum";
  const std::vector<Node> sums = reductions_along(sink, opt.axes[1]);
  if (sums.empty()) return "no range of the sum";
  if (sums.size() > 1) return "more than one reduction closes the range of the sum";
  if (std::string why = mma_product(sums[0], target, out); !why.empty()) return why;
  out.m = find_range(sink, opt.axis);
  out.n = find_range(sink, opt.axes[0]);
  out.k = find_range(sink, opt.axes[1]);
  if (!out.m || !out.n || !out.k) return "no such ranges";
  if (has(out.b, out.m)) std::swap(out.a, out.b);
  if (!out.unit->group) out.unit = mma_unit(target, out.a->dtype, out.b->dtype);
  return out.unit ? "" : "no matrix unit takes the operands in this order";
}

bool divides(Node range, int64_t n) {
  return range->src(0)->is_const() && range->src(0)->int_value() % n == 0;
}

Node replaced(Node n, std::initializer_list<std::pair<Node, Node>> values) {
  NodeMap<Node> map;
  for (const auto& [from, to] : values) map[from] = to;
  return simplify(substitute(n, map));
}

// Whether two indices differ by a multiple of the range, or not at all.
bool differ_by(Node range, Node a, Node b) {
  const Sum sum = to_sum(index_add(a, index_mul(b, -1)));
  const auto may_differ = [&](const Sum::Term& t) { return t.factor == 0 || t.atom == range; };
  return sum.constant == 0 && std::ranges::all_of(sum.terms, may_differ);
}

// All elements of a fragment as one load, where they lie in memory as the unit has them: rows of
// `depth`, or for each `group` along k the columns. Rows of a tile may also lie as far apart as
// they like, each of them a load. None where they lie in another way, of the load that the operand
// of a CPU is. From `id` on ranges are free.
std::vector<Node> tile_loads(const FragmentOperand& o, const MmaUnit& u, bool rows, int id) {
  const int count = rows ? u.rows : u.columns, group = rows ? u.depth : u.group;
  Node i = count == 1 ? index(0) : make_range(count, id, RangeKind::Loop);
  Node outer = group == u.depth ? index(0) : make_range(u.depth / group, id + 1, RangeKind::Loop);
  Node inner = make_range(group, id + 2, RangeKind::Loop);
  Node along = index_add(index_mul(outer, group), inner);
  const auto at = [&](Node x, Node y) {
    return replaced(o.x->src(1), {{o.across, index_add(index_mul(o.first, count), x)},
                                  {o.k, index_add(index_mul(o.step, u.depth), y)}});
  };
  const auto begin_of = [&](Node x) { return at(x, index(0)); };
  Node begin = begin_of(index(0));
  Node offset = index_add(index_mul(outer, count * group), index_add(index_mul(i, group), inner));
  if (differ_by(nullptr, at(i, along), index_add(begin, offset)))
    return {make(Op::Load, o.x->dtype.vec(count * u.depth), {o.x->src(0), begin})};
  if (!rows || count == 1 || !differ_by(nullptr, at(i, along), index_add(begin_of(i), along)) ||
      !differ_by(i, begin_of(i), begin))
    return {};
  std::vector<Node> loads;
  for (int row = 0; row < count; ++row)
    loads.push_back(make(Op::Load, o.x->dtype.vec(u.depth), {o.x->src(0), begin_of(index(row))}));
  return loads;
}

}  // namespace

const MmaUnit* mma_unit(const Target& target, DType dtype) {
  return mma_unit(target, dtype, dtype);
}

const MmaUnit* mma_unit(const Target& target, DType rows, DType columns) {
  if (target.kind != Target::Kind::Gpu || !target.has_bf16) return nullptr;
  const bool nvidia = target.language == Target::Language::Cuda;
  if (nvidia && rows == kF32 && !env_int("ALLOW_TF32")) return nullptr;
  if (nvidia && rows.is_f8() && !target.has_f8_mma) return nullptr;
  for (const MmaUnit& unit : kUnits)
    if (unit.dtype == rows && unit.second == columns && !unit.warpgroup &&
        (*unit.arch ? target.arch.starts_with(unit.arch) : nvidia))
      return &unit;
  return nullptr;
}

const MmaUnit* warpgroup_unit(const Target& target, DType dtype) {
  for (const MmaUnit& unit : kUnits)
    if (unit.warpgroup && unit.dtype == dtype && target.arch == unit.arch) return &unit;
  return nullptr;
}

Node warpgroup_mma(const MmaUnit& unit, const WarpgroupProduct& p, std::span<const Node> srcs) {
  const int64_t numbers[] = {&unit - kUnits, p.columns,   p.a.in_registers, p.a.along_k,
                             p.a.rows,       p.b.along_k, p.b.rows};
  return make(Op::Mma, unit.sum, srcs, Ints(numbers));
}

WarpgroupProduct warpgroup_product(Node mma) {
  const auto n = mma->ints();
  WarpgroupProduct p;
  p.columns = static_cast<int>(n[1]);
  p.a = {n[2] != 0, n[3] != 0, static_cast<int>(n[4])};
  p.b = {false, n[5] != 0, static_cast<int>(n[6])};
  return p;
}

int mma_results(Node mma) {
  const MmaUnit& unit = mma_unit(mma);
  return unit.results() * (unit.warpgroup ? warpgroup_product(mma).columns / unit.columns : 1);
}

int mma_a_count(Node mma) {
  const MmaUnit& unit = mma_unit(mma);
  return unit.warpgroup && !warpgroup_product(mma).a.in_registers ? 2 : unit.a_count();
}

const MmaUnit* tile_unit(const Target& target, DType rows, DType columns) {
  if (target.kind != Target::Kind::Cpu) return nullptr;
  for (const MmaUnit& unit : kUnits)
    if (unit.group && unit.dtype == rows && unit.second == columns &&
        target.arch.find(unit.arch) != std::string::npos)
      return &unit;
  return nullptr;
}

Payload mma_payload(const MmaUnit& unit) {
  static const std::vector<int64_t>& rows = *[] {
    auto* all = new std::vector<int64_t>(std::size(kUnits));
    std::iota(all->begin(), all->end(), 0);
    return all;
  }();
  return Ints(&rows[static_cast<size_t>(&unit - kUnits)], 1);
}

const MmaUnit& mma_unit(Node mma) { return kUnits[static_cast<size_t>(mma->ints()[0])]; }

namespace {

// Of a CPU: which of the two are rows says where their elements lie.
std::string tile_product(const Target& target, MmaProduct& out) {
  const auto narrower = [](Node x) { return x->op == Op::Cast ? x->src(0) : x; };
  out.a = narrower(out.a);
  out.b = narrower(out.b);
  for (Node x : {out.a, out.b})
    if (x->op != Op::Load || x->num_src != 2 || x->dtype.lanes != 1)
      return "an operand is not read from memory as it is";
  out.unit = tile_unit(target, out.a->dtype, out.b->dtype);
  if (!out.unit) out.unit = tile_unit(target, out.b->dtype, out.a->dtype);
  if (!out.unit || out.unit->sum != out.product->dtype)
    return cat("no matrix unit takes ", out.a->dtype.name(), " and ", out.b->dtype.name());
  return "";
}

}  // namespace

std::string mma_product(Node reduce, const Target& target, MmaProduct& out) {
  const auto c = contraction_of(reduce);
  if (!c || !c->is_plain()) return "the reduction is no sum of products";
  static_cast<Contraction&>(out) = *c;
  if (target.kind == Target::Kind::Cpu) return tile_product(target, out);
  if (c->product->dtype != kF32 && c->product->dtype != kI32)
    return "the reduction is no sum of products in f32 or i32";
  narrow_factors(out, target);  // TF32 has the digits of both 16-bit floats
  out.unit = mma_unit(target, out.a->dtype, out.b->dtype);
  if (out.unit && out.unit->sum == out.product->dtype) return "";
  return mma_unit(target, kBF16) ? cat("no matrix unit takes ", out.a->dtype.name(),
                                       out.a->dtype == kF32 ? " (ALLOW_TF32=0)" : "")
                                 : cat("the matrix units of ", target.arch, " are not known");
}

std::string mma_problem(Node sink, const Opt& opt, const Target& target) {
  MmaOption p;
  if (std::string why = read_option(sink, opt, target, p); !why.empty()) return why;
  Node a = p.a, b = p.b, m = p.m, n = p.n, k = p.k;
  for (Node s : sink->srcs())
    if (!has(s, m) || !has(s, n)) return "a store does not run along rows and columns";
  if (!has(a, k) || !has(b, k)) return "an operand does not depend on the range of the sum";
  if (!has(a, m) || !has(b, n) || has(a, n) || has(b, m))
    return "an operand does not depend on one of rows and columns";
  const MmaUnit& u = *p.unit;
  if (u.group && (a->dtype != u.dtype || b->dtype != u.second)) return "rows of columns' dtype";
  if (!divides(m, u.rows) || !divides(n, u.columns) || !divides(k, u.depth))
    return cat("not whole fragments of ", u.rows, " x ", u.columns, " x ", u.depth);
  if (opt.amount == kMmaMatrices && *u.arch) return "matrices are read by ldmatrix alone";
  if (!u.group && opt.amount != kMmaMatrices) return "";
  const int id = next_range_id(sink);
  const auto fragments = [&](Node r, int64_t size, int which) {
    return extent(r) == size ? index(0) : make_range(extent(r) / size, id + which, RangeKind::Loop);
  };
  Node step = fragments(k, u.depth, 5);
  Node thread = u.group ? index(0) : make_range(target.warp, id + 2, RangeKind::Thread);
  const FragmentOperand rows{a, m, k, fragments(m, u.rows, 3), step, thread};
  const FragmentOperand columns{b, n, k, fragments(n, u.columns, 4), step, thread};
  if (!u.group) {
    const bool staged = !load_matrices(rows, u, u.rows, id).empty() &&
                        !load_matrices(columns, u, u.columns, id).empty();
    return staged ? "" : "an operand's fragments are no rows of 16 bytes in shared memory";
  }
  const bool in_place =
      !tile_loads(rows, u, true, id).empty() && !tile_loads(columns, u, false, id).empty();
  return in_place ? "" : "a fragment's elements do not lie one after the other";
}

Node use_mma(Node sink, const Opt& opt, const Target& target) {
  MmaOption p;
  const std::string why = read_option(sink, opt, target, p);
  expect(why.empty(), "mma: ", why);
  Node a = p.a, b = p.b, m = p.m, n = p.n, k = p.k;
  const MmaUnit& u = *p.unit;
  const int id = next_range_id(sink);
  const auto outer = [](Node r, int64_t amount) {
    const int64_t count = r->src(0)->int_value() / amount;
    return make_range(count, range_id(r), r->arg<RangeArg>().kind);
  };
  Node rows = outer(m, u.rows), columns = outer(n, u.columns), steps = outer(k, u.depth);
  for (Node* r : {&rows, &columns, &steps})
    if (u.group && extent(*r) == 1) *r = index(0);  // a range of one iteration is none
  const auto element = [&](int count, int number, RangeKind kind) {
    return count == 1 ? index(0) : make_range(count, number, kind);
  };
  Node i = element(u.row.count, id, RangeKind::Unroll);
  Node j = element(u.column.count, id + 1, RangeKind::Vector);
  Node thread = u.group ? index(0) : make_range(target.warp, id + 2, RangeKind::Thread);
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
  const auto matrices = [&](Node x, Node across, Node first, int size) {
    for (Node e : load_matrices({x, across, k, first, steps, thread}, u, size, id + 3))
      srcs.push_back(e);
  };
  if (u.group) {
    srcs = tile_loads({a, m, k, rows, steps, thread}, u, true, id);
    const std::vector<Node> second = tile_loads({b, n, k, columns, steps, thread}, u, false, id);
    expect(!srcs.empty() && !second.empty(), "an mma of elements that do not lie as tiles do");
    srcs.insert(srcs.end(), second.begin(), second.end());
  } else if (opt.amount == kMmaMatrices) {
    matrices(a, m, rows, u.rows);
    matrices(b, n, columns, u.columns);
  } else {
    operand(a, m, rows, u.rows, u.a_row);
    operand(b, n, columns, u.columns, u.b_column);
  }
  srcs.push_back(index_add(index_mul(i, u.column.count), j));
  std::vector<Node> sum{make(Op::Mma, u.sum, srcs, mma_payload(u))};
  for (Node r : p.reduce->srcs().subspan(1))
    if (r != k)
      sum.push_back(r);
    else if (steps->op == Op::Range)
      sum.push_back(steps);
  NodeMap<Node> map;
  map[p.reduce] = sum.size() == 1 ? sum[0] : make(Op::Reduce, u.sum, sum, p.reduce->payload);
  map[m] = at(rows, u.rows, u.row, i);
  map[n] = at(columns, u.columns, u.column, j);
  return simplify(substitute(sink, map));
}

Node mma_elements(Node mma) {
  const int last = static_cast<int>(mma->num_src) - 1;
  if (mma->src(last)->dtype != kIndex) return nullptr;  // it is all elements already
  expect(mma->src(last)->is_const(), "an Mma whose elements are not known");
  const int64_t from = mma->src(last)->int_value();
  Node all = make(Op::Mma, mma->dtype.vec(mma_results(mma)),
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
