// What the programs that extra/kernelbench/translate.py writes are made of: each registers a
// problem, a function that makes its parameters and inputs and one that computes its outputs from
// them.
//
// Random values are hashes of an element's position in its stream (extra/kernelbench/draws.py has
// the same formula), so that PyTorch has them bit for bit.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::kernelbench {

using Tensors = std::vector<Tensor>;

struct Problem {
  int level, number;
  std::string name;
  Tensors (*make)();                   // parameters, buffers, inputs
  Tensors (*forward)(Tensors& given);  // the outputs; may assign to what is given
};

// All of them, in the order in which they were registered.
std::vector<Problem>& problems();

struct Register {
  explicit Register(const Problem& problem) { problems().push_back(problem); }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What draws depend on besides their stream. Without `by_formula` the draws of forward are those of
// the library, as a user's would be: for timing.
struct DrawState {
  uint32_t seed = 0;
  bool by_formula = true;
  std::string data;  // the folder of the files of read()
};
DrawState& draw_state();

// f32, uniform in [low, high).
Tensor uniform(const Shape& shape, uint32_t stream, double low, double high);
// f32, a bell of this mean and deviation: the sum of four uniform numbers.
Tensor bell(const Shape& shape, uint32_t stream, double mean, double deviation);
// i64, in [low, high).
Tensor integers(const Shape& shape, uint32_t stream, int64_t low, int64_t high);
// Those that forward draws.
Tensor forward_uniform(const Shape& shape, uint32_t stream);
Tensor forward_bell(const Shape& shape, uint32_t stream);
Tensor forward_dropout(const Tensor& x, double p, uint32_t stream);
// The elements of a file of DrawState::data, row-major: a constant that a module computes.
Tensor read(const std::string& file, DType dtype, const Shape& shape);

}  // namespace tiny::kernelbench
