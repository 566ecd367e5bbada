#include "tiny/models/files/quantized_weight.h"

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr int64_t kRows = 16, kUnit = 32, kWords = 8;  // of a panel; elements, words of a unit
constexpr int64_t kManyRows = 48;  // of x, from where on computing tiles of values is worth it

// Bytes of x with what belongs to them, for all blocks and units of its rows.
struct ByteRows {
  Tensor words;   // i32 (rows, 1, blocks, units, 8)
  Tensor scale;   // f32 (rows, 1, blocks, units, 1)
  Tensor starts;  // i32 (rows, 1, blocks, units, groups): sums of the bytes times the lowest code
  Tensor sums;    // f32, the same: sums of the bytes times their scale
};

ByteRows byte_rows(const Tensor& x, int64_t blocks, int64_t groups, int lowest) {
  const Tensor units = x.to(kF32).reshape({-1, 1, blocks, x.size(-1) / blocks / kUnit, kUnit});
  ByteRows out;
  out.scale = (units.abs().max(-1, true) / 127).contiguous();
  const Tensor by = where(out.scale == 0, 1, out.scale);
  const Tensor codes = (units / by).round().to(kI32);
  const Tensor shifts = Tensor::arange(0, 32, 8, kI32);
  out.words = ((codes.unflatten(-1, {kWords, 4}) & 255) << shifts).sum(-1).to(kI32).contiguous();
  const Tensor sums = codes.unflatten(-1, {groups, -1}).sum(-1).to(kI32);
  out.starts = (sums * lowest).contiguous();
  out.sums = (sums.to(kF32) * out.scale).contiguous();
  return out;
}

// (rows, ...) with rows by 16: (panels, ..., 16). The last panel is padded with zeros.
Tensor in_panels(Tensor t) {
  std::vector<Padding> pads(static_cast<size_t>(t.rank()));
  pads[0].after = (kRows - t.size(0) % kRows) % kRows;
  if (pads[0].after > 0) t = t.pad(pads);
  t = t.unflatten(0, {-1, kRows});
  Shape order{0};
  for (int64_t i = 2; i < t.rank(); ++i) order.push_back(i);
  order.push_back(1);
  return t.permute(order).contiguous();
}

// The same as rows, all of them or those of an index.
Tensor in_rows(const Tensor& panels, const Tensor* index) {
  Shape order{0, panels.rank() - 1};
  for (int64_t i = 1; i + 1 < panels.rank(); ++i) order.push_back(i);
  const Tensor rows = panels.permute(order);
  if (!index) return rows.flatten(0, 1);
  return rows.index({*index >> 4, *index & 15});
}

}  // namespace

// --- Layouts -------------------------------------------------------------------------------------

QuantizedWeight::QuantizedWeight(const Tensor& bytes, const StoredType& type, QuantizedProduct how)
    : QuantizedWeight(quantized_blocks(bytes, type), how) {
  check(bytes.rank() == 2, "QuantizedWeight: bytes ", to_text(bytes.shape()),
        ", expected (out, bytes of a row)");
  if (product() == QuantizedProduct::Bytes) return;
  bytes_ = bytes;
  type_ = &type;
}

QuantizedWeight::QuantizedWeight(const QuantizedBlocks& blocks, QuantizedProduct how)
    : blocks_(blocks) {
  const Tensor& codes = blocks.codes;
  check(codes.rank() == 4, "QuantizedWeight: codes ", to_text(codes.shape()),
        ", expected (out, blocks, groups, size)");
  out_ = codes.size(0);
  in_ = codes.numel() / std::max<int64_t>(out_, 1);
  if (how == QuantizedProduct::Bytes && fits(blocks)) pack();
}

// Whole units, of one group or two.
bool QuantizedWeight::fits(const QuantizedBlocks& blocks) {
  const int64_t groups = blocks.codes.size(2), size = blocks.codes.size(3);
  const bool whole = groups * size % kUnit == 0 && blocks.codes.numel() > 0;
  return blocks.bits > 0 && whole && (!blocks.scales.defined() || size == 16 || size == kUnit);
}

