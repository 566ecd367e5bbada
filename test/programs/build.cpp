// From steps to tensors.
#include <algorithm>
#include <cstring>

#include "test/programs/program.h"
#include "tiny/base/error.h"

// The definitions, and their text for the C++ of a program.
#define TINY_CODE(...) \
  __VA_ARGS__          \
  const char* const kHelpers = #__VA_ARGS__;

namespace tiny::programs {

extern const char* const kHelpers;

TINY_CODE(
    Tensor leaf(const Shape& shape, DType dtype, uint64_t seed, int64_t low, int64_t high) {
      std::vector<double> values(static_cast<size_t>(numel(shape)));
      for (double& v : values) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const auto bits = static_cast<int64_t>(seed >> 33);
        if (low == 0 && high == 0)
          v = static_cast<double>(bits % 4000001 - 2000000) * 1e-6;
        else
          v = static_cast<double>(low + bits % (high - low + 1));
      }
      const auto as = [&](auto like) {
        std::vector<decltype(like)> out;
        for (double v : values) out.push_back(static_cast<decltype(like)>(v));
        return Tensor::from(out, shape);
      };
      if (dtype == kBool) return as(bool());
      if (dtype == kI8) return as(int8_t());
      if (dtype == kI16) return as(int16_t());
      if (dtype == kI32) return as(int32_t());
      if (dtype == kI64) return as(int64_t());
      if (dtype == kU8) return as(uint8_t());
      if (dtype == kU32) return as(uint32_t());
      if (dtype == kF16) return as(Half());
      if (dtype == kBF16) return as(BFloat16());
      return dtype == kF32 ? as(float()) : as(double());
    }

    Tensor wave(const Tensor& like, double phase) {
      const Shape shape(like.shape().begin(), like.shape().end());
      const Tensor at = Tensor::arange(0, like.numel(), 1, kF64);
      return (at * 0.7 + phase).sin().reshape(shape).to(like.dtype());
    }

    Tensor shrunk(const Tensor& v, const Shape& begin, const Shape& end) {
      std::vector<std::pair<int64_t, int64_t>> parts;
      for (size_t d = 0; d < begin.size(); ++d) parts.emplace_back(begin[d], end[d]);
      return v.shrink(parts);
    }

    Tensor padded(const Tensor& v, const Shape& before, const Shape& after, PadMode mode,
                  double fill) {
      std::vector<Padding> pads;
      for (size_t d = 0; d < before.size(); ++d) pads.push_back({before[d], after[d]});
      return v.pad(pads, mode, fill);
    })

const Tensor& Arguments::tensor(size_t i) const {
  static const Tensor none;
  return i < in.size() ? in[i] : none;
}

const std::vector<Row>& operators() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> out;
    for (auto part :
         {leaf_rows, elementwise_rows, integer_rows, reduction_rows, scan_rows, movement_rows,
          joining_rows, index_rows, product_rows, network_rows, state_rows})
      for (const Row& row : part()) out.push_back(row);
    return out;
  }();
  return rows;
}

int row_named(std::string_view name) {
  const auto& rows = operators();
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].name == name) return static_cast<int>(i);
  throw Bug(cat("the table of operators has no row ", name));
}

bool wants_gradient(const Program& program, const Step& s) {
  return program.gradient && s.t.is_float() && has(row_of(s), 'l');
}

int axis_of_shard(const Step& s, size_t devices) {
  const int axis = static_cast<int>(s.seed % (s.a.size() + 1)) - 1;
  const bool fits = axis >= 0 && s.a[static_cast<size_t>(axis)] >= static_cast<int64_t>(devices);
  return fits ? axis : -1;
}

namespace {

void realize(std::vector<Tensor>& values, const std::vector<int>& which) {
  std::vector<Tensor*> all;
  for (int i : which) all.push_back(&values[static_cast<size_t>(i)]);
  Tensor::realize(all);
}

Tensor sharded(const Tensor& value, const Step& s, const std::vector<std::string>& devices) {
  const int axis = axis_of_shard(s, devices.size());
  return axis < 0 ? value.shard(devices) : value.shard(devices, axis);
}

void add_loss(const Program& program, const BuildOptions& options, Built& built) {
  double phase = 1;
  for (int i : program.outputs) {
    const Tensor& v = built.values[static_cast<size_t>(i)];
    if (!v.dtype().is_float() || !v.requires_grad()) continue;
    Tensor weights = wave(v, phase++);
    if (program.in_memory && options.realizes && options.devices.empty())
      weights = weights.contiguous().realize();
    const Tensor term = (v * weights).sum().to(kF64);
    built.loss = built.loss.defined() ? built.loss + term : term;
  }
  if (!built.loss.defined()) return;
  for (const Tensor& g : Tensor::gradient(built.loss, built.leaves)) built.results.push_back(g);
}

}  // namespace

void realize_results(const Program& program, std::vector<Tensor>& results) {
  const size_t outputs = program.outputs.size();
  std::vector<Tensor*> first, second;
  for (size_t i = 0; i < results.size(); ++i) {
    if (program.grouping == 2) results[i].realize();
    (program.grouping == 0 || i >= outputs ? first : second).push_back(&results[i]);
  }
  Tensor::realize(first);
  Tensor::realize(second);
}

Built build(const Program& program, const BuildOptions& options) {
  Built built;
  for (size_t n = 0; n < program.steps.size(); ++n) {
    const Step& s = program.steps[n];
    if (s.row == row_named("realize")) {
      if (options.realizes) realize(built.values, s.in);
      built.values.emplace_back();
      continue;
    }
    std::vector<Tensor> in;
    for (int i : s.in) in.push_back(built.values[static_cast<size_t>(i)]);
    const bool is_leaf = has(row_of(s), 'l');
    Tensor value = is_leaf && options.leaf ? options.leaf(s) : row_of(s).make({s, in});
    if (options.made) value = options.made(n, value);
    if (is_leaf && !options.devices.empty()) value = sharded(value, s, options.devices);
    if (wants_gradient(program, s)) {
      value.requires_grad_();
      built.leaves.push_back(value);
    }
    built.values.push_back(std::move(value));
  }
  for (int i : program.outputs) built.results.push_back(built.values[static_cast<size_t>(i)]);
  if (program.gradient) add_loss(program, options, built);
  return built;
}

}  // namespace tiny::programs
