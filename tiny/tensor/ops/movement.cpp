// Views, and what joins, repeats or fills tensors.
#include <algorithm>

#include "tiny/autograd/windows.h"
#include "tiny/ir/sizes.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// begin and end of every axis, whole to start with.
Shape whole_bounds(Ints shape) {
  Shape bounds(2 * shape.size(), 0);
  for (size_t i = 0; i < shape.size(); ++i) bounds[2 * i + 1] = shape[i];
  return bounds;
}

Tensor shrink_axis(const Tensor& x, int axis, int64_t begin, int64_t end) {
  Shape bounds = whole_bounds(x.capacity());
  bounds[2 * axis] = begin;
  bounds[2 * axis + 1] = end;
  return Tensor(build::shrink(x.node(), bounds));
}

Tensor pad_axis(const Tensor& x, int axis, int64_t before, int64_t after) {
  Shape amounts(2 * x.rank(), 0);
  amounts[2 * axis] = before;
  amounts[2 * axis + 1] = after;
  return Tensor(build::pad(x.node(), amounts));
}

Tensor expand_axis(const Tensor& x, int axis, int64_t size) {
  Shape shape = to_shape(x.capacity());
  shape[axis] = size;
  return Tensor(build::expand(x.node(), shape));
}

Tensor flip_axis(const Tensor& x, int axis) {
  Shape flags(x.rank(), 0);
  flags[axis] = 1;
  return Tensor(build::flip(x.node(), flags));
}

// A bound of a slice as Python reads it: counted from the end if negative, then clipped.
int64_t clip_bound(int64_t bound, int64_t size) {
  return std::clamp<int64_t>(bound < 0 ? bound + size : bound, 0, size);
}

}  // namespace

// --- Views --------------------------------------------------------------------------------------

Tensor Tensor::reshape(const Shape& shape) const {
  LabelScope label("reshape");
  return Tensor(build::reshape(node(), infer_reshape(capacity(), shape)));
}

Tensor Tensor::permute(const Shape& dims) const {
  LabelScope label("permute");
  check(static_cast<int>(dims.size()) == rank(), "permute: ", to_text(dims), " names ", dims.size(),
        " axes of the ", rank(), " of ", to_text(capacity()));
  Shape order;
  uint32_t seen = 0;
  for (int64_t d : dims) {
    const int axis = normalize_axis("permute", d, rank());
    check(!(seen >> axis & 1), "permute: axis ", axis, " is named twice in ", to_text(dims));
    seen |= uint32_t{1} << axis;
    order.push_back(axis);
  }
  return Tensor(build::permute(node(), order));
}

Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  LabelScope label("transpose");
  const int a = normalize_axis("transpose", dim0, rank());
  const int b = normalize_axis("transpose", dim1, rank());
  if (rank() == 0) return *this;
  Shape order(rank());
  for (int i = 0; i < rank(); ++i) order[i] = i;
  std::swap(order[a], order[b]);
  return Tensor(build::permute(node(), order));
}

Tensor Tensor::t() const {
  check(rank() == 2, "t: takes a matrix and not shape ", to_text(capacity()), ": use transpose");
  return transpose(0, 1);
}

Tensor Tensor::expand(const Shape& shape) const {
  LabelScope label("expand");
  const int added = static_cast<int>(shape.size()) - rank();
  check(added >= 0, "expand: ", to_text(capacity()), " has more axes than ", to_text(shape));
  Shape to = shape;
  for (int i = 0; i < static_cast<int>(to.size()); ++i) {
    const int64_t from = i < added ? 1 : capacity()[i - added];
    if (to[i] == -1 && i >= added) to[i] = from;
    check(to[i] >= 0 && (from == 1 || from == to[i]), "expand: cannot expand ", to_text(capacity()),
          " to ", to_text(shape), ": size ", from, " of axis ", i - added, " is not 1");
  }
  return Tensor(detail::broadcast_to(node(), to));
}