void QuantizedWeight::pack() {
  const int64_t blocks = blocks_.codes.size(1);
  const Tensor codes =
      (blocks_.codes.to(kI32) - blocks_.lowest).reshape({out_, blocks, -1, kWords, 4}).realize();
  std::vector<Tensor*> made;
  int shift = 0;
  for (int bits : {8, 4, 2, 1}) {
    if (!(blocks_.bits & bits)) continue;
    const Tensor part = (codes >> shift) & ((1 << bits) - 1);
    const Tensor at =
        Tensor::arange(0, 8, bits, kI32).reshape({-1, 1, 1}) + Tensor::arange(0, 32, 8, kI32);
    const Tensor words = (part.unflatten(-2, {8 / bits, bits}) << at).sum(Dims{-3, -1}).to(kI32);
    packed_.planes.push_back({bits, shift, in_panels(words)});
    shift += bits;
  }
  for (Plane& plane : packed_.planes) made.push_back(&plane.words);
  const auto keep = [&](Tensor& to, const Tensor& from, const Shape& shape) {
    if (!from.defined()) return;
    to = in_panels(from.reshape(shape));
    made.push_back(&to);
  };
  const int64_t units = codes.size(2);
  keep(packed_.scale, blocks_.scale, {out_, blocks, 1, 1});
  keep(packed_.min, blocks_.min, {out_, blocks, 1, 1});
  keep(packed_.scales, blocks_.scales, {out_, blocks, units, -1});
  keep(packed_.mins, blocks_.mins, {out_, blocks, units, -1});
  Tensor::realize(made);
  for (Tensor* t : {&blocks_.codes, &blocks_.scale, &blocks_.min, &blocks_.scales, &blocks_.mins})
    *t = Tensor();
}

QuantizedProduct QuantizedWeight::product() const {
  return packed_.planes.empty() ? QuantizedProduct::Floats : QuantizedProduct::Bytes;
}

int64_t QuantizedWeight::bytes() const {
  const auto size = [](const Tensor& t) {
    return t.defined() ? t.numel() * static_cast<int64_t>(t.dtype().size()) : 0;
  };
  if (bytes_.defined()) return size(bytes_);
  int64_t sum = 0;
  for (const Plane& plane : packed_.planes) sum += size(plane.words);
  for (const Tensor* t : {&packed_.scale, &packed_.min, &packed_.scales, &packed_.mins,
                          &blocks_.codes, &blocks_.scale, &blocks_.min})
    sum += size(*t);
  return sum;
}

// --- Values --------------------------------------------------------------------------------------

// Rows of the packed codes as blocks, with the index's axes before those of a row.
QuantizedBlocks QuantizedWeight::unpacked(const Tensor* index) const {
  const Tensor bytes = Tensor::arange(0, 32, 8, kI32);
  Tensor codes;
  for (const Plane& plane : packed_.planes) {
    const Tensor shifts = Tensor::arange(0, 8, plane.bits, kI32).reshape({-1, 1, 1});
    const Tensor words = in_rows(plane.words, index).unsqueeze(-1).unsqueeze(-3);
    const Tensor part = ((words >> (shifts + bytes)) & ((1 << plane.bits) - 1)) << plane.shift;
    codes = codes.defined() ? codes | part.flatten(-3) : part.flatten(-3);
  }
  QuantizedBlocks out;
  out.lowest = blocks_.lowest;
  out.bits = blocks_.bits;
  out.scale = in_rows(packed_.scale, index);
  if (packed_.min.defined()) out.min = in_rows(packed_.min, index);
  const auto of_groups = [&](const Tensor& t) {
    return t.defined() ? in_rows(t, index).flatten(-2).unsqueeze(-1) : Tensor();
  };
  out.scales = of_groups(packed_.scales);
  out.mins = of_groups(packed_.mins);
  const int64_t groups = packed_.scales.defined() ? packed_.scales.size(-2) : 1;
  out.codes = (codes + out.lowest).to(kI8).flatten(-2).unflatten(-1, {-1, kUnit / groups});
  return out;
}

Tensor QuantizedWeight::values() const {
  if (product() == QuantizedProduct::Floats) return dequantize(blocks_);
  return dequantize(unpacked(nullptr)).narrow(0, 0, out_);
}

Tensor QuantizedWeight::rows(const Tensor& index) const {
  check(index.dtype().is_int(), "QuantizedWeight: numbers of rows are integers and not ",
        index.dtype());
  if (product() == QuantizedProduct::Bytes) return dequantize(unpacked(&index));
  if (type_) return dequantize(bytes_.index({index}), *type_);
  QuantizedBlocks some = blocks_;
  for (Tensor* t : {&some.codes, &some.scale, &some.min, &some.scales, &some.mins})
    if (t->defined()) *t = t->index({index});
  return dequantize(some);
}

// --- Products ------------------------------------------------------------------------------------

