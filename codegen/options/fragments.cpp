#include "codegen/options/fragments.h"

#include <algorithm>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/load_matrix.h"
#include "codegen/options/stage.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

bool has(Node n, Node range) { return n->ranges & range->ranges; }
bool holds_reduction(Node n) { return !all_of(n, Op::Reduce).empty(); }

// Of a sum of products in f32: the factors as a unit takes them.
std::optional<Contraction> product_of(Node sum, const Target& target) {
  auto c = contraction_of(sum);
  if (!c || c->is_converted || c->product->dtype != kF32) return {};
  if (!narrow_factors(*c, target) && target.kind != Target::Kind::Cpu) return {};
  return c;
}

Node gated(Node n, Node gate) {
  return gate ? make(Op::Where, n->dtype, {gate, n, constant(n->dtype, 0)}) : n;
}

// Whether a thread's elements of a result are those that it needs of a first operand.
bool feeds_itself(const MmaUnit& u) {
  const auto same_place = [](const LanePlace& a, const LanePlace& b) {
    return a.of_y == b.of_y && a.of_x == b.of_x && a.count == b.count &&
           (a.count == 1 || a.step == b.step);
  };
  return !u.group && same_place(u.row, u.a_row) && u.depth % u.columns == 0 &&
         u.k.count == u.column.count * (u.depth / u.columns);
}

// The unit of a CPU for all products of a chain; nullptr where there is none.
const MmaUnit* common_unit(const ProductChain& chain, const Target& target) {
  const DType t = chain.inner[0].a->dtype;
  for (const auto* list : {&chain.inner, &chain.outer})
    for (const auto& p : *list)
      if (p.a->dtype != t || p.b->dtype != t) return nullptr;
  return tile_unit(target, t, t);
}

}  // namespace

std::optional<ProductChain> find_chain(Node sink, Node m, Node n, const Target& target,
                                       std::string& why) {
  ProductChain out{m, n, {}, {}, nullptr};
  const auto refuse = [&](std::string reason) {
    why = std::move(reason);
    return std::nullopt;
  };
  for (Node sum : all_of(sink, Op::Reduce)) {
    const auto product = product_of(sum, target);
    ProductChain::Product p{product.value_or(Contraction())};
    if (closes(sum, n)) {
      if (!product) continue;
      if (!has(p.a, m) || !has(p.a, n)) std::swap(p.a, p.b);
      if (!has(p.a, m) || has(p.b, m)) continue;  // a sum over the row, of each one alone
      if (!has(p.b, n)) continue;
      p.a = gated(p.a, p.gate());
      p.summed = n;
      for (Node r : ranges_of(sink))
        if (has(p.b, r) && !has(p.a, r) && has(sum, r)) {
          if (p.across) return refuse("an operand with two ranges of columns");
          p.across = r;
        }
      if (!p.across || holds_reduction(p.b) || !p.across->src(0)->is_const())
        return refuse("a sum along the columns that is no product of matrices");
      out.outer.push_back(p);
    } else if (product && has(sum, m) && has(sum, n)) {
      if (!p.masks.empty()) return refuse("a sum of some products");
      if (!has(p.a, m)) std::swap(p.a, p.b);
      p.across = n;
      p.summed = sum->src(sum->num_src - 1);
      if (!has(p.a, m) || has(p.b, m) || has(p.a, n) || !has(p.b, n) || !has(p.a, p.summed) ||
          !has(p.b, p.summed) || holds_reduction(p.a) || holds_reduction(p.b))
        return refuse("a product of other than rows and columns");
      out.inner.push_back(p);
    } else if (has(sum, n)) {
      return refuse("a reduction for each column that is no product with rows");
    }
  }
  const auto is_row = [&](Node sum) { return closes(sum, n) && has(out.inner[0].reduce, n); };
  if (out.inner.empty() ||
      (out.outer.empty() && std::ranges::none_of(all_of(sink, Op::Reduce), is_row)))
    return refuse("no two products, and nothing that is reduced along the columns");
  // Parts of long sums go along a loop inside that of the columns.
  for (const auto& p : out.inner)
    if (p.reduce->num_src > 2 && (out.outer.size() > 0 || target.kind == Target::Kind::Cpu))
      return refuse("a sum along two ranges");
  for (Node sum : all_of(sink, Op::Reduce)) {
    const auto is_own = [&](const ProductChain::Product& p) { return p.reduce == sum; };
    if (closes(sum, n) && std::ranges::none_of(out.outer, is_own) &&
        (sum->ranges & ~out.inner[0].reduce->ranges))
      return refuse("a sum along the columns of another matrix");
  }
  if (target.kind == Target::Kind::Cpu) {
    out.unit = common_unit(out, target);
    return out;
  }
  out.unit = mma_unit(target, out.inner[0].a->dtype);
  if (!out.unit || out.unit->sum != kF32 || !feeds_itself(*out.unit))
    return refuse("no matrix unit whose results are operands");
  for (const auto* list : {&out.inner, &out.outer})
    for (const auto& p : *list)
      if (p.a->dtype != out.unit->dtype || p.b->dtype != out.unit->dtype)
        return refuse("products of several dtypes");
  return out;
}

