// Schedules convolutions as implicit GEMMs whose input halo is staged once in shared memory
// (codegen/options/stage.h) and multiplied by mma.sync. A cost model chooses the tile, or falls
// back to register-only operands.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "codegen/heuristics/tuner.h"
#include "codegen/options/stage.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

std::vector<TilePlan> all_plans() {
  std::vector<TilePlan> out;
  for (int64_t rows : {1, 2, 4})
    for (int64_t columns : {1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 18, 20, 24, 25})
      for (int64_t depth : {2, 1})
        for (int64_t lines : {0, 2, 4, 5, 8, 10})
          out.push_back(
              {.down = rows, .across = columns, .step = lines, .depth = depth, .mma = true});
  return out;
}

constexpr int64_t kMaxSteps = 10;  // of the sum over a few lines of pixels, unrolled

// The loops of a convolution: windows, rows and columns of the product, what blocks count.
class WindowLoops : protected UnitTuner {
 public:
  WindowLoops(Node sink, const Target& target) : UnitTuner(sink, target) {}

 protected:
  // Ranges whose sum says what is read: of windows, where they begin and how far in they are. One
  // is a range of the sum, the other one of results.
  struct Pair {
    int sum, result;
  };

  // Fragments of other units hold other elements, and 16-bit floats are copied one by one.
  bool begin() {
    return target_.language == Target::Language::Cuda && find_windows() && unit().dtype == kF32;
  }

  bool find_windows() {
    if (!find_product()) return false;
    for (Node r : ranges_)
      if (!r->src(0)->is_const()) return false;
    for (Node other : all_of(sink_, Op::Reduce))  // the epilogue has ranges of its own
      if (other != p_.reduce && (p_.k & reduced_ranges(other))) return false;
    Node factors[2] = {p_.a, p_.b};
    for (image_ = 0; image_ < 2 && pairs_.empty(); ++image_)
      find_pairs(factors[image_], factors[1 - image_]);
    --image_;
    if (pairs_.empty()) return false;
    for (Node r : ranges_)
      if (const int id = range_id(r); kind(r) == RangeKind::Loop && !is_paired(id)) {
        const bool in_image = factors[image_]->ranges & r->ranges;
        const bool in_other = factors[1 - image_]->ranges & r->ranges;
        (!in_image ? rows_ : in_other ? blocks_ : columns_).push_back(id);
      }
    std::erase_if(sums_, [&](int id) { return is_paired(id); });
    columns_ = nearest_first(all_of(factors[image_], Op::Load), columns_);
    rows_ = nearest_first(all_of(factors[1 - image_], Op::Load), rows_);
    std::ranges::reverse(columns_);
    std::ranges::reverse(rows_);
    return !rows_.empty();
  }

  bool is_paired(int id) const {
    return std::ranges::any_of(pairs_,
                               [&](const Pair& p) { return p.sum == id || p.result == id; });
  }

  // Lines first, the pixels of one last.
  void find_pairs(Node image, Node other) {
    for (int s : sums_)
      for (Node r : ranges_) {
        const bool is_one = kind(r) == RangeKind::Loop && (image->ranges & r->ranges) &&
                            !(other->ranges & r->ranges) && !is_paired(s) &&
                            !is_paired(range_id(r));
        if (is_one && (image->ranges >> s & 1) && move_alike(image, range(s), r))
          pairs_.push_back({s, range_id(r)});
      }
    const std::vector<Node> loads = all_of(image, Op::Load);
    std::ranges::stable_sort(pairs_, std::ranges::greater(),
                             [&](const Pair& p) { return min_stride(loads, p.sum); });
  }

  // Sums over all pixels, for each place in a window, rather than the other way round.
  bool is_of_filters() const {
    int64_t summed = 1, results = 1;
    for (const Pair& p : pairs_) {
      summed *= size(p.sum);
      results *= size(p.result);
    }
    return summed > results;
  }

  int image_ = 0;  // the factor that has windows
  std::vector<Pair> pairs_;
  Ids rows_, columns_, blocks_;  // of the other factor, of the image, of both
};

// Whether a plan fits, and how long it takes.
class WindowCost : protected WindowLoops {
 public:
  using WindowLoops::WindowLoops;

  // Plans that take less time than that, the best first.
  std::vector<std::pair<double, TilePlan>> plans_within(double most) {
    if (!begin()) return {};
    return ranked(all_plans(), most,
                  [&](const TilePlan& p) { return fits(p) ? time(p) : INFINITY; });
  }

 protected:
  // Images that a block needs for whole fragments of their pixels.
  int64_t images() const {
    int64_t pixels = 1, n = 1;
    for (const Pair& p : pairs_) pixels *= size(p.result);
    while (n < unit().columns && n * pixels % unit().columns) n *= 2;
    return n;
  }

