#include "runtime/layout/convolution/winograd.h"

#include <algorithm>
#include <cmath>

#include "codegen/heuristics/rates.h"
#include "runtime/analysis/graph_contraction.h"
#include "runtime/layout/convolution/toom_cook.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// The axes of a convolution along which windows slide by one element, and which of them to tile.
class WinogradTiles {
 public:
  explicit WinogradTiles(Node product) : c_(product) {}

 protected:
  // A dimension of the image; the convolution's axes of windows, and of the elements of a window,
  // which run backwards in the gradient of an image. In the gradient of a weight there are a few
  // windows, each nearly as large as the image.
  struct Side {
    int dim, window, tap;
    bool backwards;
  };
  // Tiles of so many windows, or so many of their elements, one of which are all that there are.
  struct Tiling {
    Side side;
    int64_t windows, taps, window_tiles, tap_tiles;

    int64_t points() const { return windows + taps - 1; }
    int64_t tiles() const { return window_tiles * tap_tiles; }
    int64_t step() const { return tap_tiles > 1 ? taps : windows; }  // from tile to tile
  };

  bool find_tiles(const Target& target) {
    const bool first = has_windows(c_.operands[0]);
    if (first == has_windows(c_.operands[1])) return false;
    with_ = first ? 0 : 1;
    for (const ProductOperand& o : c_.operands)
      if (!is_affine(o) || o.casts || o.point->dtype != kF32) return false;
    axes_ = c_.axes();
    if (!axes_.is_whole || !pads_alone(c_.operands)) return false;
    std::vector<Side> sides;
    for (int d = 0; d < image().point->rank; ++d)
      if (const auto side = side_of(d)) sides.push_back(*side);
    choose(sides, target);
    return !tiles_.empty();
  }

  const ProductOperand& image() const { return c_.operands[with_]; }

  const Tiling* tiling_of(int axis) const {
    const auto t = std::ranges::find_if(
        tiles_, [&](const Tiling& u) { return u.side.window == axis || u.side.tap == axis; });
    return t == tiles_.end() ? nullptr : &*t;
  }

  GraphContraction c_;
  int with_ = 0;  // the operand of windows
  ContractionAxes axes_;
  std::vector<Tiling> tiles_;

 private:
  std::optional<Side> side_of(int dim) const {
    Side out{dim, -1, -1, false};
    for (const Sum::Term& t : to_sum(image().at[dim]).terms) {
      const int axis = t.atom->arg<RangeArg>().id;
      for (int other = 0; other < image().point->rank; ++other)
        if (other != dim && (image().at[other]->ranges & t.atom->ranges)) return {};
      if (c_.is_summed(axis) && std::abs(t.factor) == 1 && out.tap < 0) {
        out.tap = axis;
        out.backwards = t.factor < 0;
      } else if (!c_.is_summed(axis) && t.factor == 1 && out.window < 0) {
        out.window = axis;
      } else {
        return {};
      }
    }
    const bool slides = out.window >= 0 && out.tap >= 0 && c_.moves(1 - with_, out.tap) &&
                        !c_.moves(1 - with_, out.window);
    return slides ? std::optional(out) : std::nullopt;
  }

  // In multiplications (measurements.md: winograd): an element of a transform, that is written and
  // read again, takes as long as some of them, and so do three kernels.
  double time(std::span<const Tiling> tiles, const Target& target) const {
    constexpr double kElement = 40, kKernels = 1e8, kMaxElements = 1u << 31;
    const auto ratio = [](int64_t n, int64_t d) {
      return static_cast<double>(n) / static_cast<double>(d);
    };
    double terms = 1, points = 1, images = ratio(numel(image().point->shape()), 1);
    double results = ratio(numel(c_.reduce->shape()), 1), others = 1;
    for (int axis : axes_.k) terms *= ratio(c_.extent(axis), 1);
    if (tiles.empty()) return results * terms;
    for (const auto& axes : {axes_.batch, axes_.k, axes_.own[1 - with_]})
      others *= ratio(c_.size(axes), 1);
    for (const Tiling& t : tiles) {
      const double taps = ratio(t.tap_tiles, c_.extent(t.side.tap));
      points *= ratio(t.points(), 1);
      terms *= taps;
      others *= taps;
      images *= ratio(t.tiles(), image().point->shape()[t.side.dim]);
      results *= ratio(t.window_tiles, c_.extent(t.side.window));
    }
    const double most = ratio(target.most_buffer_bytes, kF32.size());
    if (std::max({images, results, others}) * points > std::min(kMaxElements, most))
      return INFINITY;
    return points * (results * terms + kElement * (images + results + others)) + kKernels;
  }