std::optional<ProductChain> find_chain(Node sink, const Target& target) {
  const std::vector<Node> ranges = ranges_of(sink), reduces = all_of(sink, Op::Reduce);
  for (Node sum : reduces) {
    const auto c = product_of(sum, target);
    if (!c || !c->masks.empty()) continue;
    for (const auto& [a, b] : {std::pair(c->a, c->b), std::pair(c->b, c->a)})
      for (Node n : ranges) {
        if (kind(n) != RangeKind::Reduce || !has(sum, n) || !has(b, n) || has(a, n)) continue;
        Node m = nullptr;
        for (Node r : ranges)
          if (kind(r) == RangeKind::Loop && has(a, r) && !has(b, r) &&
              (!m || extent(r) >= extent(m)))
            m = r;
        std::string why;
        if (!m) continue;
        if (auto chain = find_chain(sink, m, n, target, why)) return chain;
      }
  }
  return std::nullopt;
}

bool is_chain(Node sink, const Target& target) {
  if (target.kind == Target::Kind::Cpu) return !all_of(sink, Op::Stage).empty();
  NodeMap<char> holds;  // an Mma
  for (Node n : topological(sink)) {
    bool any = false;
    for (Node s : n->srcs()) any |= holds.contains(s);
    if (any && (n->op == Op::Mma || n->op == Op::Roll)) return true;
    // As the row sums of a softmax's gradient. Other sums of results have no loop that masks end.
    const bool of_both = n->op == Op::Reduce && n->src(0)->op == Op::Mul &&
                         holds.contains(n->src(0)->src(0)) && holds.contains(n->src(0)->src(1));
    if (of_both) return true;
    if (any || n->op == Op::Mma) holds[n] = 1;
  }
  return false;
}

namespace {

// Why the ranges are no whole fragments; empty where they are.
std::string size_problem(const ProductChain& chain) {
  const MmaUnit& u = *chain.unit;
  const auto fits = [](Node r, int64_t size) {
    return r->src(0)->is_const() && extent(r) % size == 0;
  };
  bool whole = fits(chain.m, u.rows) && fits(chain.n, u.depth);
  for (const auto& p : chain.inner) whole &= fits(p.summed, u.depth);
  for (const auto& p : chain.outer) whole &= fits(p.across, u.columns);
  return whole ? "" : cat("not whole fragments of ", u.rows, " x ", u.columns, " x ", u.depth);
}

// Why four warps cannot compute the products together; empty where they can.
std::string warpgroup_problem(const ProductChain& chain, const Opt& opt, const Target& target) {
  constexpr int64_t kMaxColumns = 128;  // columns of a result: a vector has at most 64 lanes
  const MmaUnit* u = warpgroup_unit(target, chain.unit->dtype);
  if (!u || opt.amount < 1) return "no matrix unit of four warps, or no stages";
  // The contiguous range has whole rows of 128 bytes.
  const auto is_matrix = [](Node n, Node across, Node summed) {
    if (n->op != Op::Load || is_stage(n->src(0))) return false;
    Node along = stride(n, range_id(summed)) == 1 ? summed : across;
    return stride(n, range_id(along)) == 1 && extent(along) % 64 == 0;
  };
  if (extent(chain.m) % (4 * u->rows) || extent(chain.n) > kMaxColumns)
    return "not the rows of four warps, or too many columns";
  for (const auto& p : chain.inner)
    if (!is_matrix(p.a, chain.m, p.summed) || !is_matrix(p.b, chain.n, p.summed))
      return "an operand that is no matrix in memory";
  for (const auto& p : chain.outer)
    if (!is_matrix(p.b, p.across, p.summed) || extent(p.across) > kMaxColumns)
      return "an operand that is no matrix in memory, or too many columns";
  return "";
}

// Puts expressions in place of ranges, but not of those that a reduction closes.
class FreeRanges {
 public:
  explicit FreeRanges(std::vector<std::pair<Node, Node>> values) : values_(std::move(values)) {
    for (const auto& [range, to] : values_) mask_ |= range->ranges;
  }