Tensor Tensor::unsqueeze(int64_t dim) const {
  LabelScope label("unsqueeze");
  const int axis = normalize_axis("unsqueeze", dim, rank() + 1);
  Shape to = to_shape(capacity());
  to.insert(to.begin() + axis, 1);
  return Tensor(build::reshape(node(), to));
}

Tensor Tensor::squeeze(const Dims& dims) const {
  LabelScope label("squeeze");
  uint32_t mask = detail::axes_mask(detail::axes_of("squeeze", dims, rank()));
  for (int i = 0; i < rank(); ++i)
    if (capacity()[i] != 1) mask &= ~(uint32_t{1} << i);
  return Tensor(build::reshape(node(), detail::without(capacity(), mask, false)));
}

Tensor Tensor::flatten(int64_t start_dim, int64_t end_dim) const {
  LabelScope label("flatten");
  const int a = normalize_axis("flatten", start_dim, rank());
  const int b = normalize_axis("flatten", end_dim, rank());
  check(a <= b, "flatten: the first axis ", a, " is behind the last ", b);
  if (rank() == 0) return reshape({1});
  Shape to = to_shape(capacity().first(a));
  to.push_back(tiny::numel(capacity().subspan(a, b - a + 1)));
  to.insert(to.end(), capacity().begin() + b + 1, capacity().end());
  return Tensor(build::reshape(node(), to));
}

Tensor Tensor::unflatten(int64_t dim, const Shape& sizes) const {
  LabelScope label("unflatten");
  check(rank() > 0, "unflatten: a 0-d tensor has no axis to split");
  const int axis = normalize_axis("unflatten", dim, rank());
  const Shape parts = infer_reshape(capacity().subspan(axis, 1), sizes);
  Shape to = to_shape(capacity());
  to.erase(to.begin() + axis);
  to.insert(to.begin() + axis, parts.begin(), parts.end());
  return Tensor(build::reshape(node(), to));
}

Tensor Tensor::shrink(const std::vector<std::pair<int64_t, int64_t>>& begin_end) const {
  LabelScope label("shrink");
  check(static_cast<int>(begin_end.size()) == rank(), "shrink: ", begin_end.size(),
        " ranges for shape ", to_text(capacity()));
  Shape bounds;
  for (int i = 0; i < rank(); ++i) {
    const auto [begin, end] = begin_end[i];
    check(0 <= begin && begin <= end && end <= capacity()[i], "shrink: [", begin, ", ", end,
          ") of axis ", i, " does not lie in ", to_text(capacity()));
    bounds.insert(bounds.end(), {begin, end});
  }
  return Tensor(build::shrink(node(), bounds));
}

namespace {

struct Bounds3 {
  Shape begin_end, steps;
};

// The bounds of x[start:stop:step, ...] for a shape.
Bounds3 slice_bounds(const char* what, Ints shape, const std::vector<Bound>& starts,
                     const std::vector<Bound>& stops, const Shape& steps) {
  check(
      starts.size() <= shape.size() && stops.size() <= shape.size() && steps.size() <= shape.size(),
      what, ": ", std::max(starts.size(), stops.size()), " ranges for shape ", to_text(shape));
  Bounds3 out{whole_bounds(shape), Shape(shape.size(), 1)};
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t &begin = out.begin_end[2 * i], &end = out.begin_end[2 * i + 1];
    if (i < starts.size() && starts[i]) begin = clip_bound(*starts[i], shape[i]);
    if (i < stops.size() && stops[i]) end = clip_bound(*stops[i], shape[i]);
    end = std::max(begin, end);
    const int64_t step = i < steps.size() ? steps[i] : 1;
    check(step >= 1, what, ": step ", step, " of axis ", i, " is below 1");
    out.steps[i] = std::min(step, std::max<int64_t>(shape[i], 1));
  }
  return out;
}

}  // namespace

Tensor Tensor::slice(const std::vector<Bound>& starts, const std::vector<Bound>& stops,
                     const Shape& steps) const {
  LabelScope label("slice");
  const Bounds3 b = slice_bounds("slice", capacity(), starts, stops, steps);
  return Tensor(build::stride(build::shrink(node(), b.begin_end), b.steps));
}

