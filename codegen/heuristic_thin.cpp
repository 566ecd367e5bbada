// Options for products of few rows on the matrix units of a warp, without shared memory: what is
// read once, the weights that the few rows meet, goes from memory into registers 16 bytes at a
// time.
#include "codegen/heuristic_gpu.h"
#include "codegen/mma.h"
#include "codegen/stage.h"
#include "tiny/algebra.h"

namespace tiny {

namespace {

struct ThinPlan {
  int64_t fragments;  // of 16 rows of weights, of a warp
  int64_t warps;      // that share a sum, a step each
  int64_t steps;      // of a warp, without a loop: loads of one may pass products of others
};

// Enough threads to have memory busy. Which is the fastest has not been measured: a search does.
constexpr ThinPlan kPlans[] = {{1, 4, 2},  {1, 4, 4}, {1, 4, 8},  {1, 8, 4}, {1, 8, 8}, {1, 16, 4},
                               {1, 16, 8}, {2, 8, 4}, {2, 16, 4}, {4, 8, 2}, {4, 16, 2}};

class ThinTuner : GpuTuner {
 public:
  ThinTuner(Node sink, const Target& target) : GpuTuner(sink, target) {}

  std::optional<Choice> run(const ThinPlan& plan) {
    if (!find_product()) return {};
    const Opt mma{OptKind::Mma, many_, kMmaWide, {few_, sum_}};
    if (!fill_up(many_, unit_->rows) || !fill_up(few_, unit_->columns) ||
        !is_legal(sink_, mma, target_))
      return {};
    const int lane = next_range_id(sink_) + 2;
    apply(mma);
    if (size(many_) % plan.fragments || size(sum_) % (plan.warps * plan.steps)) return {};
    const int inner = plan.fragments > 1 ? split(many_, plan.fragments) : -1;
    if (inner >= 0) bind(inner, RangeKind::Unroll);
    if (range(few_)) bind(few_, RangeKind::Unroll);
    if (plan.warps > 1) bind(split(sum_, plan.warps), RangeKind::Thread);
    bind(split(sum_, plan.steps), RangeKind::Unroll);
    if (range(many_) && inner != many_) others_.push_back(many_);
    if (!others_.empty()) bind(merge(others_), RangeKind::Block);
    order_kinds(lane);
    choice_.heavy = true;
    return std::move(choice_);
  }

 private:
  int64_t size(int id) const { return range(id) ? extent(range(id)) : 1; }

  // Where a lane's elements are neighbours in memory, and each operand has a range of its own.
  bool find_product() {
    Node reduce = largest_reduction();
    MmaProduct p;
    if (!reduce || reduce->num_src != 2 || all_of(sink_, Op::Reduce).size() > 1 ||
        !mma_product(reduce, target_, p).empty() || !(unit_ = wide_unit(p.unit)))
      return false;
    sum_ = range_id(reduce->src(1));
    for (Node x : {p.a, p.b})
      if (!is_in_place(x)) return false;
    Ids own[2];
    for (Node r : ranges_) {
      if (range_id(r) == sum_) continue;
      const bool in_a = p.a->ranges & r->ranges, in_b = p.b->ranges & r->ranges;
      if (kind(r) != RangeKind::Loop || !(in_a || in_b)) return false;
      (in_a && in_b ? others_ : own[in_a ? 0 : 1]).push_back(range_id(r));
    }
    if (own[0].size() != 1 || own[1].size() != 1) return false;
    few_ = own[0][0];
    many_ = own[1][0];
    if (size(few_) > size(many_)) std::swap(few_, many_);
    return is_thin_stage(size(few_), size(many_), size(sum_));
  }

  bool is_in_place(Node x) const {
    constexpr int64_t kTogether = 8;  // halves in 16 bytes
    if (x->op != Op::Load || x->num_src > 2 || stride(x, sum_) != 1) return false;
    for (Node r : ranges_)
      if (const int64_t step = stride(x, range_id(r));
          range_id(r) != sum_ && (step == kIrregular || step % kTogether))
        return false;
    return to_sum(x->src(1)).constant % kTogether == 0;
  }

  // Fragments are whole.
  bool fill_up(int id, int64_t unit) {
    if (size(id) % unit == 0) return true;
    const Opt opt{OptKind::Extend, id, unit, {}};
    if (!is_legal(sink_, opt, target_)) return false;
    apply(opt);
    return true;
  }

  const MmaUnit* unit_ = nullptr;
  int few_ = -1, many_ = -1, sum_ = -1;
  Ids others_;  // ranges of products of their own
};

}  // namespace

std::vector<Choice> thin_choices(Node sink, const Target& target) {
  std::vector<Choice> out;
  if (target.kind == Target::Kind::Gpu)
    for (const ThinPlan& plan : kPlans)
      if (auto choice = ThinTuner(sink, target).run(plan)) out.push_back(std::move(*choice));
  return out;
}

}  // namespace tiny