  Node operator()(Node n) {
    if (!(n->ranges & mask_)) return n;
    for (const auto& [range, to] : values_)
      if (n == range) return to;
    if (Node* known = done_.find(n)) return *known;
    std::vector<Node> srcs;
    const uint64_t closed = n->op == Op::Reduce ? reduced_ranges(n) & mask_ : 0;
    if (closed) {
      std::vector<std::pair<Node, Node>> rest;
      for (const auto& v : values_)
        if (!(v.first->ranges & closed)) rest.push_back(v);
      FreeRanges inside(std::move(rest));
      srcs.push_back(inside(n->src(0)));
      srcs.insert(srcs.end(), n->srcs().begin() + 1, n->srcs().end());
    } else {
      for (Node s : n->srcs()) srcs.push_back((*this)(s));
    }
    Node out = with_sources(n, srcs);
    done_[n] = out;
    return out;
  }

 private:
  std::vector<std::pair<Node, Node>> values_;
  uint64_t mask_ = 0;
  NodeMap<Node> done_;
};

using NodePair = std::pair<Node, Node>;

Node replaced(Node n, std::vector<NodePair> values) {
  return with_free_ranges(n, std::move(values));
}

// Operands of a product of four warps.
struct WarpgroupOperands {
  // What is read of a swizzled stage, by these ranges.
  struct Tile {
    Node read, across, summed;
  };

  WarpgroupOperands(const MmaUnit& unit, int columns) : u(unit) { product.columns = columns; }

  // Adds the first and the last element of `size` rows or columns from `from` on, at a step along
  // the sum. `rows`: of the stage's tile.
  WarpgroupProduct::Operand add(const Tile& tile, Node from, int64_t size, Node step, int rows) {
    const auto at = [&](Node place, Node k) {
      return replaced(tile.read, {{tile.across, place}, {tile.summed, k}});
    };
    const Node first = index_mul(step, u.depth), zero = index(0);
    nodes.push_back(at(from, first));
    nodes.push_back(at(index_add(from, index(size - 1)), index_add(first, index(u.depth - 1))));
    const Node here = at(zero, zero)->src(1), next = at(zero, index(1))->src(1);
    return {false, simplify(index_add(next, index_mul(here, -1)))->is_const(1), rows};
  }

  Node mma(Node number) {
    nodes.push_back(number);
    return warpgroup_mma(u, product, nodes);
  }

  const MmaUnit& u;
  WarpgroupProduct product;
  std::vector<Node> nodes;
};

// Tiles of operands in shared memory, each once.
class TileStages {
 public:
  // `n`: the columns' range within a tile. Ranges of copies get the ids from `id` on.
  // `swizzled`: how tiles lie.
  TileStages(Node sink, Node n, int64_t depth, bool swizzled, int& id)
      : sink_(sink),
        n_(n),
        depth_(depth),
        swizzled_(swizzled),
        id_(id),
        slot_(next_stage_slot(sink)) {}

  // What is read of the operand of a sum; the operand itself where it is computed, or in no stage.
  Node read(Node sum, Node x, Node across, Node summed) {
    if (!depth_ || x->op != Op::Load || is_stage(x->src(0))) return x;
    StageTile tile;
    for (Node r : ranges_of(sink_))
      if (kind(r) == RangeKind::Reduce && r != summed && r != n_ && has(x, r) &&
          (!tile.loop || closes(sum, r)))
        tile.loop = r;
    const bool lies_along_sum = stride(x, range_id(summed)) == 1;
    tile.ranges =
        lies_along_sum ? std::vector<Node>{across, summed} : std::vector<Node>{summed, across};
    tile.padding = swizzled_ ? 0 : 16 / x->dtype.size();
    tile.depth = tile.loop ? depth_ : 1;
    tile.swizzled = swizzled_;
    if (Node known = known_read(x, tile.ranges)) return known;
    Node read = staged_value(x, tile, slot_--, id_);
    const auto closed = read->src(0)->srcs().subspan(3);
    reads_.push_back({read, {closed.begin(), closed.end()}});
    return read;
  }