Tensor Tensor::slice_assign(const std::vector<Bound>& starts, const std::vector<Bound>& stops,
                            const Shape& steps, const Tensor& value) const {
  LabelScope label("slice_assign");
  const Bounds3 b = slice_bounds("slice_assign", capacity(), starts, stops, steps);
  // Where the value goes: its elements spread by the steps, padded to this shape. The same is done
  // to a mask of ones, which says what is replaced.
  Node v = build::stride(build::shrink(node(), b.begin_end), b.steps);
  const Shape common = broadcast("slice_assign", v->shape(), value.capacity());
  check(same(common, v->shape()), "slice_assign: a value of shape ", to_text(value.capacity()),
        " does not fit the slice of shape ", to_text(v->shape()));
  v = detail::broadcast_to(value.to(dtype()).node(), v->shape());
  Node mask = build::full(v->shape(), kBool, int64_t{1});
  for (Node* n : {&v, &mask}) {
    for (int i = 0; i < rank(); ++i) {
      const int64_t begin = b.begin_end[2 * i], span = b.begin_end[2 * i + 1] - begin;
      Tensor t(*n);
      if (b.steps[i] > 1) {  // s elements: each followed by step - 1 zeros
        const int64_t count = t.capacity()[i];
        t = pad_axis(t.unsqueeze(i + 1), i + 1, 0, b.steps[i] - 1).flatten(i, i + 1);
        t = shrink_axis(t, i, 0, std::min(count * b.steps[i], span));
      }
      t = pad_axis(t, i, begin, capacity()[i] - begin - t.capacity()[i]);
      *n = t.node();
    }
  }
  return Tensor(build::where(mask, v, node()));
}

Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  LabelScope label("narrow");
  check(rank() > 0, "narrow: a 0-d tensor has no axes");
  const int axis = normalize_axis("narrow", dim, rank());
  const int64_t end = checked_add("narrow", start, length);
  check(0 <= start && start <= end && end <= size(axis), "narrow: [", start, ", ", end,
        ") of axis ", axis, " does not lie in ", to_text(capacity()));
  return shrink_axis(*this, axis, start, end);
}

Tensor Tensor::select(int64_t dim, int64_t index) const {
  LabelScope label("select");
  check(rank() > 0, "select: a 0-d tensor has no axes");
  const int axis = normalize_axis("select", dim, rank());
  const int64_t length = size(axis), i = index < 0 ? index + length : index;
  check(0 <= i && i < length, "select: index ", index, " is out of range for axis ", axis, " of ",
        to_text(capacity()));
  return shrink_axis(*this, axis, i, i + 1).squeeze(axis);
}

Tensor Tensor::flip(const Dims& dims) const {
  LabelScope label("flip");
  Shape flags(rank(), 0);
  for (int64_t a : detail::axes_of("flip", dims, rank())) flags[a] = 1;
  return Tensor(build::flip(node(), flags));
}

Tensor Tensor::diagonal(int64_t offset, int64_t dim1, int64_t dim2) const {
  LabelScope label("diagonal");
  const int a = normalize_axis("diagonal", dim1, rank());
  const int b = normalize_axis("diagonal", dim2, rank());
  check(rank() >= 2 && a != b, "diagonal: takes two axes of shape ", to_text(capacity()));
  Shape order;
  for (int i = 0; i < rank(); ++i)
    if (i != a && i != b) order.push_back(i);
  order.insert(order.end(), {a, b});
  Tensor x = permute(order);
  const int row = rank() - 2, column = rank() - 1;
  const int64_t n = x.size(row), m = x.size(column);
  offset = std::clamp(offset, -n, m);  // none are left beyond
  const int64_t top = std::max<int64_t>(-offset, 0), left = std::max<int64_t>(offset, 0);
  const int64_t k = std::min(n - top, m - left);
  x = shrink_axis(shrink_axis(x, row, top, top + k), column, left, left + k);
  // Rows of k seen as rows of k + 1: the diagonal is their first column.
  x = pad_axis(x.flatten(row, column), row, 0, k);
  return shrink_axis(x.unflatten(row, {k, k + 1}), column, 0, 1).squeeze(column);
}