  // The tiles that take the least time, or nearly: more points are less exact.
  void choose(const std::vector<Side>& sides, const Target& target) {
    constexpr double kWorth = 0.75;
    std::vector<std::vector<Tiling>> best;  // of each number of points
    const auto cost = [&](const auto& tiles) { return time(tiles, target); };
    for (int64_t points : {4, 6, 8}) {
      const auto options = tilings(sides, points);
      if (const auto* tiles = fastest(options, cost)) best.push_back(*tiles);
    }
    const auto* least = fastest(best, cost);
    if (!least || (env_int("WINOGRAD") < 2 && cost(*least) > kWorth * cost(std::vector<Tiling>())))
      return;
    tiles_ = *std::ranges::find_if(
        best, [&](const auto& tiles) { return kWorth * cost(tiles) <= cost(*least); });
  }

  // Of one side or of two.
  std::vector<std::vector<Tiling>> tilings(const std::vector<Side>& sides, int64_t points) const {
    std::vector<std::vector<Tiling>> out;
    for (const Side& s : sides) {
      const int64_t windows = c_.extent(s.window), taps = c_.extent(s.tap);
      std::vector<Tiling> own;
      if (const int64_t n = points - taps + 1; n >= 2)
        own.push_back({s, n, taps, ceil_div(windows, n), 1});
      if (const int64_t n = points - windows + 1; n >= 2 && !s.backwards)
        own.push_back({s, windows, n, 1, ceil_div(taps, n)});
      const size_t before = out.size();
      for (const Tiling& t : own) {
        for (size_t i = 0; i < before; ++i)
          if (out[i].size() == 1) out.push_back({out[i][0], t});
        out.push_back({t});
      }
    }
    return out;
  }
};

// The transforms, in memory, and the product of them.
class WinogradGraph : WinogradTiles {
 public:
  using WinogradTiles::WinogradTiles;

  std::optional<WinogradProduct> run(const Target& target) {
    if (!find_tiles(target)) return {};
    const ArenaScope lasting(Arena::global());
    WinogradProduct out;
    out.shape = to_shape(c_.reduce->shape());
    for (const Tiling& t : tiles_) {
      out.tiles.push_back({t.side.window, t.windows, t.points(), t.window_tiles});
      matrices_.emplace_back(t.windows, t.taps);
      points_.push_back(t.points());
    }
    for (const auto& axes : {axes_.batch, axes_.own[1 - with_], axes_.own[with_]})
      out.order.insert(out.order.end(), axes.begin(), axes.end());
    kept_ = out.order;
    std::ranges::copy_if(axes_.k, std::back_inserter(kept_), [&](int a) { return is_summed(a); });
    Shape shape = points_;
    for (int axis : kept_) shape.push_back(extent(axis));
    Node mul = build::binary(Op::Mul, weight(shape), windows(shape));
    const auto summed = (uint32_t{1} << kept_.size()) - (uint32_t{1} << out.order.size());
    out.product = make(Op::ReduceAxis, kF32, {mul}, ReduceArg{Op::Add, summed << points_.size()});
    return out;
  }

 private:
  int64_t extent(int axis) const {
    const Tiling* t = tiling_of(axis);
    return !t ? c_.extent(axis) : axis == t->side.tap ? t->tap_tiles : t->window_tiles;
  }
  // Of what the convolution sums over: whether the product does.
  bool is_summed(int axis) const { return !tiling_of(axis) || extent(axis) > 1; }

  // The transform with the values of a grid, in memory: the points first.
  Node stored(const NodeGrid& values, Matrix ToomCook::*rows) const {
    NodeGrid out = values;
    std::vector<int> axes;
    for (size_t i = 0; i < tiles_.size(); ++i) {
      out = out.transformed(i, matrices_[i].*rows);
      axes.push_back(static_cast<int>(i));
    }
    return build::contiguous(out.selected(axes));
  }

  // A view of a transform, by the product's axes, of which the points are the first. `row` sets
  // what an axis of the transform behind those is made of: an offset and a factor for each of
  // kept_.
  template <class Row> Node view(Node transform, Ints shape, const Row& row) const {
    const size_t columns = shape.size() + 1, points = points_.size();
    std::vector<int64_t> map(static_cast<size_t>(transform->rank) * columns);
    for (size_t i = 0; i < static_cast<size_t>(transform->rank); ++i)
      if (i < points)
        map[i * columns + 1 + i] = 1;
      else
        row(i - points, map[i * columns], &map[i * columns + 1 + points]);
    return build::affine(transform, shape, map);
  }

