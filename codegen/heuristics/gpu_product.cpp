// Schedules GEMMs and convolutions on ordinary arithmetic units: each thread has a tile of results.
// The fastest of all tiles is taken, by time_of_threads (codegen/heuristics/rates.h).
#include <algorithm>
#include <cmath>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kMinUses = 4;  // of an operand's element, for tiles to be worth anything

class ProductTuner : Tuner {
 public:
  ProductTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  // Its largest sum is one of products whose factors are each used for several results.
  bool is_product() {
    Node sum = largest_reduction();
    const auto c = sum ? contraction_of(sum) : std::nullopt;
    if (!c || !std::ranges::all_of(c->masks, selects_by_length) ||
        !all_of(sink_, Op::Prefix).empty() || !collect(*c))
      return false;
    const auto own = [&](Node other) {
      Ids ids = results_;
      std::erase_if(ids, [&](int id) { return !contains(sum, id) || (other->ranges >> id & 1); });
      return size(ids);
    };
    return std::min(own(c->a), own(c->b)) >= kMinUses;
  }

  // Few results of long sums: a thread for each tile of them is too few threads, of which each
  // waits for its loads (measurements.md: is_short).
  bool is_short() const {
    constexpr int64_t kResultsOfThread = 4, kLong = 256;
    return size(terms_) >= kLong &&
           size(results_) <= target_.cores * target_.warp * kResultsOfThread;
  }
  int column() const { return best_column(); }

  Choice run() {
    choice_.is_gemm = true;
    apply_plan(search());
    return std::move(choice_);
  }

 private:
  // --- what there is -----------------------------------------------------------------------------

  // The ranges and operands of the sum; false where stores are not all in the same loops. Another
  // sum, over ranges of its own, is small beside it.
  bool collect(const Contraction& c) {
    uint64_t elsewhere = 0;
    for (Node n : all_of(sink_, Op::Reduce))
      if (n != c.reduce) elsewhere |= reduced_ranges(n);
    if (c.k & elsewhere) return false;
    for (Node r : ranges_) {
      if (elsewhere & r->ranges) continue;
      if (c.k & r->ranges) {
        terms_.push_back(range_id(r));
        continue;
      }
      if (kind(r) != RangeKind::Loop) return false;
      for (Node store : sink_->srcs())
        if (!(store->ranges & r->ranges)) return false;
      results_.push_back(range_id(r));
    }
    for (const Access& a : accesses_)
      if (a.item == c.reduce && a.is_load()) tiled_.operands.push_back(operand_of(a));
    for (Node r : ranges_) tiled_.extent[range_id(r)] = extent(r);
    tiled_.results = size(results_);
    tiled_.terms = size(terms_);
    return !results_.empty() && !terms_.empty() && !(sink_->ranges & (c.k | elsewhere));
  }

  LoadOperand operand_of(const Access& a) const {
    LoadOperand o;
    o.bytes = a.node->dtype.size();
    Node odd = nullptr;  // the range along which vectors are not aligned
    int count = 0;
    for (Node r : ranges_) {
      const int64_t s = o.stride[range_id(r)] = stride(a.node, range_id(r));
      if (s != kIrregular && s % 4 == 0) continue;
      odd = r;
      ++count;
    }
    if (count == 1 && o.stride[range_id(odd)] == 1 && to_sum(a.node->src(1)).constant % 4 == 0)
      o.vectors = range_id(odd);
    return o;
  }

  bool has_vectors(int id) const {
    return std::ranges::any_of(tiled_.operands,
                               [&](const LoadOperand& o) { return o.vectors == id; });
  }

  // --- the search --------------------------------------------------------------------------------

  static std::vector<int64_t> divisors(int64_t n, int64_t most) {
    std::vector<int64_t> out;
    for (int64_t d = 2; d <= std::min(n, most); ++d)
      if (n % d == 0) out.push_back(d);
    return out;
  }

  ThreadPlan search() {
    ThreadPlan best;
    double least = INFINITY;
    for (const auto& tile : tiles())
      for (int vector : vectors(tile))
        for (const auto& order : orders())
          for (const auto& unrolled : unrollings()) {
            ThreadPlan p{tile, vector, order, unrolled};
            if (const double t = time_of_threads(p, tiled_, target_); t < least) {
              least = t;
              best = std::move(p);
            }
          }
    return best;
  }

