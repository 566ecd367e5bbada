// Control flow: branches whose condition has a value, loops unrolled.
#include <algorithm>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

// Of an unrolled loop: each round is a graph of its own.
constexpr int64_t kMaxRounds = 1 << 16;

bool truth_of(Call& c, const Tensor& x) {
  const HostArray value = c.around().values_of(x);
  c.require(value.size() == 1 && value.dtype.is_bool(), "the condition is ", value.dtype, ' ',
            to_text(value.shape), ", expected one bool");
  return value.integers[0] != 0;
}

Tensors if_operator(Call& c) {
  return c.around().run(c.graph(truth_of(c, c[0]) ? "then_branch" : "else_branch"), {});
}

// What no round has collected, of the dtype and shape that the body says of it.
Tensor nothing_of(Call& c, const ValueInfo& value) {
  const auto dtype = dtype_of_type(value.type);
  c.require(dtype && value.shape, "no round runs, and the body does not say what ", value.name,
            " is: the shape of what it collects is not known");
  Shape shape{0};
  for (const Dimension& d : *value.shape) {
    c.require(d.value >= 0, "no round runs, and a size of ", value.name,
              ", which the loop collects, is not known");
    shape.push_back(d.value);
  }
  return Tensor::zeros(shape, *dtype);
}

// The body takes the round, the condition and what is carried on, and gives the condition, what is
// carried on and what is collected of each round.
Tensors loop(Call& c) {
  const Graph& body = c.graph("body");
  const size_t carried = body.inputs.size() - std::min<size_t>(2, body.inputs.size());
  c.require(c.size() >= 2 && carried == c.size() - 2 && body.outputs.size() >= carried + 1,
            "a body of ", body.inputs.size(), " inputs and ", body.outputs.size(), " outputs for ",
            c.size(), " inputs");
  const int64_t rounds = c.has(0) ? c.host_integers(0).at(0) : INT64_MAX;
  Tensor condition = c.has(1) ? c[1] : Tensor::full({}, true);
  Tensors state(c.inputs().begin() + 2, c.inputs().end());
  std::vector<Tensors> collected(body.outputs.size() - 1 - carried);
  for (int64_t i = 0; i < rounds && truth_of(c, condition); ++i) {
    c.require(i < kMaxRounds, "more than ", kMaxRounds, " rounds");
    Tensors inputs = {c.constant(Shape{i}, Shape()), condition};
    inputs.insert(inputs.end(), state.begin(), state.end());
    const Tensors out = c.around().run(body, inputs);
    condition = out[0];
    for (size_t s = 0; s < carried; ++s) state[s] = out[s + 1];
    for (size_t s = 0; s < collected.size(); ++s) collected[s].push_back(out[s + 1 + carried]);
  }
  for (size_t s = 0; s < collected.size(); ++s)
    state.push_back(collected[s].empty() ? nothing_of(c, body.outputs[s + 1 + carried])
                                         : Tensor::stack(collected[s]));
  return state;
}

// Axes and directions of what is scanned: attributes with a value for each.
Shape scan_attribute(Call& c, const char* name, size_t count) {
  const Shape out = c.integers(name, Shape(count, 0));
  c.require(out.size() == count, name, " has ", out.size(), " values, expected ", count);
  return out;
}

// Slices of the scanned inputs, one for each step, and what the body makes of them.
Tensors scan_once(Call& c, const Tensors& inputs, size_t scanned) {
  const Graph& body = c.graph("body");
  c.require(scanned > 0 && scanned <= inputs.size() && body.inputs.size() == inputs.size(), scanned,
            " of ", inputs.size(), " inputs are scanned by a body of ", body.inputs.size());
  const size_t carried = inputs.size() - scanned;
  c.require(body.outputs.size() >= carried, "a body of ", body.outputs.size(), " outputs");
  const size_t results = body.outputs.size() - carried;
  const bool is_old = c.opset() < 9;
  const Shape axes = scan_attribute(c, "scan_input_axes", scanned),
              backwards =
                  scan_attribute(c, is_old ? "directions" : "scan_input_directions", scanned),
              out_axes = scan_attribute(c, "scan_output_axes", results),
              out_backwards = scan_attribute(c, "scan_output_directions", results);
  Tensors state(inputs.begin(), inputs.begin() + static_cast<int64_t>(carried));
  const int64_t steps = inputs[carried].size(axes[0]);
  c.require(steps > 0 && steps <= kMaxRounds, steps, " steps");
  std::vector<Tensors> collected(results);
  for (int64_t i = 0; i < steps; ++i) {
    Tensors given = state;
    for (size_t s = 0; s < scanned; ++s) {
      const int64_t at = backwards[s] != 0 ? steps - 1 - i : i;
      given.push_back(inputs[carried + s].select(axes[s], at));
    }
    const Tensors out = c.around().run(body, given);
    for (size_t s = 0; s < carried; ++s) state[s] = out[s];
    for (size_t s = 0; s < results; ++s) collected[s].push_back(out[carried + s]);
  }
  for (size_t s = 0; s < results; ++s) {
    if (out_backwards[s] != 0) std::ranges::reverse(collected[s]);
    state.push_back(Tensor::stack(collected[s], out_axes[s]));
  }
  return state;
}

Tensors scan(Call& c) {
  return scan_once(c, c.inputs(), static_cast<size_t>(c.integer("num_scan_inputs", 0)));
}

// Version 8 has a batch in front, each entry of which is scanned by itself.
Tensors scan_of_batch(Call& c) {
  c.require(!c.has(0), "lengths of sequences that differ are refused");
  std::vector<Tensors> by_entry;
  for (int64_t n = 0; n < c[1].size(0); ++n) {
    Tensors inputs;
    for (size_t i = 1; i < c.size(); ++i) inputs.push_back(c[i].select(0, n));
    by_entry.push_back(scan_once(c, inputs, static_cast<size_t>(c.integer("num_scan_inputs", 0))));
  }
  Tensors out;
  for (size_t i = 0; i < by_entry[0].size(); ++i) {
    Tensors parts;
    for (const Tensors& results : by_entry) parts.push_back(results[i]);
    out.push_back(Tensor::stack(parts));
  }
  return out;
}

constexpr Operator kControl[] = {
    {"If", 1, type_set(kBool), if_operator},
    {"Loop", 1, kAnything, loop},
    {"Scan", 8, kAnything, scan_of_batch},
    {"Scan", 9, kAnything, scan},
};

}  // namespace

std::span<const Operator> control_operators() { return kControl; }

}  // namespace tiny::onnx