  // Rows of a tile that is read.
  int rows_of(Node read) const {
    for (const auto& [known, fill] : reads_)
      if (known->src(0) == read->src(0)) return static_cast<int>(extent(fill[0]));
    throw Bug("fragments: an operand in no stage");
  }

 private:
  // The same tile, as another product reads it.
  Node known_read(Node x, const std::vector<Node>& ranges) const {
    for (const auto& [read, fill] : reads_) {
      Node stage = read->src(0);
      NodeMap<Node> filled, places;
      for (size_t i = 0; i < 2; ++i)
        if (extent(fill[i]) == extent(ranges[i])) {
          filled[ranges[i]] = fill[i];
          places[fill[i]] = ranges[i];
        }
      if (filled.size() == 2 && simplify(substitute(x, filled)) == simplify(stage->src(0)))
        return make(Op::Load, x->dtype, {stage, substitute(stage->src(1), places)});
    }
    return nullptr;
  }

  Node sink_, n_;
  const int64_t depth_;
  const bool swizzled_;
  int& id_;
  int slot_;
  std::vector<std::pair<Node, std::vector<Node>>> reads_;  // with ranges of the copies
};

// The digits of rows and columns, and what they make up.
struct Digits {
  Node y, x, i, j, h, thread;
  Node rows, steps;  // fragments of rows, and of columns as the next product sums them
  Node row, fragment, column;
};

class Fragments {
 public:
  Fragments(Node sink, const ProductChain& chain, const Opt& opt, const Target& target)
      : chain_(chain),
        u_(unit_of(chain, opt, target)),
        id_(next_range_id(sink)),
        stages_(sink, chain.n, opt.amount, u_.warpgroup, id_) {
    const int64_t width = u_.width;
    Digits& d = digits_;
    d.y = digit(target.warp / width, RangeKind::Thread);
    d.x = digit(width, RangeKind::Thread);
    d.i = digit(u_.row.count, RangeKind::Unroll);
    d.j = digit(u_.column.count, RangeKind::Unroll);
    d.h = digit(u_.depth / u_.columns, RangeKind::Unroll);
    d.thread = index_add(index_mul(d.y, width), d.x);
    d.rows = outer(chain.m, u_.rows);
    d.steps = outer(chain.n, u_.depth);
    d.row = at(d.rows, u_.rows, u_.row, d.i);
    d.fragment = index_add(index_mul(d.steps, u_.depth / u_.columns), d.h);
    d.column = at(d.fragment, u_.columns, u_.column, d.j);
    for (const auto& p : chain.outer)
      if (!columns_.contains(p.across))
        columns_[p.across] = {outer(p.across, u_.columns),
                              digit(u_.column.count, RangeKind::Vector)};
    for (const auto& p : chain.inner)
      operands_[p.reduce] = {stages_.read(p.reduce, p.a, chain.m, p.summed),
                             stages_.read(p.reduce, p.b, chain.n, p.summed)};
    for (const auto& p : chain.outer)
      operands_[p.reduce] = {p.a, stages_.read(p.reduce, p.b, p.across, p.summed)};
  }

  Node run(Node sink) {
    for (Node n : topological(sink)) done_[n] = changed(n);
    std::vector<std::pair<Node, Node>> across;
    for (const auto& p : chain_.outer) {
      const auto& [first, number] = *columns_.find(p.across);
      across.emplace_back(p.across, at(first, u_.columns, u_.column, number));
    }
    return replaced(*done_.find(sink), std::move(across));
  }