  // A block has all rows and columns that are not counted by blocks.
  bool fits(const TilePlan& plan) const {
    constexpr int64_t kMaxWarps = 20, kMaxRegisters = 160;
    int64_t columns = plan.step ? size(columns_) : images();
    for (const Pair& p : pairs_) columns *= size(p.result);
    const int64_t rows = size(rows_), held = plan.down * plan.across;
    const auto sums = static_cast<int64_t>(all_of(sink_, Op::Reduce).size());
    if (is_of_filters() != (plan.step > 0)) return false;
    return rows % (plan.down * unit().rows) == 0 && columns % (plan.across * unit().columns) == 0 &&
           held * unit().results() * sums <= kMaxRegisters &&
           rows * columns / (held * unit().rows * unit().columns) <= kMaxWarps;
  }

  // The tile of a block.
  struct Tile {
    std::vector<LoopStep> columns;  // as they lie in the image's stage
    std::vector<LoopStep> terms;    // what is summed unrolled
    int64_t steps = 1, turns = 1;   // multiplications of a fragment: unrolled; of what is staged
    int64_t fragments = 1, blocks = 1;
    int64_t bytes = 0;  // of both stages
  };

  Tile tile_of(const TilePlan& plan) const {
    Tile t = plan.step ? lines_tile(plan.step) : channels_tile();
    t.bytes *= plan.depth * unit().dtype.size();
    t.fragments = size(rows_) / unit().rows;
    for (const LoopStep& s : t.columns) t.fragments *= s.size;
    t.fragments /= unit().columns;
    t.blocks *= size(blocks_);
    return t;
  }

  Tile channels_tile() const {
    Tile t;
    int64_t step = 1;
    for (size_t i = pairs_.size(); i-- > 0;) {  // pixels are innermost
      t.columns.push_back({size(pairs_[i].result), step});
      if (i == 0) t.terms.push_back({size(pairs_[i].sum), step});
      t.turns *= size(pairs_[i].sum);
      step *= size(pairs_[i].result) + size(pairs_[i].sum) - 1;
    }
    t.columns.push_back({images(), step});
    t.steps = size(pairs_[0].sum);
    t.blocks = size(columns_) / images();
    t.bytes = unit().depth * (step * images() + t.turns * size(rows_));
    return t;
  }

  Tile lines_tile(int64_t lines) const {
    Tile t;
    int64_t step = 1, pixels = 1;
    for (size_t i = columns_.size(); i-- > 0; step *= size(columns_[i]))
      t.columns.push_back({size(columns_[i]), step});
    const size_t first = t.columns.size();
    for (size_t i = 0; i < pairs_.size(); ++i) {  // lines lie nearer to each other than pixels
      const int64_t sum = i ? size(pairs_[i].sum) : lines;
      t.columns.insert(t.columns.begin() + static_cast<ptrdiff_t>(first),
                       {size(pairs_[i].result), step});
      t.terms.insert(t.terms.begin(), {sum, step});
      pixels *= sum;
      step *= size(pairs_[i].result) + sum - 1;
    }
    t.turns = pixels / unit().depth;
    t.steps = largest_divisor(t.turns, kMaxSteps);
    t.bytes = step + pixels * size(rows_);
    return t;
  }

  // Elements that a warp loads for all that it multiplies without a loop: what several columns
  // share once.
  int64_t loads(const TilePlan& plan, const Tile& t) const {
    const int64_t own = distinct_places({t.columns, plan.across, unit().columns},
                                        {t.terms, t.steps, plan.step ? unit().depth : 1});
    return unit().a_count() * plan.down * t.steps + unit().b_count() * own;
  }

  // Blocks that a multiprocessor has room for.
  int64_t resident(const TilePlan& plan, const Tile& t) const {
    const int64_t held = plan.down * plan.across, warps = t.fragments / held;
    // The accumulators of other sums are live while the GEMM is computed.
    const auto sums = static_cast<double>(all_of(sink_, Op::Reduce).size() + 1) / 2;
    const double all =
        kWindowRates.resident(sums * static_cast<double>(held * unit().results()), target_);
    const auto fit = static_cast<int64_t>(all / static_cast<double>(warps));
    return std::min({fit, target_.shared_bytes / t.bytes, (t.blocks - 1) / target_.cores + 1});
  }

  // In the units of time_of_fragments. A multiprocessor's four schedulers have warps of their own.
  double time(const TilePlan& plan) const {
    constexpr double kFill = 3200;
    constexpr int64_t kSchedulers = 4;
    const WarpRates& r = kWindowRates;
    const Tile t = tile_of(plan);
    const int64_t blocks = resident(plan, t), held = plan.down * plan.across;
    if (blocks < 1) return INFINITY;
    const int64_t warps = blocks * (t.fragments / held), at_once = target_.cores * blocks;
    const double work = r.multiply + r.load * static_cast<double>(loads(plan, t)) /
                                         static_cast<double>(held * t.steps);
    const double waiting = r.waiting(static_cast<double>(warps));
    const double uneven =
        static_cast<double>(round_up(warps, kSchedulers)) / static_cast<double>(warps);
    const double fill = kFill / static_cast<double>(plan.depth * t.turns * t.fragments * blocks);
    const int64_t rounds = ceil_div(t.blocks, at_once) * blocks;
    return (work * waiting * uneven + fill) * static_cast<double>(rounds * t.fragments);
  }
};

