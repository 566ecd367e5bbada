#include "codegen/wgmma/product.h"

#include <algorithm>
#include <bit>

#include "codegen/kernel/access.h"
#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Loads give zero where their gate does not hold.
Node operand_load(Node n, Node& mask) {
  Node load = n->op == Op::Cast ? n->src(0) : n;
  if (load->op == Op::Where && load->src(2)->is_const(0) && load->src(1)->op == Op::Load) {
    Node where = load;
    load = load->src(1);
    if (load->num_src == 2 && !mask)
      mask = where->src(0);
    else if (load->num_src == 2 || load->src(2) != where->src(0))
      return nullptr;
  }
  if (load->op != Op::Load) return nullptr;
  const MatrixType* type = matrix_type(load->dtype);
  return type && type->sum == n->dtype ? load : nullptr;
}

}  // namespace

std::optional<MatrixProduct> find_matrix_product(Node sink) {
  const auto c = only_contraction(sink);
  if (!c || !c->is_plain()) return {};
  MatrixProduct p{*c};
  p.a = operand_load(c->a, p.mask);
  p.b = operand_load(c->b, p.mask);
  for (Node s : sink->srcs())
    if (s->op != Op::Store || std::holds_alternative<OpArg>(s->payload)) return {};
  const bool fits = p.a && p.b && are_operands_of_one(p.a->dtype, p.b->dtype);
  return fits ? std::optional(p) : std::nullopt;
}

Node k_range(const MatrixProduct& p) {
  Node k = nullptr;
  for (Node load : {p.a, p.b}) {
    Node first = contiguous_range(load);
    if (!first || !(first->ranges & p.k)) continue;
    if (k && k != first) return nullptr;
    k = first;
  }
  return k;
}

