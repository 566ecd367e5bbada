#include "codegen/wgmma/operand.h"

#include <algorithm>
#include <climits>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/kernel/lengths.h"
#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// Elements by which memory is walked when a range advances; false where a range does more.
bool steps_of(Node load, Sum& sum) {
  sum = to_sum(load->src(1));
  std::erase_if(sum.terms, [](const Sum::Term& t) { return t.factor == 0; });
  return std::ranges::all_of(sum.terms, [](const Sum::Term& t) { return t.atom->op == Op::Range; });
}

int64_t step_along(const Sum& sum, Node range) {
  for (const auto& t : sum.terms)
    if (t.atom == range) return t.factor;
  return 0;
}

// What a map is made of: the load's index as a sum, the box of a tile, coordinates.
class OperandMap {
 public:
  OperandMap(Node load, const MatrixView& view, MatrixOperand& out)
      : load_(load), view_(view), out_(out), map_(out.map) {}

 protected:
  void set_boxes() {
    const MatrixSide& across = view_.across;
    int64_t elements = across.size;
    if (view_.clipped) elements = std::min(elements, across.extent());
    out_.boxes = out_.k_major ? view_.blocks : static_cast<int>(ceil_div(elements, span_));
    // A warpgroup's columns are whole boxes of those.
    if ((across.size % span_ || view_.part % span_) && !out_.k_major) out_.boxes = 0;
  }

  int64_t box_of(const MatrixSide& side) const {
    if (out_.k_major) return &side == &view_.k ? span_ : view_.across.size / view_.blocks;
    return &side == &view_.k ? view_.k.size : span_;
  }

  int source(Node n) {
    view_.sources->push_back(n);
    return static_cast<int>(view_.sources->size()) - 1;
  }

  // The place along an axis that a range counts which is none of a tile's, in steps of `times`.
  void count(BoxCoordinate& place, Node range, int64_t times, int64_t plus) {
    if (!(view_.reduced & range->ranges)) {
      place.source = source(index_add(index_mul(range, times), index(plus)));
      return;
    }
    auto& sums = *view_.sums;
    auto at = std::ranges::find(sums, range);
    if (at == sums.end()) at = sums.insert(sums.end(), range);
    place.step = static_cast<int>(at - sums.begin()) + 1;
    place.times = times;
    place.plus = plus;
  }

  Node load_;
  const MatrixView& view_;
  MatrixOperand& out_;
  TensorMap& map_;
  Sum sum_;
  int bytes_ = 2;
  int64_t span_ = 64;  // contiguous elements of a box
};

// --- a tensor ------------------------------------------------------------------------------------

constexpr int64_t kMaxRows = 256;  // of a box of a tensor; windows have 1024

struct Axis {
  int64_t step, size;
  const MatrixSide* side;  // or
  Node range;
  Node walk = nullptr;  // a range of the sum that goes along it by `times`
  int64_t times = 0;
};

class PlainOperand : protected OperandMap {
 protected:
  using OperandMap::OperandMap;

  // A side's ranges as one axis, where each begins again just when the next one advances.
  bool add_side(const MatrixSide& side, std::vector<Axis>& axes) const {
    const int64_t step = step_along(sum_, side.ranges.back());
    int64_t behind = step;
    for (size_t i = side.ranges.size(); i-- > 0;) {
      if (step_along(sum_, side.ranges[i]) != behind) return false;
      behind *= extent(side.ranges[i]);
    }
    axes.push_back({step, side.extent(), &side, nullptr});
    return step > 0;
  }

  // A range of the sum and one that counts results as one axis where both walk along it, as the
  // taps and the phases of a weight do in the gradient of windows some elements apart.
  bool join(std::vector<Axis>& axes) const {
    for (Axis& a : axes)
      for (size_t i = 0; i < axes.size(); ++i) {
        const Axis& b = axes[i];
        if (a.side || a.walk || a.step < 1 || (a.range->ranges & view_.reduced)) continue;
        if (b.side || !(b.range->ranges & view_.reduced) || b.step % a.step) continue;
        a.walk = b.range;
        a.times = b.step / a.step;
        a.size += std::abs(a.times) * (b.size - 1);
        axes.erase(axes.begin() + static_cast<ptrdiff_t>(i));
        return true;
      }
    return false;
  }

