#include <cmath>
#include <filesystem>

#include "extra/kernelbench/problem.h"
#include "tiny/base/file.h"

namespace tiny::kernelbench {

std::vector<Problem>& problems() {
  static std::vector<Problem> all;
  return all;
}

DrawState& draw_state() {
  static DrawState state;
  return state;
}

namespace {

// MurmurHash3's finalizer of 32 bits (A. Appleby, 2011).
Tensor mixed(const Tensor& word) {
  const auto number = [](uint32_t v) { return Tensor::full({}, int64_t{v}, kU32); };
  Tensor x = word ^ (word >> number(16));
  x = x * number(0x85ebca6b);
  x = x ^ (x >> number(13));
  x = x * number(0xc2b2ae35);
  return x ^ (x >> number(16));
}

uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

// A word for each element. The key is data, as bounds are below: tensors of as many elements are
// made by one kernel.
Tensor words(int64_t count, uint32_t stream) {
  const uint32_t key = mixed(stream * 0x9e3779b1u + draw_state().seed * 0x85ebca77u + 1);
  const Tensor at = Tensor::arange(0, count, 1, kU32);
  return mixed((at * Tensor::full({}, int64_t{0x9e3779b1}, kU32)) ^ Tensor::from({key}));
}

Tensor shifted(const Tensor& words, int64_t bits) { return words >> Tensor::full({}, bits, kU32); }

Tensor low_half(const Tensor& words) { return words & Tensor::full({}, 0xffff, kU32); }

// x factor + offset.
Tensor scaled(const Tensor& x, double factor, double offset) {
  return x * Tensor::from({static_cast<float>(factor)}) +
         Tensor::from({static_cast<float>(offset)});
}

}  // namespace

Tensor uniform(const Shape& shape, uint32_t stream, double low, double high) {
  const Tensor unit = shifted(words(numel(shape), stream), 8).to(kF32) * 0x1p-24;
  return scaled(unit, high - low, low).reshape(shape);
}

Tensor bell(const Shape& shape, uint32_t stream, double mean, double deviation) {
  const Tensor w = words(numel(shape), stream), v = mixed(w ^ Tensor::full({}, 0x5bd1e995, kU32));
  const Tensor total = low_half(w) + shifted(w, 16) + low_half(v) + shifted(v, 16);
  const Tensor unit = (total.to(kF32) * 0x1p-16 - 2) * std::sqrt(3.0);
  return scaled(unit, deviation, mean).reshape(shape);
}

Tensor integers(const Shape& shape, uint32_t stream, int64_t low, int64_t high) {
  const Tensor w = shifted(words(numel(shape), stream), 8).to(kI64);
  return (((w * (high - low)) >> Tensor::full({}, 24, kI64)) + low).reshape(shape);
}

Tensor forward_uniform(const Shape& shape, uint32_t stream) {
  return draw_state().by_formula ? uniform(shape, stream, 0, 1) : Tensor::rand(shape);
}

Tensor forward_bell(const Shape& shape, uint32_t stream) {
  return draw_state().by_formula ? bell(shape, stream, 0, 1) : Tensor::randn(shape);
}

Tensor forward_dropout(const Tensor& x, double p, uint32_t stream) {
  if (!draw_state().by_formula) return dropout(x, p);
  return x * (uniform(to_shape(x.shape()), stream, 0, 1) >= p) / (1 - p);
}

Tensor read(const std::string& file, DType dtype, const Shape& shape) {
  const std::string path = (std::filesystem::path(draw_state().data) / file).string();
  const std::string bytes = InputFile("read", path).read_all();
  const size_t wanted = static_cast<size_t>(numel(shape)) * dtype.size();
  check(bytes.size() == wanted, path, " has ", bytes.size(), " bytes and not ", wanted);
  return Tensor::from_bytes(bytes.data(), dtype, shape);
}

}  // namespace tiny::kernelbench
