// Schedules GEMMs whose operand tiles are staged in shared memory (codegen/options/stage.h): which
// ranges count rows, columns and the sum, the block's tile, and the part of it that each thread
// computes.
#include <algorithm>
#include <cmath>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Whether a thread can load four neighbours of a factor along the sum, of whole steps, without
// asking whether they are there.
bool loads_vectors_along(Node sum, Node factor, int64_t step) {
  constexpr int64_t kLanes = 4;
  if (factor->op != Op::Load || factor->num_src > 2 || extent(sum) % step != 0) return false;
  const Sum at = to_sum(factor->src(1));
  const auto is_whole = [&](const Sum::Term& t) {
    return t.atom == sum ? t.factor == 1 : t.factor % kLanes == 0;
  };
  return at.constant % kLanes == 0 && std::ranges::all_of(at.terms, is_whole);
}

// The loops of a product, and the plan that suits them.
class StageLoops : protected StagingTuner {
 protected:
  using StagingTuner::StagingTuner;

  bool find_product() {
    auto c = only_contraction(sink_);
    if (!c || !c->is_plain() || !stores_alike()) return false;
    turn_to_store(*c, sink_->src(0));
    const uint64_t summed = c->k & c->a->ranges & c->b->ranges;
    for (Node r : ranges_) {
      const bool is_result = (c->m() | c->n() | c->batch()) & r->ranges;
      if (!r->src(0)->is_const() ||
          (is_result ? kind(r) != RangeKind::Loop : !(summed & r->ranges)))
        return false;
    }
    rows_ = ids_of(c->m());
    columns_ = ids_of(c->n());
    batch_ = ids_of(c->batch());
    sums_ = ids_of(c->reduce->srcs().subspan(1));
    // An epilogue that reads neighbouring results: tiles that cut across them are not proved.
    for (const Access& a : accesses_)
      for (Node r : ranges_)
        if (a.item->op == Op::Store && stride(a.node, range_id(r)) == kIrregular) return false;
    keep_together(rows_);
    keep_together(columns_);
    return !rows_.empty() && !columns_.empty();
  }