  std::string plain() {
    std::vector<Axis> axes;
    if (!add_side(view_.across, axes) || !add_side(view_.k, axes))
      return "an operand's ranges are no axes of a tensor";
    for (const auto& t : sum_.terms)
      if (!view_.across.has(t.atom) && !view_.k.has(t.atom))
        axes.push_back({t.factor, extent(t.atom), nullptr, t.atom});
    while (axes.size() > 5)
      if (!join(axes)) return "an operand has more than five axes";
    std::ranges::stable_sort(
        axes, {}, [](const Axis& a) { return std::pair(std::abs(a.step), a.side == nullptr); });
    if (axes[0].step != 1 || !axes[0].side) return "an operand is contiguous along another range";
    if (out_.k_major && view_.across.size / view_.blocks > kMaxRows)
      return "a box has at most 256 rows";
    map_.rank = static_cast<int>(axes.size());
    for (int d = 0; d < map_.rank; ++d) {
      const Axis& a = axes[d];
      map_.sizes[d] = a.size;
      map_.strides[d] = std::abs(a.step) * bytes_;
      map_.box[d] = a.side ? static_cast<int>(box_of(*a.side)) : 1;
      if (a.side == &view_.k)
        out_.at[d].step = 0;
      else if (a.side)
        out_.at[out_.k_major ? out_.advance = d : d].source = source(view_.begin);
      else
        count_axis(d, a);
    }
    widen();
    return "";
  }

  // Columns beyond the last may be read where they lie in the buffer: a box that reaches out of its
  // tensor takes longer.
  void widen() {
    if (out_.k_major || map_.rank < 2) return;
    const int64_t whole = round_up(map_.sizes[0], span_);
    int64_t end = sum_.constant + whole;
    for (int d = 1; d < map_.rank; ++d) end += (map_.sizes[d] - 1) * map_.strides[d] / bytes_;
    if (map_.strides[1] >= whole * bytes_ && end <= out_.elements) map_.sizes[0] = whole;
  }

  // A range that walks backwards counts from the other end.
  void count_axis(int d, const Axis& a) {
    if (a.walk) {
      const int64_t before = a.times < 0 ? -a.times * (extent(a.walk) - 1) : 0;
      sum_.constant -= a.step * before;
      count(out_.at[d], a.walk, a.times, before);
      return count(out_.at[d], a.range, 1, 0);
    }
    if (a.step > 0) return count(out_.at[d], a.range, 1, 0);
    sum_.constant += a.step * (a.size - 1);
    count(out_.at[d], a.range, -1, a.size - 1);
  }
};

// --- windows -------------------------------------------------------------------------------------

// A spatial axis: coordinate step * place + dilation * tap, of which [low, high) is the image.
struct Spatial {
  Node place = nullptr, tap = nullptr;
  int64_t step = 1, dilation = 0;
  int64_t low = LLONG_MIN, high = LLONG_MAX;
  int64_t stride = 0;  // elements of memory per coordinate
};

// Conditions of a gate are bounds of the coordinates, each of which one place and one tap make.
std::string read_gate(Node load, std::vector<Spatial>& axes, std::vector<Node>& others) {
  if (load->num_src == 2) return "";
  std::vector<Node> all;
  add_conditions(load->src(2), all);
  for (Node c : all) {
    if (c->op != Op::Lt || c->src(0)->dtype != kIndex) return "a gate that is no bound";
    const Sum s = to_sum(index_add(c->src(1), index_mul(c->src(0), -1)));  // > 0
    Spatial* axis = nullptr;
    for (Spatial& a : axes)
      for (const auto& t : s.terms)
        if (t.atom == a.place) axis = &a;
    if (!axis || s.terms.size() > 2) return "a gate that bounds no axis";
    for (const auto& t : s.terms) {
      if (t.atom == axis->place) {
        const int64_t step = std::abs(t.factor);
        if (axis->low == LLONG_MIN && axis->high == LLONG_MAX) axis->step = step;
        if (axis->step != step) return "gates that differ in their steps";
      }
    }
    const bool below = step_along(s, axis->place) < 0;  // an upper bound
    for (const auto& t : s.terms) {
      if (t.atom == axis->place) continue;
      const int64_t dilation = below ? -t.factor : t.factor;
      const auto known = std::ranges::find(others, t.atom);
      if (known != others.end()) {
        axis->tap = t.atom;
        axis->dilation = dilation;
        others.erase(known);
      } else if (axis->tap != t.atom || axis->dilation != dilation) {
        return "a gate of another range";
      }
    }
    if (below)
      axis->high = std::min(axis->high, s.constant);
    else
      axis->low = std::max(axis->low, 1 - s.constant);
  }
  return "";
}