namespace {

// Split-K: a GEMM of few results and long sums, such as the gradient of a weight, is computed as
// several partial sums. Slices need not be as long as each other, nor end where a range does: one
// operand is masked outside of
//
//   slice * length <= number along k < (slice + 1) * length.
//
// `range`: of the results, which counts slices.
struct KSlice {
  Node range = nullptr;
  int64_t length = 0;
};

// The slice of k that a mask selects; nothing where it selects anything else. Where slices begin at
// multiples of what the inner ranges count, a bound has the outer ones alone.
std::optional<KSlice> k_slice_of(Node mask, const MatrixSide& k) {
  if (mask->op != Op::And) return {};
  KSlice part;
  int bounds = 0;
  for (Node c : mask->srcs()) {
    if (c->op != Op::Lt || c->src(0)->dtype != kIndex) return {};
    Sum s = to_sum(index_add(c->src(1), index_mul(c->src(0), -1)));  // > 0
    std::erase_if(s.terms, [](const Sum::Term& t) { return t.factor == 0; });
    const auto factor = [&](Node r) {
      for (const auto& t : s.terms)
        if (t.atom == r) return t.factor;
      return int64_t{0};
    };
    size_t terms = 1, i = k.ranges.size();
    int64_t inner = 1;
    while (i > 1 && factor(k.ranges[i - 1]) == 0) inner *= extent(k.ranges[--i]);
    const int64_t sign = factor(k.ranges[i - 1]);
    for (int64_t behind = sign; i-- > 0; ++terms) {
      if (factor(k.ranges[i]) != behind) return {};
      behind *= extent(k.ranges[i]);
    }
    for (const auto& t : s.terms) {
      if (k.has(t.atom)) continue;
      const int64_t length = -sign * t.factor * inner;
      if (t.atom->op != Op::Range || length < 1 || (part.range && part.range != t.atom)) return {};
      if (part.length && part.length != length) return {};
      part.range = t.atom;
      part.length = length;
    }
    if (s.terms.size() != terms) return {};
    if (sign == 1 && s.constant == 1)
      bounds |= 1;
    else if (sign == -1 && s.constant * inner == part.length)
      bounds |= 2;
  }
  return bounds == 3 ? std::optional(part) : std::nullopt;
}

struct WgmmaPlan {
  MatrixProduct product;
  MatrixSide m, n, k;
  std::vector<Node> sums, origins;
};

// The ranges of the sum that both operands depend on: as one, or the longest of them.
std::vector<MatrixSide> shared_ranges(const MatrixProduct& p) {
  MatrixSide all, one{{nullptr}};
  for (Node r : p.reduce->srcs().subspan(1)) {
    if (!(p.a->ranges & p.b->ranges & r->ranges)) continue;
    all.ranges.push_back(r);
    if (!one.ranges[0] || extent(r) > extent(one.ranges[0])) one.ranges[0] = r;
  }
  std::ranges::sort(all.ranges, {}, range_id);
  if (all.ranges.empty()) return {};
  return all.ranges.size() == 1 ? std::vector{one} : std::vector{all, one};
}

Node first_of_tile(const MatrixSide& side, Node range) {
  return index_mul(index_div(range, side.size), side.size);
}

// The range that counts all of a side when its ranges are merged.
Node merged(const MatrixSide& side) {
  Node first = side.ranges[0];
  if (side.ranges.size() == 1) return first;
  return make_range(side.extent(), range_id(first), kind(first));
}

std::string describe_operands(MatrixTile& tile, WgmmaPlan& p) {
  p.sums.clear();
  p.origins.clear();
  tile.a = tile.b = {};
  tile.a.map.element_bytes = tile.b.map.element_bytes = tile.dtype.size();
  tile.depth = static_cast<int>(p.k.size);
  const MatrixProduct& product = p.product;
  const auto view = [&](const MatrixSide& side, int64_t part, bool clipped) {
    return MatrixView{side,      part,    tile.copied_by(&side == &p.m),
                      clipped,   p.k,     first_of_tile(side, merged(side)),
                      product.k, &p.sums, &p.origins};
  };
  std::string why = describe(product.a, view(p.m, tile.group_rows(), tile.split_n), tile.a);
  if (why.empty()) why = describe(product.b, view(p.n, tile.width(), false), tile.b);
  if (why.empty() && (tile.a.boxes % tile.cluster_n || tile.b.boxes % tile.cluster_m))
    why = "the blocks of a cluster copy as many boxes each";
  for (const MatrixOperand* o : {&tile.a, &tile.b})
    if (why.empty() && o->boxes > 1 && o->box_bytes() % 1024)
      why = "boxes do not begin at multiples of 1024 bytes, as their swizzle repeats";
  if (why.empty() && tile.b.boxes == 0) why = "so few columns that do not lie along the sum";
  tile.steps = {ceil_div(p.k.extent(), tile.depth)};
  tile.begin = -1;
  if (product.mask) {
    const auto part = k_slice_of(product.mask, p.k);
    if (!part || ((p.m.mask() | p.n.mask() | product.k) & part->range->ranges))
      return "an operand with a mask";
    if (part->length % tile.depth) return "parts that end within a step";
    tile.steps = {part->length / tile.depth};
    tile.begin = static_cast<int>(p.origins.size());
    p.origins.push_back(index_mul(part->range, part->length));
  }
  uint64_t seen = p.k.mask();
  for (Node k : p.sums) {
    tile.steps.push_back(extent(k));
    seen |= k->ranges;
  }
  // A step's elements beyond the last pixel of a slice are the next slice's, unless one of the
  // operands is a tensor of just that slice: zero there.
  const auto has_parts = [](const MatrixOperand& o) {
    return o.map.windows && o.at[o.map.rank - 1].source >= 0;
  };
  if (why.empty() && tile.a.map.windows && tile.b.map.windows && has_parts(tile.b) &&
      p.k.extent() % tile.depth)
    why = "both operands are windows that end within a step";
  if (why.empty() && seen != product.k) why = "a range of the sum is no axis of an operand";
  return why;
}

// Steps of the depth of the boxes that few channels are copied in, or of half the depth where tiles
// are so large that few stages would fit.
std::string plan_steps(MatrixTile& tile, WgmmaPlan& out) {
  constexpr int64_t kMin = 3;
  const int bytes = tile.dtype.size();
  const int64_t depth = 128 / bytes, half = depth / 2;
  std::vector<MatrixSide> ks = shared_ranges(out.product);
  Node contiguous = k_range(out.product);
  if (contiguous) ks = {{{contiguous}}};
  const bool few = contiguous && tile.columns >= 16 && has_half_boxes(extent(contiguous), bytes);
  std::string why = "the operands have no range of the sum in common";
  for (const MatrixSide& k : ks) {
    out.k = k;
    out.k.size = few ? half : depth;
    why = describe_operands(tile, out);
    if (why.empty() && !contiguous && tile.stages() < kMin) {
      out.k.size = half;
      why = describe_operands(tile, out);
    }
    if (why.empty()) break;
  }
  if (why.empty() && tile.stage_bytes() % 1024)
    why = "stages do not begin at multiples of 1024 bytes, as their swizzle repeats";
  if (why.empty() && tile.stages() < 2) why = "a tile has no room for two stages";
  const int others = tile.rows * tile.columns * 4 / tile.split_k * (tile.split_k - 1);
  if (why.empty() && others > tile.stages() * tile.stage_bytes())
    why = "the stages have no room for what other blocks add";
  return why;
}

// Why tiles cannot be taken by clusters as the option says; empty where they can.
std::string size_problem(const MatrixTile& tile, const WgmmaPlan& p) {
  // Any GPU can have clusters of 8; multicast among more than two blocks is slower
  // (measurements.md: clusters).
  constexpr int kMax = 8, kMaxShare = 2;
  if (tile.cluster_m * tile.cluster_n > (tile.split_k > 1 ? 1 : kMaxShare) || tile.split_k > kMax ||
      !std::has_single_bit(static_cast<unsigned>(tile.split_k)))
    return "clusters are two tiles, or 2, 4 or 8 slices of split-K";
  // Registers of a quarter of a multiprocessor for each of its threads, less those that are taken
  // otherwise; of a block that has it alone, as many as the compiler keeps a tile in.
  constexpr int kQuarter = 16384, kOthers = 64, kMaxAlone = 128;
  const int warps = (tile.threads() * tile.blocks() / 32 + 3) / 4;
  const int most = tile.sets_maxnreg() ? kMaxAlone : kQuarter / (32 * warps) - kOthers;
  if (tile.split_k > 1 && tile.registers() > most)
    return "what other blocks add needs registers too";
  if (ceil_div(p.m.extent(), tile.rows) % tile.cluster_m ||
      ceil_div(p.n.extent(), tile.columns) % tile.cluster_n)
    return "clusters would have tiles beyond the last";
  return "";
}

std::string plan(Node sink, const Opt& opt, MatrixTile& tile, WgmmaPlan& out) {
  const auto found = find_matrix_product(sink);
  if (!found) return "the kernel is no product of two loads";
  MatrixProduct& p = out.product = *found;
  if (opt.axes.empty()) return "no range for the columns";
  static_cast<TileShape&>(tile) = opt.tile;
  tile.dtype = p.a->dtype;
  const bool any = tile.dtype.is_half() && tile.width() % 8 == 0;
  if (tile.width() < 8 || tile.columns > 256 ||
      !(any || std::has_single_bit(static_cast<unsigned>(tile.columns)) || tile.columns % 32 == 0))
    return "a tile has 8, 16 or a multiple of 32 columns, of 16-bit floats any of 8, at most 256";
  if (tile.rows < 64 || tile.rows > 1024 || tile.rows % 64 || tile.group_rows() % 64)
    return "a tile has rows for all warpgroups, 64 at a time";
  if (tile.vectorized_epilogue && tile.width() % 32)
    return "threads exchange what they have of 32 columns";
  if (tile.max_stages && tile.shared_by() == 1)
    return "a block has its multiprocessor to itself as it is";
  const int most = MatrixTile::kMaxRegisters / (tile.type().promotes_each_step ? 2 : 1);
  if (tile.registers() > most) return cat("a tile has at most ", most, " elements for a thread");
  std::vector<int> rows{opt.axis};
  rows.insert(rows.end(), opt.axes.begin() + 1, opt.axes.end());
  out.m.size = tile.rows;
  out.n.size = tile.columns;
  const std::vector<Node> ranges = ranges_of(sink);
  const auto add = [&](MatrixSide& side, int id) {
    for (Node r : ranges)
      if (range_id(r) == id && !out.m.has(r) && !out.n.has(r)) side.ranges.push_back(r);
  };
  for (int id : rows) add(out.m, id);
  add(out.n, opt.axes[0]);
  if (out.m.ranges.size() != rows.size() || out.n.ranges.size() != 1 ||
      ((out.m.mask() | out.n.mask()) & p.k))
    return "no such ranges";
  if (tile.split_n ? out.n.extent() <= tile.width()
                   : tile.pieces() > 1 && out.m.extent() <= tile.rows / 2)
    return "a warpgroup has nothing of the only tile";
  if (std::string why = size_problem(tile, out); !why.empty()) return why;
  if (p.b->ranges & out.m.mask()) std::swap(p.a, p.b);
  if ((p.b->ranges & out.m.mask()) || (p.a->ranges & out.n.mask()))
    return "both operands depend on a range of the tile";
  tile.dtype = p.a->dtype;
  tile.second = p.b->dtype;
  return plan_steps(tile, out);
}

}  // namespace

