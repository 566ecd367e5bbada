#include <algorithm>
#include <array>
#include <cmath>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/stage.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kWarp = 32;    // threads that load together
constexpr int64_t kMinUses = 4;  // of an operand's element, for tiles to be worth anything

// A piece of a range that goes to each thread.
struct TilePiece {
  int id;
  int64_t size;
};

struct ProductPlan {
  std::vector<TilePiece> tile;  // of results
  int vector = -1;              // the range of the tile along which an operand is loaded in vectors
  std::vector<int> order;       // of the threads' results: the last one lies along the warp
  std::vector<TilePiece> unrolled;  // of the sum
};

// A load of the sum: its stride along each range.
struct LoadOperand {
  std::array<int64_t, 64> stride{};
  bool aligned = false;  // along the plan's vector range
  int64_t bytes = 4;     // of an element
};

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
      if (a.item == c.reduce && a.node->op == Op::Load) operands_.push_back(operand_of(a));
    return !results_.empty() && !terms_.empty() && !(sink_->ranges & (c.k | elsewhere));
  }

  LoadOperand operand_of(const Access& a) const {
    LoadOperand o;
    o.bytes = a.node->dtype.size();
    for (Node r : ranges_) o.stride[range_id(r)] = stride(a.node, range_id(r));
    const Sum at = to_sum(a.node->src(1));
    o.aligned = at.constant % 4 == 0;
    return o;
  }

  bool has_vectors(const LoadOperand& o, int id) const {
    if (id < 0 || o.stride[id] != 1 || !o.aligned) return false;
    for (Node r : ranges_) {
      const int64_t s = o.stride[range_id(r)];
      if (range_id(r) != id && (s == kIrregular || s % 4)) return false;
    }
    return true;
  }

  // --- the search --------------------------------------------------------------------------------

  static std::vector<int64_t> divisors(int64_t n, int64_t most) {
    std::vector<int64_t> out;
    for (int64_t d = 2; d <= std::min(n, most); ++d)
      if (n % d == 0) out.push_back(d);
    return out;
  }

  ProductPlan search() {
    ProductPlan best;
    double least = INFINITY;
    for (const auto& tile : tiles())
      for (int vector : vectors(tile))
        for (const auto& order : orders())
          for (const auto& unrolled : unrollings()) {
            ProductPlan p{tile, vector, order, unrolled};
            if (const double t = time(p); t < least) {
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
      if (p.size % 4 == 0 && std::ranges::any_of(operands_, [&](const LoadOperand& o) {
            return has_vectors(o, p.id);
          }))
        out.push_back(p.id);
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

  // --- an estimate of time -----------------------------------------------------------------------

  static int64_t piece_of(const std::vector<TilePiece>& pieces, int id) {
    for (const TilePiece& p : pieces)
      if (p.id == id) return p.size;
    return 1;
  }

  // Different elements that a thread reads of an operand when the pieces advance: windows that
  // slide over the same elements share them.
  static int64_t distinct(const LoadOperand& o, const std::vector<TilePiece>& a,
                          const std::vector<TilePiece>& b) {
    std::vector<std::pair<int64_t, int64_t>> steps;  // stride, how many
    for (const auto* pieces : {&a, &b})
      for (const TilePiece& p : *pieces) {
        const int64_t s = o.stride[p.id];
        if (s == 0) continue;
        const auto at = std::ranges::find_if(
            steps, [&](const auto& step) { return step.first == s && s != kIrregular; });
        if (at == steps.end())
          steps.emplace_back(s, p.size);
        else
          at->second += p.size - 1;
      }
    int64_t n = 1;
    for (const auto& [s, count] : steps) n *= count;
    return n;
  }

  // Cycles of L1 for one load by a whole warp: the lines that its threads touch.
  int64_t lines(const LoadOperand& o, const ProductPlan& p, int64_t lanes) const {
    std::vector<int64_t> seen;
    int64_t bytes = 0, last = INT64_MIN;
    for (int64_t t = 0; t < kWarp; ++t) {
      int64_t rest = t, at = 0;
      for (size_t i = p.order.size(); i-- > 0;) {
        const int id = p.order[i];
        const int64_t each = piece_of(p.tile, id), n = size(id) / each, s = o.stride[id];
        const int64_t c = i ? rest % n : rest;
        rest /= n;
        if (c) at += s == kIrregular ? c * 1024 : c * s * each;
      }
      if (at != last) bytes += lanes * o.bytes;
      last = at;
      const int64_t line = at * o.bytes >> 7;
      if (!tiny::contains(seen, line)) seen.push_back(line);
    }
    return std::max(static_cast<int64_t>(seen.size()), (bytes + 127) / 128);
  }

  // Cycles of the arithmetic and the loads of all warps, on as many multiprocessors as have
  // something to do. The constants fit 124 tiles of four convolutions (measurements.md:
  // ProductTuner).
  double time(const ProductPlan& p) const {
    constexpr double kLoop = 10, kOverlap = 0.6, kHeld = 0.5, kHidden = 1.5, kLastRound = 0.25;
    constexpr double kMaxRegisters = 230, kAllRegisters = 65536;
    int64_t tile = 1, body = 1;
    for (const TilePiece& x : p.tile) tile *= x.size;
    for (const TilePiece& x : p.unrolled) body *= x.size;
    const int64_t length = size(terms_), results = size(results_);
    double loads = 0, wavefronts = 0, held = 0;
    for (const LoadOperand& o : operands_) {
      const int64_t lanes = has_vectors(o, p.vector) ? 4 : 1;
      const int64_t n = distinct(o, p.tile, p.unrolled) / lanes;
      loads += static_cast<double>(n);
      wavefronts += static_cast<double>(n * lines(o, p, lanes));
      held += static_cast<double>(std::min(n * lanes, 2 * distinct(o, p.tile, {})));
    }
    const double issued = (static_cast<double>(tile * body) + loads + kLoop) / 4;
    const double busy = std::max(issued, wavefronts) + kOverlap * std::min(issued, wavefronts);
    const double registers = static_cast<double>(tile) + kHeld * held + 24;
    if (registers > kMaxRegisters) return INFINITY;
    const double resident = std::min(64.0, std::floor(kAllRegisters / (registers * kWarp) / 4) * 4);
    const double warps =
        std::ceil(static_cast<double>(results) / static_cast<double>(tile * kWarp));
    const double per_core = warps / target_.cores;
    const double rounds = per_core <= resident ? std::ceil(per_core / 4) / (per_core / 4)
                                               : 1 + kLastRound * resident / per_core;
    const double ready = std::min(resident, per_core) / 4;  // warps of a scheduler
    return busy * static_cast<double>(length / body) * per_core * rounds * (1 + kHidden / ready);
  }

  // --- the options -------------------------------------------------------------------------------

  // A piece of the sum: in vectors where an operand is contiguous along it and none along the
  // results or another piece (measurements.md: sum_piece).
  void sum_piece(const TilePiece& x, bool& has_vector) {
    const bool wide =
        !has_vector && (x.size == 4 || x.size == 8) &&
        std::ranges::any_of(operands_, [&](const LoadOperand& o) { return has_vectors(o, x.id); });
    has_vector |= wide;
    int rest = x.id;
    cut(rest, x.size, wide ? RangeKind::Vector : RangeKind::Unroll);
    if (wide && size(rest) <= 8) bind(rest, RangeKind::Unroll);
  }

  void apply_plan(const ProductPlan& p) {
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
  std::vector<LoadOperand> operands_;
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
