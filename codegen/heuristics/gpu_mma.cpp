// Schedules GEMMs on a warp's tensor cores with operands in registers (mma.sync, MFMA, WMMA;
// codegen/options/mma.h): which ranges count rows, columns and the sum, and how many fragments each
// warp holds.
#include <cmath>
#include <set>

#include "codegen/heuristics/tuner.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

class MmaTuner : Tuner {
 public:
  MmaTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  // Of the best plan, in units that are those of other options for matrix units, too; nothing where
  // none fits.
  std::optional<double> least_time() {
    const auto all = plans();
    return all.empty() ? std::nullopt : std::optional(all[0].first);
  }

  std::optional<Choice> run(const TilePlan* asked = nullptr) {
    if (!begin() || !lay_out(asked ? *asked : ranked()[0].second)) return {};
    choice_.is_gemm = true;
    return std::move(choice_);
  }

  // Plans that fit the kernel's GEMM, the best first, and their times.
  std::vector<std::pair<double, TilePlan>> plans() {
    return begin() ? ranked() : std::vector<std::pair<double, TilePlan>>();
  }

 private:
  static constexpr int64_t kMin = 64;  // rows or columns worth it

  // As far as the instruction; false where the kernel has no product that fits.
  bool begin() {
    Node sum = largest_reduction();
    if (!sum || !mma_product(sum, target_, p_).empty() || !stores_alike()) return false;
    turn_to_store(p_, sink_->src(0));
    const uint64_t a = p_.a->ranges, b = p_.b->ranges;
    const Ids sums = ids_of(sum->srcs().subspan(1)), columns = ids_of(p_.n());
    for (int id : sums) steps_.push_back({id, size(id), min_stride(b, id)});
    for (int id : by_distance(columns, b)) columns_.push_back({id, size(id), min_stride(b, id)});
    m_ = joined(ids_of(p_.m()), a, unit().rows, kMin);
    n_ = joined(columns, b, unit().columns, kMin);
    int k = whole(sums, a);
    if (k < 0) k = joined(sums, a, unit().depth, unit().depth);
    if (m_ < 0 || n_ < 0 || k < 0) return false;
    // Merged ones are no longer there, and of this one a part.
    std::erase_if(steps_, [&](const Step& s) { return s.id == k || size(s.id) != s.size; });
    lane_ = next_range_id(sink_) + 2;
    return applied({OptKind::Mma, m_, 0, {n_, k}});
  }

  const MmaUnit& unit() const { return *p_.unit; }

  // Of loads that depend on no other ranges than the operand.
  int64_t min_stride(uint64_t operand, int id) const {
    std::vector<Node> loads;
    for (const Access& a : accesses_)
      if (a.node->op == Op::Load && !(a.node->ranges & ~operand)) loads.push_back(a.node);
    return Tuner::min_stride(loads, id);
  }

  Ids by_distance(Ids ids, uint64_t operand) const {
    std::ranges::stable_sort(ids, {}, [&](int id) { return min_stride(operand, id); });
    return ids;
  }

  // A range, and how far its neighbours' elements of the second operand are apart.
  struct Step {
    int id;
    int64_t size, step;
  };

  // A range of the sum of whole fragments: those that are not joined are loops of their own,
  // without arithmetic. -1: none.
  int whole(const Ids& sums, uint64_t operand) const {
    for (int id : by_distance(sums, operand))
      if (size(id) % unit().depth == 0) return id;
    return -1;
  }

  // One range of as many iterations as a fragment divides: the contiguous one, with as many others
  // as that takes. -1 where there is none.
  int joined(const Ids& ids, uint64_t operand, int64_t unit, int64_t fewest) {
    Ids parts;
    for (int id : by_distance(ids, operand)) {
      parts.push_back(id);
      if (size(parts) % unit == 0 && size(parts) >= fewest) break;
    }
    if (size(parts) % unit) return -1;
    int id = parts.back();                       // outermost
    for (size_t i = parts.size() - 1; i-- > 0;)  // another reduction may close one of them alone
      if (!applied({OptKind::Merge, id, parts[i], {}})) return -1;
    return id;
  }