std::string matrix_problem(Node sink, const Opt& opt) {
  MatrixTile tile;
  WgmmaPlan p;
  return plan(sink, opt, tile, p);
}

Node use_matrix_unit(Node sink, const Opt& opt) {
  MatrixTile tile;
  WgmmaPlan p;
  const std::string why = plan(sink, opt, tile, p);
  expect(why.empty(), "matrix: ", why);
  for (size_t i = 1; i < p.m.ranges.size(); ++i)
    sink = apply(sink, {OptKind::Merge, opt.axis, range_id(p.m.ranges[i]), {}}, {});
  Node m = merged(p.m), n = p.n.ranges[0];
  Node piece = index_mod(index_div(m, 64), tile.pieces()), row = index_div(index_mod(m, 16), 8);
  const int side = tile.vectorized_epilogue ? 8 : 2,
            group = side * 4;  // columns of a thread, and of four
  Node column = index_div(index_mod(n, tile.width()), group);
  column = index_add(index_mul(piece, tile.width() / group), column);
  Node at = index_add(index_mul(index_add(index_mul(column, 2), row), side), index_mod(n, side));
  const int64_t shape[] = {-1, tile.registers()};
  Node registers = make(Op::Param, tile.type().sum, {}, Ints(shape));
  NodeMap<Node> map;
  for (Node reduce : all_of(sink, Op::Reduce))
    map[reduce] = make(Op::Load, registers->dtype, {registers, at});
  sink = substitute(sink, map);
  std::vector<Node> srcs(sink->srcs().begin(), sink->srcs().end());
  srcs.push_back(make(Op::Matrix, kVoid, p.origins, Ints(tile.numbers())));
  return make(Op::Sink, kVoid, srcs);
}