  // Of rows or columns those that are one range to the store, the last one innermost; others count
  // blocks. Results of one image are, of several they are not.
  void keep_together(Ids& ids) {
    Node store = sink_->src(0);
    std::ranges::stable_sort(ids, std::ranges::greater(),
                             [&](int id) { return stride(store, id); });
    if (ids.empty()) return;
    size_t first = ids.size() - 1;
    for (int64_t step = stride(store, ids[first]); first > 0 && step != kIrregular; --first) {
      step *= size(ids[first]);
      if (stride(store, ids[first - 1]) != step) break;
    }
    batch_.insert(batch_.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(first));
    ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(first));
  }

  Node product() const { return only_contraction(sink_)->product; }

  // The largest tiles of f32 without convolution windows, where two blocks of a multiprocessor have
  // room (measurements.md: takes_long_steps). Columns that are read one by one would take more
  // registers than two blocks have.
  bool takes_long_steps(const TilePlan& p) const {
    const int64_t bytes = 2 * p.step * p.depth * (p.rows() + p.columns()) * kF32.size();
    const TilePlan& largest = stage_plans(false)[0];
    return p.rows() == largest.rows() && p.columns() == largest.columns() && sums_.size() == 1 &&
           size(sums_) >= 16 * p.step && (turned_ == 1 || !lies_along_sum(1)) &&
           size(columns_) % kLanes == 0 && 2 * bytes <= target_.shared_bytes;
  }

  int element_size() const { return narrow(product()->src(0), target_)->dtype.size(); }

  // Windows of 16-bit floats are copied one by one, and copies of less than 4 bytes are not
  // asynchronous.
  bool is_worth_it(bool mma) const {
    if (element_size() < 4 && sums_.size() > 1) return false;
    return is_worth_staging(size(rows_), size(columns_), size(sums_), size(batch_),
                            mma || sums_.size() > 1, target_);
  }

  // A skinny GEMM whose other operand is computed.
  bool is_skinny() const {
    const bool few_rows = size(rows_) < size(columns_);
    const Ids &few = few_rows ? rows_ : columns_, &many = few_rows ? columns_ : rows_;
    return sums_.size() == 1 && is_thin_stage(size(few), size(many), size(sums_)) &&
           narrow(factor(few_rows ? 1 : 0), target_)->op != Op::Load;
  }

  // Whether what the many are computed from is bytes: one load with an element for each.
  bool is_of_bytes() const {
    const int many = size(rows_) < size(columns_) ? 1 : 0;
    const auto is_walked = [&](Node n, const Ids& ids) {
      return std::ranges::any_of(ids, [&](int id) {
        const int64_t step = stride(n, id);
        return step != 0 && step != kIrregular;
      });
    };
    int own = 0;
    bool bytes = false;
    for (Node n : topological(factor(many))) {
      if (n->op != Op::Load || !is_walked(n, many ? columns_ : rows_) || !is_walked(n, sums_))
        continue;
      ++own;
      bytes = n->dtype.size() == 1;
    }
    return own == 1 && bytes;
  }

  TilePlan skinny_plan() const {
    const bool few_rows = size(rows_) < size(columns_);
    const int64_t few = size(few_rows ? rows_ : columns_), many = skinny_columns(few, target_);
    for (const TilePlan& p : skinny_plans())
      if (few_rows == (p.warps_down == 1) && (few_rows ? p.rows() : p.columns()) >= few &&
          (!few_rows || p.columns() == many))
        return p;
    return skinny_plans()[0];
  }

  // The factor with the rows (0) or with the columns (1).
  Node factor(int which) const {
    const int id = (which ? columns_ : rows_)[0];
    return product()->src(product()->src(0)->ranges >> id & 1 ? 0 : 1);
  }

  uint64_t mask_of(const Ids& ids) const {
    uint64_t mask = 0;
    for (int id : ids)
      if (Node r = range(id)) mask |= r->ranges;
    return mask;
  }

  // The smallest stride along the range of a factor's loads, among loads with an element for each
  // of the factor's: not the scales of its rows.
  int64_t min_stride(int which, int id) const {
    const uint64_t across = mask_of(which ? columns_ : rows_), along = mask_of(sums_);
    const auto is_whole = [&](Node n) { return (n->ranges & across) && (n->ranges & along); };
    std::vector<Node> loads = all_of(factor(which), Op::Load);
    if (std::ranges::any_of(loads, is_whole))
      std::erase_if(loads, [&](Node n) { return !is_whole(n); });
    return Tuner::min_stride(loads, id);
  }

  // A factor's elements lie as near as they can along the last one.
  void sort_by_distance(Ids& ids, int which) const {
    std::ranges::stable_sort(ids, std::ranges::greater(),
                             [&](int id) { return min_stride(which, id); });
  }

  // Whether a factor's tile is contiguous along the sum, before ranges merge.
  bool lies_along_sum(int which) const {
    const auto least = [&](const Ids& ids) {
      int64_t best = INT64_MAX;
      for (int id : ids) best = std::min(best, min_stride(which, id));
      return best;
    };
    return least(sums_) < least(which ? columns_ : rows_);
  }

  TilePlan best_of(std::span<const TilePlan> plans) const {
    const Results results{size(rows_), size(columns_), size(batch_)};
    return *fastest(plans, [&](const TilePlan& t) {
      // Wide tiles of windows copy element by element: for gradients of filters of 3 x 3 narrow
      // ones are faster (measurements.md: narrow tiles of windows).
      const bool windows = t.mma && t.warps_down == 1 && columns_.size() > 1;
      const TileShape shape{static_cast<int>(t.rows()), static_cast<int>(t.columns())};
      return time_in_waves({shape, windows ? 0.5 : t.rate}, results, target_.cores);
    });
  }

  // A factor that lies along the sum, if the other one does not, is transposed as it is staged: a
  // thread loads neighbours, and stores them one by one. Both would take too many registers.
  void choose_turned(int64_t step) {
    const bool along[2] = {lies_along_sum(0), lies_along_sum(1)};
    const bool one = along[0] != along[1] && sums_.size() == 1;
    if (one && loads_vectors_along(range(sums_[0]), factor(along[1]), step)) turned_ = along[1];
  }

  Ids rows_, columns_, sums_, batch_;
  int turned_ = -1;  // a factor
};

class StageTuner : StageLoops {
 public:
  StageTuner(Node sink, const Target& target) : StageLoops(sink, target) {}