// A range that is no part of the tile and steps over images: as many as `image` counts, or one.
Node part_of(const Sum& sum, uint64_t reduced, Node image, const Spatial& outer,
             std::vector<Node>& others) {
  const int64_t own = step_along(sum, outer.place);
  const bool bounded = outer.low != LLONG_MIN && outer.high != LLONG_MAX;
  const int64_t all = image     ? step_along(sum, image) * extent(image)
                      : bounded ? (outer.high - outer.low) * own / outer.step
                                : own * (extent(outer.place) - 1) + 1;
  for (size_t i = 0; i < others.size(); ++i) {
    Node r = others[i];
    const int64_t step = step_along(sum, r);
    if ((reduced & r->ranges) || (image ? step != all : step < all)) continue;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    return r;
  }
  return nullptr;
}

// A range without a gate goes with the axis that has the same stride, or a multiple of it.
std::string find_taps(const Sum& sum, std::vector<Spatial>& axes, const std::vector<Node>& others) {
  for (Node r : others) {
    const int64_t step = std::abs(step_along(sum, r));
    Spatial* best = nullptr;
    double least = 0;
    for (Spatial& a : axes) {
      const int64_t own = step_along(sum, a.place);
      if (a.tap || own < 1 || (own % step && step % own)) continue;
      const double ratio =
          static_cast<double>(std::max(own, step)) / static_cast<double>(std::min(own, step));
      if (best && ratio >= least) continue;
      best = &a;
      least = ratio;
    }
    if (!best || best->low != LLONG_MIN || best->high != LLONG_MAX)
      return "a range that slides along no axis";
    best->tap = r;
    const int64_t own = step_along(sum, best->place);
    const int64_t common = std::min(own, step);
    best->step = own / common;
    best->dilation = step_along(sum, r) / common;
  }
  return "";
}

// Coordinates and memory agree; what no gate bounds is as long as it is read.
std::string settle(const Sum& sum, Spatial& a) {
  const int64_t own = step_along(sum, a.place);
  if (own < 1 || own % a.step) return "an index that goes another way than its gate";
  a.stride = own / a.step;
  if (a.tap && step_along(sum, a.tap) != a.stride * a.dilation)
    return "an index that goes another way than its gate";
  const int64_t reach = a.tap ? a.dilation * (extent(a.tap) - 1) : 0;
  a.low = std::max(a.low, std::min<int64_t>(0, reach));
  a.high = std::min(a.high, a.step * (extent(a.place) - 1) + std::max<int64_t>(0, reach) + 1);
  return a.low < a.high ? "" : "windows of nothing";
}

class Describer : PlainOperand {
 public:
  using PlainOperand::PlainOperand;

  std::string run() {
    if (!steps_of(load_, sum_)) return "an operand's index is no sum of its ranges";
    bytes_ = load_->dtype.size();
    map_.slot = slot_of(load_->src(0));
    out_.elements = elements_of(load_->src(0));
    Node first = contiguous_range(load_);
    out_.k_major = first && view_.k.has(first);
    const MatrixSide& inner = out_.k_major ? view_.k : view_.across;
    if (!first || !inner.has(first)) return "an operand is contiguous along another range";
    const bool elements = view_.across.ranges.size() > 1 && extent(first) % 64;
    if (!out_.k_major && !matrix_type(load_->dtype)->allows_mn_major)
      return cat("an operand of ", load_->dtype.name(), " is not contiguous along the sum");
    const bool narrow = has_half_boxes(extent(first), bytes_) || view_.part % 64 || elements;
    span_ = out_.k_major ? view_.k.size : narrow ? 32 : 64;
    set_boxes();
    std::string why = load_->num_src == 2 ? plain() : "padded";
    if (!why.empty()) why = bytes_ == 2 ? windows(first) : cat("windows of ", load_->dtype.name());
    map_.offset = sum_.constant * bytes_;
    if (why.empty() && map_.offset % 16) why = "an operand begins at no multiple of 16 bytes";
    for (int d = 1; why.empty() && d < map_.rank; ++d)
      if (map_.strides[d] % 16 || map_.strides[d] < 1)
        why = "an operand's rows are no multiples of 16 bytes apart";
    return why;
  }