// Sums of products of bytes for each unit, in integers, times the scales of both: lanes are rows of
// the weight, and words of x are the same for all of them.
Tensor QuantizedWeight::byte_product(const Tensor& x) const {
  const int64_t groups = packed_.scales.defined() ? packed_.scales.size(-2) : 1;
  const ByteRows bytes = byte_rows(x, packed_.scale.size(1), groups, blocks_.lowest);
  const auto word_of_codes = [&](int64_t w) {
    Tensor word;
    for (const Plane& plane : packed_.planes) {
      const int mask = ((1 << plane.bits) - 1) * 0x01010101;
      const int64_t shift = w / plane.bits * plane.bits;
      Tensor part = plane.words.select(3, w % plane.bits);
      if (shift > 0) part = part >> shift;
      if (plane.bits < 8) part = part & mask;
      if (plane.shift > 0) part = part << plane.shift;
      word = word.defined() ? word | part : part;
    }
    return word;  // (panels, blocks, units, 16)
  };
  // What does not depend on x is computed once for several rows of it.
  const auto of_group = [](const Tensor& block, const Tensor& groups, int64_t g) {
    const Tensor one = block.select(3, 0).to(kF32);
    return groups.defined() ? one * groups.select(3, g).to(kF32) : one;
  };
  Tensor sum, least;
  for (int64_t g = 0; g < groups; ++g) {
    Tensor products = bytes.starts.narrow(-1, g, 1);
    for (int64_t w = g * kWords / groups; w < (g + 1) * kWords / groups; ++w)
      products = byte_dot(word_of_codes(w), bytes.words.narrow(-1, w, 1), products);
    const Tensor term = products.to(kF32) * of_group(packed_.scale, packed_.scales, g);
    sum = sum.defined() ? sum + term : term;
    if (!packed_.min.defined()) continue;
    const Tensor low = bytes.sums.narrow(-1, g, 1) * of_group(packed_.min, packed_.mins, g);
    least = least.defined() ? least + low : low;
  }
  sum = (sum * bytes.scale).sum(Dims{2, 3});
  if (least.defined()) sum = sum - least.sum(Dims{2, 3});
  return sum.flatten(1).narrow(1, 0, out_);
}

// Of both rounded to bf16, added up in f32. All that an element's place is made of stays an axis of
// its own, so that the values are computed in whatever order tiles have. A word's number in a unit
// is three bits, of which a plane's words have the low ones; by the others they are shifted.
Tensor QuantizedWeight::half_product(const Tensor& x) const {
  const auto rounded = [](const Tensor& t) { return t.to(kBF16).to(kF32); };
  Tensor codes;  // (panels, blocks, units, 2, 2, 2, 4, 16)
  for (const Plane& plane : packed_.planes) {
    Shape shape(plane.words.shape().begin(), plane.words.shape().begin() + 3);
    Tensor shifts = Tensor::arange(0, 32, 8, kI32).unsqueeze(-1);
    for (int value = kWords / 2; value > 0; value /= 2) {
      const bool is_shift = value >= plane.bits;
      shape.push_back(is_shift ? 1 : 2);
      Shape axis{1, 1, 1, 1, 1};
      axis[shape.size() - 4] = 2;
      if (is_shift) shifts = shifts + Tensor::arange(0, 2 * value, value, kI32).reshape(axis);
    }
    shape.insert(shape.end(), {1, kRows});
    const Tensor part = (plane.words.reshape(shape) >> shifts) & ((1 << plane.bits) - 1);
    codes = codes.defined() ? codes | (part << plane.shift) : part << plane.shift;
  }
  const auto of_groups = [](const Tensor& block, const Tensor& groups) {
    const Tensor one = block.to(kF32).unflatten(3, {1, 1, 1, 1});
    return groups.defined() ? one * groups.to(kF32).unflatten(3, {-1, 1, 1, 1}) : one;
  };
  Tensor values = (codes + blocks_.lowest).to(kF32) * of_groups(packed_.scale, packed_.scales);
  if (packed_.min.defined()) values = values - of_groups(packed_.min, packed_.mins);
  const Tensor rows = x.reshape({-1, 1, values.size(1), values.size(2), 2, 2, 2, 4, 1});
  const Tensor sum = (rounded(rows) * rounded(values)).sum(Dims{2, 3, 4, 5, 6, 7});
  return sum.flatten(1).narrow(1, 0, out_);
}

Tensor QuantizedWeight::linear(const Tensor& x, const Tensor& bias) const {
  LabelScope label("linear");
  check(x.dtype().is_float() && x.rank() > 0 && x.size(-1) == in_, "QuantizedWeight: ", x.dtype(),
        " ", to_text(x.shape()), " by a weight ", to_text(Shape{out_, in_}),
        ": expected floats whose last axis is ", in_);
  if (product() == QuantizedProduct::Floats || x.requires_grad()) {
    const Tensor y = x.to(kF32).linear(values()).to(x.dtype());
    return bias.defined() ? y + bias : y;
  }
  Shape shape = to_shape(x.shape());
  shape.back() = out_;
  const Tensor rows = x.reshape({-1, in_});
  const bool halves = rows.size(0) >= kManyRows && runtime_seam::has_tiles_of_halves(x.device());
  const Tensor sum = halves ? half_product(rows) : byte_product(rows);
  const Tensor y = sum.reshape(shape).to(x.dtype());
  return bias.defined() ? y + bias : y;
}

}  // namespace tiny