Tensor Tensor::unfold(int64_t dim, int64_t size, int64_t step, int64_t dilation) const {
  LabelScope label("unfold");
  check(rank() > 0, "unfold: a 0-d tensor has no axes");
  const int axis = normalize_axis("unfold", dim, rank());
  check(size >= 1 && step >= 1 && dilation >= 1, "unfold: size ", size, ", step ", step,
        " and dilation ", dilation, " must be at least 1");
  const int64_t length = this->size(axis), span = span_of("unfold", {size, step, dilation});
  check(span <= length, "unfold: windows over ", span, " elements do not fit axis ", axis, " of ",
        to_text(capacity()));
  return Tensor(build::windows(node(), axis, {size, step, dilation}));
}

// --- Joining, repeating, filling ----------------------------------------------------------------

namespace {

// The axis made longer by what its own ends look like in the mode.
Tensor extend_axis(const Tensor& x, int axis, const Padding& p, PadMode mode) {
  const int64_t n = x.size(axis);
  const auto piece = [&](int64_t begin, int64_t end, bool flipped) {
    const Tensor t = shrink_axis(x, axis, begin, end);
    return flipped ? flip_axis(t, axis) : t;
  };
  std::vector<Tensor> parts{x};
  const int64_t limit = mode == PadMode::Reflect ? n - 1 : n;
  check(mode == PadMode::Replicate ? n > 0 : p.before <= limit && p.after <= limit,
        "pad: ", p.before, " and ", p.after, " elements of axis ", axis, " are more than ",
        to_text(x.capacity()), " has to give");
  switch (mode) {
    case PadMode::Reflect:
      parts = {piece(1, p.before + 1, true), x, piece(n - 1 - p.after, n - 1, true)};
      break;
    case PadMode::Replicate:
      parts = {expand_axis(piece(0, 1, false), axis, p.before), x,
               expand_axis(piece(n - 1, n, false), axis, p.after)};
      break;
    default: parts = {piece(n - p.before, n, false), x, piece(0, p.after, false)};
  }
  return Tensor::cat(parts, axis);
}

Tensor pad_constant(const Tensor& x, const Shape& amounts, Number value) {
  const Node padded = build::pad(x.node(), amounts);
  if (padded == x.node() || value.real() == 0) return Tensor(padded);
  const Node inside = build::pad(build::full(x.capacity(), kBool, int64_t{1}), amounts);
  const Node fill = build::full(padded->shape(), detail::number_node(value, x.dtype()));
  return Tensor(build::where(inside, padded, fill));
}

}  // namespace

Tensor Tensor::pad(const std::vector<Padding>& pads, PadMode mode, Number value) const {
  LabelScope label("pad");
  check(static_cast<int>(pads.size()) == rank(), "pad: ", pads.size(), " paddings for shape ",
        to_text(capacity()));
  Shape bounds = whole_bounds(capacity()), amounts(2 * rank(), 0);
  for (int i = 0; i < rank(); ++i) {
    const int64_t size = capacity()[i];
    bounds[2 * i] -= std::clamp<int64_t>(pads[i].before, -size - 1, 0);
    bounds[2 * i + 1] += std::clamp<int64_t>(pads[i].after, -size - 1, 0);
    check(bounds[2 * i] <= bounds[2 * i + 1], "pad: ", pads[i].before, " and ", pads[i].after,
          " crop more of axis ", i, " than ", to_text(capacity()), " has");
    amounts[2 * i] = std::max<int64_t>(pads[i].before, 0);
    amounts[2 * i + 1] = std::max<int64_t>(pads[i].after, 0);
  }
  Tensor x(build::shrink(node(), bounds));
  if (mode == PadMode::Constant) return pad_constant(x, amounts, value);
  for (int i = 0; i < rank(); ++i)
    if (amounts[2 * i] || amounts[2 * i + 1])
      x = extend_axis(x, i, {amounts[2 * i], amounts[2 * i + 1]}, mode);
  return x;
}

