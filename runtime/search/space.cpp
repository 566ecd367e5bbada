#include "runtime/search/space.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "codegen/lower.h"
#include "codegen/options/launchable.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/error.h"
#include "tiny/base/parallel.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// A range as options leave it. Its name stays when options before it come and go: those of the
// kernel before any option have their ids, the inner part of a split is named by that option.
struct Loop {
  int name, id;
  int64_t extent;
  RangeKind kind;
  bool ordered;  // iterations go on in order
};
constexpr int kFirstPart = 1000;

// An option with names in the place of ids, and what the inner range of a split is called.
struct NamedOpt {
  Opt opt;
  int part = 0;
};
using OptList = std::vector<NamedOpt>;

bool is_pair(const Opt& o) { return o.kind == OptKind::Merge || o.kind == OptKind::Join; }

// Follows options through a kernel's ranges, as codegen/option does with its graph.
class LoopNestState {
 public:
  LoopNestState() = default;
  explicit LoopNestState(Node sink) {
    const uint64_t ordered = ordered_ranges(sink);
    for (Node r : ranges_of(sink)) {
      const int id = range_id(r);
      loops_.push_back({id, id, extent(r), kind(r), (ordered >> id & 1) != 0});
    }
  }
  const std::vector<Loop>& loops() const { return loops_; }
  const Loop* named(int name) const { return find(&Loop::name, name); }
  const Loop* with_id(int64_t id) const { return find(&Loop::id, static_cast<int>(id)); }

  void apply(const Opt& o, int part) {
    auto* axis = const_cast<Loop*>(with_id(o.axis));
    if (o.kind == OptKind::Order) return renumber(o.axes);
    if (o.kind == OptKind::Bind) axis->kind = static_cast<RangeKind>(o.amount);
    if (o.kind == OptKind::Split) return split(*axis, o.amount, part);
    if (o.kind == OptKind::Align)
      axis->extent = (axis->extent + 2 * (o.amount - 1)) / o.amount * o.amount;
    if (o.kind == OptKind::Extend) axis->extent = round_up(axis->extent, o.amount);
    if (o.kind == OptKind::Merge) axis->extent *= with_id(o.amount)->extent;
    if (is_pair(o)) std::erase_if(loops_, [&](const Loop& l) { return l.id == o.amount; });
  }

 private:
  const Loop* find(int Loop::*field, int value) const {
    const auto at = std::ranges::find_if(loops_, [&](const Loop& l) { return l.*field == value; });
    return at == loops_.end() ? nullptr : &*at;
  }
  void split(Loop& axis, int64_t amount, int part) {
    int next = 0;
    for (const Loop& l : loops_) next = std::max(next, l.id + 1);
    const Loop inner{part, next, amount, axis.kind, axis.ordered};
    axis.extent = ceil_div(axis.extent, amount);
    if (axis.extent == 1)
      axis = inner;
    else
      loops_.push_back(inner);
  }
  void renumber(const std::vector<int>& ids) {
    std::vector<Loop> now;
    for (int id : ids)
      if (const Loop* l = with_id(id)) now.push_back(*l);
    for (size_t i = 0; i < now.size(); ++i) now[i].id = static_cast<int>(i);
    loops_ = std::move(now);
  }

  std::vector<Loop> loops_;
};

// The options with names. `before`: the range that each works on, as it finds it.
OptList to_program(LoopNestState nest, std::span<const Opt> options, std::vector<Loop>& before) {
  OptList out;
  const auto name = [&](int64_t id) {
    const Loop* l = nest.with_id(id);
    check(l, "no range r", id);
    return l->name;
  };
  for (const Opt& o : options) {
    NamedOpt n{o, kFirstPart + static_cast<int>(out.size())};
    before.push_back({});
    if (o.kind != OptKind::Order) n.opt.axis = name(o.axis), before.back() = *nest.with_id(o.axis);
    if (is_pair(o)) n.opt.amount = name(o.amount);
    for (int& a : n.opt.axes) a = name(a);
    nest.apply(o, n.part);
    out.push_back(std::move(n));
  }
  return out;
}