 private:
  Node digit(int64_t count, RangeKind kind) {
    const int id = id_++;
    return count == 1 ? index(0) : make_range(count, id, kind);
  }
  static Node outer(Node r, int64_t size) {
    const int64_t count = extent(r) / size;
    return count == 1 ? index(0) : make_range(count, range_id(r), kind(r));
  }
  Node at(Node first, int64_t size, const LanePlace& place, Node number) const {
    Node lane = index_add(index_mul(digits_.y, place.of_y), index_mul(digits_.x, place.of_x));
    return index_add(index_add(index_mul(first, size), lane), index_mul(number, place.step));
  }
  // The thread's element q along k: those of its results.
  Node along(Node step, int q) const {
    const int each = u_.column.count;
    return index_add(index_mul(step, u_.depth),
                     at(index(q / each), u_.columns, u_.column, index(q % each)));
  }

  // A thread's elements of an operand in memory: of its fragment `first` along `across`.
  std::vector<Node> elements(Node x, Node across, Node summed, Node step, bool rows, Node first) {
    const int64_t size = rows ? u_.rows : u_.columns;
    const LanePlace& place = rows ? u_.a_row : u_.b_column;
    std::vector<Node> out;
    if (!*u_.arch && x->dtype.size() == 2) {
      // Fragments in pairs: of a range, for which its place is put in.
      constexpr int kPair = 63, kFree = 60;  // ids that no kernel has by now
      Node pair = make_range(extent(across) / size, kPair, RangeKind::Loop);
      out = load_matrices({x, across, summed, pair, step, digits_.thread}, u_,
                          static_cast<int>(size), kFree);
      for (Node& e : out) e = replaced(e, {{pair, first}});
      if (!out.empty()) return out;
    }
    for (int e = 0; e < place.count; ++e)
      for (int q = 0; q < u_.k.count; ++q)
        out.push_back(
            replaced(x, {{across, at(first, size, place, index(e))}, {summed, along(step, q)}}));
    return out;
  }

  Node changed(Node n) {
    if (n == chain_.m) return digits_.row;
    if (n == chain_.n) return digits_.column;
    for (const auto& p : chain_.inner)
      if (n == p.reduce) return inner(p);
    for (const auto& p : chain_.outer)
      if (n == p.reduce) return outer_product(p);
    std::vector<Node> srcs;
    const bool is_closing = n->op == Op::Reduce && closes(n, chain_.n);
    for (Node s : n->srcs()) {
      if (!is_closing || s != chain_.n) {
        srcs.push_back(*done_.find(s));
        continue;
      }
      const LanePlace& c = u_.column;
      for (Node r : {digits_.steps, digits_.h, digits_.j, c.of_y ? digits_.y : nullptr,
                     c.of_x ? digits_.x : nullptr})
        if (r && r->op == Op::Range) srcs.push_back(r);
    }
    return with_sources(n, srcs);
  }

  // The sum over what `reduce` closes, fragments of `summed` at each step.
  Node sum_of(Node reduce, Node product, Node summed, Node step) {
    std::vector<Node> srcs{product};
    for (Node r : reduce->srcs().subspan(1))
      if (Node now = r == summed ? step : r; now->op == Op::Range) srcs.push_back(now);
    return srcs.size() == 1 ? srcs[0] : make(Op::Reduce, u_.sum, srcs, reduce->payload);
  }
  Node product_of(std::vector<Node> operands, Node number) {
    operands.push_back(number);
    return make(Op::Mma, u_.sum, operands, mma_payload(u_));
  }

  // The number of a thread's element of a whole row of fragments.
  Node number_in_row(Node fragment, Node number) const {
    const int64_t each = u_.column.count, all = u_.results();
    return index_add(index_mul(fragment, all), index_add(index_mul(digits_.i, each), number));
  }

  Node inner_of_warpgroup(const ProductChain::Product& p, Node step) {
    const auto& [first, second] = *operands_.find(p.reduce);
    const Node rows = index_mul(index_div(digits_.rows, 4), 4 * u_.rows);
    WarpgroupOperands all(u_, static_cast<int>(extent(chain_.n)));
    all.product.a =
        all.add({first, chain_.m, p.summed}, rows, 4 * u_.rows, step, stages_.rows_of(first));
    all.product.b = all.add({second, chain_.n, p.summed}, index(0), extent(chain_.n), step,
                            stages_.rows_of(second));
    return all.mma(number_in_row(digits_.fragment, digits_.j));
  }

