// Random tensor programs: lists of steps that stay meaningful when sizes change or steps go, so
// that a failing program can be made smaller. A program is a pure function of its seed.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny::fuzz {

enum class Fill : uint8_t { Small, Real, Bits, Index };  // values of a leaf

enum class Kind : uint8_t {
  Leaf,       // arg: shape
  Iota,       // arg: shape, then the axis
  Full,       // arg: shape, then the value
  Unary,      // op
  Tamed,      // op of 1 + x * x (Exp2: of x / (1 + x * x)): in its domain for every x
  Binary,     // op; the second operand is made harmless for divisions and shifts
  Where,      // condition, x, y
  Cast,       // dtype
  Flatten,    //
  Merge,      // arg: the first of two axes
  Split,      // arg: axis, factor
  Unsqueeze,  // arg: axis
  Permute,    // arg: axes
  Expand,     // arg: axis of size 1, new size
  Pad,        // arg: before, after per axis
  Shrink,     // arg: elements cut before, after per axis
  Flip,       // arg: flags
  Stride,     // arg: steps
  Reduce,     // op; arg: mask of axes
  Softmax,    // arg: axis
  Normalize,  // arg: mask of axes; (x - mean) / sqrt(variance + 1)
  Matmul,     // (..., k) and (k, m)
  Windows,    // arg: axis, size, step, dilation
  Gather,     // data, one index per axis of it
  Scatter,    // op; base, values, one index per axis of base
  Assign,     // old, new
  Contiguous,
  CumSum,  // arg: axis
};

struct Step {
  Kind kind = Kind::Leaf;
  Op op = Op::Add;
  DType dtype = kF32;
  std::vector<int> in = {};  // earlier steps
  Shape arg = {};
  Fill fill = Fill::Small;
  int64_t top = 0;  // Fill::Index: values -1 .. top
  uint64_t seed = 0;
};

struct Program {
  uint64_t seed = 0;
  std::vector<Step> steps;
  std::vector<int> outputs;
  bool gradient = false;  // every step has a gradient that rounding errors cannot turn around
};

Program random_program(uint64_t seed);

// The program's tensors on a device. Leaves of f32 want gradients where the program has them.
// Throws Error where sizes do not fit, as they may not while a program is being shrunk.
struct Built {
  std::vector<Tensor> leaves;  // those that want a gradient
  std::vector<Tensor> outputs;
  Tensor loss;  // a weighted sum of the float outputs, where there is a gradient
};
Built build(const Program& program, const std::string& device);

// The node of one step. Throws Error where the sources do not fit.
Node make_step(const Step& s, const std::vector<Node>& in, const std::string& device);

// A tensor filled by a counter-based generator.
Tensor leaf(DType dtype, const Shape& shape, Fill fill, int64_t top, uint64_t seed,
            const std::string& device);

// C++ that makes the same graph, for a bug report.
std::string to_cpp(const Program& program);

// The smallest program found by dropping outputs and steps and by shrinking sizes that still fails.
Program shrink(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace tiny::fuzz