// And back. Options of a range that is gone are dropped; an order gets the ranges that it does not
// name at its end.
std::vector<Opt> to_options(LoopNestState nest, const OptList& program) {
  std::vector<Opt> out;
  for (const auto& [named, part] : program) {
    Opt o = named;
    if (o.kind == OptKind::Order) {
      std::set<int> left;
      for (const Loop& l : nest.loops()) left.insert(l.id);
      o.axes.clear();
      for (int a : named.axes)
        if (const Loop* l = nest.named(a); l && left.erase(l->id)) o.axes.push_back(l->id);
      o.axes.insert(o.axes.end(), left.begin(), left.end());
    } else {
      const Loop *axis = nest.named(o.axis), *other = nest.named(static_cast<int>(o.amount));
      if (!axis || (is_pair(o) && (!other || other == axis))) continue;
      o.axis = axis->id;
      if (is_pair(o)) o.amount = other->id;
    }
    nest.apply(o, part);
    out.push_back(std::move(o));
  }
  return out;
}

constexpr size_t kMaxFragments = 96;  // choices of fragments that a warp holds

// A choice's options with names, and edited ones made of them.
class NamedOptions {
 public:
  NamedOptions(Node loops, std::span<const Opt> all, const Target& target) {
    // Matrix units and stages give a kernel other ranges: what comes after them is edited.
    size_t head = 0;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].kind == OptKind::Matrix || all[i].kind == OptKind::Mma ||
          all[i].kind == OptKind::Stage)
        head = i + 1;
    head_.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(head));
    start_ = end_ = LoopNestState(apply(loops, head_, target));
    list_ = to_program(start_, all.subspan(head), before_);
    for (size_t i = head; i < all.size(); ++i) end_.apply(all[i], list_[i - head].part);
    last_ = list_.size();
    while (last_ > 0 && list_[last_ - 1].opt.kind == OptKind::Order) --last_;
  }

  const OptList& list() const { return list_; }
  size_t last() const { return last_; }                      // where the final order begins
  const LoopNestState& start() const { return start_; }      // before all options of the list
  const LoopNestState& end() const { return end_; }          // behind them
  const Loop& before(size_t i) const { return before_[i]; }  // what option i works on

  // All options, with an edited list.
  std::vector<Opt> options(const OptList& edited) const {
    std::vector<Opt> out = head_;
    for (Opt& o : to_options(start_, edited)) out.push_back(std::move(o));
    return out;
  }

  OptList without(size_t i) const {
    OptList p = list_;
    p.erase(p.begin() + static_cast<ptrdiff_t>(i));
    return p;
  }
  OptList with(size_t at, const OptList& more) const {
    OptList p = list_;
    p.insert(p.begin() + static_cast<ptrdiff_t>(at), more.begin(), more.end());
    return p;
  }

  // With a part of a loop, cut off before option `at` for a range of that kind. It stands right
  // after the range `after`, or, with -1, last but for the vectors.
  OptList with_part(const Loop& l, int64_t amount, RangeKind k, int after, size_t at) const {
    const int part = kFirstPart + static_cast<int>(list_.size());
    OptList more{{{OptKind::Split, l.name, amount, {}}, part}};
    if (k != l.kind) more.push_back(bind(part, k));
    OptList p = with(at, more);
    for (size_t i = last_ + more.size(); i < p.size(); ++i) {
      std::vector<int>& axes = p[i].opt.axes;
      auto place = std::ranges::find(axes, after);
      if (place != axes.end())
        ++place;
      else
        while (place != axes.begin() && end_.named(*(place - 1))->kind == RangeKind::Vector)
          --place;
      axes.insert(place, part);
    }
    return p;
  }

  static NamedOpt bind(int name, RangeKind k) {
    return {{OptKind::Bind, name, static_cast<int64_t>(k), {}}};
  }

 private:
  std::vector<Opt> head_;  // up to what makes a matrix product
  LoopNestState start_, end_;
  OptList list_;  // the others
  std::vector<Loop> before_;
  size_t last_ = 0;
};

bool is_pow2(int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); }

// Half, double, the next divisors on both sides.
std::set<int64_t> near(int64_t amount, int64_t n) {
  std::set<int64_t> out = {amount / 2, amount * 2};
  for (int64_t step : {-1, 1})
    for (int64_t d = amount + step; d > 1 && d <= std::min(n, 8 * amount); d += step)
      if (n % d == 0) {
        out.insert(d);
        break;
      }
  return out;
}