Tensor Tensor::roll(const Shape& shifts, const Dims& dims) const {
  LabelScope label("roll");
  if (dims.all()) {
    check(shifts.size() == 1, "roll: ", shifts.size(), " shifts of a flattened tensor");
    return reshape({-1}).roll(shifts, 0).reshape(to_shape(shape()));
  }
  check(shifts.size() == dims.list().size(), "roll: ", shifts.size(), " shifts for ",
        dims.list().size(), " axes");
  Tensor x(node());  // no other handle of a leaf
  for (size_t i = 0; i < shifts.size(); ++i) {
    const int axis = normalize_axis("roll", dims.list()[i], rank());
    const int64_t n = rank() ? size(axis) : 1;
    const int64_t shift = n ? ((shifts[i] % n) + n) % n : 0;
    if (shift)
      x = cat({shrink_axis(x, axis, n - shift, n), shrink_axis(x, axis, 0, n - shift)}, axis);
  }
  return x;
}

Tensor Tensor::repeat(const Shape& repeats) const {
  LabelScope label("repeat");
  const int added = static_cast<int>(repeats.size()) - rank();
  check(added >= 0, "repeat: ", repeats.size(), " counts for shape ", to_text(capacity()));
  Shape split, grown, to;
  for (size_t i = 0; i < repeats.size(); ++i) {
    const int64_t n = static_cast<int>(i) < added ? 1 : capacity()[i - added];
    check(repeats[i] >= 0, "repeat: count ", repeats[i], " is negative");
    split.insert(split.end(), {1, n});
    grown.insert(grown.end(), {repeats[i], n});
    to.push_back(checked_mul("repeat", repeats[i], n));
  }
  return Tensor(build::reshape(build::expand(build::reshape(node(), split), grown), to));
}

Tensor Tensor::repeat_interleave(int64_t repeats, std::optional<int64_t> dim) const {
  LabelScope label("repeat_interleave");
  check(repeats >= 0, "repeat_interleave: count ", repeats, " is negative");
  if (!dim || rank() == 0) {
    if (dim) normalize_axis("repeat_interleave", *dim, rank());
    if (rank() != 1) return reshape({-1}).repeat_interleave(repeats, 0);
  }
  const int axis = dim ? normalize_axis("repeat_interleave", *dim, rank()) : 0;
  return expand_axis(unsqueeze(axis + 1), axis + 1, repeats).flatten(axis, axis + 1);
}