// Of a stage, the ranges that fill it: `count` of them from `first` on.
struct Copies {
  int first, count;
  bool padding;  // between the rows along the first side
};

// Rows along the first side that threads read at once lie in different banks: each of four reads
// two neighbours along it, and of eight in a line next to each other.
int64_t padding(int64_t inner, int64_t bytes) {
  constexpr int64_t kBanks = 64, kApart = 16;  // bytes
  return ((kApart - inner * bytes) % kBanks + kBanks) % kBanks / bytes;
}

class WindowTuner : WindowCost {
 public:
  using WindowCost::WindowCost;

  std::optional<Choice> run(const TilePlan& plan) {
    if (!begin() || !fits(plan)) return {};
    if (!(plan.step ? stage_lines(plan) : stage_channels(plan))) return {};
    if (!multiply_fragments(plan)) return {};
    for (const Copies& c : copies_)
      if (!share(c)) return {};
    bind(merged(blocks_), RangeKind::Block);
    order_kinds({lane_}, sums());
    choice_.is_gemm = true;
    return std::move(choice_);
  }

 private:
  static constexpr int64_t kMaxCopies = 8;  // unrolled: their addresses take registers

  // --- stages ------------------------------------------------------------------------------------

  // `tile`: the sides of the stage, outermost first, of windows the two ranges of each.
  void stage(bool image, const std::vector<Ids>& tile, int along, int64_t depth) {
    const int which = image ? image_ : 1 - image_;
    int64_t inner = 1;
    Opt opt{OptKind::Stage, along, depth, {}};
    int count = 0;
    for (const Ids& side : tile) {
      int64_t n = 1;
      for (int id : side) {
        n += size(id) - 1;
        opt.axes.push_back(id);
      }
      if (side.empty()) continue;
      inner *= count++ ? n : 1;
    }
    const auto form = image ? StagedFactor::Form::Windows : StagedFactor::Form::Value;
    opt.staged = {which, form, static_cast<int>(padding(inner, unit().dtype.size()))};
    copies_.push_back({next_range_id(sink_), count, opt.staged.padding > 0});
    apply(opt);
  }

  // The results of a window, or an input's gradient: a few channels of the pixels of an image, or
  // of several where one's are no whole fragments.
  bool stage_channels(const TilePlan& plan) {
    if (sums_.size() != 1 || size(sums_) % unit().depth || size(sums_) <= unit().depth)
      return false;
    int channels = sums_[0], image = columns_.empty() ? -1 : columns_.back();
    if (size(image) % images()) return false;
    inner_ = cut(channels, unit().depth);
    const int several = cut(image, images());
    blocks_.insert(blocks_.end(), columns_.begin(), columns_.end());
    std::vector<Ids> tile{{inner_}}, weights{{inner_}};
    if (several >= 0) tile.push_back({several});
    for (const Pair& p : pairs_) {
      tile.push_back({p.result, p.sum});
      weights.push_back({p.sum});
    }
    for (int id : rows_) weights.push_back({id});
    along_ = channels;
    stage(true, tile, channels, plan.depth);
    stage(false, weights, channels, plan.depth);
    Ids results{several};
    for (const Pair& p : pairs_) results.push_back(p.result);
    n_ = merged(results);
    bind(pairs_[0].sum, RangeKind::Unroll);  // lines that windows share are loaded once
    return true;
  }

  // The gradient of filters: a few lines of pixels.
  bool stage_lines(const TilePlan& plan) {
    int lines = pairs_[0].sum;
    if (size(lines) % plan.step || plan.step >= size(lines) || plan.step < 2) return false;
    const int line = cut(lines, plan.step);
    Ids all = sums_;
    all.push_back(lines);
    const int along = along_ = merged(all);
    // Pixels along the first side, since fragments sum over them.
    std::vector<Ids> tile, others;
    for (size_t i = pairs_.size(); i-- > 0;) {
      const int sum = i ? pairs_[i].sum : line;
      tile.push_back({sum, pairs_[i].result});
      others.push_back({sum});
    }
    for (int id : columns_) tile.push_back({id});
    for (int id : rows_) others.push_back({id});
    stage(true, tile, along, plan.depth);
    stage(false, others, along, plan.depth);
    Ids pixels{line}, results;
    for (size_t i = 1; i < pairs_.size(); ++i) pixels.push_back(pairs_[i].sum);
    for (const Pair& p : pairs_) results.push_back(p.result);
    results.insert(results.end(), columns_.begin(), columns_.end());
    inner_ = merged(pixels);
    n_ = merged(results);
    return true;
  }