// Of a product on matrix units: other tiles, rows and columns exchanged, the same tiles in
// another order. Options before the tile's leave the kernel that it is applied to.
std::vector<Choice> other_tiles(Node loops, const Choice& choice, const Opt& matrix,
                                const Target& target) {
  std::vector<Opt> before;
  for (const Opt& o : choice.options) {
    if (o == matrix) break;
    before.push_back(o);
  }
  std::vector<std::pair<Opt, int64_t>> tiles;  // and bands
  const auto add = [&](const Opt& opt, int64_t band = kMatrixBand) {
    tiles.push_back({opt, band});
  };
  const auto changed = [](Opt opt, auto change) {
    change(opt.tile);
    return opt;
  };
  add(changed(matrix, [](TileShape& t) { t.max_stages = !t.max_stages; }));
  add(changed(matrix, [](TileShape& t) { t.vectorized_epilogue = !t.vectorized_epilogue; }));
  for (const auto& [down, across, parts] : std::initializer_list<std::array<int, 3>>{
           {1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 1, 4}, {1, 1, 8}})
    add(changed(matrix, [&](TileShape& t) {
      t.cluster_m = down, t.cluster_n = across, t.split_k = parts;
    }));
  Opt turned = matrix;
  std::swap(turned.axis, turned.axes[0]);
  for (const Opt& opt : {matrix, turned}) {
    if (opt == turned && opt.axes.size() > 1) continue;
    for (int rows : {64, 128, 192, 256, 320, 384, 512})
      for (int columns : {8, 16, 32, 64, 96, 128, 160, 192, 224, 256})
        for (int flags = 0; flags < 5; ++flags)
          add(changed(opt, [&](TileShape& t) {
            t.rows = rows, t.columns = columns;
            t.split_n = (flags & 1) != 0, t.max_stages = (flags & 2) != 0;
            if (flags == 4) t.split_k = 2;
          }));
    if (opt == turned) break;
    for (int64_t band : {1, 2, 4, 8, 16, 32, 64}) add(matrix, band);
  }
  std::vector<Choice> out(tiles.size());
  in_parallel(tiles.size(), core_count(), [&](size_t i, size_t) {
    Arena arena;
    ArenaScope scope(arena);
    Node sink = apply(loops_of(loops, target), before, target);
    const auto& [opt, band] = tiles[i];
    if (is_legal(sink, opt, target))
      out[i] = {matrix_options(sink, target, opt, band), choice.is_gemm};
  });
  std::erase_if(out, [](const Choice& c) { return c.options.empty(); });
  for (Choice& c : out) c.options.insert(c.options.begin(), before.begin(), before.end());
  return out;
}

// Of a product: other tiles in shared memory and on matrix units, none of which is an edit.
std::vector<Choice> tile_choices(Node loops, const Choice& choice, const Target& target) {
  std::vector<Choice> out;
  const auto matrix = std::ranges::find(choice.options, OptKind::Matrix, &Opt::kind);
  if (matrix != choice.options.end()) out = other_tiles(loops, choice, *matrix, target);
  for (bool mma : {false, true}) {
    if (!choose_stage_options(loops, target, stage_plans(mma))) continue;
    for (const TilePlan& plan : stage_plans(mma))
      if (auto staged = choose_stage_options(loops, target, std::span(&plan, 1)))
        out.push_back(std::move(*staged));
  }
  if (target.kind != Target::Kind::Cpu && matrix == choice.options.end()) {
    // Tiles of the larger matrix units are faster.
    for (Choice& c : window_choices(loops, target)) out.push_back(std::move(c));
    for (Choice& c : mma_choices(loops, target, kMaxFragments)) out.push_back(std::move(c));
  }
  // A plan says nothing of how often its statements stand in a kernel.
  std::erase_if(out, [&](const Choice& c) {
    return !launch_problem(loops, apply(loops, c.options, target), target).empty();
  });
  return out;
}

class NeighbourGenerator {
 public:
  NeighbourGenerator(Node loops, const Choice& choice, const Target& target)
      : loops_(loops), choice_(choice), target_(target), named_(loops, choice.options, target) {
    seen_.insert(to_text(choice));
  }