  // Loads and multiplications of a step, on as many multiprocessors as have something to do, hidden
  // by as many warps as have registers. The constants fit 190 tiles of eight convolutions of
  // MNIST's network (measurements.md: MmaTuner). `left`: share of the columns' loads that remain.
  double time(int64_t rows, int64_t columns, double left, int64_t warps) const {
    const double loads = static_cast<double>(unit().a_count() * rows) +
                         static_cast<double>(unit().b_count() * columns) * left;
    const WarpRates& r = kWarpRates;
    const double words = unit().dtype.size() / 4.0;
    const double work =
        r.load * words * loads + r.multiply * static_cast<double>(rows * columns) + r.step;
    const double each = static_cast<double>(warps) / static_cast<double>(rows * columns);
    const double per_core = each / target_.cores;
    const auto held = static_cast<double>(unit().results() * rows * columns);
    const double resident = std::min(per_core, r.resident(held, target_));
    return work * std::max(per_core, 1.0) * r.waiting(resident);
  }

  // Ranges that are neither rows nor columns, and how many fragments there are of all.
  Ids others(int64_t& fragments) const {
    Ids rest;
    fragments = 1;
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop) {
        fragments *= extent(r);
        if (range_id(r) != m_ && range_id(r) != n_) rest.push_back(range_id(r));
      }
    return rest;
  }

  // By time, with the warps that are best in most kernels.
  std::vector<std::pair<double, TilePlan>> ranked() const {
    // More than 12 fragments of columns pay while registers last (measurements.md: fragments of a
    // warp).
    constexpr int64_t kMaxRegisters = 160, kMaxRows = 8, kMaxColumns = 20;
    int64_t fragments = 1;
    others(fragments);
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
      return time(p.down, p.across, loads(p.across), fragments);
    });
  }

  // False where blocks would have warps with nothing to do.
  bool lay_out(const TilePlan& plan) {
    int64_t fragments = 1;
    Ids rest = others(fragments);
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
    Ids sums = by_distance(ids_of(RangeKind::Reduce), ~uint64_t{0});
    std::ranges::reverse(sums);
    order_kinds(lane_, sums);
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
    for (const Step& s : steps_) {
      if (s.size < 2 || s.size > kMax) continue;
      std::set<int64_t> places;
      for (int64_t x = 0; x < columns; ++x) {
        int64_t column = x * unit().columns, at = 0;
        for (const Step& c : columns_) {
          at += column % c.size * c.step;
          column /= c.size;
        }
        for (int64_t i = 0; i < s.size; ++i) places.insert(at + i * s.step);
      }
      const double left =
          static_cast<double>(places.size()) / static_cast<double>(columns * s.size);
      if (left < best.left) best = {s.id, left};
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

  MmaProduct p_;                       // of the kernel as it was
  int m_ = -1, n_ = -1, lane_ = -1;    // rows, columns, and the threads of a warp
  std::vector<Step> steps_, columns_;  // of the sum, and of columns, the nearest first
};

}  // namespace

std::optional<Choice> choose_mma_options(Node sink, const Target& target) {
  if (auto staged = choose_stage_options(sink, target, stage_plans(true))) return staged;
  if (const auto time = MmaTuner(sink, target).least_time())
    if (auto windows = choose_window_options(sink, target, *time)) return windows;
  return MmaTuner(sink, target).run();
}

std::vector<Choice> mma_choices(Node sink, const Target& target, size_t most) {
  std::vector<Choice> out;
  for (auto [time, plan] : MmaTuner(sink, target).plans())
    for (int64_t warps : {1, 2, 4, 8}) {
      if (out.size() == most) return out;
      plan.warps_across = warps;
      auto choice = MmaTuner(sink, target).run(&plan);
      if (choice) out.push_back(std::move(*choice));
    }
  return out;
}

}  // namespace tiny
