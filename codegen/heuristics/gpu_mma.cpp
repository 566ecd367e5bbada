// Schedules GEMMs on a warp's tensor cores with operands in registers (mma.sync, MFMA, WMMA;
// codegen/options/mma.h): which ranges count rows, columns and the sum, and how many fragments each
// warp holds.
#include <cmath>

#include "codegen/heuristics/tuner.h"

namespace tiny {

namespace {

class MmaTuner : UnitTuner {
 public:
  MmaTuner(Node sink, const Target& target) : UnitTuner(sink, target) {}

  // Plans that fit the kernel's GEMM, the best first, and their times, in units that are those of
  // other options for matrix units, too.
  std::vector<std::pair<double, TilePlan>> plans() {
    return begin() ? ranked() : std::vector<std::pair<double, TilePlan>>();
  }

  std::optional<Choice> run(const TilePlan& plan) {
    if (!begin() || !lay_out(plan)) return {};
    choice_.is_gemm = true;
    return std::move(choice_);
  }

 private:
  static constexpr int64_t kMin = 64;  // rows or columns worth it

  // As far as the instruction; false where the kernel has no product that fits.
  bool begin() {
    if (!find_product()) return false;
    turn_to_store(p_, sink_->src(0));
    const std::vector<Node> a = all_of(p_.a, Op::Load), b = all_of(p_.b, Op::Load);
    const Ids columns = nearest_first(b, ids_of(p_.n())), sums = nearest_first(a, sums_);
    for (int id : sums_) steps_.emplace_back(id, LoopStep{size(id), min_stride(b, id)});
    for (int id : columns) columns_.push_back({size(id), min_stride(b, id)});
    m_ = joined(nearest_first(a, ids_of(p_.m())), unit().rows, kMin);
    n_ = joined(columns, unit().columns, kMin);
    // A range of the sum of whole fragments: those that are not joined are loops of their own,
    // without arithmetic.
    const auto whole =
        std::ranges::find_if(sums, [&](int id) { return size(id) % unit().depth == 0; });
    const int k = whole != sums.end() ? *whole : joined(sums, unit().depth, unit().depth);
    if (m_ < 0 || n_ < 0 || k < 0) return false;
    // Merged ones are no longer there, and of this one a part.
    std::erase_if(steps_,
                  [&](const auto& s) { return s.first == k || size(s.first) != s.second.size; });
    return multiply(m_, n_, k);
  }

  // One range of as many iterations as a fragment divides: the contiguous one, with as many others
  // as that takes, the nearest first. -1 where there is none.
  int joined(const Ids& ids, int64_t unit, int64_t fewest) {
    Ids parts;
    for (int id : ids) {
      parts.push_back(id);
      if (size(parts) % unit == 0 && size(parts) >= fewest) break;
    }
    if (size(parts) % unit) return -1;
    int id = parts.back();                       // outermost
    for (size_t i = parts.size() - 1; i-- > 0;)  // another reduction may close one of them alone
      if (!applied({OptKind::Merge, id, parts[i], {}})) return -1;
    return id;
  }

  // By time, with the warps that are best in most kernels.
  std::vector<std::pair<double, TilePlan>> ranked() const {
    // More than 12 fragments of columns pay while registers last (measurements.md: fragments of a
    // warp).
    constexpr int64_t kMaxRegisters = 160, kMaxRows = 8, kMaxColumns = 20;
    const int64_t fragments = size(ids_of(RangeKind::Loop));
    std::vector<TilePlan> plans;
    std::vector<double> left{1};
    for (int64_t x = 1; x <= kMaxColumns; ++x) left.push_back(overlap(x).left);
    const auto loads = [&](int64_t x) { return left[static_cast<size_t>(x)]; };
    for (int64_t y = 1; y <= kMaxRows; ++y)
      for (int64_t x = 1; x <= kMaxColumns; ++x) {
        if (x * y * unit().results() > kMaxRegisters || size(m_) % y || size(n_) % x) continue;
        // Blocks of one warp where columns share loads (measurements.md: warps of a block).
        const int64_t all = fragments / (x * y);
        const int64_t warps = loads(x) < 1 ? 1 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
        plans.push_back({.warps_across = warps, .down = y, .across = x, .depth = 0, .mma = true});
      }
    return tiny::ranked(plans, INFINITY, [&](const TilePlan& p) {
      return time_of_fragments(unit(), p, loads(p.across), fragments, target_);
    });
  }

  // False where blocks would have warps with nothing to do.
  bool lay_out(const TilePlan& plan) {
    Ids rest = without(without(ids_of(RangeKind::Loop), m_), n_);
    const int along = overlap(plan.across).along;
    if (along >= 0)
      bind(along, RangeKind::Unroll);
    else
      unroll_last_sum();
    cut(m_, plan.down, RangeKind::Unroll);
    cut(n_, plan.across, RangeKind::Unroll);
    rest.insert(rest.end(), {m_, n_});
    int all = merged(rest);
    if (size(all) % plan.warps_across) return false;
    cut(all, plan.warps_across, RangeKind::Thread);
    bind(all, RangeKind::Block);
    // Sums in the order of their strides: consecutive iterations read neighbours.
    Ids sums = nearest_first(all_of(sink_, Op::Load), ids_of(RangeKind::Reduce));
    std::ranges::reverse(sums);
    order_kinds({lane_}, sums);
    return true;
  }

  // A loop of the sum along which several columns read the same, as windows do that lie one below
  // the other: where it is unrolled each element is loaded once. -1: none. `left`: of the loads.
  struct Overlap {
    int along = -1;
    double left = 1;
  };
  Overlap overlap(int64_t columns) const {
    constexpr int64_t kMax = 8;
    Overlap best;
    for (const auto& [id, s] : steps_) {
      if (s.size < 2 || s.size > kMax) continue;
      const int64_t own = distinct_places({columns_, columns, unit().columns}, {{s}, s.size, 1});
      const double left = static_cast<double>(own) / static_cast<double>(columns * s.size);
      if (left < best.left) best = {id, left};
    }
    return best;
  }

  // The innermost loop, or a piece of it: loads of the next step while this one multiplies.
  void unroll_last_sum() {
    int last = -1;
    for (Node reduce : all_of(sink_, Op::Reduce))
      if (reduce->src(0)->op == Op::Mma)
        for (Node r : reduce->srcs().subspan(1)) last = std::max(last, range_id(r));
    if (last >= 0) unroll_split(last, 4);
  }

  int m_ = -1, n_ = -1;  // rows and columns
  // Of the second operand along loops of the sum, and along columns, the nearest first.
  std::vector<std::pair<int, LoopStep>> steps_;
  std::vector<LoopStep> columns_;
};

}  // namespace

std::optional<Choice> choose_mma_options(Node sink, const Target& target) {
  if (auto staged = choose_stage_options(sink, target, stage_plans(true))) return staged;
  const auto plans = MmaTuner(sink, target).plans();
  if (plans.empty()) return {};
  const auto& [time, plan] = plans[0];
  if (auto windows = choose_window_options(sink, target, time)) return windows;
  return MmaTuner(sink, target).run(plan);
}

std::vector<Choice> mma_choices(Node sink, const Target& target, size_t most) {
  std::vector<Choice> out;
  for (auto [time, plan] : MmaTuner(sink, target).plans())
    for (int64_t warps : {1, 2, 4, 8}) {
      if (out.size() == most) return out;
      plan.warps_across = warps;
      if (auto choice = MmaTuner(sink, target).run(plan)) out.push_back(std::move(*choice));
    }
  return out;
}

}  // namespace tiny
