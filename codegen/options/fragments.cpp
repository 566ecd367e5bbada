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
bool closes(Node reduce, Node range) {
  const auto own = reduce->srcs().subspan(1);
  return std::find(own.begin(), own.end(), range) != own.end();
}
bool holds_reduction(Node n) { return !all_of(n, Op::Reduce).empty(); }

// The factors of a sum's term; what only some terms have is asked of the first.
bool factors_of(Node sum, const Target& target, Node& a, Node& b, Node& gate) {
  Node value = sum->src(0);
  gate = nullptr;
  while (value->op == Op::Where && value->src(2)->is_const(0)) {
    gate = both(gate, value->src(0));
    value = value->src(1);
  }
  if (sum->arg<OpArg>().op != Op::Add || value->op != Op::Mul || value->dtype != kF32) return false;
  a = narrow(value->src(0), target);
  b = narrow(value->src(1), target);
  return a->dtype == b->dtype;
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

}  // namespace

std::optional<ProductChain> find_chain(Node sink, Node m, Node n, const Target& target,
                                       std::string& why) {
  ProductChain out{m, n, {}, {}, nullptr};
  const auto refuse = [&](std::string reason) {
    why = std::move(reason);
    return std::nullopt;
  };
  for (Node sum : all_of(sink, Op::Reduce)) {
    Node a = nullptr, b = nullptr, gate = nullptr;
    const bool is_product = factors_of(sum, target, a, b, gate);
    ProductChain::Product p{sum, a, b, nullptr, nullptr};
    if (closes(sum, n)) {
      if (!is_product) continue;
      if (!has(p.first, m) || !has(p.first, n)) std::swap(p.first, p.second);
      if (!has(p.first, m) || has(p.second, m)) continue;  // a sum over the row, of each one alone
      if (!has(p.second, n)) continue;
      p.first = gated(p.first, gate);
      p.summed = n;
      for (Node r : ranges_of(sink))
        if (has(p.second, r) && !has(p.first, r) && has(sum, r)) {
          if (p.across) return refuse("an operand with two ranges of columns");
          p.across = r;
        }
      if (!p.across || holds_reduction(p.second) || !p.across->src(0)->is_const())
        return refuse("a sum along the columns that is no product of matrices");
      out.outer.push_back(p);
    } else if (is_product && has(sum, m) && has(sum, n)) {
      if (gate || sum->num_src != 2) return refuse("a sum of some products, or along two ranges");
      if (!has(p.first, m)) std::swap(p.first, p.second);
      p.across = n;
      p.summed = sum->src(1);
      if (!has(p.first, m) || has(p.second, m) || has(p.first, n) || !has(p.second, n) ||
          !has(p.first, p.summed) || !has(p.second, p.summed) || holds_reduction(p.first) ||
          holds_reduction(p.second))
        return refuse("a product of other than rows and columns");
      out.inner.push_back(p);
    } else if (has(sum, n)) {
      return refuse("a reduction for each column that is no product with rows");
    }
  }
  if (out.inner.empty() || out.outer.empty()) return refuse("no two products");
  for (Node sum : all_of(sink, Op::Reduce)) {
    const auto is_own = [&](const ProductChain::Product& p) { return p.sum == sum; };
    if (closes(sum, n) && std::none_of(out.outer.begin(), out.outer.end(), is_own) &&
        (sum->ranges & ~out.inner[0].sum->ranges))
      return refuse("a sum along the columns of another matrix");
  }
  out.unit = mma_unit(target, out.inner[0].first->dtype);
  if (!out.unit || out.unit->sum != kF32 || !feeds_itself(*out.unit))
    return refuse("no matrix unit whose results are operands");
  for (const auto* list : {&out.inner, &out.outer})
    for (const auto& p : *list)
      if (p.first->dtype != out.unit->dtype || p.second->dtype != out.unit->dtype)
        return refuse("products of several dtypes");
  return out;
}