 private:
  std::string windows(Node first) {
    const MatrixSide& pixels = out_.k_major ? view_.across : view_.k;
    const MatrixSide& channels = out_.k_major ? view_.k : view_.across;
    if (out_.k_major && view_.blocks > 1) return "blocks of a cluster copy no part of the windows";
    if (channels.ranges.back() != first || pixels.extent() > INT_MAX)
      return "windows that are not contiguous along channels";
    if (channels.ranges.size() > 1 && (out_.k_major || extent(first) % span_))
      return "elements of windows whose channels are no whole boxes";
    std::vector<Node> others;
    for (const auto& t : sum_.terms)
      if (t.atom != first && !pixels.has(t.atom)) others.push_back(t.atom);
    std::vector<Spatial> axes;
    for (Node r : pixels.ranges) axes.push_back({r});
    std::string why = read_gate(load_, axes, others);
    // The first range counts images where no window slides along it.
    Node image = nullptr;
    if (why.empty() && axes[0].low == LLONG_MIN && axes[0].high == LLONG_MAX && axes.size() > 1) {
      image = axes[0].place;
      axes.erase(axes.begin());
    }
    Node part = part_of(sum_, view_.reduced, image, axes[0], others);
    if (why.empty()) why = find_taps(sum_, axes, others);
    for (Spatial& a : axes)
      if (why.empty()) why = settle(sum_, a);
    if (why.empty() && axes.size() > 3) why = "windows along more than three axes";
    if (!why.empty()) return why;
    map_.windows = true;
    map_.rank = static_cast<int>(axes.size()) + 2;
    map_.sizes[0] = extent(first);
    map_.box[0] = static_cast<int>(span_);
    map_.box[1] = static_cast<int>(box_of(pixels));
    if (&channels == &view_.k)
      out_.at[0].step = 0;
    else if (channels.ranges.size() == 1)
      out_.at[0].source = source(view_.begin);
    else
      count_boxes(out_.at[0], {1, extent(first) / span_, span_, 0});
    int64_t behind = 1;
    for (int d = 1; d <= map_.rank - 2; ++d) {
      const Spatial& a = axes[axes.size() - static_cast<size_t>(d)];
      if (d > 1) map_.box[d] = 1;
      set_spatial(d, a, behind);
      behind *= extent(a.place);
    }
    set_image(image, part, behind);
    return limits();
  }

  // Axis d of the map. Offsets count from the first tap in memory, and coordinates from `low`.
  void set_spatial(int d, const Spatial& a, int64_t behind) {
    const bool back = a.dilation < 0;
    const int64_t last = a.tap ? extent(a.tap) - 1 : 0;
    const int64_t begin = (back ? a.dilation * last : 0) - a.low;
    sum_.constant += a.low * a.stride;
    map_.sizes[d] = a.high - a.low;
    map_.strides[d] = a.stride * bytes_;
    map_.lower[d - 1] = static_cast<int>(begin);
    map_.upper[d - 1] =
        static_cast<int>(begin + a.step * (extent(a.place) - 1) - (map_.sizes[d] - 1));
    map_.steps[d - 1] = static_cast<int>(a.step);
    begin_at(out_.at[d], {behind, extent(a.place), a.step, begin});
    BoxCoordinate& offset = out_.at[map_.rank + d - 1];
    const int64_t plus = back ? -a.dilation * last : 0;
    if (!a.tap) return;
    if (!view_.across.has(a.tap)) return count(offset, a.tap, a.dilation, plus);
    int64_t inner = 1;  // elements along the rows for each of the tap's
    for (size_t i = view_.across.ranges.size(); view_.across.ranges[--i] != a.tap;)
      inner *= extent(view_.across.ranges[i]);
    count_boxes(offset, {inner / span_, extent(a.tap), a.dilation, plus});
  }