  std::optional<Choice> run(std::span<const TilePlan> plans) {
    if (target_.kind != Target::Kind::Gpu || !find_product()) return {};
    if (!plans[0].mma && product()->dtype != kF32) return {};
    if (MmaProduct p; plans[0].mma) {
      if (!mma_product(all_of(sink_, Op::Reduce)[0], target_, p).empty()) return {};
      unit_ = p.unit;
    }
    const bool asked = plans.size() == 1;
    const bool skinny = !asked && plans[0].mma && is_skinny();
    if (!asked && !skinny && !is_worth_it(plans[0].mma)) return {};
    if (!asked && !plans[0].mma && sums_.size() > 1) plans = convolution_plans();
    TilePlan plan = skinny ? skinny_plan() : best_of(plans);
    // Steps of as many bytes. Without windows to follow longer ones take a tenth less time.
    if (plan.mma) plan.step *= 4 / element_size();
    const bool asynchronous = target_.language == Target::Language::Cuda;
    if (plan.mma && !asked && asynchronous && sums_.size() == 1 && size(sums_) >= 4 * plan.step) {
      plan.step *= 2;
      plan.depth = 2;
    }
    if (!plan.mma && size(sums_) < 2 * plan.step) plan.step = std::max<int64_t>(8, plan.step / 2);
    if (!plan.mma && asynchronous) choose_turned(2 * plan.step);
    if (!plan.mma && !asked && asynchronous && takes_long_steps(plan)) plan.step *= 2;
    if (skinny && asynchronous && is_of_bytes()) {
      bytes_ = true;
      plan.depth = plan.rows() <= 16 ? 3 : 2;
    }
    // Copies that a thread waits for: one tile is filled while the other is read.
    if (!asked && !asynchronous) plan.depth = std::min<int64_t>(plan.depth, 2);
    // Each thread has something to copy.
    const int64_t threads = plan.warps_down * plan.warps_across * (plan.mma ? target_.warp : 32);
    const int64_t side = std::min(plan.rows(), plan.columns());
    if (skinny && side * plan.step < kLanes * threads) plan.step = kLanes * threads / side;
    if (size(sums_) < 2 * plan.step || side * plan.step < kLanes * threads) return {};
    join(plan.step);
    if (plan.matrices && !has_rows_of_matrices()) return {};
    choice_.is_gemm = true;
    lay_out(plan);
    return std::move(choice_);
  }

 private:
  static constexpr int64_t kMaxLanes = 16;  // where they are bytes

  void join(int64_t step) {
    for (int which = 0; which < 2; ++which)
      along_sum_[which] = which != turned_ && lies_along_sum(which);
    m_ = merged(rows_);
    n_ = merged(columns_);
    // Where elements do not lie next to each other along the sum, steps that keep to one range of
    // it are found with less arithmetic.
    const int near = along_sum_[1] && !along_sum_[0] ? 1 : 0;
    sort_by_distance(sums_, near);
    std::ranges::stable_sort(
        sums_, {}, [&](int id) { return min_stride(near, id) > 1 && size(id) % step == 0; });
    k_ = merged(sums_);
  }

  // A thread's part of a tile's rows or columns: vectors where their elements are contiguous in
  // shared memory, else one from each of several rows, whose banks differ. The remaining iterations
  // count warps; the threads' range in a warp is returned.
  int spread(int& tile, int64_t lanes, int64_t each, bool vectors, RangeKind vector) {
    if (vectors) {
      cut(tile, kLanes, vector);
      each /= kLanes;
    }
    const int lane = cut(tile, lanes);
    cut(tile, each, RangeKind::Unroll);
    return lane;
  }

  // Padding of a tile's rows in elements, against bank conflicts. Eight threads read vectors of
  // neighbouring rows. A fragment's threads read 8 bytes each at 4 indices in 4 rows that go along
  // the sum, and of other operands single elements of 4 of every second row. Where they read one
  // index in 16 rows, rows that are an odd number of 16 bytes apart conflict least.
  int padding(int which, const TilePlan& p) const {
    const bool apart = p.mma && along_sum_[which] && unit_->width == 4 && !p.matrices;
    return (apart ? 32 : 16) / element_size();
  }

  // Whether both factors' tiles are rows of what ldmatrix reads: elements of 16 bits, or any along
  // the sum.
  bool has_rows_of_matrices() const {
    return unit_->width == 4 && (element_size() == 2 || (along_sum_[0] && along_sum_[1]));
  }