  std::vector<std::vector<TilePiece>> tiles() const {
    constexpr int64_t kLargest = 96, kSide = 16;
    std::vector<std::vector<TilePiece>> out{{}};
    for (size_t i = 0; i < results_.size(); ++i)
      for (int64_t a : divisors(size(results_[i]), kSide)) {
        out.push_back({{results_[i], a}});
        for (size_t j = i + 1; j < results_.size(); ++j)
          for (int64_t b : divisors(size(results_[j]), kSide))
            if (a * b <= kLargest) out.push_back({{results_[i], a}, {results_[j], b}});
      }
    return out;
  }

  std::vector<int> vectors(const std::vector<TilePiece>& tile) const {
    std::vector<int> out{-1};
    for (const TilePiece& p : tile)
      if (p.size % 4 == 0 && has_vectors(p.id)) out.push_back(p.id);
    return out;
  }

  // The warp lies along the last range and, where that is short, along the one before it. The first
  // one, samples or split-K slices, stays outside: within it warps read the same lines.
  std::vector<std::vector<int>> orders() const {
    std::vector<std::vector<int>> out;
    const bool many = results_.size() > 2;
    for (int last : results_)
      for (size_t i = results_.size(); i-- > 0;) {
        const int before = results_[i];
        if (before == last || (many && (last == results_[0] || before == results_[0]))) continue;
        std::vector<int> ids;
        for (int id : results_)
          if (id != last && id != before) ids.push_back(id);
        ids.push_back(before);
        ids.push_back(last);
        out.push_back(ids);
      }
    if (out.empty()) out.push_back(results_);
    return out;
  }

  // A piece of one range of the sum, or all of two short ones: a window.
  std::vector<std::vector<TilePiece>> unrollings() const {
    constexpr int64_t kMax = 10, kMaxTerms = 32;
    std::vector<std::vector<TilePiece>> out;
    for (size_t i = 0; i < terms_.size(); ++i) {
      const int64_t a = size(terms_[i]), piece = largest_divisor(a, kMax);
      if (piece > 1) out.push_back({{terms_[i], piece}});
      for (size_t j = i + 1; j < terms_.size(); ++j) {
        const int64_t b = size(terms_[j]);
        if (a > 1 && b > 1 && std::max(a, b) <= kMax && a * b <= kMaxTerms)
          out.push_back({{terms_[i], a}, {terms_[j], b}});
      }
    }
    if (out.empty()) out.emplace_back();
    return out;
  }

  // --- the options -------------------------------------------------------------------------------

  // A piece of the sum: in vectors where an operand is contiguous along it and none along the
  // results or another piece (measurements.md: sum_piece).
  void sum_piece(const TilePiece& x, bool& has_vector) {
    const bool wide = !has_vector && (x.size == 4 || x.size == 8) && has_vectors(x.id);
    has_vector |= wide;
    int rest = x.id;
    cut(rest, x.size, wide ? RangeKind::Vector : RangeKind::Unroll);
    if (wide && size(rest) <= 8) bind(rest, RangeKind::Unroll);
  }

  void apply_plan(const ThreadPlan& p) {
    Ids rest = p.order;
    for (const TilePiece& x : p.tile) {
      int& left = *std::ranges::find(rest, x.id);
      const bool is_vector = x.id == p.vector;
      if (is_vector) cut(left, 4, RangeKind::Vector);
      cut(left, is_vector ? x.size / 4 : x.size, RangeKind::Unroll);
    }
    bool has_vector = p.vector >= 0;
    for (const TilePiece& x : p.unrolled) sum_piece(x, has_vector);
    constexpr int64_t kThreads = 128;  // of a block
    int all = merged(rest);
    const int inner = cut(all, std::min(size(all), kThreads));
    bind(all, RangeKind::Block);
    bind(inner, RangeKind::Thread);
    order_kinds();
  }

  std::vector<int> results_, terms_;  // ranges of the results, and those that the sum closes
  ThreadTiles tiled_;
};

}  // namespace

std::optional<Choice> choose_product_options(Node sink, const Target& target) {
  if (auto staged = choose_stage_options(sink, target, stage_plans(false))) return staged;
  ProductTuner tuner(sink, target);
  if (!tuner.is_product()) return {};
  if (const int column = tuner.column(); tuner.is_short() && column >= 0)
    if (auto shared = choose_column_options(sink, target, column, true)) return shared;
  return tuner.run();
}

}  // namespace tiny
