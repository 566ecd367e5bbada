// Options for products on the matrix units of a warp (codegen/mma.h): which ranges go along rows,
// columns and the sum, and how many fragments each warp holds.
#include <cmath>

#include "codegen/mma.h"
#include "codegen/stage.h"
#include "codegen/tuner.h"
#include "tiny/algebra.h"

namespace tiny {

namespace {

class MmaTuner : Tuner {
 public:
  MmaTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  std::optional<Choice> run() {
    if (!find_operands()) return {};
    classify();
    // Stores are wide along the columns: two neighbours in each thread.
    Node first = sink_->src(0);
    const auto is_stored_along = [&](int id) { return stride(first, id) == 1; };
    if (std::any_of(of_a_.begin(), of_a_.end(), is_stored_along)) {
      std::swap(of_a_, of_b_);
      std::swap(a_, b_);
    }
    const int m = joined(of_a_, a_, unit_->rows, kFewest);
    const int n = joined(of_b_, b_, unit_->columns, kFewest);
    const int k = joined(sums_, a_, unit_->depth, unit_->depth);
    if (m < 0 || n < 0 || k < 0) return {};
    const Opt opt{OptKind::Mma, m, 0, {n, k}};
    if (!is_legal(sink_, opt, target_)) return {};
    const int id = next_range_id(sink_);
    apply(opt);
    lay_out(m, n, id + 2);
    choice_.heavy = true;
    return std::move(choice_);
  }

 private:
  using Ids = std::vector<int>;
  static constexpr int64_t kFewest = 64;  // rows or columns worth it

  bool find_operands() {
    reduce_ = largest_reduction();
    MmaProduct p;
    if (!reduce_ || !mma_product(reduce_, target_, p).empty()) return false;
    a_ = p.a->ranges;
    b_ = p.b->ranges;
    unit_ = p.unit;
    for (Node store : sink_->srcs())
      if (store->ranges != sink_->src(0)->ranges) return false;
    return true;
  }

  void classify() {
    for (Node r : reduce_->srcs().subspan(1)) sums_.push_back(range_id(r));
    for (Node r : ranges_) {
      const int id = range_id(r);
      if (std::find(sums_.begin(), sums_.end(), id) != sums_.end()) continue;
      const bool in_a = a_ >> id & 1, in_b = b_ >> id & 1;
      if (in_a != in_b) (in_a ? of_a_ : of_b_).push_back(id);
    }
  }

  // How far the nearest elements are apart that the operand's loads read along the range.
  int64_t nearest(uint64_t operand, int id) const {
    int64_t least = INT64_MAX;
    for (const Access& a : accesses_) {
      if (a.node->op != Op::Load || (a.node->ranges & ~operand)) continue;
      const int64_t s = stride(a.node, id);
      if (s != 0) least = std::min(least, s == kIrregular ? int64_t{1} << 40 : std::abs(s));
    }
    return least;
  }

  // One range of as many iterations as a fragment divides: the contiguous one, with as many others
  // as that takes. -1 where there is none.
  int joined(const Ids& ids, uint64_t operand, int64_t unit, int64_t fewest) {
    Ids sorted = ids;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](int x, int y) { return nearest(operand, x) < nearest(operand, y); });
    if (&ids == &sums_)  // those that are not joined are loops of their own, without arithmetic
      for (int id : sorted)
        if (extent(range(id)) % unit == 0) return id;
    int64_t size = 1;
    Ids parts;
    for (int id : sorted) {
      parts.push_back(id);
      size *= extent(range(id));
      if (size % unit == 0 && size >= fewest) break;
    }
    if (size % unit) return -1;
    int id = parts.back();  // outermost
    for (size_t i = parts.size() - 1; i-- > 0;) apply({OptKind::Merge, id, parts[i], {}});
    return id;
  }

  int64_t size(int id) const { return range(id) ? extent(range(id)) : 1; }