  std::vector<Choice> run() {
    for (Choice& c : tile_choices(loops_, choice_, target_)) keep(std::move(c));
    // Threads have a product's tile as the instruction says: only the tile may be another one.
    if (!has(OptKind::Matrix)) edits();
    return std::move(out_);
  }

 private:
  bool is_cpu() const { return target_.kind == Target::Kind::Cpu; }
  bool has(OptKind kind) const {
    return std::ranges::find(choice_.options, kind, &Opt::kind) != choice_.options.end();
  }
  const std::vector<Loop>& first_loops() const { return named_.start().loops(); }

  void edits() {
    if (is_cpu()) keep({choice_.options, !choice_.is_gemm});
    amounts();
    for (size_t i = 0; i < named_.last(); ++i) keep(named_.without(i));
    for (const Loop& l : named_.end().loops())
      if (!l.ordered) parts(l), bindings(l);
    if (!is_cpu())
      for (const Loop& l : first_loops())
        if (!l.ordered && l.kind == RangeKind::Loop) shares(l);
    for (size_t i = 0; i < first_loops().size(); ++i)
      for (size_t j = 0; j < first_loops().size(); ++j)
        if (i != j) pairs(first_loops()[i], first_loops()[j], j == i + 1);
    orders();
  }

  void keep(Choice c) {
    if (seen_.insert(to_text(c)).second) out_.push_back(std::move(c));
  }
  void keep(const OptList& p) { keep({named_.options(p), choice_.is_gemm}); }