std::string cluster_problem(Node sink) {
  for (Node matrix : all_of(sink, Op::Matrix)) {
    const MatrixTile tile(matrix);
    if (!tile.multicasts()) continue;
    Node range = nullptr;
    for (Node r : ranges_of(sink))
      if (kind(r) == RangeKind::Block) {
        if (range) return "clusters go along one range of blocks";
        range = r;
      }
    if (!range || extent(range) % tile.cluster()) return "blocks that are no whole clusters";
    const auto in_block = [&](int source, int block) {
      Node first = make(Op::Range, kIndex, {index(extent(range) / tile.cluster())}, range->payload);
      Node number = index_add(index_mul(first, tile.cluster()), index(block));
      return simplify(substitute(matrix->src(source), range, number));
    };
    for (const MatrixOperand* o : {&tile.a, &tile.b})
      for (int i = 0; i < o->coordinates(); ++i)
        for (int block = 0; block < tile.cluster(); ++block) {
          const int same =
              o == &tile.a ? block % tile.cluster_m : block / tile.cluster_m * tile.cluster_m;
          const int source = o->at[i].source;
          if (tile.copied_by(o == &tile.a) > 1 && source >= 0 &&
              in_block(source, block) != in_block(source, same))
            return "blocks of a cluster would copy for others what these do not read";
        }
  }
  return "";
}

}  // namespace tiny