  // The weight's transform has, behind the points, its axes: those that are summed over before its
  // own, but tiles innermost.
  Node weight(Ints shape) const {
    std::vector<int> axes = axes_.batch, summed, tiled;
    for (int axis : axes_.k)
      if (is_summed(axis)) (tiling_of(axis) ? tiled : summed).push_back(axis);
    const std::vector<int>& own = axes_.own[1 - with_];
    for (const auto& part : {tiled.empty() ? summed : own, tiled.empty() ? own : summed, tiled})
      axes.insert(axes.end(), part.begin(), part.end());
    Shape each = points_;
    for (int axis : axes) each.push_back(extent(axis));
    const Shape taps = tap_sizes();
    Node x = taps_of_weight(axes);
    const NodeGrid values(taps, [&](const Shape& tap) {
      Shape one;
      for (int64_t n : each) one.insert(one.end(), {0, n});
      for (size_t i = 0; i < taps.size(); ++i) {
        const int64_t at = tiles_[i].side.backwards ? taps[i] - 1 - tap[i] : tap[i];
        one.insert(one.end(), {at, at + 1});
      }
      return build::reshape(build::shrink(x, one), each);
    });
    return view(stored(values, &ToomCook::g), shape, [&](size_t i, int64_t&, int64_t* factors) {
      factors[std::ranges::find(kept_, axes[i]) - kept_.begin()] = 1;
    });
  }

  Shape tap_sizes() const {
    Shape out;
    for (const Tiling& t : tiles_) out.push_back(t.taps);
    return out;
  }

  // The weight by the points, which all have the same, by these axes, of which some count tiles of
  // taps, and by the taps of a tile, zeros beyond the last.
  Node taps_of_weight(const std::vector<int>& axes) const {
    std::vector<int> by(points_.size(), -1);
    Shape have = points_, pads, split = points_, order, sizes = tap_sizes();
    for (int axis : axes)
      if (!tiling_of(axis)) {
        by.push_back(axis);
        have.push_back(c_.extent(axis));
        split.push_back(have.back());
      }
    pads.resize(2 * have.size());
    std::vector<size_t> places;  // in `split`, of the tiles of taps
    for (const Tiling& t : tiles_) {
      by.push_back(t.side.tap);
      have.push_back(c_.extent(t.side.tap));
      pads.insert(pads.end(), {0, t.tap_tiles * t.taps - have.back()});
      places.push_back(split.size());
      split.insert(split.end(), {t.tap_tiles, t.taps});
    }
    Node x = build::reshape(build::pad(c_.view(1 - with_, by, have), pads), split);
    for (size_t i = 0; i < points_.size(); ++i) order.push_back(static_cast<int64_t>(i));
    size_t next = points_.size();
    for (int axis : axes) {
      const Tiling* t = tiling_of(axis);
      order.push_back(
          static_cast<int64_t>(t ? places[static_cast<size_t>(t - tiles_.data())] : next++));
    }
    for (size_t i = 0; i < places.size(); ++i)
      if (tiles_[i].tap_tiles == 1) order.push_back(static_cast<int64_t>(places[i]));
    for (size_t place : places) order.push_back(static_cast<int64_t>(place) + 1);
    Shape last = points_;
    for (int axis : axes) last.push_back(extent(axis));
    last.insert(last.end(), sizes.begin(), sizes.end());
    return build::reshape(build::permute(x, order), last);
  }

  // A dimension of the image, and how its places follow from an axis of the transform.
  struct ImageAxis {
    int dim;
    const Tiling* tiling;  // of tiles where windows slide along it
    int64_t begin, step;
  };

  // The image's dimensions, `padded` for whole tiles, in the order of its transform: those that are
  // summed over are all together, and so are the others, behind which the last one is.
  std::vector<ImageAxis> image_axes(AffineMap& padded) const {
    std::vector<ImageAxis> out;
    const size_t columns = static_cast<size_t>(c_.rank()) + 1;
    for (int d = 0; d < image().point->rank; ++d) {
      const auto t = std::ranges::find_if(tiles_, [&](const Tiling& u) { return u.side.dim == d; });
      if (t == tiles_.end()) {
        out.push_back({d, nullptr, 0, 1});
        continue;
      }
      int64_t begin = padded.map[static_cast<size_t>(d) * columns];
      if (t->side.backwards) begin -= c_.extent(t->side.tap) - 1;
      int64_t* pad = &padded.pad[2 * static_cast<size_t>(d)];
      const int64_t have = pad[0] + image().point->shape()[d] + pad[1];
      pad[1] += std::max<int64_t>(begin + t->step() * (t->tiles() - 1) + t->points() - have, 0);
      out.push_back({d, &*t, begin, t->step()});
    }
    const auto is_summed = [&](const ImageAxis& a) {
      if (a.tiling) return a.tiling->tap_tiles > 1;
      return std::ranges::none_of(axes_.own[with_], [&](int axis) {
        return (image().at[a.dim]->ranges & c_.ranges[axis]->ranges) != 0;
      });
    };
    const bool last = is_summed(out[static_cast<size_t>(last_axis(image().point->shape()))]);
    std::ranges::stable_partition(out, [&](const ImageAxis& a) { return is_summed(a) != last; });
    return out;
  }