  void amounts() {
    const OptList& list = named_.list();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].opt.kind != OptKind::Split) continue;
      const Loop* part = named_.end().named(list[i].part);
      const bool is_vector = part && part->kind == RangeKind::Vector;
      for (int64_t amount : near(list[i].opt.amount, named_.before(i).extent)) {
        if (amount < 2 || (is_vector && !is_pow2(amount))) continue;
        OptList p = list;
        p[i].opt.amount = amount;
        keep(p);
      }
    }
  }

  // A piece of a loop unrolled, as a vector, as an inner loop, as threads.
  void parts(const Loop& l) {
    if (l.kind != RangeKind::Loop && l.kind != RangeKind::Reduce) return;
    for (int64_t amount : {2, 3, 4, 7, 8, 16}) {
      if (l.extent % amount || l.extent == amount) continue;
      add_part(l, amount, RangeKind::Unroll, -1);
      if (is_pow2(amount) && amount >= 4 && (is_cpu() || amount <= 8))
        add_part(l, amount, RangeKind::Vector, -1);
    }
    for (int64_t amount : {16, 64, 256}) {
      if (amount >= l.extent) continue;
      if (l.extent % amount == 0) add_part(l, amount, l.kind, l.name);
      if (l.extent % amount == 0) add_part(l, amount, l.kind, -1);
      if (!is_cpu()) add_part(l, amount, RangeKind::Thread, l.name);
    }
  }

  // Several neighbouring results of a loop for each thread, or rows of threads for each block:
  // split off before the loop is used otherwise.
  void shares(const Loop& l) {
    int block = -1;  // the last one
    for (size_t i = named_.last(); i < named_.list().size(); ++i)
      for (int name : named_.list()[i].opt.axes)
        if (named_.end().named(name)->kind == RangeKind::Block) block = name;
    for (int64_t amount : {2, 4, 8}) {
      if (l.extent % amount || l.extent == amount) continue;
      keep(named_.with_part(l, amount, RangeKind::Unroll, -1, 0));
      if (block >= 0) keep(named_.with_part(l, amount, RangeKind::Thread, block, 0));
    }
  }

  void add_part(const Loop& l, int64_t amount, RangeKind k, int after) {
    keep(named_.with_part(l, amount, k, after, named_.last()));
  }

  // A whole range bound to something else.
  void bindings(const Loop& l) {
    std::set<RangeKind> kinds;
    const bool is_loop = l.kind == RangeKind::Loop;
    if (is_loop || l.kind == RangeKind::Reduce || l.kind == RangeKind::Vector)
      if (l.extent <= 16) kinds.insert(RangeKind::Unroll);
    if ((is_loop || l.kind == RangeKind::Reduce) && l.extent <= 32 && is_pow2(l.extent))
      kinds.insert(RangeKind::Vector);
    if (!is_cpu() && is_loop) kinds.insert(RangeKind::Block);
    if (!is_cpu() && l.extent <= target_.most_threads && (is_loop || l.kind == RangeKind::Block))
      kinds.insert(RangeKind::Thread);
    for (RangeKind k : kinds) keep(named_.with(named_.last(), {NamedOptions::bind(l.name, k)}));
    if (is_cpu() && is_loop) to_cores(l.name);
  }

  // The cores take this loop instead of theirs.
  void to_cores(int name) {
    OptList p = named_.list();
    for (auto& [o, part] : p) {
      if (o.kind == OptKind::Bind && o.amount == static_cast<int64_t>(RangeKind::Core))
        o.axis = name;
      if (o.kind != OptKind::Order) continue;
      std::erase(o.axes, name);
      o.axes.insert(o.axes.begin(), name);
    }
    keep(p);
  }

  // Two ranges of the kernel trade all that is done with them, become one range, or, of the same
  // extent, get into the same hands.
  void pairs(const Loop& a, const Loop& b, bool side_by_side) {
    if (a.kind != b.kind || a.ordered || b.ordered) return;
    if (side_by_side) keep(named_.with(0, {{{OptKind::Merge, a.name, b.name, {}}}}));
    if (a.name > b.name) return;
    if (!is_cpu() && a.extent == b.extent)
      keep(named_.with(0, {{{OptKind::Join, a.name, b.name, {}}}}));
    OptList p = named_.list();
    const auto swap = [&](auto& name) {
      name = name == a.name ? b.name : name == b.name ? a.name : name;
    };
    for (auto& [o, part] : p) {
      swap(o.axis);
      if (is_pair(o)) swap(o.amount);
      for (int& name : o.axes) swap(name);
    }
    keep(p);
  }

  // One range moved to another place among the loops.
  void orders() {
    // Orders that make another kernel: on a GPU blocks, threads and loops are each in an order.
    const auto in_order = [&](const std::vector<int>& axes) {
      std::vector<int> out;
      for (int name : axes)
        if (const Loop* l = named_.end().named(name); l && l->ordered) out.push_back(name);
      return out;
    };
    const bool is_mma = has(OptKind::Mma);  // fragments of a warp's
    const auto order_of = [&](const std::vector<int>& axes) {
      std::vector<int> out;
      for (int turn = 0; turn < 3; ++turn)
        for (int name : axes) {
          const Loop* l = named_.end().named(name);
          const bool block = l && l->kind == RangeKind::Block;
          const bool thread = l && l->kind == RangeKind::Thread;
          // A warp's threads stay where they are, and the compiler orders its fragments.
          if (is_mma && !block && !(l && l->kind == RangeKind::Reduce)) continue;
          if (is_cpu() ? turn == 0 : turn == (block ? 0 : thread ? 1 : 2)) out.push_back(name);
        }
      return out;
    };
    for (size_t i = named_.last(); i < named_.list().size(); ++i) {
      const std::vector<int>& axes = named_.list()[i].opt.axes;
      std::set<std::vector<int>> orders{order_of(axes)};
      for (size_t from = 0; from < axes.size(); ++from)
        for (size_t to = 0; to < axes.size(); ++to) {
          OptList p = named_.list();
          std::vector<int>& moved = p[i].opt.axes;
          moved.erase(moved.begin() + static_cast<ptrdiff_t>(from));
          moved.insert(moved.begin() + static_cast<ptrdiff_t>(to), axes[from]);
          if (in_order(moved) != in_order(axes) || !orders.insert(order_of(moved)).second) continue;
          keep(p);
        }
    }
  }

  const Node loops_;
  const Choice& choice_;
  const Target& target_;
  const NamedOptions named_;
  std::set<std::string> seen_;
  std::vector<Choice> out_;
};

}  // namespace

std::vector<Choice> neighbours(Node loops, const Choice& choice, const Target& target) {
  return NeighbourGenerator(loops, choice, target).run();
}

}  // namespace tiny