namespace {

// parts[first .. last) joined; begins[i] is where part i starts. A tree of selections, so that an
// element of many parts passes through a logarithmic number of them.
Node join(const std::vector<Node>& parts, const Shape& begins, int axis, size_t first,
          size_t last) {
  if (last - first == 1) return parts[first];
  const size_t middle = (first + last) / 2;
  const Node a = join(parts, begins, axis, first, middle);
  const Node b = join(parts, begins, axis, middle, last);
  const Tensor i = detail::position(a->shape(), axis);
  return build::where((i < begins[middle]).node(), a, b);
}

// 0, 0, 1, 2, 2, ...: each position of a list of counts so often, `total` in all. A few are
// computed, so that a Jit may capture them.
Tensor positions_repeated(const Shape& counts, int64_t total, const std::string& device) {
  constexpr size_t kComputed = 64;  // selections in the text of a kernel
  if (counts.size() <= kComputed && total > 0) {
    std::vector<Node> parts;
    Shape begins;
    int64_t begin = 0;
    for (size_t i = 0; i < counts.size(); begin += counts[i++]) {
      if (counts[i] == 0) continue;
      parts.push_back(build::full(Shape{total}, kI64, static_cast<int64_t>(i)));
      begins.push_back(begin);
    }
    return Tensor(join(parts, begins, 0, 0, parts.size()));
  }
  std::vector<int64_t> rows;
  for (size_t i = 0; i < counts.size(); ++i)
    rows.insert(rows.end(), counts[i], static_cast<int64_t>(i));
  return Tensor::from(rows, {total}, device);
}

// Parts of which some end along the axis where a Variable says: the next one begins there, which is
// known when kernels run. Shape: that of the first, with all of them along the axis.
Tensor join_lengths(const std::vector<Tensor>& parts, int axis, const Shape& shape) {
  const Tensor i = detail::position(shape, axis);
  Tensor begin = Tensor::full({}, 0), lengths;
  int64_t fixed = 0;
  Node joined = nullptr;
  for (const Tensor& p : parts) {
    const Tensor whole = detail::whole(p);
    const int64_t size = shape[axis] - p.capacity()[axis];
    const Node placed = lengths.defined() ? detail::gather_axis(whole, axis, i - begin).node()
                                          : pad_axis(whole, axis, fixed, size - fixed).node();
    joined = joined ? build::where((i < begin).node(), joined, placed) : placed;
    if (Node n = p.node()->length(axis))
      lengths = lengths.defined() ? lengths + Tensor(n) : Tensor(n);
    else
      fixed += p.capacity()[axis];
    begin = lengths.defined() ? lengths + fixed : Tensor::full({}, fixed);
  }
  for (int a = 0; a < parts[0].rank(); ++a) {
    const Node n = a == axis ? begin.node() : parts[0].node()->length(a);
    if (n) joined = build::limit(joined, a, n);
  }
  return Tensor(joined);
}

}  // namespace

Tensor Tensor::repeat_interleave(const Shape& repeats, std::optional<int64_t> dim) const {
  LabelScope label("repeat_interleave");
  if (!dim && rank() != 1) return reshape({-1}).repeat_interleave(repeats, 0);
  const int axis = dim ? normalize_axis("repeat_interleave", *dim, rank()) : 0;
  if (repeats.size() == 1) return repeat_interleave(repeats[0], axis);
  check(rank() > 0 && static_cast<int64_t>(repeats.size()) == size(axis),
        "repeat_interleave: ", repeats.size(), " counts for axis ", axis, " of ",
        to_text(capacity()));
  int64_t total = 0;
  for (int64_t count : repeats) {
    check(count >= 0, "repeat_interleave: count ", count, " is negative");
    total = checked_add("repeat_interleave", total, count);
  }
  return index_select(axis, positions_repeated(repeats, total, device()));
}

Tensor Tensor::cat(const std::vector<Tensor>& parts, int64_t dim) {
  LabelScope label("cat");
  check(!parts.empty(), "cat: no tensors to join");
  const Ints first = parts[0].capacity();
  check(!first.empty(), "cat: a 0-d tensor has no axis to join along: use stack");
  const int axis = normalize_axis("cat", dim, parts[0].rank());
  DType t = parts[0].dtype();
  Shape begins{0};
  std::vector<Tensor> filled;
  bool has_length = false;
  for (const Tensor& p : parts) {
    bool fits = p.rank() == parts[0].rank();
    for (int i = 0; fits && i < p.rank(); ++i) fits = i == axis || p.capacity()[i] == first[i];
    check(fits, "cat: shapes ", to_text(first), " and ", to_text(p.capacity()),
          " differ beyond axis ", axis);
    for (int i = 0; i < p.rank(); ++i)
      check(i == axis || p.node()->length(i) == parts[0].node()->length(i), "cat: axis ", i,
            " holds as many elements as a Variable says, not the same one in all tensors");
    has_length |= p.node()->length(axis) != nullptr;
    t = promote(t, p.dtype());
    if (p.capacity()[axis] == 0) continue;
    begins.push_back(checked_add("cat", begins.back(), p.capacity()[axis]));
    filled.push_back(p);
  }
  if (filled.empty()) return parts[0].to(t);
  if (has_length) {
    for (Tensor& p : filled) p = p.to(t);
    Shape shape = to_shape(first);
    shape[axis] = begins.back();
    return join_lengths(filled, axis, shape);
  }
  // One kernel of all would have a selection and an argument for each, which takes a compiler a
  // minute of 500.
  constexpr size_t kJoinedAtOnce = 32;
  if (filled.size() > kJoinedAtOnce) {
    std::vector<Tensor> groups;
    for (size_t i = 0; i < filled.size(); i += kJoinedAtOnce) {
      const size_t end = std::min(i + kJoinedAtOnce, filled.size());
      groups.push_back(cat({filled.begin() + i, filled.begin() + end}, axis).to(t).contiguous());
    }
    return cat(groups, axis);
  }
  std::vector<Node> padded;
  for (size_t i = 0; i < filled.size(); ++i)
    padded.push_back(
        pad_axis(filled[i].to(t), axis, begins[i], begins.back() - begins[i + 1]).node());
  return Tensor(join(padded, begins, axis, 0, padded.size()));
}

