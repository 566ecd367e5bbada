#include "runtime/layout/cpu_tiles.h"

#include <algorithm>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/options/mma.h"
#include "runtime/analysis/graph_contraction.h"
#include "runtime/layout/pack.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

using Axes = std::vector<int>;

// A view without the cast that widens what it shows; of bools as numbers of a dtype that is given.
Node narrowed(Node view, DType wide, DType of_bools = {}) {
  if (view->op == Op::Cast && view->dtype == wide) {
    const DType from = view->src(0)->dtype;
    if (from.is_bool() && of_bools != DType()) return build::cast(view->src(0), of_bools);
    return from.is_half() || from == kI8 || from == kU8 ? view->src(0) : nullptr;
  }
  if (!is_movement(view->op) || view->num_src != 1 || view->lengths) return nullptr;
  Node below = narrowed(view->src(0), wide, of_bools);
  return below ? make(view->op, below->dtype, {below}, view->payload) : nullptr;
}

// An operand of the product: its own axes, and how it lies in memory.
struct TileSide {
  Node view = nullptr;
  Axes own;
  int64_t count = 1;     // of rows or columns
  bool in_order = true;  // contiguous along the sum

  // Windows are stored one by one, from an image whose channels lie innermost, with its padding
  // around it: what one tap has of them is then copied by vectors. The padding of one operand may
  // be in the view of the other as well, which then is read without it.
  struct Windows {
    Node image = nullptr;
    int channels = -1;  // its dimension, of windows
    AffineMap map;
  } windows;

  void view_windows() {
    if (!windows.image) return;
    Node x = build::cast(windows.image, view->dtype);
    if (windows.channels >= 0) {
      if (std::exchange(windows.map.padded, false)) x = build::pad(x, windows.map.pad);
      x = packed(x, windows.channels, x->shape()[windows.channels]);
    }
    view = affine_view(x, windows.map, view->shape());
  }

  // The product's elements that it has: [those of both, its own, the sum].
  Node matrix(const Axes& both, const Axes& sums, const Shape& to) const {
    Shape bounds, order;
    for (int i = 0; i < view->rank; ++i) bounds.insert(bounds.end(), {0, 1});
    for (const Axes* axes : {&both, &own, &sums})
      for (int i : *axes) {
        bounds[2 * i + 1] = view->shape()[i];
        order.push_back(i);
      }
    for (int i = 0; i < view->rank; ++i)
      if (!contains(order, i)) order.push_back(i);
    return build::reshape(build::permute(build::shrink(view, bounds), order), to);
  }
};

class Tiler {
 public:
  Tiler(Node reduce, const Target& target) : reduce_(reduce), target_(target) {}

  Node run() {
    if (!find_sides()) return nullptr;
    for (TileSide& side : sides_) side.view_windows();
    // From here on tiles are faster than f32, packing included (measurements.md: cpu_tiles).
    constexpr int64_t kMin = 24, kMany = 64;
    if (std::min(sides_[0].count, sides_[1].count) < kMin ||
        std::max(sides_[0].count, sides_[1].count) < kMany || sum_ < kMin)
      return nullptr;
    const int64_t k = round_up(sum_, unit_->depth);
    Node a = fragments(0, k, unit_->rows, unit_->depth);
    Node b = fragments(1, k, unit_->columns, unit_->group);
    const int64_t m = a->shape()[1], n = b->shape()[1];
    const auto spread = [&](Node x, const Shape& from) {
      return build::expand(build::reshape(build::cast(x, unit_->sum), from),
                           Shape{others_, m, n, k});
    };
    Node product =
        build::binary(Op::Mul, spread(a, {others_, m, 1, k}), spread(b, {others_, 1, n, k}));
    Node sum = build::reshape(build::reduce(Op::Add, product, 1u << 3), Shape{others_, m, n});
    return restored(raised_ ? lowered(sum) : sum);
  }