  struct Digit {
    int64_t divide, modulo, times, plus;
  };

  // The place of boxes along rows that count elements of windows.
  void count_boxes(BoxCoordinate& place, const Digit& digit) {
    place.source = source(index_div(view_.begin, span_));
    place.by_box = true;
    place.divide = digit.divide;
    place.modulo = digit.modulo;
    place.times = digit.times;
    place.plus = digit.plus;
  }

  // The pixel that a tile or a step begins at.
  void begin_at(BoxCoordinate& place, const Digit& digit) {
    if (out_.k_major) {
      Node at = index_div(view_.begin, digit.divide);
      if (digit.modulo) at = index_mod(at, digit.modulo);
      place.source = source(index_add(index_mul(at, digit.times), index(digit.plus)));
    } else {
      place.step = 0;
      place.divide = digit.divide;
      place.modulo = digit.modulo;
      place.times = digit.times;
      place.plus = digit.plus;
    }
  }

  void set_image(Node image, Node part, int64_t behind) {
    const int d = map_.rank - 1;
    map_.box[d] = 1;
    const int64_t images = image ? extent(image) : 1;
    map_.sizes[d] = images * (part ? extent(part) : 1);
    map_.strides[d] = image  ? step_along(sum_, image) * bytes_
                      : part ? step_along(sum_, part) * bytes_
                             : map_.sizes[d - 1] * map_.strides[d - 1];
    begin_at(out_.at[d], {behind, 0, 1, 0});
    if (!part) return;
    Node before = index_mul(part, images);
    BoxCoordinate& place = out_.at[d];
    if (place.source >= 0) {
      Node& at = (*view_.sources)[place.source];
      at = index_add(at, before);
    } else {
      place.source = source(before);
    }
  }

  // PTX ISA, "im2col mode": sizes of corners and offsets by rank; and the driver's of steps.
  std::string limits() const {
    const int bits = map_.rank == 3 ? 16 : map_.rank == 4 ? 8 : 5;
    const int64_t corner = int64_t{1} << (bits - 1), most = int64_t{1} << bits;
    for (int d = 1; d <= map_.rank - 2; ++d) {
      for (int64_t c : {map_.lower[d - 1], map_.upper[d - 1]})
        if (c < -corner || c >= corner) return "windows that reach too far out of an image";
      if (map_.steps[d - 1] > 8) return "windows more than 8 elements apart";
      const BoxCoordinate& offset = out_.at[map_.rank + d - 1];
      Node tap = offset.step > 0 ? (*view_.sums)[static_cast<size_t>(offset.step) - 1] : nullptr;
      const int64_t last = offset.by_box        ? std::abs(offset.times) * (offset.modulo - 1)
                           : offset.source >= 0 ? (*view_.sources)[offset.source]->vmax
                           : tap                ? std::abs(offset.times) * (extent(tap) - 1)
                                                : 0;
      if (last >= most) return "windows that are too wide";
    }
    return "";
  }
};

}  // namespace

bool has_half_boxes(int64_t elements, int bytes) {
  constexpr double kHalfTime = 0.6;  // measurements.md: has_half_boxes
  const int64_t box = 128 / bytes, half = box / 2;
  return kHalfTime * static_cast<double>(ceil_div(elements, half)) <
         static_cast<double>(ceil_div(elements, box));
}

Node contiguous_range(Node load) {
  Sum sum;
  if (!steps_of(load, sum)) return nullptr;
  Node first = nullptr;
  for (const auto& t : sum.terms)
    if (t.factor == 1) {
      if (first) return nullptr;
      first = t.atom;
    }
  return first;
}

std::string describe(Node load, const MatrixView& view, MatrixOperand& out) {
  return Describer(load, view, out).run();
}

}  // namespace tiny
