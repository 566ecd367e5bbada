// Operators that move elements, and those that tell shapes.
#include <algorithm>
#include <numeric>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

// A length that a Variable gives is a value of the graph.
Tensors shape_of(Call& c) {
  const Tensor& x = c[0];
  const Shape shape = bounds(x);
  const auto rank = static_cast<int64_t>(shape.size());
  const auto bound = [&](const char* name, int64_t otherwise) {
    const int64_t at = c.integer(name, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = bound("start", 0), end = bound("end", rank);
  if (end <= start) return {c.constant(Shape())};
  if (x.node()->lengths == nullptr)
    return {c.constant(Shape(shape.begin() + start, shape.begin() + end))};
  Tensors parts;
  for (int64_t i = start; i < end; ++i) {
    const Node length = x.node()->length(static_cast<int>(i));
    parts.push_back(length != nullptr ? Tensor(length).reshape({1})
                                      : Tensor::full({1}, shape[i], kI64));
  }
  return {Tensor::cat(parts)};
}

Tensors size_of(Call& c) { return {c.constant(Shape{c[0].numel()}, Shape())}; }

Tensors reshape(Call& c) {
  const Tensor& x = c[0];
  Shape shape = c.has_attribute("shape") ? c.integers("shape") : bounds(c.host_sizes(1));
  const bool copies = c.integer("allowzero", 0) == 0;  // 0 is the size of x
  for (size_t i = 0; i < shape.size() && copies; ++i) {
    if (shape[i] != 0) continue;
    c.require(i < static_cast<size_t>(x.rank()), "shape ", to_text(shape), " copies an axis that ",
              to_text(x.capacity()), " lacks");
    shape[i] = x.capacity()[i];
  }
  return {x.reshape(shape)};
}

Tensors flatten(Call& c) {
  const Shape shape = sizes(c[0]);
  const auto rank = static_cast<int64_t>(shape.size());
  int64_t axis = c.integer("axis", 1);
  if (axis < 0) axis += rank;
  c.require(axis >= 0 && axis <= rank, "axis ", c.integer("axis", 1), " of ", to_text(shape));
  const auto at = static_cast<size_t>(axis);
  return {c[0].reshape({numel(Ints(shape).first(at)), numel(Ints(shape).subspan(at))})};
}

Tensors squeeze(Call& c) {
  const Tensor& x = c[0];
  const auto axes = c.axes(1);
  if (!axes) return {x.squeeze()};
  for (const int64_t axis : *axes)
    c.require(x.capacity()[axis_of(x, axis)] == 1, "axis ", axis, " of ", to_text(x.capacity()),
              " is no single one");
  return {x.squeeze(*axes)};
}

Tensors unsqueeze(Call& c) {
  const Tensor& x = c[0];
  Shape axes = c.axes(1).value_or(Shape());
  const int64_t rank = x.rank() + std::ssize(axes);
  Shape shape(static_cast<size_t>(rank), 0);
  for (const int64_t axis : axes) {
    auto& size = shape[normalize_axis("Unsqueeze", axis, static_cast<int>(rank))];
    c.require(size == 0, "axis ", axis, " is named twice");
    size = 1;
  }
  const Shape from = bounds(x);
  auto next = from.begin();
  for (int64_t& size : shape)
    if (size == 0)
      size = *next++;
    else
      size = 1;
  return {x.reshape(shape)};
}

Tensors transpose(Call& c) {
  Shape order(static_cast<size_t>(c[0].rank()));
  std::iota(order.rbegin(), order.rend(), 0);
  return {c[0].permute(c.integers("perm", order))};
}

Tensors concat(Call& c) {
  for (size_t i = 1; i < c.size(); ++i)
    c.require(c[i].dtype() == c[0].dtype(), "parts of ", c[0].dtype(), " and ", c[i].dtype(),
              ", expected one dtype");
  return {Tensor::cat(c.inputs(), c.integer("axis", 1))};
}

Tensors split(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", 0)), size = x.size(axis);
  auto sizes = c.axes(1, "split");
  if (!sizes) {
    const int64_t parts = c.integer("num_outputs", static_cast<int64_t>(c.outputs()));
    const int64_t each = (size + parts - 1) / parts;
    sizes.emplace();
    for (int64_t begin = 0, i = 0; i < parts; ++i, begin += each)
      sizes->push_back(std::clamp<int64_t>(size - begin, 0, each));
  }
  return x.split(*sizes, axis);
}

// One axis of x[start:end:step]; a step below 0 goes backwards, as in Python, save that the
// standard moves a start in front of the axis onto its first element.
Tensor slice_axis(const Tensor& x, int64_t axis, int64_t start, int64_t end, int64_t step) {
  const int64_t size = x.capacity()[axis];
  if (start < 0) start = std::max<int64_t>(start + size, 0);
  if (end < 0) end = end < -size ? -1 : end + size;
  const auto bounds = [&](int64_t a, int64_t b, int64_t by) {
    std::vector<Bound> starts(static_cast<size_t>(axis) + 1), stops(starts);
    Shape steps(starts.size(), 1);
    starts.back() = a;
    stops.back() = std::max(a, b);
    steps.back() = by;
    return std::tuple(starts, stops, steps);
  };
  if (step > 0) {
    const auto [a, b, by] =
        bounds(std::clamp<int64_t>(start, 0, size), std::clamp<int64_t>(end, 0, size), step);
    return x.slice(a, b, by);
  }
  start = std::min(start, size - 1);
  end = std::clamp<int64_t>(end, -1, size - 1);
  const int64_t from = size - 1 - start, to = std::max(from, size - 1 - end);
  const auto [a, b, by] = bounds(from, to, step == INT64_MIN ? INT64_MAX : -step);
  return x.flip(axis).slice(a, b, by);
}

struct SliceRange {
  int64_t start;
  Size end;
  int64_t step;
};

// An axis up to a length that a Variable gives, or one of such a length as a whole.
Tensor sliced(Call& c, const Tensor& x, int64_t axis, const SliceRange& range) {
  const int64_t size = x.capacity()[axis];
  const Node own = x.node()->length(static_cast<int>(axis)), wanted = range.end.length;
  if (own == nullptr && wanted == nullptr)
    return slice_axis(x, axis, range.start, range.end.value, range.step);
  const bool is_whole = own == wanted || (wanted == nullptr && range.end.value >= size);
  c.require(range.start == 0 && range.step == 1 && (own == nullptr || is_whole), "axis ", axis,
            " of ", to_text(x.capacity()),
            " with a length that is a Variable: only all of it can be taken");
  if (own != nullptr) return x;
  c.require(wanted->vmax <= size, "a length of at most ", wanted->vmax, " of ", size, " elements");
  std::vector<Size> sizes(static_cast<size_t>(x.rank()));
  sizes[axis] = range.end;
  return limited(x.narrow(axis, 0, range.end.value), sizes);
}

Tensors slice(Call& c) {
  Tensor x = c[0];
  const bool is_old = c.opset() < 10;
  const Shape starts = is_old ? c.integers("starts") : c.host_integers(1);
  std::vector<Size> ends;
  if (is_old)
    for (const int64_t end : c.integers("ends")) ends.push_back({end, nullptr});
  else
    ends = c.host_sizes(2);
  Shape axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (is_old)
    axes = c.integers("axes", axes);
  else if (c.has(3))
    axes = c.host_integers(3);
  if (c.has(4)) steps = c.host_integers(4);
  c.require(
      ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size(),
      starts.size(), " starts, ", ends.size(), " ends, ", axes.size(), " axes, ", steps.size(),
      " steps");
  for (size_t i = 0; i < starts.size(); ++i) {
    c.require(steps[i] != 0, "a step is 0");
    const int64_t axis = axis_of(x, axes[i]);
    x = sliced(c, x, axis, {starts[i], ends[i], steps[i]});
  }
  return {x};
}

Tensors expand(Call& c) {
  std::vector<Size> wanted = c.host_sizes(1);
  const Tensor& x = c[0];
  const Shape shape = broadcast("Expand", x.capacity(), bounds(wanted));
  wanted.insert(wanted.begin(), shape.size() - wanted.size(), Size());
  return {limited(x.expand(shape), wanted)};
}

Tensors tile(Call& c) {
  const Shape repeats = c.host_integers(1);
  c.require(static_cast<int>(repeats.size()) == c[0].rank(), repeats.size(), " repeats for ",
            to_text(c[0].shape()));
  return {c[0].repeat(repeats)};
}

// --- Padding -------------------------------------------------------------------------------------

PadMode pad_mode(Call& c) {
  const std::string mode = c.text("mode", "constant");
  if (mode == "constant") return PadMode::Constant;
  if (mode == "reflect") return PadMode::Reflect;
  if (mode == "edge") return PadMode::Replicate;
  if (mode == "wrap") return PadMode::Circular;
  c.require(false, "the mode is \"", mode, "\", expected constant, reflect, edge or wrap");
  return PadMode::Constant;
}

Number pad_value(Call& c) {
  if (c.opset() < 11) return c.real("value", 0);
  if (!c.has(2)) return 0;
  if (!c[0].dtype().is_float()) {
    const Shape value = c.host_integers(2);
    c.require(value.size() == 1, "the value has ", value.size(), " elements, expected one");
    return value[0];
  }
  const auto value = c.host_reals(2);
  c.require(value.size() == 1, "the value has ", value.size(), " elements, expected one");
  return value[0];
}

Tensors pad(Call& c) {
  const Tensor& x = c[0];
  const Shape pads = c.axes(1, c.has_attribute("paddings") ? "paddings" : "pads").value_or(Shape());
  Shape axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.host_integers(3);
  c.require(pads.size() == 2 * axes.size(), pads.size(), " pads for ", axes.size(), " axes");
  std::vector<Padding> all(static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < axes.size(); ++i)
    all[axis_of(x, axes[i])] = {pads[i], pads[i + axes.size()]};
  const PadMode mode = pad_mode(c);
  if (mode != PadMode::Constant) return {x.pad(all, mode)};
  const Number value = pad_value(c);
  if (x.dtype().is_bool())
    return {x.to(kU8).pad(all, mode, value.integer() != 0 ? 1 : 0).to(kBool)};
  return {x.pad(all, mode, value)};
}

// Crops or pads in the middle; of an odd difference the end gets more.
Tensors center_crop_pad(Call& c) {
  const Tensor& x = c[0];
  const Shape sizes = c.host_integers(1);
  Shape axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  axes = c.integers("axes", axes);
  c.require(sizes.size() == axes.size(), sizes.size(), " sizes for ", axes.size(), " axes");
  std::vector<Padding> pads(static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axis_of(x, axes[i]), more = sizes[i] - x.size(axis);
    const int64_t before = more >= 0 ? more / 2 : -(-more / 2);
    pads[axis] = {before, more - before};
  }
  return {x.pad(pads)};
}

// --- Pictures ------------------------------------------------------------------------------------

Tensors depth_to_space(Call& c) {
  const Shape s = sizes(c[0]);
  c.require(s.size() == 4, "the input has the shape ", to_text(s), ", expected four axes");
  const int64_t b = c.integer("blocksize", 0);
  c.require(b > 0 && s[1] % (b * b) == 0, "blocks of ", b, " of ", s[1], " channels");
  const int64_t channels = s[1] / (b * b);
  if (c.text("mode", "DCR") == "CRD")
    return {c[0].reshape({s[0], channels, b, b, s[2], s[3]})
                .permute({0, 1, 4, 2, 5, 3})
                .reshape({s[0], channels, s[2] * b, s[3] * b})};
  return {c[0].reshape({s[0], b, b, channels, s[2], s[3]})
              .permute({0, 3, 4, 1, 5, 2})
              .reshape({s[0], channels, s[2] * b, s[3] * b})};
}

Tensors space_to_depth(Call& c) {
  const Shape s = sizes(c[0]);
  c.require(s.size() == 4, "the input has the shape ", to_text(s), ", expected four axes");
  const int64_t b = c.integer("blocksize", 0);
  c.require(b > 0 && s[2] % b == 0 && s[3] % b == 0, "blocks of ", b, " of ", to_text(s));
  return {c[0].reshape({s[0], s[1], s[2] / b, b, s[3] / b, b})
              .permute({0, 3, 5, 1, 2, 4})
              .reshape({s[0], s[1] * b * b, s[2] / b, s[3] / b})};
}

// The elements of each batch entry before its length in reverse order.
Tensors reverse_sequence(Call& c) {
  const Tensor &x = c[0], lengths = c[1].to(kI64);
  const int64_t batch = c.integer("batch_axis", 1), time = c.integer("time_axis", 0);
  c.require(batch + time == 1 && x.rank() >= 2, "axes ", time, " and ", batch, " of ",
            to_text(x.shape()));
  const int64_t steps = x.size(time);
  const Tensor at = Tensor::arange(steps).reshape(ones_but(x.rank(), time, steps));
  const Tensor length = along_axis(lengths, batch, x.rank());
  const Tensor from = where(at < length, length - 1 - at, at);
  return {x.gather(time, from.expand(sizes(x)))};
}

Tensors trilu(Call& c) {
  const Tensor& x = c[0];
  int64_t k = 0;
  if (c.has(1)) {
    const Shape diagonal = c.host_integers(1);
    c.require(diagonal.size() == 1, "k has ", diagonal.size(), " values, expected one");
    // Further out all diagonals are alike.
    k = std::clamp<int64_t>(diagonal[0], -(x.numel() + 1), x.numel() + 1);
  }
  return {c.integer("upper", 1) != 0 ? x.triu(k) : x.tril(k)};
}

constexpr Operator kMovement[] = {
    {"CenterCropPad", 18, kAll, center_crop_pad},
    {"Concat", 1, kAll, concat},
    {"DepthToSpace", 1, kAll, depth_to_space},
    {"Expand", 8, kAll, expand},
    {"Flatten", 1, kAll, flatten},
    {"Pad", 1, kAll, pad},
    {"Reshape", 1, kAll, reshape},
    {"ReverseSequence", 10, kAll, reverse_sequence},
    {"Shape", 1, kAll, shape_of},
    {"Size", 1, kAll, size_of},
    {"Slice", 1, kAll, slice},
    {"SpaceToDepth", 1, kAll, space_to_depth},
    {"Split", 1, kAll, split},
    {"Squeeze", 1, kAll, squeeze},
    {"Tile", 6, kAll, tile},
    {"Transpose", 1, kAll, transpose},
    {"Trilu", 14, kAll, trilu},
    {"Unsqueeze", 1, kAll, unsqueeze},
};

}  // namespace

std::span<const Operator> movement_operators() { return kMovement; }

}  // namespace tiny::onnx