std::optional<ProductChain> find_chain(Node sink, const Target& target) {
  const std::vector<Node> ranges = ranges_of(sink), reduces = all_of(sink, Op::Reduce);
  for (Node sum : reduces) {
    Node factors[2] = {}, gate = nullptr;
    if (!factors_of(sum, target, factors[0], factors[1], gate) || gate) continue;
    for (const auto& [a, b] :
         {std::pair(factors[0], factors[1]), std::pair(factors[1], factors[0])})
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

bool is_chain(Node sink) {
  NodeMap<char> holds;  // an Mma
  for (Node n : topological(sink)) {
    bool any = false;
    for (Node s : n->srcs()) any |= holds.contains(s);
    if (any && n->op == Op::Mma) return true;
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
    uint64_t closed = 0;
    if (n->op == Op::Reduce)
      for (Node r : n->srcs().subspan(1)) closed |= r->ranges & mask_;
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

class Fragments {
 public:
  Fragments(Node sink, const ProductChain& chain, const Opt& opt, const Target& target)
      : sink_(sink), chain_(chain), u_(*chain.unit), depth_(opt.amount), target_(target) {
    id_ = next_range_id(sink);
    slot_ = kFirstStage;
    for (Node s : all_of(sink, Op::Stage)) slot_ = std::min(slot_, slot_of(s) - 1);
    const int64_t width = u_.width;
    y_ = digit(target.warp / width, RangeKind::Thread);
    x_ = digit(width, RangeKind::Thread);
    i_ = digit(u_.row.count, RangeKind::Unroll);
    j_ = digit(u_.column.count, RangeKind::Unroll);
    h_ = digit(u_.depth / u_.columns, RangeKind::Unroll);
    thread_ = index_add(index_mul(y_, width), x_);
    rows_ = outer(chain.m, u_.rows);
    steps_ = outer(chain.n, u_.depth);
    row_ = at(rows_, u_.rows, u_.row, i_);
    fragment_ = index_add(index_mul(steps_, u_.depth / u_.columns), h_);
    column_ = at(fragment_, u_.columns, u_.column, j_);
    for (const auto& p : chain.outer) {
      Node j = digit(u_.column.count, RangeKind::Vector), first = outer(p.across, u_.columns);
      columns_.push_back({first, j, at(first, u_.columns, u_.column, j)});
    }
  }

  Node run() {
    for (const auto& p : chain_.inner) staged_.push_back({stage(p, true), stage(p, false)});
    for (const auto& p : chain_.outer) staged_.push_back({nullptr, stage(p, false)});
    for (Node n : topological(sink_)) done_[n] = changed(n);
    Node out = *done_.find(sink_);
    std::vector<std::pair<Node, Node>> across;
    for (size_t i = 0; i < chain_.outer.size(); ++i) {
      const auto known = std::find_if(across.begin(), across.end(), [&](const auto& a) {
        return a.first == chain_.outer[i].across;
      });
      if (known == across.end()) across.emplace_back(chain_.outer[i].across, columns_[i].place);
    }
    return simplify(FreeRanges(across)(out));
  }

 private:
  struct Columns {
    Node first, number, place;
  };

  Node digit(int64_t count, RangeKind kind) {
    const int id = id_++;
    return count == 1 ? index(0) : make(Op::Range, kIndex, {index(count)}, RangeArg{id, kind});
  }
  static Node outer(Node r, int64_t size) {
    const int64_t count = extent(r) / size;
    return count == 1 ? index(0)
                      : make(Op::Range, kIndex, {index(count)}, RangeArg{range_id(r), kind(r)});
  }
  Node at(Node first, int64_t size, const LanePlace& place, Node number) const {
    Node lane = index_add(index_mul(y_, place.of_y), index_mul(x_, place.of_x));
    return index_add(index_add(index_mul(first, size), lane), index_mul(number, place.step));
  }
  // The thread's element q along k: those of its results.
  Node along(Node step, int q) const {
    const int each = u_.column.count;
    return index_add(index_mul(step, u_.depth),
                     at(index(q / each), u_.columns, u_.column, index(q % each)));
  }

  Node replaced(Node n, std::vector<std::pair<Node, Node>> values) const {
    return simplify(FreeRanges(std::move(values))(n));
  }

  // An operand's tile in shared memory; the operand itself where it is computed.
  Node stage(const ProductChain::Product& p, bool first) {
    Node x = first ? p.first : p.second;
    if (!depth_ || x->op != Op::Load || is_stage(x->src(0))) return x;
    Node across = first ? chain_.m : p.across;
    Node loop = nullptr;
    for (Node r : ranges_of(sink_))
      if (kind(r) == RangeKind::Reduce && r != p.summed && r != chain_.n && has(x, r)) loop = r;
    const bool lies_along_k = stride(x, range_id(p.summed)) == 1;
    StageTile tile;
    tile.ranges =
        lies_along_k ? std::vector<Node>{across, p.summed} : std::vector<Node>{p.summed, across};
    tile.padding = 16 / x->dtype.size();
    tile.loop = loop;
    tile.depth = loop ? depth_ : 1;
    for (const auto& [like, fill] : stages_) {  // the same tile, as another product reads it
      NodeMap<Node> map;
      for (size_t i = 0; i < 2; ++i) {
        if (extent(fill[i]) != extent(tile.ranges[i])) continue;
        map[tile.ranges[i]] = fill[i];
      }
      if (map.size() != 2 || substitute(x, map) != like->src(0)->src(0)) continue;
      NodeMap<Node> places;
      for (size_t i = 0; i < 2; ++i) places[fill[i]] = tile.ranges[i];
      return make(Op::Load, x->dtype, {like->src(0), substitute(like->src(0)->src(1), places)});
    }
    Node read = staged_value(x, tile, slot_--, id_);
    const auto closed = read->src(0)->srcs().subspan(3);
    stages_.push_back({read, {closed.begin(), closed.end()}});
    return read;
  }

  // A thread's elements of an operand that is the same for all results of the thread.
  std::vector<Node> elements(Node x, Node across, Node summed, Node step, bool first,
                             Node fragment) {
    const int64_t size = first ? u_.rows : u_.columns;
    const LanePlace& place = first ? u_.a_row : u_.b_column;
    if (!*u_.arch && x->dtype.size() == 2) {
      // Fragments in pairs: of a range, for which its place is put in.
      Node pair =
          make(Op::Range, kIndex, {index(extent(across) / size)}, RangeArg{63, RangeKind::Loop});
      std::vector<Node> out =
          load_matrices({x, across, summed, pair, step, thread_}, u_, static_cast<int>(size), 60);
      for (Node& e : out) e = replaced(e, {{pair, fragment}});
      if (!out.empty()) return out;
    }
    std::vector<Node> out;
    for (int e = 0; e < place.count; ++e)
      for (int q = 0; q < u_.k.count; ++q)
        out.push_back(
            replaced(x, {{across, at(fragment, size, place, index(e))}, {summed, along(step, q)}}));
    return out;
  }

  Node changed(Node n) {
    if (n == chain_.m) return row_;
    if (n == chain_.n) return column_;
    for (size_t i = 0; i < chain_.inner.size(); ++i)
      if (n == chain_.inner[i].sum) return inner(chain_.inner[i], staged_[i]);
    for (size_t i = 0; i < chain_.outer.size(); ++i)
      if (n == chain_.outer[i].sum)
        return outer_product(chain_.outer[i], columns_[i], staged_[chain_.inner.size() + i].second);
    std::vector<Node> srcs;
    const bool is_closing = n->op == Op::Reduce && closes(n, chain_.n);
    for (Node s : n->srcs()) {
      if (!is_closing || s != chain_.n) {
        srcs.push_back(*done_.find(s));
        continue;
      }
      for (Node r : {steps_, h_, j_, u_.column.of_y ? y_ : nullptr, u_.column.of_x ? x_ : nullptr})
        if (r && r->op == Op::Range) srcs.push_back(r);
    }
    return with_sources(n, srcs);
  }

  // The sum of products over what `reduce` closes, fragments of `summed` at each step.
  Node sum_of(Node reduce, std::vector<Node> operands, Node number, Node summed, Node step) {
    operands.push_back(number);
    std::vector<Node> srcs{make(Op::Mma, u_.sum, operands, mma_payload(u_))};
    for (Node r : reduce->srcs().subspan(1))
      if (Node now = r == summed ? step : r; now->op == Op::Range) srcs.push_back(now);
    return srcs.size() == 1 ? srcs[0] : make(Op::Reduce, u_.sum, srcs, reduce->payload);
  }

  Node inner(const ProductChain::Product& p, const std::pair<Node, Node>& operands) {
    Node step = outer(p.summed, u_.depth);
    std::vector<Node> all = elements(operands.first, chain_.m, p.summed, step, true, rows_);
    for (Node e : elements(operands.second, chain_.n, p.summed, step, false, fragment_))
      all.push_back(e);
    return sum_of(p.sum, all, index_add(index_mul(i_, u_.column.count), j_), p.summed, step);
  }

  Node outer_product(const ProductChain::Product& p, const Columns& to, Node second) {
    // The first operand as it is by now: it is made of what is below it.
    Node first = now(p.first);
    std::vector<Node> all;
    const int each = u_.column.count;
    for (int e = 0; e < u_.a_row.count; ++e)
      for (int q = 0; q < u_.k.count; ++q)
        all.push_back(replaced(first, digits({{i_, e}, {h_, q / each}, {j_, q % each}})));
    for (Node e : elements(second, p.across, chain_.n, steps_, false, to.first)) all.push_back(e);
    return sum_of(p.sum, all, index_add(index_mul(i_, each), to.number), chain_.n, steps_);
  }

  static std::vector<std::pair<Node, Node>> digits(
      std::initializer_list<std::pair<Node, int>> values) {
    std::vector<std::pair<Node, Node>> out;
    for (const auto& [range, value] : values)
      if (range->op == Op::Range) out.emplace_back(range, index(value));
    return out;
  }

  // A node below the sink, or one that was put together of such nodes.
  Node now(Node n) {
    if (Node* known = done_.find(n)) return *known;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(now(s));
    Node out = with_sources(n, srcs);
    done_[n] = out;
    return out;
  }

  Node sink_;
  const ProductChain& chain_;
  const MmaUnit& u_;
  const int64_t depth_;
  const Target& target_;
  int id_ = 0, slot_ = 0;
  Node y_, x_, i_, j_, h_, thread_;
  Node rows_, steps_, row_, fragment_, column_;
  std::vector<std::pair<Node, std::vector<Node>>> stages_;  // reads, and ranges of the copies
  std::vector<Columns> columns_;                            // of each outer product
  std::vector<std::pair<Node, Node>> staged_;               // operands of inner and outer products
  NodeMap<Node> done_;
};

std::optional<ProductChain> chain_of(Node sink, const Opt& opt, const Target& target,
                                     std::string& why) {
  Node m = nullptr, n = nullptr;
  if (opt.axes.size() == 1)
    for (Node r : ranges_of(sink)) {
      if (range_id(r) == opt.axis) m = r;
      if (range_id(r) == opt.axes[0]) n = r;
    }
  if (m && n) return find_chain(sink, m, n, target, why);
  why = "no ranges of rows and columns";
  return std::nullopt;
}

}  // namespace

std::string fragments_problem(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  if (target.kind != Target::Kind::Gpu) return "there are no warps";
  if (opt.amount < 0 || opt.amount > 8) return "stages of 1 to 8 tiles, or none, are wanted";
  const auto chain = chain_of(simplify(sink), opt, target, why);
  return chain ? size_problem(*chain) : why;
}

Node use_fragments(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  sink = simplify(sink);  // what is alike has become the same
  const auto chain = chain_of(sink, opt, target, why);
  expect(chain.has_value(), "fragments: ", why);
  return Fragments(sink, *chain, opt, target).run();
}

}  // namespace tiny
