// Operators that make tensors: constants, ranges, windows of signals, random numbers.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

Tensors constant(Call& c) {
  if (const Attribute* a = c.find("value"); a && a->tensor)
    return {c.around().tensor_of(*a->tensor)};
  if (const Attribute* a = c.find("sparse_value"); a && a->sparse)
    return {c.around().tensor_of(*a->sparse)};
  if (c.has_attribute("value_int")) return {c.constant(Shape{c.integer("value_int", 0)}, Shape())};
  if (c.has_attribute("value_ints")) return {c.constant(c.integers("value_ints"))};
  if (c.has_attribute("value_float"))
    return {c.constant({c.real("value_float", 0)}, Shape(), kF32)};
  if (c.has_attribute("value_floats")) {
    const auto values = c.reals("value_floats");
    return {c.constant(values, {std::ssize(values)}, kF32)};
  }
  c.require(false, "without a value that a tensor can hold: strings are refused");
  return {};
}

// One number, as an integer or a float.
Number number_of(const HostArray& x) {
  check(x.size() == 1, "a value of the shape ", to_text(x.shape), ", expected one element");
  if (x.dtype.is_float()) return x.reals[0];
  if (x.dtype.is_bool()) return x.integers[0] != 0;
  return x.integers[0];
}

Tensors constant_of_shape(Call& c) {
  const std::vector<Size> wanted = c.host_sizes(0);
  const Shape shape = bounds(wanted);
  const Attribute* a = c.find("value");
  if (a == nullptr || !a->tensor) return {limited(Tensor::zeros(shape), wanted)};
  const HostArray value = c.around().values_of(c.around().tensor_of(*a->tensor));
  return {limited(Tensor::full(shape, number_of(value), value.dtype), wanted)};
}

Tensors range(Call& c) {
  const DType dtype = c[0].dtype();
  const auto number = [&](size_t i) { return number_of(c.around().values_of(c[i])); };
  const Number start = number(0), step = number(2);
  if (dtype.is_int()) {
    // Up to a length that a Variable gives.
    const std::vector<Size> stop = c.host_sizes(1);
    c.require(stop.size() == 1, "the limit has ", stop.size(), " values, expected one");
    if (stop[0].length != nullptr) {
      c.require(start.integer() == 0 && step.integer() == 1, "from ", start.integer(), " by ",
                step.integer(), " to a length that is a Variable: only from 0 by 1");
      return {limited(Tensor::arange(0, stop[0].value, 1, dtype), stop)};
    }
  }
  const Number stop = number(1);
  if (!dtype.is_float()) return {Tensor::arange(start, stop, step, dtype)};
  // As many as ceil((stop - start) / step), of products: sums would add up their errors.
  c.require(step.real() != 0, "the step is 0");
  const double count = std::ceil((stop.real() - start.real()) / step.real());
  const Tensor at = Tensor::arange(static_cast<int64_t>(std::max(0.0, count)));
  return {at.to(dtype) * step.real() + start.real()};
}

Tensors eye_like(Call& c) {
  const Tensor& x = c[0];
  c.require(x.rank() == 2, "the input has the shape ", to_text(x.shape()), ", expected two axes");
  const auto dtype = dtype_of_type(c.integer("dtype", type_of_dtype(x.dtype())));
  c.require(dtype.has_value(), "the type ", c.integer("dtype", 0));
  const Tensor row = Tensor::arange(x.size(0)).unsqueeze(1);
  const Tensor column = Tensor::arange(x.size(1)).unsqueeze(0);
  return {(column - row == c.integer("k", 0)).to(*dtype)};
}

// --- Windows of signals --------------------------------------------------------------------------

// a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N); N is one less where the window is symmetric.
Tensor cosine_window(Call& c, double a0, double a1, double a2) {
  const Shape sizes = c.host_integers(0);
  c.require(sizes.size() == 1 && sizes[0] >= 0, "the size is ", to_text(sizes));
  const int64_t size = sizes[0];
  const auto period =
      static_cast<double>(c.integer("periodic", 1) != 0 ? size : std::max<int64_t>(1, size - 1));
  std::vector<double> values;
  for (int64_t n = 0; n < size; ++n) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(n) / period;
    values.push_back(a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle));
  }
  const auto dtype = dtype_of_type(c.integer("output_datatype", 1));
  c.require(dtype.has_value(), "the type ", c.integer("output_datatype", 1));
  return c.constant(values, {size}, *dtype);
}

Tensors hann_window(Call& c) { return {cosine_window(c, 0.5, 0.5, 0)}; }
Tensors hamming_window(Call& c) { return {cosine_window(c, 25.0 / 46, 21.0 / 46, 0)}; }
Tensors blackman_window(Call& c) { return {cosine_window(c, 0.42, 0.5, 0.08)}; }