  // Stages a factor; the range of its copies, in vectors where that can be. Of one that is computed
  // from bytes, those are staged as they lie in memory: their copies need no thread to wait.
  int staged(int which, int across, int inner, const TilePlan& p) {
    const int row = next_range_id(sink_), column = row + 1;
    const int at = product()->src(0)->ranges >> across & 1 ? 0 : 1;
    Opt opt{OptKind::Stage, k_, p.depth, {}};
    opt.staged = {at, StagedFactor::Form::Value, padding(which, p)};
    for (int id : along_sum_[which] ? Ids{across, inner} : Ids{inner, across})
      opt.axes.push_back(id);
    Opt raw = opt;
    raw.staged = {at, StagedFactor::Form::Raw, kMaxLanes};
    const bool bytes = bytes_ && narrow(product()->src(at), target_)->op != Op::Load &&
                       is_legal(sink_, raw, target_);
    apply(bytes ? raw : opt);
    if (which == turned_) return turned(row, column);
    int64_t lanes = bytes ? kMaxLanes : p.matrices ? 16 / element_size() : kLanes;
    while (lanes >= kLanes && !copy_vectors(column, lanes)) lanes /= 2;
    return merged({row, column});
  }

  // Copies of a factor that is transposed: a thread's vector lies along the sum. Two threads read
  // the next eight elements of a row, a sector of memory, and sixteen rows are a warp's: what they
  // store lies in as many banks.
  int turned(int row, int column) {
    constexpr int64_t kPair = 2;
    cut(row, kLanes, RangeKind::Vector);
    const int pair = cut(row, kPair);
    return merged({row, column, pair});
  }

  // A dimension of the grid each where that can be, the last one being x.
  void bind_blocks(Ids ids) {
    constexpr int64_t kMax = 65535;  // blocks along y and z
    std::erase(ids, -1);
    const auto is_large = [&](int id) { return id != ids.back() && size(id) > kMax; };
    if (std::ranges::any_of(ids, is_large)) ids = {merged(ids)};
    for (int id : ids) bind(id, RangeKind::Block);
  }

  // Tiles of results for the threads of a warp, or fragments for the warp.
  void spread(const TilePlan& p, int& rows, int& columns, int inner, bool vectors) {
    if (p.mma) {
      lane_ = next_range_id(sink_) + 2;
      apply({OptKind::Mma, rows, p.matrices ? kMmaMatrices : kMmaElements, {columns, inner}});
      cut(rows, p.down, RangeKind::Unroll);
      cut(columns, p.across * TilePlan::kAcross / unit_->columns, RangeKind::Unroll);
      thread_ = merged({rows, columns});
    } else {
      const int down = spread(rows, TilePlan::kDown, p.down, !along_sum_[0], RangeKind::Unroll);
      const int across = spread(columns, TilePlan::kAcross, p.across, !along_sum_[1],
                                vectors ? RangeKind::Vector : RangeKind::Unroll);
      thread_ = merged({rows, columns, down, across});
    }
    bind(thread_, RangeKind::Thread);
    bind(inner, RangeKind::Unroll);
  }

  void lay_out(const TilePlan& p) {
    int m = m_, n = n_;
    const bool vectors = size(n) % kLanes == 0;
    int rows = cut(m, p.rows()), columns = cut(n, p.columns());
    const int inner = cut(k_, p.step);
    const int copies[2] = {staged(0, rows, inner, p), staged(1, columns, inner, p)};
    spread(p, rows, columns, inner, vectors);
    for (int c : copies) share_out(c, {lane_, thread_});
    bind_blocks({merged(batch_), m, n});
    order_kinds({lane_ >= 0 ? lane_ : thread_});
  }

  const MmaUnit* unit_ = nullptr;  // where it is wanted
  bool along_sum_[2] = {};         // elements of the factor lie next to each other along the sum
  int m_ = -1, n_ = -1, k_ = -1;
  int thread_ = -1, lane_ = -1;  // ranges of kind Thread
  bool bytes_ = false;  // weight-only quantized: bytes are staged, and widened as they are read
};

}  // namespace

std::optional<Choice> choose_stage_options(Node sink, const Target& target,
                                           std::span<const TilePlan> plans) {
  return StageTuner(sink, target).run(plans);
}

}  // namespace tiny