 private:
  bool find_sides() {
    Node mul = reduce_->src(0);
    if (reduce_->arg<ReduceArg>().op != Op::Add || mul->op != Op::Mul || reduce_->lengths ||
        mul->lengths)
      return false;
    for (int o : {0, 1}) sides_[o].view = narrowed(mul->src(o), mul->dtype);
    for (int o : {0, 1})
      if (const Node other = sides_[1 - o].view; other && !sides_[o].view)
        sides_[o].view = narrowed(mul->src(o), mul->dtype, other->dtype);
    if (!sides_[0].view || !sides_[1].view) return false;
    for (TileSide& side : sides_) side.view = with_affine_indices(side.view);
    find_unit(sides_[0].view->dtype, sides_[1].view->dtype);
    return unit_ && unit_->sum == mul->dtype && find_axes();
  }

  // Rows may change places with columns, and signed bytes become unsigned ones where those alone
  // are taken: (x + 128) y - 128 y.
  void find_unit(DType rows, DType columns) {
    unit_ = tile_unit(target_, rows, columns);
    if (unit_) return;
    unit_ = tile_unit(target_, columns, rows);
    if (unit_) return std::swap(sides_[0], sides_[1]);
    if (rows == kI8 && columns == kI8) unit_ = tile_unit(target_, kU8, kI8);
    raised_ = unit_ != nullptr;
  }

  Node lowered(Node sum) const {
    Node y = build::cast(sides_[1].matrix(both_, sums_, {others_, sides_[1].count, sum_}), kI32);
    Node all =
        build::reshape(build::reduce(Op::Add, y, 1u << 2), Shape{others_, 1, sides_[1].count});
    all = build::binary(Op::Mul, all, build::full(all->shape(), kI32, int64_t{128}));
    return build::binary(Op::Sub, sum, build::expand(all, sum->shape()));
  }

  Node raised(Node x) const {
    Node half = build::full(x->shape(), kI8, int64_t{-128});
    return build::bitcast(build::binary(Op::Xor, x, half), kU8);
  }

  bool find_axes() {
    const Node views[] = {sides_[0].view, sides_[1].view};
    const GraphContraction c(reduce_, views);
    const ContractionAxes axes = c.axes();
    if (!std::ranges::all_of(c.operands, is_affine) || !axes.is_whole || !pads_alone(c.operands))
      return false;
    sums_ = axes.k;
    both_ = axes.batch;
    sum_ = c.size(sums_);
    others_ = c.size(both_);
    for (int o : {0, 1}) {
      TileSide& side = sides_[o];
      const ProductOperand& operand = c.operands[o];
      side.own = axes.own[o];
      side.count = c.size(side.own);
      side.in_order = !is_elementwise(operand.point->op) && operand.casts == 0;
      for (int i : sums_) side.in_order &= c.walk(o, i).kind == Walk::Contiguous;
      for (int i : side.own) side.in_order &= c.walk(o, i).kind != Walk::Irregular;
    }
    for (int o : {0, 1})
      if (c.operands[o].gate || has_windows(c.operands[o]))
        if (!find_windows(o, c.operands[o], c.ranges)) return false;
    return true;
  }

  // Whether it pays to store windows one by one: taps of many channels, copied by vectors, for so
  // many results that the copies are little beside the product. With fewer, or windows that leave
  // the caches, some were slower than in f32 (Zen 4, memory in use by others, fifteen convolutions
  // and their gradients).
  bool find_windows(int which, const ProductOperand& o, const std::vector<Node>& ranges) {
    constexpr int64_t kChannels = 16, kMin = 48, kMaxBytes = 32 << 20;
    TileSide& side = sides_[which];
    Axes* taps = nullptr;
    for (int dim = 0; dim < o.point->rank; ++dim)
      if (is_window(o, dim)) taps = shorter_axes(side, o.at[dim], ranges);
    side.windows.image = o.point;
    side.windows.map = affine_map(o, ranges);
    if (!taps) return true;
    const Shape shape = to_shape(side.view->shape());
    int channels = -1;
    for (int i : *taps) {
      const Walk w = walk_of(o, ranges[i]);
      if ((w.kind != Walk::Movable && w.kind != Walk::Contiguous) || is_window(o, w.dim)) continue;
      if (channels >= 0 && shape[i] <= shape[channels]) continue;
      channels = i;
      side.windows.channels = w.dim;
    }
    const int64_t bytes = others_ * side.count * sum_ * side.view->dtype.size();
    if (channels < 0 || shape[channels] % kChannels || bytes > kMaxBytes ||
        std::min(shape[channels], sides_[1 - which].count) < kMin)
      return false;
    std::erase(*taps, channels);
    taps->push_back(channels);
    side.in_order = false;
    return true;
  }