  // --- the rest ----------------------------------------------------------------------------------

  bool multiply_fragments(const TilePlan& plan) {
    int rows = merged(rows_), columns = n_;
    if (!multiply(rows, columns, inner_)) return false;
    cut(rows, plan.down, RangeKind::Unroll);
    cut(columns, plan.across, RangeKind::Unroll);
    // One iteration stays a loop around what is unrolled, which adds to the sums in the matrix
    // units.
    cut(inner_, largest_divisor(size(inner_), kMaxSteps), RangeKind::Unroll);
    for (int id : {rows, columns}) {
      if (id < 0 || !range(id)) continue;
      bind(id, RangeKind::Thread);
      warps_.push_back(id);
    }
    return true;
  }

  // A stage's copies, in vectors, among the threads of the block: of each side the last ones, as
  // many as are a power of two, so that a thread's copies are a constant distance apart. Warps that
  // find no part of their own copy nothing.
  bool share(const Copies& c) {
    Ids sides;
    for (int i = 0; i < c.count; ++i) sides.push_back(c.first + i);
    for (int64_t lanes = kLanes; lanes > 1; lanes /= 2)
      if (size(sides) % (lanes * target_.warp) == 0 && copy_vectors(sides.back(), lanes)) break;
    for (size_t i = sides.size() - 1; i-- > (c.padding ? 1 : 0);)
      if (are_one(sides[i], sides[i + 1])) {
        merged({sides[i], sides[i + 1]});
        sides.erase(sides.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    if (parts_for(lane_, sides) < target_.warp) return false;
    share(sides, lane_);
    for (size_t i = 0; i < warps_.size(); ++i) {
      const int64_t some = parts_for(warps_[i], sides);
      if (some < 2) continue;
      if (some == size(warps_[i])) {
        share(sides, warps_[i]);
      } else if (warps_.size() == 1) {  // a block has three dimensions
        warps_.push_back(cut(warps_[0], some));
        share(sides, warps_[1]);
        break;
      }
    }
    if (size(sides) <= kMaxCopies)
      for (int id : sides) bind(id, RangeKind::Unroll);
    return true;
  }

  // How many of these threads get parts, whole ones.
  int64_t parts_for(int threads, const Ids& sides) const {
    int64_t left = size(threads);
    for (size_t i = sides.size(); i-- > 0;) left /= std::gcd(left, size(sides[i]));
    return size(threads) / left;
  }

  void share(Ids& sides, int threads) {
    int64_t left = size(threads);
    Ids parts(sides.size(), -1);
    for (size_t i = sides.size(); i-- > 0;) {
      const int64_t part = std::gcd(left, size(sides[i]));
      parts[i] = cut(sides[i], part);
      left /= part;
    }
    apply({OptKind::Join, threads, merged(parts), {}});
  }

  // Whether what a stage copies goes on along one side in memory where the next one ends.
  bool are_one(int outer, int inner) const {
    if (!range(outer) || !range(inner)) return false;
    for (Node stage : all_of(sink_, Op::Stage))
      for (Node load : topological(stage->src(0))) {
        if (load->op != Op::Load || !(load->ranges & range(inner)->ranges)) continue;
        const int64_t step = stride(load, inner);
        if (load->num_src > 2 || step == kIrregular || stride(load, outer) != step * size(inner))
          return false;
      }
    return true;
  }

  // Loops that fill stages enclose those that read them.
  Ids sums() const {
    Ids out = without(ids_of(RangeKind::Reduce), along_);
    if (range(along_)) out.insert(out.begin(), along_);
    return out;
  }

  int n_ = -1, inner_ = -1;  // columns of the product, and what fragments sum over
  int along_ = -1;           // what stages are filled along
  Ids warps_;                // of a block: along rows, and along columns
  std::vector<Copies> copies_;
};

}  // namespace

std::optional<Choice> choose_window_options(Node sink, const Target& target, const TilePlan& plan) {
  return WindowTuner(sink, target).run(plan);
}

std::optional<Choice> choose_window_options(Node sink, const Target& target, double time) {
  for (const auto& [seconds, plan] : WindowCost(sink, target).plans_within(time))
    if (auto choice = choose_window_options(sink, target, plan)) return choice;
  return {};
}

std::vector<Choice> window_choices(Node sink, const Target& target) {
  std::vector<Choice> out;
  for (const TilePlan& plan : all_plans())
    if (auto choice = choose_window_options(sink, target, plan)) out.push_back(std::move(*choice));
  return out;
}

}  // namespace tiny