  // Cuts fragments off for each warp; whether the range is no more than that.
  bool cut(int id, int64_t amount) {
    if (amount < 2) return size(id) == 1;
    const bool all = size(id) == amount;
    const int inner = all ? id : next_range_id(sink_);
    if (!all) apply({OptKind::Split, id, amount, {}});
    bind(inner, RangeKind::Unroll);
    return all;
  }

  // Loads and multiplications of a step, on as many multiprocessors as have something to do, hidden
  // by as many warps as have registers. The constants fit 190 tiles of eight convolutions of
  // MNIST's network, measured on an H200: the chosen tiles take 4 % longer than the best of each.
  double time(int64_t rows, int64_t columns, int64_t warps) const {
    constexpr double kLoad = 6, kMultiply = 2, kStep = 5, kHidden = 16;
    constexpr double kRegisters = 1.2, kOthers = 45, kAll = 65536;
    const double words = unit_->dtype.size() / 4.0;
    const double work =
        kLoad * words * static_cast<double>(unit_->a_count() * rows + unit_->b_count() * columns) +
        kMultiply * static_cast<double>(rows * columns) + kStep;
    const double each = static_cast<double>(warps) / static_cast<double>(rows * columns);
    const double per_core = each / target_.cores;
    const double held =
        kRegisters * static_cast<double>(unit_->results() * rows * columns) + kOthers;
    const double resident = std::min(per_core, kAll / (target_.warp * held));
    return work * std::max(per_core, 1.0) * (1 + kHidden / std::max(resident, 0.5));
  }

  void lay_out(int m, int n, int lane) {
    Ids rest;
    int64_t fragments = 1;
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop) {
        fragments *= extent(r);
        if (range_id(r) != m && range_id(r) != n) rest.push_back(range_id(r));
      }
    constexpr int64_t kMostRegisters = 128, kMostRows = 8, kMostColumns = 16;
    int64_t rows = 1, columns = 1;
    double least = INFINITY;
    for (int64_t y = 1; y <= kMostRows; ++y)
      for (int64_t x = 1; x <= kMostColumns; ++x) {
        if (x * y * unit_->results() > kMostRegisters || size(m) % y || size(n) % x) continue;
        const double t = time(y, x, fragments);
        if (t < least) {
          least = t;
          rows = y;
          columns = x;
        }
      }
    unroll_last_sum();
    if (!cut(m, rows)) rest.push_back(m);
    if (!cut(n, columns)) rest.push_back(n);
    if (!rest.empty()) {
      for (size_t i = 1; i < rest.size(); ++i) apply({OptKind::Merge, rest[0], rest[i], {}});
      const int64_t all = extent(range(rest[0]));
      const int64_t warps = all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
      if (warps == all) {
        bind(rest[0], RangeKind::Thread);
      } else {
        if (warps > 1) {
          const int inner = next_range_id(sink_);
          apply({OptKind::Split, rest[0], warps, {}});
          bind(inner, RangeKind::Thread);
        }
        bind(rest[0], RangeKind::Block);
      }
    }
    order_kinds(lane);
  }

  // The innermost loop, or a piece of it: loads of the next step while this one multiplies.
  void unroll_last_sum() {
    int last = -1;
    for (Node reduce : all_of(sink_, Op::Reduce))
      if (reduce->src(0)->op == Op::Mma)
        for (Node r : reduce->srcs().subspan(1)) last = std::max(last, range_id(r));
    if (last >= 0) unroll_split(last, 4);
  }

  Node reduce_ = nullptr;
  uint64_t a_ = 0, b_ = 0;  // ranges that the operands depend on
  const MmaUnit* unit_ = nullptr;
  Ids of_a_, of_b_, sums_;  // ranges of one operand alone, and those of the sum
};

}  // namespace

std::optional<Choice> choose_mma_options(Node sink, const Target& target) {
  if (auto staged = choose_stage_options(sink, target, stage_plans(true))) return staged;
  return MmaTuner(sink, target).run();
}

}  // namespace tiny