  Node inner(const ProductChain::Product& p) {
    const auto& [first, second] = *operands_.find(p.reduce);
    Node step = outer(p.summed, u_.depth);
    if (u_.warpgroup) return sum_of(p.reduce, inner_of_warpgroup(p, step), p.summed, step);
    std::vector<Node> all = elements(first, chain_.m, p.summed, step, true, digits_.rows);
    for (Node e : elements(second, chain_.n, p.summed, step, false, digits_.fragment))
      all.push_back(e);
    Node number = index_add(index_mul(digits_.i, u_.column.count), digits_.j);
    return sum_of(p.reduce, product_of(all, number), p.summed, step);
  }

  Node outer_product(const ProductChain::Product& p) {
    const auto& [of, second] = *operands_.find(p.reduce);
    const auto& [fragment, number] = *columns_.find(p.across);
    Node first = now(of);  // made of what is below it, which is done
    std::vector<Node> all;
    const int each = u_.column.count;
    for (int e = 0; e < u_.a_row.count; ++e)
      for (int q = 0; q < u_.k.count; ++q) {
        std::vector<NodePair> values;
        for (const auto& [digit, value] : {std::pair(digits_.i, e), std::pair(digits_.h, q / each),
                                           std::pair(digits_.j, q % each)})
          if (digit->op == Op::Range) values.emplace_back(digit, index(value));
        all.push_back(replaced(first, std::move(values)));
      }
    if (u_.warpgroup) {
      WarpgroupOperands tile(u_, static_cast<int>(extent(p.across)));
      tile.product.a.in_registers = true;
      tile.nodes = all;
      tile.product.b = tile.add({second, p.across, chain_.n}, index(0), extent(p.across),
                                digits_.steps, stages_.rows_of(second));
      return sum_of(p.reduce, tile.mma(number_in_row(fragment, number)), chain_.n, digits_.steps);
    }
    for (Node e : elements(second, p.across, chain_.n, digits_.steps, false, fragment))
      all.push_back(e);
    Node at = index_add(index_mul(digits_.i, each), number);
    return sum_of(p.reduce, product_of(all, at), chain_.n, digits_.steps);
  }

  // A node below the sink, or one that was put together of such nodes.
  Node now(Node n) {
    if (Node* known = done_.find(n)) return *known;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(now(s));
    return done_[n] = with_sources(n, srcs);
  }

  static const MmaUnit& unit_of(const ProductChain& chain, const Opt& opt, const Target& target) {
    return opt.kind == OptKind::Warpgroups ? *warpgroup_unit(target, chain.unit->dtype)
                                           : *chain.unit;
  }

  const ProductChain& chain_;
  const MmaUnit& u_;
  int id_;
  TileStages stages_;
  Digits digits_;
  NodeMap<NodePair> columns_;   // of results, by their range: fragments, elements
  NodeMap<NodePair> operands_;  // of products, by their sums
  NodeMap<Node> done_;
};

std::optional<ProductChain> chain_of(Node sink, const Opt& opt, const Target& target,
                                     std::string& why) {
  const bool named = opt.axes.size() == 1;
  Node m = find_range(sink, opt.axis), n = named ? find_range(sink, opt.axes[0]) : nullptr;
  if (m && n) return find_chain(sink, m, n, target, why);
  why = "no ranges of rows and columns";
  return std::nullopt;
}

}  // namespace

Node with_free_ranges(Node n, std::vector<std::pair<Node, Node>> values) {
  return simplify(FreeRanges(std::move(values))(n));
}

std::string fragments_problem(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  const bool cpu = target.kind == Target::Kind::Cpu;
  if (cpu && opt.kind == OptKind::Warpgroups) return "there are no warps";
  if (opt.amount < 0 || opt.amount > 8) return "stages of 1 to 8 tiles, or none, are wanted";
  const auto chain = chain_of(simplify(sink), opt, target, why);
  if (!chain) return why;
  if (cpu) return pairs_problem(*chain);
  if (opt.kind == OptKind::Warpgroups) why = warpgroup_problem(*chain, opt, target);
  return why.empty() ? size_problem(*chain) : why;
}

Node use_fragments(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  sink = simplify(sink);  // what is alike has become the same
  const auto chain = chain_of(sink, opt, target, why);
  expect(chain.has_value(), "fragments: ", why);
  if (target.kind == Target::Kind::Cpu) return use_pairs(sink, *chain);
  return Fragments(sink, *chain, opt, target).run(sink);
}

}  // namespace tiny