  // An index that windows walk advances with axes that count windows, and with axes that count a
  // window's elements (taps): with all of the latter, which are fewer.
  Axes* shorter_axes(TileSide& side, Node at, const std::vector<Node>& ranges) {
    Axes* shortest = nullptr;
    int64_t least = INT64_MAX;
    for (Axes* axes : {&side.own, &sums_})
      for (int i : *axes) {
        const Node r = ranges[i];
        if (!(at->ranges & r->ranges) || extent(r) >= least) continue;
        least = extent(r);
        shortest = axes;
      }
    return shortest;
  }

  // Whether a tile's rows are read where they are. Rows that are a multiple of 4 KB apart fall into
  // the same set of L1, which costs one core more than packing. Where several cores have read the
  // packed copy's lines, these are first taken from all of them, which costs far more
  // (measurements.md: reads_rows).
  bool reads_rows(const TileSide& side) const {
    constexpr int64_t kPage = 4096;
    const bool one_set = sum_ * side.view->dtype.size() % kPage == 0;
    return side.own.size() == 1 && others_ == 1 && (target_.cores > 1 || !one_set);
  }

  // [those of both, rows or columns, k], in memory by fragments of `size` rows or columns whose
  // elements lie by `group` along k.
  Node fragments(int which, int64_t k, int64_t size, int64_t group) const {
    const TileSide& side = sides_[which];
    Node x = side.matrix(both_, sums_, {others_, side.count, sum_});
    if (which == 0 && raised_) x = raised(x);
    const int64_t count = round_up(side.count, size);
    if (count != side.count || k != sum_)
      x = build::pad(x, Shape{0, 0, 0, count - side.count, 0, k - sum_});
    else if (which == 0 && side.in_order && !side.windows.image && sums_.size() == 1 && !raised_ &&
             (size == 1 || reads_rows(side)))
      return x;
    const Shape order{0, 1, 3, 2, 4};
    x = build::reshape(x, Shape{others_, count / size, size, k / group, group});
    x = build::contiguous(build::permute(x, order));
    x = build::reshape(build::permute(x, order), Shape{others_, count, k});
    return build::shrink(x, Shape{0, others_, 0, side.count, 0, k});
  }

  // [those of both, rows, columns] in the order of the reduction's axes.
  Node restored(Node sum) const {
    const Ints shape = reduce_->shape();
    Shape sizes, order(static_cast<size_t>(reduce_->rank));
    Axes all;
    for (const Axes* axes : {&both_, &sides_[0].own, &sides_[1].own})
      all.insert(all.end(), axes->begin(), axes->end());
    for (int i = 0; i < reduce_->rank; ++i)
      if (!contains(all, i)) all.push_back(i);
    for (size_t at = 0; at < all.size(); ++at) {
      sizes.push_back(shape[all[at]]);
      order[all[at]] = static_cast<int64_t>(at);
    }
    return build::permute(build::reshape(sum, sizes), order);
  }

  Node reduce_;
  const Target& target_;
  const MmaUnit* unit_ = nullptr;
  TileSide sides_[2];
  Axes both_, sums_;
  int64_t others_ = 1, sum_ = 1;
  bool raised_ = false;  // rows by 128
};

}  // namespace

Node with_tiles(Node reduce, const Target& target) {
  if (target.kind != Target::Kind::Cpu || target.arch.empty()) return nullptr;
  return Tiler(reduce, target).run();
}

}  // namespace tiny