// Triangles over the frequencies of a transform, evenly on the scale 2595 log10(1 + f / 700).
Tensors mel_weight_matrix(Call& c) {
  const int64_t bands = c.host_integers(0).at(0), length = c.host_integers(1).at(0),
                rate = c.host_integers(2).at(0);
  const double low = c.host_reals(3).at(0), high = c.host_reals(4).at(0);
  c.require(bands > 0 && length > 0 && rate > 0, bands, " bands of ", length, " samples at ", rate);
  const int64_t bins = length / 2 + 1;
  const auto mel = [](double f) { return 2595 * std::log10(1 + f / 700); };
  const double step = (mel(high) - mel(low)) / static_cast<double>(bands + 2);
  Shape edges;
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double f = 700 * (std::pow(10, (mel(low) + step * static_cast<double>(i)) / 2595) - 1);
    edges.push_back(
        static_cast<int64_t>(static_cast<double>(length + 1) * f / static_cast<double>(rate)));
  }
  std::vector<double> values(static_cast<size_t>(bins * bands), 0);
  for (int64_t band = 0; band < bands; ++band) {
    const int64_t a = edges[band], b = edges[static_cast<size_t>(band) + 1],
                  d = edges[static_cast<size_t>(band) + 2];
    const auto at = [&](int64_t bin) -> double& { return values[bin * bands + band]; };
    for (int64_t bin = std::max<int64_t>(a, 0); bin < std::min(d, bins); ++bin) {
      if (bin < b)
        at(bin) = static_cast<double>(bin - a) / static_cast<double>(b - a);
      else
        at(bin) = static_cast<double>(d - bin) / static_cast<double>(d - b);
    }
    if (b >= 0 && b < bins) at(b) = 1;
  }
  const auto dtype = dtype_of_type(c.integer("output_datatype", 1));
  c.require(dtype.has_value(), "the type ", c.integer("output_datatype", 1));
  return {c.constant(values, {bins, bands}, *dtype)};
}

// --- Random numbers ------------------------------------------------------------------------------
// Of this library's stream (tiny/tensor/random.h): the attribute seed is that of another generator.

DType random_dtype(Call& c, DType otherwise) {
  const auto dtype = dtype_of_type(c.integer("dtype", type_of_dtype(otherwise)));
  c.require(dtype.has_value(), "the type ", c.integer("dtype", 0));
  return *dtype;
}

Tensor normal_of(Call& c, const Shape& shape, DType dtype) {
  return Tensor::normal(shape, c.real("mean", 0), c.real("scale", 1), dtype);
}
Tensor uniform_of(Call& c, const Shape& shape, DType dtype) {
  return Tensor::uniform(shape, c.real("low", 0), c.real("high", 1), dtype);
}

Tensors random_normal(Call& c) {
  return {normal_of(c, c.integers("shape"), random_dtype(c, kF32))};
}
Tensors random_uniform(Call& c) {
  return {uniform_of(c, c.integers("shape"), random_dtype(c, kF32))};
}
Tensors random_normal_like(Call& c) {
  return {normal_of(c, sizes(c[0]), random_dtype(c, c[0].dtype()))};
}
Tensors random_uniform_like(Call& c) {
  return {uniform_of(c, sizes(c[0]), random_dtype(c, c[0].dtype()))};
}
Tensors bernoulli(Call& c) { return {c[0].to(kF32).bernoulli().to(random_dtype(c, c[0].dtype()))}; }

// Of logarithms of unnormalized probabilities.
Tensors multinomial(Call& c) {
  const Tensor weights = c[0].to(kF32).softmax(1);
  return {weights.multinomial(c.integer("sample_size", 1), true)
              .to(*dtype_of_type(c.integer("dtype", 6)))};
}

// Scales what stays by 1 / (1 - ratio); outside of training everything stays.
Tensors dropout_operator(Call& c) {
  const Tensor& x = c[0];
  const double ratio = c.has(1) ? c.host_reals(1).at(0) : c.real("ratio", 0.5);
  const bool trains = c.has(2) && c.host_integers(2).at(0) != 0;
  const Shape shape = sizes(x);
  if (!trains || ratio == 0) return {x, Tensor::full(shape, true)};
  c.require(ratio > 0 && ratio < 1, "the ratio is ", ratio);
  const Tensor stays = Tensor::rand(shape) >= ratio;
  return {where(stays, x * (1 / (1 - ratio)), 0), stays};
}

constexpr TypeSet kInts = type_set(kI32, kI64);

constexpr Operator kGenerators[] = {
    {"Bernoulli", 15, kFloats, bernoulli},
    {"BlackmanWindow", 17, kInts, blackman_window},
    {"Constant", 1, kAnything, constant},
    {"ConstantOfShape", 9, type_set(kI64), constant_of_shape},
    {"Dropout", 1, kFloats, dropout_operator},
    {"EyeLike", 9, kAll, eye_like},
    {"HammingWindow", 17, kInts, hamming_window},
    {"HannWindow", 17, kInts, hann_window},
    {"MelWeightMatrix", 17, kInts, mel_weight_matrix},
    {"Multinomial", 7, kFloats, multinomial},
    {"RandomNormal", 1, kAnything, random_normal},
    {"RandomNormalLike", 1, kAll, random_normal_like},
    {"RandomUniform", 1, kAnything, random_uniform},
    {"RandomUniformLike", 1, kAll, random_uniform_like},
    {"Range", 11, kNumbers, range},
};

}  // namespace

std::span<const Operator> generator_operators() { return kGenerators; }

}  // namespace tiny::onnx