  Node windows(Ints shape) const {
    AffineMap map = c_.map(with_);
    const std::vector<ImageAxis> axes = image_axes(map);
    Node x = build::pad(image().point, map.pad);
    Shape each = points_;
    for (const ImageAxis& a : axes)
      each.push_back(a.tiling ? a.tiling->tiles() : x->shape()[a.dim]);
    const size_t columns = each.size() + 1;
    const NodeGrid values(points_, [&](const Shape& at) {
      std::vector<int64_t> places(axes.size() * columns);
      for (size_t i = 0; i < axes.size(); ++i) {
        int64_t* row = &places[static_cast<size_t>(axes[i].dim) * columns];
        row[0] = axes[i].begin;
        if (axes[i].tiling) row[0] += at[static_cast<size_t>(axes[i].tiling - tiles_.data())];
        row[1 + points_.size() + i] = axes[i].step;
      }
      return build::affine(x, each, places);
    });
    return view(stored(values, &ToomCook::b), shape,
                [&](size_t i, int64_t& offset, int64_t* factors) {
                  const auto from = map.map.begin() + axes[i].dim * (c_.rank() + 1);
                  if (!axes[i].tiling) offset = from[0];
                  for (size_t k = 0; k < kept_.size(); ++k) factors[k] = from[kept_[k] + 1];
                });
  }

  std::vector<ToomCook> matrices_;
  Shape points_;           // of each tile
  std::vector<int> kept_;  // the convolution's axes that the product has, behind the points
};

}  // namespace

Node WinogradProduct::restored(Node results) const {
  Shape points, sizes, tiled, whole, bounds;
  std::vector<int> starts, within(tiles.size());  // in `tiled`, of each axis; of a tile's results
  for (const Tile& t : tiles) points.push_back(t.points);
  sizes = points;
  for (int axis : order) {
    const auto t = std::ranges::find(tiles, axis, &Tile::axis);
    starts.push_back(static_cast<int>(tiled.size()));
    tiled.push_back(t == tiles.end() ? shape[axis] : t->count);
    sizes.push_back(tiled.back());
    whole.push_back(t == tiles.end() ? shape[axis] : t->count * t->results);
    bounds.insert(bounds.end(), {0, shape[axis]});
    if (t == tiles.end()) continue;
    within[static_cast<size_t>(t - tiles.begin())] = static_cast<int>(tiled.size());
    tiled.push_back(t->results);
  }
  Node x = build::contiguous(build::reshape(results, sizes));
  const size_t columns = tiled.size() + 1;
  NodeGrid values(points, [&](const Shape& at) {
    std::vector<int64_t> places(sizes.size() * columns);
    for (size_t i = 0; i < at.size(); ++i) places[i * columns] = at[i];
    for (size_t i = 0; i < starts.size(); ++i)
      places[(at.size() + i) * columns + 1 + static_cast<size_t>(starts[i])] = 1;
    return build::affine(x, tiled, places);
  });
  for (size_t i = 0; i < tiles.size(); ++i) {
    const ToomCook matrices(tiles[i].results, tiles[i].points - tiles[i].results + 1);
    values = values.transformed(i, transposed(matrices.a));
  }
  // Without what the last tiles have beyond the results, and in the convolution's order.
  Node y = build::contiguous(values.selected(within));
  std::vector<int> sorted = order;
  std::ranges::sort(sorted);
  Shape back;
  for (int axis : sorted) back.push_back(std::ranges::find(order, axis) - order.begin());
  y = build::permute(build::shrink(build::reshape(y, whole), bounds), back);
  return build::reshape(y, shape);
}

std::optional<WinogradProduct> find_winograd(Node product, const Target& target) {
  if (target.kind != Target::Kind::Gpu || !env_int("WINOGRAD") || product->dtype != kF32 ||
      product->arg<ReduceArg>().op != Op::Add || product->src(0)->lengths || mma_unit(target, kF32))
    return {};
  return WinogradGraph(product).run(target);
}

}  // namespace tiny
