#include "tiny/onnx/export/products.h"

#include <algorithm>

namespace tiny::onnx {

namespace {

using Axes = std::vector<size_t>;

bool is_summed(Node reduce, size_t axis) { return reduce->arg<ReduceArg>().axes >> axis & 1; }

// --- Convolutions --------------------------------------------------------------------------------

// The axes of the products, by what they are in a convolution; a missing one has size 1.
struct ConvAxes {
  std::optional<size_t> batch, group, channel, filter;
  Axes places, taps;
};

struct ConvSizes {
  int64_t groups = 1, channels = 1, filters = 1;  // of a group
  Shape strides, dilations, kernel, places;
  Shape before, beyond;  // elements at begin and end that no window reaches
};

int64_t size_at(const IndexMap& map, const std::optional<size_t>& axis) {
  return axis ? map.shape[*axis] : 1;
}

// The axis that is the batch, and those of groups and channels: x[n, g * channels + c, ...].
bool find_channels(Node reduce, const IndexMap& x, ConvAxes& a) {
  const Axes batch = x.axes_of(0), channels = x.axes_of(1);
  if (batch.size() > 1 || x.offsets[0] != 0 || x.offsets[1] != 0) return false;
  if (batch.size() == 1) {
    if (is_summed(reduce, batch[0]) || x.factors[0][batch[0]] != 1) return false;
    a.batch = batch[0];
  }
  for (const size_t axis : channels) {
    auto& role = is_summed(reduce, axis) ? a.channel : a.group;
    if (role) return false;
    role = axis;
  }
  const int64_t each = size_at(x, a.channel);
  return (!a.channel || x.factors[1][*a.channel] == 1) &&
         (!a.group || x.factors[1][*a.group] == each) &&
         each * size_at(x, a.group) == x.source->shape()[1] &&
         size_at(x, a.batch) == x.source->shape()[0];
}

// Of each spatial axis the place of a window (kept) and the tap in it (summed).
bool find_windows(Node reduce, const IndexMap& x, ConvAxes& a, ConvSizes& s) {
  for (size_t d = 2; d < x.offsets.size(); ++d) {
    int64_t stride = 1, dilation = 1, places = 1, taps = 1;
    bool has_place = false, has_tap = false;
    for (const size_t axis : x.axes_of(d)) {
      bool& has = is_summed(reduce, axis) ? has_tap : has_place;
      if (has || x.factors[d][axis] < 1) return false;
      has = true;
      (is_summed(reduce, axis) ? dilation : stride) = x.factors[d][axis];
      (is_summed(reduce, axis) ? taps : places) = x.shape[axis];
      (is_summed(reduce, axis) ? a.taps : a.places).push_back(axis);
    }
    const int64_t size = x.source->shape()[d], extent = (taps - 1) * dilation + 1;
    const int64_t reach = x.offsets[d] + (places - 1) * stride + extent;
    if (x.offsets[d] < 0 || size < reach) return false;
    s.before.push_back(x.offsets[d]);
    s.beyond.push_back(size - reach);
    s.strides.push_back(stride);
    s.dilations.push_back(dilation);
    s.kernel.push_back(taps);
    s.places.push_back(places);
  }
  return true;
}

// The weight holds (groups * filters, channels, taps...) in this order, whatever its own shape is.
bool find_filters(Node reduce, const IndexMap& w, ConvAxes& a, ConvSizes& s) {
  const Shape strides = strides_of(w.source->shape());
  int64_t offset = 0;
  Shape steps(w.shape.size(), 0);  // in memory, of each axis
  for (size_t d = 0; d < strides.size(); ++d) {
    offset += w.offsets[d] * strides[d];
    for (size_t axis = 0; axis < steps.size(); ++axis)
      steps[axis] += w.factors[d][axis] * strides[d];
  }
  int64_t expected = 1;
  for (size_t i = a.taps.size(); i-- > 0;) {
    if (steps[a.taps[i]] != expected) return false;
    expected *= w.shape[a.taps[i]];
  }
  if (a.channel && steps[*a.channel] != expected) return false;
  s.channels = size_at(w, a.channel);
  expected *= s.channels;
  for (size_t axis = 0; axis < steps.size(); ++axis) {
    const bool is_other = axis == a.group || axis == a.channel || contains(a.taps, axis);
    if (is_other || w.shape[axis] == 1 || steps[axis] == 0) continue;
    const bool is_of_input = axis == a.batch || contains(a.places, axis);
    if (a.filter || is_of_input || is_summed(reduce, axis) || steps[axis] != expected) return false;
    a.filter = axis;
  }
  s.filters = size_at(w, a.filter);
  s.groups = size_at(w, a.group);
  if (a.group && steps[*a.group] != expected * s.filters) return false;
  return offset == 0 && expected * s.filters * s.groups == numel(w.source->shape());
}

// Zeros around the spatial axes alone, which Conv adds itself.
bool is_spatial_pad(Node n) {
  if (n->op != Op::Pad || n->realized != nullptr) return false;
  const Ints pads = n->ints();
  return std::all_of(pads.begin(), pads.begin() + 4, [](int64_t p) { return p == 0; });
}

std::optional<Name> write_conv(Node reduce, const IndexMap& x, const IndexMap& w, GraphWriter& out,
                               OperandWriter& operands) {
  const size_t rank = x.offsets.size();
  if (rank < 3 || rank > 5) return std::nullopt;
  ConvAxes a;
  ConvSizes s;
  if (!find_channels(reduce, x, a) || !find_windows(reduce, x, a, s) ||
      !find_filters(reduce, w, a, s))
    return std::nullopt;
  // Conv gives (batch, groups * filters, places...): in the order of the kept axes?
  Axes order;
  for (const auto& axis : {a.batch, a.group, a.filter})
    if (axis) order.push_back(*axis);
  order.insert(order.end(), a.places.begin(), a.places.end());
  if (!std::ranges::is_sorted(order)) return std::nullopt;
  Node source = x.source;
  Shape pads(2 * (rank - 2), 0);
  if (is_spatial_pad(source)) {
    for (size_t i = 0; i < rank - 2; ++i) {
      pads[i] = source->ints()[2 * (i + 2)];
      pads[i + rank - 2] = source->ints()[2 * (i + 2) + 1];
    }
    source = source->src(0);
  }
  // What no window reaches is cut off from the padding.
  for (size_t i = 0; i < rank - 2; ++i) {
    int64_t& after = pads[i + rank - 2];
    pads[i] -= s.before[i];
    if (s.beyond[i] >= s.strides[i] || s.beyond[i] <= after) after -= s.beyond[i];
    if (pads[i] < 0 || after < 0) return std::nullopt;
  }
  Shape weight = {s.groups * s.filters, s.channels};
  weight.insert(weight.end(), s.kernel.begin(), s.kernel.end());
  Name filters = operands.write(w.source);
  if (!same(w.source->shape(), weight)) filters = out.reshape(filters, weight);
  const Name y =
      out.add("Conv", {operands.write(source), filters},
              {GraphWriter::list("kernel_shape", s.kernel), GraphWriter::list("strides", s.strides),
               GraphWriter::list("dilations", s.dilations), GraphWriter::list("pads", pads),
               GraphWriter::integer("group", s.groups)});
  return out.reshape(y, to_shape(reduce->shape()));
}

// --- Einstein sums -------------------------------------------------------------------------------

// An operand with the letters of its axes; axes of size 1 are left out.
struct Term {
  Name name;
  std::string letters;
};

Term write_term(const IndexMap& map, GraphWriter& out, OperandWriter& operands) {
  Term term;
  Shape squeezed;
  bool is_plain = true;
  for (size_t d = 0; d < map.offsets.size(); ++d) {
    const int64_t size = map.source->shape()[d];
    const auto axis = map.plain_axis(d);
    if (size == 1 && map.axes_of(d).empty()) continue;
    is_plain =
        is_plain && axis && term.letters.find(static_cast<char>('a' + *axis)) == std::string::npos;
    if (!is_plain) break;
    term.letters += static_cast<char>('a' + *axis);
    squeezed.push_back(size);
  }
  if (is_plain) {
    term.name = operands.write(map.source);
    if (squeezed.size() != map.offsets.size()) term.name = out.reshape(term.name, squeezed);
    return term;
  }
  // Elements along the axes that it varies with.
  IndexMap varying = map;
  term.letters.clear();
  for (size_t a = map.shape.size(); a-- > 0;) {
    bool varies = false;
    for (const Shape& factors : map.factors) varies = varies || factors[a] != 0;
    if (varies && map.shape[a] > 1) {
      term.letters.insert(term.letters.begin(), static_cast<char>('a' + a));
      continue;
    }
    varying.shape.erase(varying.shape.begin() + static_cast<int64_t>(a));
    for (Shape& factors : varying.factors) factors.erase(factors.begin() + static_cast<int64_t>(a));
  }
  term.name = operands.write_map(varying);
  return term;
}

}  // namespace

std::optional<Name> write_product(Node reduce, GraphWriter& out, OperandWriter& operands) {
  const Node product = reduce->src(0);
  if (reduce->arg<ReduceArg>().op != Op::Add || product->op != Op::Mul ||
      !product->dtype.is_float() || product->realized != nullptr || product->rank > 26)
    return std::nullopt;
  const IndexMap x = operands.map_of(product->src(0)), y = operands.map_of(product->src(1));
  if (auto conv = write_conv(reduce, x, y, out, operands)) return conv;
  if (auto conv = write_conv(reduce, y, x, out, operands)) return conv;
  const Term a = write_term(x, out, operands), b = write_term(y, out, operands);
  std::string result;
  int64_t factor = 1;  // of summed axes that neither operand has
  for (size_t axis = 0; axis < product->rank; ++axis) {
    const auto letter = static_cast<char>('a' + axis);
    const bool is_there =
        a.letters.find(letter) != std::string::npos || b.letters.find(letter) != std::string::npos;
    if (is_there && !is_summed(reduce, axis)) result += letter;
    if (!is_there && product->shape()[axis] != 1) {
      if (!is_summed(reduce, axis)) return std::nullopt;  // broadcast: no product of operands
      factor *= product->shape()[axis];
    }
  }
  Attribute equation;
  equation.name = "equation";
  equation.type = 3;
  equation.text = a.letters + "," + b.letters + "->" + result;
  Name sum = out.add("Einsum", {a.name, b.name}, {equation});
  if (factor != 1)
    sum = out.add("Mul", {sum, out.scalar(product->dtype, static_cast<double>(factor))});
  return out.reshape(sum, to_shape(reduce->shape()));
}

}  // namespace tiny::onnx