Tensor Tensor::stack(const std::vector<Tensor>& parts, int64_t dim) {
  LabelScope label("stack");
  check(!parts.empty(), "stack: no tensors to join");
  const int axis = normalize_axis("stack", dim, parts[0].rank() + 1);
  std::vector<Tensor> lifted;
  for (const Tensor& p : parts) {
    check(same(p.capacity(), parts[0].capacity()), "stack: shapes ", to_text(parts[0].capacity()),
          " and ", to_text(p.capacity()), " differ");
    lifted.push_back(p.unsqueeze(axis));
  }
  return cat(lifted, axis);
}

std::vector<Tensor> Tensor::split(const Shape& sizes, int64_t dim) const {
  LabelScope label("split");
  check(rank() > 0, "split: a 0-d tensor has no axes");
  const int axis = normalize_axis("split", dim, rank());
  std::vector<Tensor> parts;
  const int64_t n = size(axis);
  int64_t begin = 0;
  for (int64_t s : sizes) {
    check(s >= 0 && s <= n - begin, "split: sizes ", to_text(sizes), " do not add up to ", n);
    parts.push_back(shrink_axis(*this, axis, begin, begin + s));
    begin += s;
  }
  check(begin == n, "split: sizes ", to_text(sizes), " do not add up to ", n);
  return parts;
}

std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  LabelScope label("split");
  check(rank() > 0, "split: a 0-d tensor has no axes");
  const int64_t n = this->size(normalize_axis("split", dim, rank()));
  check(size >= 1 || n == 0, "split: parts of size ", size);
  Shape sizes;
  for (int64_t left = n; left > 0; left -= size) sizes.push_back(std::min(size, left));
  if (sizes.empty()) sizes.push_back(0);
  return split(sizes, dim);
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t dim) const {
  LabelScope label("chunk");
  const int64_t n = size(dim);  // of none there are as many parts as asked for
  check(chunks >= 1 && (n > 0 || chunks <= INT32_MAX), "chunk: ", chunks, " parts of ", n);
  if (n == 0) return split(Shape(chunks, 0), dim);
  return split(ceil_div(n, chunks), dim);
}

namespace {

Tensor triangle(const char* what, const Tensor& x, int64_t diagonal, bool lower) {
  LabelScope label(what);
  check(x.rank() >= 2, what, ": takes at least two axes and not shape ", to_text(x.capacity()));
  const Tensor row = detail::position(x.capacity(), x.rank() - 2);
  const Tensor column = detail::position(x.capacity(), x.rank() - 1);
  const Tensor offset = detail::with_lengths(column - row, x);
  return where(lower ? offset <= diagonal : offset >= diagonal, x, x.zeros_like());
}

}  // namespace

Tensor Tensor::tril(int64_t diagonal) const { return triangle("tril", *this, diagonal, true); }

Tensor Tensor::triu(int64_t diagonal) const { return triangle("triu", *this, diagonal, false); }

}  // namespace tiny
